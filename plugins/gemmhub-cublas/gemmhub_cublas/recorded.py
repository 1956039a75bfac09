"""Recorded launches: the kernel of a product, launched again without the library.

cublasLtMatmul takes some microseconds of host time to arrive at the same kernel launch every time: only the addresses
of A, B and D differ. So preparing a product captures it three times into a graph, each time with other addresses
(nothing runs), and compares the parameters of the one kernel in it. If every difference is an address that was passed
in, plus a constant, the launch is determined for all addresses of the same alignment, and a call is one
cuLaunchKernelEx with those words filled in. In every other case (several kernels, a memset, any word that is not
explained) nothing is recorded, and calls go through the library.

The parameters hold no state and no data: they are a pure function of the addresses, checked at each of the three. How a
version of the library packs them is not documented, so launches are recorded only with the versions of library and
driver with which the tests on a card (tests/test_device.py) passed: :data:`VERIFIED`.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import addressof, byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple

from gemmhub.backend import Run
from gemmhub.kit.cuda import Driver, DriverError, Gpu
from gemmhub.kit.cuda_launch import STREAM_WORD, WORD, LaunchAttribute, LaunchConfig

VERIFIED = {("13.1.0", (13, 0))}
"""Verified versions of cuBLASLt, each with the newest CUDA that the driver runs.

