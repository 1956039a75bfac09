# ruff: noqa: N802 (methods are called as the C functions are)
"""Recorded launches: explained words, when a launch is recorded, and what it launches."""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from fake_lt import NUMPY, FakeLt, IllegalError
from fakes import Arrays, Home, bias, operand, problem
from gemmhub_cublas.recorded import Patch, _addresses, explained, record
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmhub.kit.cuda import Driver, Gpu
from gemmhub.testing.fake_cuda import CONTEXT, INVALID_CONTEXT, RELAXED, TYPES, FakeCuda
from gemmhub.testing.fake_kernels import LaunchConfig
from gemmhub.testing.fake_library import put

SAMPLES = [_addresses((16, 16, 16), seed) for seed in range(3)]
ALIGNMENTS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def block(*words):
    """Parameters of 8-byte words."""
    return struct.pack(f"={len(words)}Q", *words)


def blocks(function, samples=SAMPLES):
    """The parameters for each sample: the words that ``function`` gives for a, b, out."""
    return [block(*function(*sample)) for sample in samples]


# Explaining


def test_addresses_with_offsets():
    found = explained(blocks(lambda a, b, out: (7, b + 64, 0, a, out - 4096, 2**63)), SAMPLES)
    assert found == [Patch(1, 1, 64), Patch(3, 0, 0), Patch(4, 2, -4096)]


def test_an_operand_that_appears_twice():
    found = explained(blocks(lambda a, b, out: (out, a, b, out + 32, a)), SAMPLES)
    assert found == [Patch(0, 2, 0), Patch(1, 0, 0), Patch(2, 1, 0), Patch(3, 2, 32), Patch(4, 0, 0)]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_operand_that_is_missing(missing):
    """What reads or writes it does not get its address from these parameters."""
    kept = [i for i in range(3) if i != missing]
    assert explained(blocks(lambda *abc: [5, *(abc[i] for i in kept)]), SAMPLES) is None


def test_no_parameters_at_all():
    assert explained([b"", b"", b""], SAMPLES) is None


@pytest.mark.parametrize("word", [
    lambda a, b, out: a >> 4,
    lambda a, b, out: a & 0xFFFFFFFF,
    lambda a, b, out: (a << 32 | a >> 32) & (2**64 - 1),  # not at a multiple of 8 bytes
    lambda a, b, out: out - a,
    lambda a, b, out: a ^ b,
    lambda a, b, out: 2 * b,
    lambda a, b, out: 2**64 - out,
    lambda a, b, out: a & ~0xFF,  # rounded down; the samples are not multiples of 256
])  # fmt: skip
def test_a_word_that_is_not_explained(word):
    assert explained(blocks(lambda *abc: abc), SAMPLES) is not None
    assert explained(blocks(lambda *abc: (*abc, word(*abc))), SAMPLES) is None


def test_a_word_that_counts():
    parameters = [block(*sample, i) for i, sample in enumerate(SAMPLES)]
    assert explained(parameters, SAMPLES) is None


def test_one_sample_that_differs():
    """Each of the three is looked at."""
    for i in range(3):
        for word in range(4):
            parameters = [bytearray(each) for each in blocks(lambda *abc: (*abc, 9))]
            parameters[i][8 * word] ^= 1
            assert explained([bytes(each) for each in parameters], SAMPLES) is None


def test_an_ambiguous_word():
    """Samples whose operands are equally far apart do not identify the operand of an address."""
    samples = [(a, a + 64, out) for a, _, out in SAMPLES]
    assert explained(blocks(lambda *abc: abc, samples), samples) is None


@pytest.mark.parametrize("extra", [1, 4, 7])
def test_a_size_that_is_not_whole_words(extra):
    assert explained([each + bytes(extra) for each in blocks(lambda *abc: abc)], SAMPLES) is None


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_different_lengths(changed):
    parameters = blocks(lambda *abc: abc)
    parameters[changed] += bytes(8)
    assert explained(parameters, SAMPLES) is None


CONSTANT = st.tuples(st.none(), st.integers(0, 2**64 - 1))
ADDRESS = st.tuples(st.integers(0, 2), st.integers(-(2**40), 2**40))


@st.composite
def descriptions(draw):
    """What each word is: (None, value), or (operand, offset); every operand is there."""
    words = draw(st.lists(CONSTANT | ADDRESS, max_size=40))
    words += [(i, draw(st.integers(-1000, 1000))) for i in range(3)]
    return draw(st.permutations(words))


def filled(words, addresses):
    return block(*(value if i is None else addresses[i] + value for i, value in words))


@given(descriptions(), st.tuples(*[st.integers(2**40, 2**63)] * 3))
@settings(deadline=None)
def test_explained_parameters_can_be_made_for_any_addresses(words, addresses):
    parameters = [filled(words, sample) for sample in SAMPLES]
    found = explained(parameters, SAMPLES)
    assert found == [Patch(word, i, value) for word, (i, value) in enumerate(words) if i is not None]
    made = list(struct.unpack(f"={len(words)}Q", parameters[0]))
    for patch in found:
        made[patch.word] = addresses[patch.operand] + patch.offset
    assert block(*made) == filled(words, addresses)


@given(descriptions(), st.data())
@settings(deadline=None)
def test_a_changed_word_is_never_explained(words, data):
    """One word of one sample is another than the rule says."""
    parameters = [filled(words, sample) for sample in SAMPLES]
    which, word = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(words) - 1))
    change = data.draw(st.integers(1, 2**64 - 1))
    (value,) = struct.unpack_from("=Q", parameters[which], 8 * word)
    changed = bytearray(parameters[which])
    struct.pack_into("=Q", changed, 8 * word, value ^ change)
    parameters[which] = bytes(changed)
    assert explained(parameters, SAMPLES) is None


# Addresses to explain by


@given(st.tuples(*[st.sampled_from(ALIGNMENTS)] * 3))
@settings(deadline=None)
def test_addresses_are_aligned_as_promised_and_no_more(alignments):
    """A kernel that looks at the alignment must see the least there may be."""
    samples = [_addresses(alignments, seed) for seed in range(3)]
    for sample in samples:
        assert [address & -address for address in sample] == list(alignments)
        a, b, out = sample
        assert 2**46 < a < b < out < 2**47, "what a user's device memory may have"
        assert min(b - a, out - b) > 2**39, "no operand reaches into the next one"
    for i, j in itertools.combinations(range(3), 2):
        distances = {sample[j] - sample[i] for sample in samples}
        assert len(distances) == 3, "or explanations would be ambiguous"
    assert [len({sample[i] for sample in samples}) for i in range(3)] == [3, 3, 3]


# The fake driver: streams, captures, graphs of one or more nodes, launches