The tests on a card ran on an H100 and an H200, with torch 2.11 and driver 580.159.
"""

Enqueue = Callable[[int, int, int, int], None]
"""A function that enqueues the product of (a, b, out) on a stream."""

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphGetNodes": (c_void_p, c_void_p, c_void_p),
    "cuGraphNodeGetType": (c_void_p, c_void_p),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, c_void_p),
    "cuGraphKernelNodeGetAttribute": (c_void_p, c_int, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
}
_NON_BLOCKING, _RELAXED, _KERNEL_NODE = 1, 2, 0
_POINTER, _SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
_ATTRIBUTES = (2, 4, 5, 6, 8, 9, 10)
"""CUlaunchAttributeID: cooperative, cluster dimension, cluster scheduling policy, programmatic stream
serialization, priority, memory synchronisation domain map and domain.
"""
_DEFAULTS = {9: b"\x00\x01"}
"""Values of attributes whose default is not 0, without trailing zeros."""


class _NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("parameters", c_void_p),
        ("extra", ctypes.POINTER(c_void_p)),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class Node(NamedTuple):
    """A captured kernel launch."""

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    attributes: tuple[tuple[int, bytes], ...]
    parameters: bytes


class Patch(NamedTuple):
    """``parameters[word]`` is the address of operand ``operand`` plus ``offset``."""

    word: int
    operand: int
    offset: int


def record(gpu: Gpu, enqueue: Enqueue, alignments: tuple[int, int, int], fallback: Run) -> Run | None:
    """Return a function that launches what ``enqueue`` launches; None where it is not one explained kernel.

    ``alignments``: the alignments of a, b and out in bytes. Where a launch fails, ``fallback`` is called.
    """
    try:
        if not _declared(gpu.driver):
            return None
        samples = [_addresses(alignments, seed) for seed in range(3)]
        nodes = [_captured(gpu, enqueue, addresses) for addresses in samples]
    except DriverError:
        return None
    first = nodes[0]
    if first is None or any(node is None or node[:-1] != first[:-1] for node in nodes):
        return None
    patches = explained([node.parameters for node in nodes if node is not None], samples)
    return None if patches is None else _launcher(gpu, first, patches, fallback)


def _declared(driver: Driver) -> bool:
    """Declare the functions; return whether this driver has all of them."""
    for name, arguments in _FUNCTIONS.items():
        function = getattr(driver.cuda, name, None)
        if function is None:
            return False
        function.restype, function.argtypes = c_int, arguments
    return True


def _addresses(alignments: tuple[int, int, int], seed: int) -> tuple[int, int, int]:
    """Return addresses without memory, far apart, and aligned to no more than is promised."""
    generator = random.Random(seed)
    base = 0x7000_0000_0000
    a, b, out = (
        base + (i << 41) + (generator.randrange(1 << 24) << 16) + alignment * (2 * generator.randrange(64) + 1)
        for i, alignment in enumerate(alignments)
    )
    return a, b, out


def explained(parameters: list[bytes], samples: list[tuple[int, int, int]]) -> list[Patch] | None:
    """Return the words of the parameters that are addresses; None where a difference is not explained by an address."""
    size = len(parameters[0])
    if size % WORD or any(len(each) != size for each in parameters):
        return None
    rows = [memoryview(each).cast("Q") for each in parameters]
    patches = []
    for word in range(size // WORD):
        values = [row[word] for row in rows]
        if len(set(values)) == 1:
            continue
        matching = [
            Patch(word, operand, values[0] - samples[0][operand])
            for operand in range(3)
            if len({value - sample[operand] for value, sample in zip(values, samples)}) == 1
        ]
        if len(matching) != 1:
            return None
        patches += matching
    found = {patch.operand for patch in patches}
    return patches if found == {0, 1, 2} else None


@contextmanager
def _private_stream(gpu: Gpu) -> Iterator[int]:
    """Create a private stream, without disturbing other captures of this thread."""
    driver, stream = gpu.driver, c_void_p()
    with gpu.outside_captures():
        driver.call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        try:
            yield stream.value or 0
        finally:
            driver.call("cuStreamDestroy_v2", stream)


def _captured(gpu: Gpu, enqueue: Enqueue, addresses: tuple[int, int, int]) -> Node | None:
    """Return the launch of ``enqueue`` for these addresses; None unless it is one kernel."""
    driver, graph = gpu.driver, c_void_p()
    with _private_stream(gpu) as stream:
        driver.call("cuStreamBeginCapture_v2", stream, _RELAXED)
        failed = False
        try:
            enqueue(*addresses, stream)
        except Exception:
            failed = True  # the library refuses such addresses: nothing is recorded
        ended = driver.cuda.cuStreamEndCapture(stream, byref(graph))
        if ended or not graph.value:
            return None
        try:
            return None if failed else _only_kernel(driver, graph)
        finally:
            driver.call("cuGraphDestroy", graph)


def _only_kernel(driver: Driver, graph: c_void_p) -> Node | None:
    count, kind = c_size_t(2), c_int()
    nodes = (c_void_p * 2)()
    driver.call("cuGraphGetNodes", graph, None, byref(count))
    if count.value != 1:
        return None
    driver.call("cuGraphGetNodes", graph, nodes, byref(count))
    driver.call("cuGraphNodeGetType", nodes[0], byref(kind))
    if kind.value != _KERNEL_NODE:
        return None
    params = _NodeParams()
    driver.call("cuGraphKernelNodeGetParams_v2", nodes[0], byref(params))
    parameters = _buffer(params.extra)
    if parameters is None or not params.function:
        return None
    attributes = []
    for number in _ATTRIBUTES:
        value = (c_char * 64)()
        if driver.cuda.cuGraphKernelNodeGetAttribute(nodes[0], number, value) == 0:
            data = bytes(value)
            if data.rstrip(b"\0") != _DEFAULTS.get(number, b""):
                attributes.append((number, data))
    grid, block = tuple(params.grid), tuple(params.block)
    return Node(params.function, grid, block, params.shared, tuple(attributes), parameters)


def _buffer(extra: Any) -> bytes | None:
    """Return the parameters where the launch passed them in one buffer."""
    if not extra:
        return None
    address = size = None
    index = 0
    while index < 8 and extra[index]:
        if extra[index] == _POINTER:
            address = extra[index + 1]
        elif extra[index] == _SIZE:
            size = c_size_t.from_address(extra[index + 1]).value
        index += 2
    return ctypes.string_at(address, size) if address and size else None


class _Slot:
    """The memory of one launch while it is prepared: configuration and parameters."""

    def __init__(self, node: Node) -> None:
        size = len(node.parameters)
        self._memory = ctypes.create_string_buffer(size + 64)
        start = -addressof(self._memory) % 64
        self.words = (c_uint64 * (size // WORD)).from_buffer(self._memory, start)
        ctypes.memmove(self.words, node.parameters, size)
        self._size = c_size_t(size)
        self._extra = (c_void_p * 5)(_POINTER, addressof(self.words), _SIZE, addressof(self._size), 0)
        self._attributes = (LaunchAttribute * max(1, len(node.attributes)))()
        for attribute, (number, value) in zip(self._attributes, node.attributes):
            attribute.id = number
            ctypes.memmove(addressof(attribute) + WORD, value, len(value))
        self._config = LaunchConfig((c_uint * 3)(*node.grid), (c_uint * 3)(*node.block), node.shared, None, None, 0)
        self._config.attributes, self._config.count = addressof(self._attributes), len(node.attributes)
        self.config, self.extra = byref(self._config), byref(self._extra)
        self.a = self.b = self.out = -1
        """The addresses that ``words`` holds."""
        self.launch = (c_uint64 * (ctypes.sizeof(LaunchConfig) // WORD)).from_buffer(self._config)


def _launcher(gpu: Gpu, node: Node, patches: list[Patch], fallback: Run) -> Run:
    """Return a function that fills the patches of a slot and launches ``node``."""
    # A function without declared types, whose arguments are pointers already, saves 0.15 us of conversions a call.
    launch = ctypes.CFUNCTYPE(c_int)(ctypes.cast(gpu.driver.cuda.cuLaunchKernelEx, c_void_p).value or 0)
    function = byref(c_char.from_address(node.function))
    free: list[_Slot] = []
    a_places, b_places, out_places = (
        tuple((patch.word, patch.offset) for patch in patches if patch.operand == operand) for operand in range(3)
    )

    def run(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        try:
            slot = free.pop()  # one for each call between here and the launch
        except IndexError:
            slot = _Slot(node)
        words = slot.words
        if slot.a != a:
            slot.a = a
            for word, offset in a_places:
                words[word] = a + offset
        if slot.b != b:
            slot.b = b
            for word, offset in b_places:
                words[word] = b + offset
        if slot.out != out:
            slot.out = out
            for word, offset in out_places:
                words[word] = out + offset
        slot.launch[STREAM_WORD] = stream
        status = launch(slot.config, function, None, slot.extra)
        if status and not gpu.is_current():
            with gpu:
                status = launch(slot.config, function, None, slot.extra)
        free.append(slot)
        if status:
            # The library launches the product itself, or raises an error.
            fallback(a, b, out, c, bias, alpha, beta, stream)

    return run