INVALID_VALUE, CAPTURE_INVALIDATED = 1, 901
KERNEL, MEMSET = 0, 2
POINTER, SIZE, END = 1, 2, 0


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_: ClassVar = [
        ("func", c_uint64), ("gridDimX", c_uint), ("gridDimY", c_uint), ("gridDimZ", c_uint),
        ("blockDimX", c_uint), ("blockDimY", c_uint), ("blockDimZ", c_uint), ("sharedMemBytes", c_uint),
        ("kernelParams", c_uint64), ("extra", c_uint64), ("kern", c_uint64), ("ctx", c_uint64),
    ]  # fmt: skip


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h."""

    _fields_: ClassVar = [("id", c_uint), ("pad", c_char * 4), ("value", c_char * 64)]


@dataclass(frozen=True)
class Kernel:
    """A launch that a library might make."""

    parameters: bytes = b""
    function: int = 0xF00
    grid: tuple = (3, 2, 1)
    block: tuple = (128, 1, 1)
    shared: int = 1024
    attributes: dict = field(default_factory=dict)
    """By CUlaunchAttributeID, the bytes before trailing zeros."""
    packed: bool = True
    """Whether parameters are in one buffer; else one by one."""
    kind: int = KERNEL


def three(text, count):
    return [f"{text}{axis}" for axis in "XYZ"[:count]]


class RecordingCuda(FakeCuda):
    """Also captures, graphs and launches. Memory of a destroyed graph is overwritten."""

    failed = 999
    types: ClassVar = TYPES | {
        name: (c_int, arguments)
        for name, arguments in {
            "cuStreamBeginCapture_v2": (c_void_p, c_int),
            "cuStreamEndCapture": (c_void_p, c_void_p),
            "cuGraphGetNodes": (c_void_p, c_void_p, c_void_p),
            "cuGraphNodeGetType": (c_void_p, c_void_p),
            "cuGraphKernelNodeGetParams_v2": (c_void_p, c_void_p),
            "cuGraphKernelNodeGetAttribute": (c_void_p, c_int, c_void_p),
            "cuGraphDestroy": (c_void_p,),
            "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
        }.items()
    }

    def __init__(self, **given):
        super().__init__(**given)
        self.streams, self.graphs, self.nodes = set(), {}, {}
        """Alive."""
        self.begun = {}
        """Nodes of captures that go on, by stream."""
        self.spoilt = set()
        """Which captures (0 is the first) end with an error."""
        self.unknown = set()
        """Attributes that this driver does not know."""
        self.launches, self.slots = [], set()
        self.pause = 0.0
        self.most_at_once = 0
        self.functions = {}
        """What launches do, by function."""
        self._busy = {}

    def clean(self):
        """Nothing is left over, in this thread either."""
        return not (self.streams or self.graphs or self.begun or self.captures or self.stack)

    def add(self, stream, *kernels):
        """What a library's launch on a stream that is being captured does."""
        assert stream in self.begun, f"{stream} is not captured"
        self.begun[stream] += kernels

    def _cuStreamCreate(self, out, flags):
        super()._cuStreamCreate(out, flags)
        self.streams.add(c_void_p.from_address(out).value)

    def _cuStreamDestroy_v2(self, stream):
        assert stream not in self.begun
        self.streams.remove(stream)

    def _cuStreamBeginCapture_v2(self, stream, mode):
        assert mode == RELAXED
        assert stream in self.streams
        self.begun[stream] = []
        self.captures[stream] = next(self._handles)

    def _cuStreamEndCapture(self, stream, out):
        del self.captures[stream]
        if self.calls.count("cuStreamEndCapture") - 1 in self.spoilt:
            del self.begun[stream]
            put(out, c_void_p, None)
            return CAPTURE_INVALIDATED
        graph = next(self._handles)
        self.graphs[graph] = []
        for kernel in self.begun.pop(stream):
            node = next(self._handles)
            self.nodes[node] = kernel, *self._extra(kernel)
            self.graphs[graph].append(node)
        put(out, c_void_p, graph)
        return 0

    def _extra(self, kernel):
        """A launch's ``extra``, and what it points to."""
        buffer = ctypes.create_string_buffer(kernel.parameters, len(kernel.parameters) or 1)
        size = c_size_t(len(kernel.parameters))
        extra = (c_uint64 * 5)(SIZE, ctypes.addressof(size), POINTER, ctypes.addressof(buffer), END)
        return extra, buffer, size

    def _cuGraphGetNodes(self, graph, nodes, count):
        known = self.graphs[graph]
        if nodes is not None:
            for i, node in enumerate(known[: c_size_t.from_address(count).value]):
                put(nodes + 8 * i, c_void_p, node)
        put(count, c_size_t, len(known))

    def _cuGraphNodeGetType(self, node, out):
        put(out, c_int, self.nodes[node][0].kind)

    def _cuGraphKernelNodeGetParams_v2(self, node, out):
        kernel, extra, _, _ = self.nodes[node]
        assert kernel.kind == KERNEL
        params = KernelNodeParams.from_address(out)
        params.func, params.sharedMemBytes = kernel.function, kernel.shared
        for name, sizes in (("gridDim", kernel.grid), ("blockDim", kernel.block)):
            for each, value in zip(three(name, 3), sizes):
                setattr(params, each, value)
        params.kernelParams = 0 if kernel.packed else ctypes.addressof(extra)
        params.extra = ctypes.addressof(extra) if kernel.packed else 0

    def _cuGraphKernelNodeGetAttribute(self, node, number, out):
        if number in self.unknown:
            return INVALID_VALUE
        value = self.nodes[node][0].attributes.get(number, b"\0\1" if number == 9 else b"")
        ctypes.memmove(out, value.ljust(64, b"\0"), 64)
        return 0

    def _cuGraphDestroy(self, graph):
        for node in self.graphs.pop(graph):
            _, extra, buffer, _ = self.nodes.pop(node)
            ctypes.memset(extra, 0xEE, ctypes.sizeof(extra))
            ctypes.memset(buffer, 0xEE, len(buffer))

    def _cuLaunchKernelEx(self, config, function, params, extra):
        if self.context != CONTEXT:
            return INVALID_CONTEXT
        found = self._launch(config, function, params, extra)
        with self._lock():
            assert config not in self._busy, "two threads launch from the same memory"
            self._busy[config] = found
            self.slots.add(config)
            self.most_at_once = max(self.most_at_once, len(self._busy))
        time.sleep(self.pause)
        assert self._launch(config, function, params, extra) == found, "changed during the launch"
        with self._lock():
            del self._busy[config]
            self.launches.append(found)
        if function in self.functions:
            self.functions[function](found)

    def _lock(self):
        return self.__dict__.setdefault("_mutex", threading.Lock())

    def _launch(self, config, function, params, extra):
        """(kernel, stream) as the driver reads it, once."""
        assert params is None
        assert config % 8 == 0
        given = LaunchConfig.from_address(config)
        attributes = (LaunchAttribute * given.numAttrs).from_address(given.attrs)
        values = {x.id: ctypes.string_at(ctypes.addressof(x) + 8, 64).rstrip(b"\0") for x in attributes}
        words = (c_uint64 * 5).from_address(extra)
        assert words[4] == END
        pairs = dict(zip(words[0:4:2], words[1:4:2]))
        assert pairs[POINTER] % 64 == 0, "tensor maps among the parameters must lie at multiples of 64 bytes"
        parameters = ctypes.string_at(pairs[POINTER], c_size_t.from_address(pairs[SIZE]).value)
        grid, block = (tuple(getattr(given, each) for each in three(name, 3)) for name in ("gridDim", "blockDim"))
        return Kernel(parameters, function, grid, block, given.sharedMemBytes, values), given.hStream


class Machine:
    """A driver, and a library that launches ``kernel`` with ``words`` of the addresses."""

    def __init__(self):
        self.cuda = RecordingCuda()
        self.gpu = Gpu(Driver(self.cuda), 0)
        self.kernel, self.words = Kernel(), lambda a, b, out: (11, b + 256, a, 13, out, a + 64)
        self.enqueued, self.fallen_back = [], []

    def filled(self, a, b, out):
        return replace(self.kernel, parameters=block(*self.words(a, b, out)))

    def enqueue(self, a, b, out, stream):
        self.enqueued.append((a, b, out))
        self.cuda.add(stream, self.filled(a, b, out))

    def fallback(self, *given):
        self.fallen_back.append(given)

    def record(self, enqueue=None, alignments=(16, 16, 16)):
        return record(self.gpu, enqueue or self.enqueue, alignments, self.fallback)


@pytest.fixture
def machine():
    machine = Machine()
    yield machine
    assert machine.cuda.complaints == []
    assert machine.cuda.clean()
    assert machine.cuda.mode == 0


def call(run, a, b, out, stream):
    run(a, b, out, None, None, 1, 0, stream)


# Making recordings


def test_nothing_runs_while_it_is_recorded(machine):
    assert machine.record(alignments=(2, 16, 256)) is not None
    assert machine.cuda.launches == []
    assert len(machine.enqueued) == 3
    for addresses in machine.enqueued:
        assert [address & -address for address in addresses] == [2, 16, 256]


def test_launches_are_what_the_library_would_launch(machine):
    """In any order of addresses, also with only some of them changed."""
    run = machine.record()
    choices = [[0x10_0000, 0x20_0000], [0x30_0000, 2**47 - 256], [0x50_0000, 0x60_0000]]
    rng = np.random.default_rng(0)
    expected = []
    for turn in range(60):
        a, b, out = (each[rng.integers(2)] for each in choices)
        stream = int(rng.choice([0, 1, 2, 2**47]))
        call(run, a, b, out, stream)
        expected.append((machine.filled(a, b, out), stream))
        assert machine.cuda.launches[turn] == expected[turn]
    assert len({stream for _, stream in expected}) == 4
    assert len(machine.cuda.slots) == 1, "one thread needs the memory of one launch"
    assert machine.fallen_back == []
    assert machine.cuda.calls.count("cuLaunchKernelEx") == 60


def test_operands_may_be_the_same(machine):
    run = machine.record()
    call(run, 4096, 4096, 4096, 5)
    assert machine.cuda.launches == [(machine.filled(4096, 4096, 4096), 5)]


@given(descriptions(), st.lists(st.tuples(*[st.integers(2**41, 2**47)] * 4), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_any_parameters(words, calls):
    machine = Machine()
    machine.words = lambda *abc: [value if i is None else abc[i] + value for i, value in words]
    run = machine.record()
    for a, b, out, stream in calls:
        call(run, a, b, out, stream)
    assert machine.cuda.launches == [(machine.filled(a, b, out), stream) for a, b, out, stream in calls]
    assert machine.cuda.complaints == []


ATTRIBUTES = {
    2: b"\1",  # cooperative
    4: struct.pack("3I", 2, 1, 1).rstrip(b"\0"),  # clusters of two CTAs
    5: b"\1",  # scheduling policy of clusters
    6: b"\1",  # programmatic stream serialization
    8: struct.pack("i", -3),  # priority
}


@pytest.mark.parametrize("attributes", [{}, *({k: v} for k, v in ATTRIBUTES.items()), ATTRIBUTES, {9: b"\1\0\2"}])
def test_attributes_are_launched_with(machine, attributes):
    machine.kernel = Kernel(attributes=attributes)
    call(machine.record(), 1, 2, 3, 4)
    assert machine.cuda.launches == [(machine.filled(1, 2, 3), 4)]


def test_an_attribute_that_the_driver_does_not_know(machine):
    machine.cuda.unknown = {9, 10}
    call(machine.record(), 1, 2, 3, 4)
    assert machine.cuda.launches == [(machine.filled(1, 2, 3), 4)]


def test_launches_of_threads_have_memory_of_their_own(machine):
    """Concurrent launches have their own addresses."""
    run, threads, turns = machine.record(), 8, 12
    machine.cuda.pause = 2e-3
    gate = threading.Barrier(threads)

    def work(thread):
        gate.wait()
        for turn in range(turns):
            call(run, 0x1000 * thread + turn, 0x10_0000 + thread, 0x20_0000 + turn, thread)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    asked = {
        thread: [machine.filled(0x1000 * thread + i, 0x10_0000 + thread, 0x20_0000 + i) for i in range(turns)]
        for thread in range(threads)
    }
    found = {thread: [kernel for kernel, stream in machine.cuda.launches if stream == thread] for thread in asked}
    assert found == asked
    assert machine.fallen_back == []
    assert 1 < machine.cuda.most_at_once <= len(machine.cuda.slots) <= threads


# No recordings


def changed(**changes):
    """A library whose launch is another one for the second addresses."""

    def enqueue(machine, a, b, out, stream):
        kernel = machine.filled(a, b, out)
        machine.enqueued.append((a, b, out))
        machine.cuda.add(stream, replace(kernel, **changes) if len(machine.enqueued) == 2 else kernel)

    return enqueue


def always(*changes):
    """A library that launches the kernel with each of ``changes``, one after the other."""
    return lambda machine, *abc, stream=None: machine.cuda.add(
        abc[3], *(replace(machine.filled(*abc[:3]), **each) for each in changes)
    )


def raising(machine, a, b, out, stream):
    raise ValueError("CUBLAS_STATUS_INVALID_VALUE")


def raising_late(machine, a, b, out, stream):
    machine.enqueue(a, b, out, stream)
    raise ValueError("CUBLAS_STATUS_EXECUTION_FAILED")


def raising_once(machine, a, b, out, stream):
    machine.enqueue(a, b, out, stream)
    if len(machine.enqueued) == 3:
        raise ValueError("CUBLAS_STATUS_INVALID_VALUE")


NOT_RECORDED = {
    "nothing": always(),
    "two kernels": always({}, {"function": 0xF01}),
    "three kernels": always({}, {}, {}),
    "a memset": always({"kind": MEMSET}),
    "a memset and a kernel": always({"kind": MEMSET}, {}),
    "parameters one by one": always({"packed": False}),
    "no parameters": always({"parameters": b""}),
    "no function": always({"function": 0}),
    "another function": changed(function=0xF01),
    "another grid": changed(grid=(3, 2, 2)),
    "another block": changed(block=(256, 1, 1)),
    "other shared memory": changed(shared=2048),
    "another cluster": changed(attributes={4: b"\2"}),
    "other parameters": changed(parameters=block(1, 2, 3, 4, 5, 6)),
    "more parameters": changed(parameters=block(1, 2, 3, 4, 5, 6, 7)),
    "half a word": always({"parameters": bytes(52)}),
    "no addresses": always({"parameters": bytes(48)}),
    "two kernels once": lambda machine, a, b, out, stream: (
        machine.enqueue(a, b, out, stream),
        len(machine.enqueued) == 3 and machine.cuda.add(stream, Kernel()),
    ),
    "an exception": raising,
    "an exception after the launch": raising_late,
    "an exception for the last addresses": raising_once,
}


@pytest.mark.parametrize("enqueue", NOT_RECORDED.values(), ids=NOT_RECORDED)
def test_no_recording(machine, enqueue):
    """And nothing is left over: see the fixture."""
    assert machine.record(lambda *given: enqueue(machine, *given)) is None
    assert machine.cuda.launches == machine.fallen_back == []


NEEDED = sorted(RecordingCuda.types.keys() - TYPES.keys() | {"cuStreamCreate", "cuStreamDestroy_v2"})


@pytest.mark.parametrize("name", NEEDED)
def test_a_driver_without_a_function(machine, name):
    delattr(machine.cuda, name)
    assert machine.record() is None
    assert machine.enqueued == []


class Faults(dict):
    """The fault of one function, from its ``first`` call to its ``last``."""

    def __init__(self, name, first, last):
        super().__init__({name: 999})
        self.name, self.first, self.last, self.count = name, first, last, 0

    def __contains__(self, name):
        self.count += name == self.name
        return name == self.name and self.first <= self.count <= self.last


CALLED = [
    "cuCtxPushCurrent_v2", "cuStreamCreate", "cuStreamBeginCapture_v2", "cuGraphGetNodes", "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams_v2",
]  # fmt: skip


@pytest.mark.parametrize(("first", "last"), [(1, 99), (1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("name", CALLED)
def test_a_driver_error(name, first, last):
    machine = Machine()
    machine.cuda.faults = faults = Faults(name, first, last)
    assert machine.record() is None
    assert faults.count >= first, "it was called"
    machine.cuda.faults = {}
    assert machine.cuda.clean()
    assert machine.cuda.mode == 0
    assert machine.cuda.complaints == []
    assert machine.record() is not None, "the next one"


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_capture_that_is_spoilt(machine, which):
    """The library did something that may not be captured."""
    machine.cuda.spoilt = {which}
    assert machine.record() is None
    assert len(machine.enqueued) == 3


@pytest.mark.parametrize("name", ["cuStreamDestroy_v2", "cuGraphDestroy"])
def test_an_error_when_clearing_up(name):
    """What can still be cleared up is."""
    machine = Machine()
    machine.cuda.faults = {name: 700}
    assert machine.record() is None
    assert machine.cuda.mode == 0
    assert machine.cuda.stack == []
    left = {"cuStreamDestroy_v2": machine.cuda.graphs, "cuGraphDestroy": machine.cuda.streams}[name]
    assert not left


def test_without_a_context(machine):
    """The thread that records need not have one."""
    assert machine.cuda.stack == []
    assert machine.record() is not None
    assert machine.cuda.stack == []


# Captures of others


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("enqueue", [Machine.enqueue, raising, always({"kind": MEMSET})])
def test_the_capture_mode_is_left_as_it_was(mode, enqueue):
    machine = Machine()
    machine.cuda._local.mode = mode
    modes = []

    def watching(*given):
        modes.append(machine.cuda.mode)
        enqueue(machine, *given)

    machine.record(watching)
    assert set(modes) == {RELAXED}
    assert machine.cuda.mode == mode
    assert machine.cuda.clean()


def test_a_capture_that_goes_on_is_left_alone(machine):
    """A product may be prepared while its caller captures a stream."""
    machine.cuda.captures[0xCAFE] = 77
    assert machine.record() is not None
    assert machine.cuda.captures == {0xCAFE: 77}
    assert machine.cuda.invalidated == set()
    machine.cuda.captures.clear()


# Launches that fail


def test_a_launch_that_fails_goes_through_the_library(machine):
    run = machine.record()
    given = (0x1000, 0x2000, 0x3000, None, None, 1.0, 0.0, 42)
    run(*given)
    machine.cuda.faults["cuLaunchKernelEx"] = 201
    for out in (0x3000, 0x4000):
        run(*given[:2], out, *given[3:])
    assert machine.fallen_back == [given, (*given[:2], 0x4000, *given[3:])]
    machine.cuda.faults.clear()
    run(*given)
    assert machine.cuda.launches == [(machine.filled(*given[:3]), 42)] * 2
    assert len(machine.fallen_back) == 2


@pytest.mark.parametrize("context", [None, 0x2000], ids=["none", "another"])
def test_a_thread_whose_context_is_not_the_devices(machine, context):
    """A launch in another context is repeated in the device's; the thread keeps its context."""
    run, given = machine.record(), (0x1000, 0x2000, 0x3000, None, None, 1.0, 0.0, 42)

    def work():
        machine.cuda.stack.extend([context] if context else [])
        run(*given)
        return machine.cuda.stack

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == ([context] if context else [])
    assert machine.cuda.launches == [(machine.filled(*given[:3]), 42)]
    assert machine.fallen_back == []


def test_what_the_fallback_raises_is_raised(machine):
    def fallback(*given):
        raise MemoryError("no context")

    run = record(machine.gpu, machine.enqueue, (16, 16, 16), fallback)
    machine.cuda.faults["cuLaunchKernelEx"] = 201
    with pytest.raises(MemoryError, match="no context"):
        call(run, 1, 2, 3, 0)


# Products of the backend


class RecordingLt(FakeLt):
    """On a stream that is being captured a product without workspace is one kernel, else two."""

    def _cublasLtMatmul(
        self, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, nbytes,
        stream,
    ):  # fmt: skip
        if stream not in self.cuda.captures:
            return super()._cublasLtMatmul(
                handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, nbytes,
                stream,
            )  # fmt: skip
        described, layouts = self._operands(desc, a_layout, b_layout, c_layout, d_layout)
        need = self._needs(self._config_of(algo)[0], described, layouts)
        for address, layout in zip((a, b, c, d), layouts):
            if address % max(need, NUMPY[layout[0]].itemsize):
                raise IllegalError(f"{address} for an algorithm that needs {need} bytes")
        function = 0xF000 + desc % 0x1000 + algo
        kernel = Kernel(block(algo % 64, a, b, c, d), function)
        self.cuda.add(stream, kernel)

        def launched(found):
            kernel, stream = found
            _, a, b, c, d = struct.unpack("=5Q", kernel.parameters)
            super(RecordingLt, self)._cublasLtMatmul(
                handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, None, 0, stream
            )

        self.cuda.functions[function] = launched
        return 0


class RecordingHome(Home):
    def __init__(self, **cuda):
        self.cuda = RecordingCuda(**cuda)
        self.lt = RecordingLt(self.cuda)


@pytest.fixture
def home():
    home = RecordingHome()
    yield home
    assert home.cuda.complaints == []
    assert home.cuda.clean()


def prepared(home, asked):
    backend = home.backend()
    return backend.prepare(asked, backend.candidates(asked)[0], 2**26)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_a_plain_product_is_one_launch(home, dtype, order):
    """Launches are right for both orders of the result, one of which swaps a and b."""
    asked = problem(m=48, n=32, k=16, dtype=dtype, d="row", b=order)
    run, arrays = prepared(home, asked), Arrays(home, asked)
    if order == "col":
        arrays.b = np.ascontiguousarray(arrays.b.T).T
        home.cuda.regions[arrays.b.ctypes.data] = arrays.b.nbytes
    home.lt.calls.clear()
    home.cuda.calls.clear()
    for stream in (7, 9):
        arrays.out[...] = 0
        assert np.allclose(arrays.run(run, stream=stream), arrays.a @ arrays.b)
    assert home.cuda.calls == ["cuLaunchKernelEx"] * 2
    assert home.lt.calls == []
    assert [product[3] for product in home.lt.products] == [7, 9]


def test_a_column_major_result(home):
    asked = problem(m=48, n=32, k=16, a="col", b="col", d="col")
    run, arrays = prepared(home, asked), Arrays(home, asked)
    # The same bytes, read down columns.
    a, b = arrays.a.reshape(16, 48).T, arrays.b.reshape(32, 16).T
    assert np.array_equal(arrays.run(run).reshape(32, 48).T, a @ b)
    assert [launch.function for launch, _ in home.cuda.launches] == list(home.cuda.functions)


@pytest.mark.parametrize("alignment", [2, 4, 8, 16])
def test_the_promised_alignment_is_what_is_recorded_with(home, alignment):
    """The fake's algorithms refuse misaligned addresses, in a capture too."""
    asked = problem(m=32, n=32, k=32, dtype="float16")
    parts = {name: replace(getattr(asked, name), alignment=alignment) for name in ("a", "b", "out")}
    asked = replace(asked, **parts)
    run, arrays = prepared(home, asked), Arrays(home, asked, offset=alignment)
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert len(home.cuda.launches) == 1


@pytest.mark.parametrize("changes", [
    {"bias": bias()}, {"c": operand("float32", 16, 16)}, {"alpha_is_one": False}, {"m": 17, "n": 16, "k": 512},
])  # fmt: skip
def test_other_products_are_not_recorded(home, changes):
    """What needs a bias, scalars or workspace depends on more than three addresses."""
    asked = problem(**changes)
    run, arrays = prepared(home, asked), Arrays(home, asked)
    expected = arrays.a @ arrays.b + (arrays.bias if arrays.bias is not None else 0)
    assert np.array_equal(arrays.run(run), expected)
    assert home.cuda.launches == []
    assert "cuStreamBeginCapture_v2" not in home.cuda.calls


def test_a_launch_that_fails_in_a_product(home):
    asked = problem()
    run, arrays = prepared(home, asked), Arrays(home, asked)
    home.cuda.faults["cuLaunchKernelEx"] = 201
    home.lt.calls.clear()
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert home.lt.calls == ["cublasLtMatmul"]


def test_a_driver_that_cannot_record_a_product(home):
    asked, backend = problem(), home.backend()
    del home.cuda.cuLaunchKernelEx
    run, arrays = backend.prepare(asked, backend.candidates(asked)[0], 2**26), Arrays(home, asked)
    home.lt.calls.clear()
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert home.lt.calls == ["cublasLtMatmul"]


@pytest.mark.parametrize(("library", "driver", "recorded"), [
    (130100, 13000, True), (130101, 13000, False), (130200, 13000, False), (130100, 13010, False),
    (120900, 13000, False),
])  # fmt: skip
def test_recorded_with_verified_versions_only(library, driver, recorded):
    """Nothing is recorded with other versions, whose packing of parameters is not verified."""
    home = RecordingHome(version=driver)
    home.lt.version = library
    run, arrays = prepared(home, problem()), Arrays(home, problem())
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert len(home.cuda.launches) == recorded


@pytest.mark.parametrize("driver", [13000, 12090], ids=["recorded", "not recorded"])
def test_fresh_threads(driver):
    """That never met CUDA, whatever ran before: the library uses what its first product has set up, and no longer gives
    a thread a context itself.
    """
    home = RecordingHome(version=driver)
    home.lt.version = 130100 if driver >= 13000 else 120900
    run, arrays = prepared(home, problem()), Arrays(home, problem())
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)

    def work():
        arrays.out[...] = 0
        arrays.run(run)
        return home.cuda.stack

    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == []
        assert np.array_equal(arrays.out, arrays.a @ arrays.b)
    assert home.cuda.complaints == []


def test_several_devices():
    """Where there are several devices, products go through the library, as a launch does not name a device."""
    home = RecordingHome(devices=2)
    asked = problem(index=1)
    run, arrays = prepared(home, asked), Arrays(home, asked)
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert home.cuda.launches == home.cuda.complaints == []
