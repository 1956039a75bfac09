"""Device memory for gemmhub's conformance kit, and products made by hand, for tests of MUSA backends.

With pytest, on a card or on a simulated installation::

    class TestMyBackend(ConformanceSuite):
        backend = MyBackend
        memory = MusaMemory()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import byref, c_void_p
from dataclasses import replace
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np

import gemmhub
from gemmhub.capability import Device
from gemmhub.dtypes import DType, as_dtype, compute_dtype
from gemmhub.epilogues import EPILOGUES
from gemmhub.layout import MatrixLayout
from gemmhub.problem import Bias, GemmProblem, Operand
from gemmhub.testing import Memory
from gemmhub.verdict import Verdict
from gemmhub_musa import array
from gemmhub_musa.array import Array, HostArray, MusaArrays
from gemmhub_musa.runtime import ON_DEVICE, TO_DEVICE, TO_HOST, Runtime
from gemmhub_musa.workspace import PER_THREAD_STREAM

_NON_BLOCKING = 1
"""musaStreamNonBlocking, whose number is not public: the simulated SDK's and CUDA's. Another one is an error there."""


def stream_of_its_own(runtime: Runtime) -> int:
    """Return a new stream on the current device. As the streams of torch, it neither waits for the default stream nor
    is waited for by it."""
    made = c_void_p()
    code = runtime.library.cdll["musaStreamCreateWithFlags"](byref(made), _NON_BLOCKING)
    if code or not made.value:
        raise AssertionError(f"musaStreamCreateWithFlags: {runtime.words(code)}")
    return made.value


# Memory for the conformance kit


class MusaMemory(Memory):
    """Memory of device ``index``, and a stream of its own that orders all reads of results, so that tests detect work
    on another stream.

    The device is first looked for when it is used: DeviceError or InputError where it is not there.
    """

    def __init__(self, index: int = 0) -> None:
        self.device = Device("musa", index)
        self._stream: int | None = None

    @property
    def arrays(self) -> MusaArrays:
        return array.arrays(self.device.index)

    @property
    def stream(self) -> int:  # type: ignore[override]  # made on first use
        if self._stream is None:
            with self.arrays.runtime.device(self.device.index):
                self._stream = stream_of_its_own(self.arrays.runtime)
        return self._stream

    def empty(self, nbytes: int) -> Array:
        made = self.arrays.empty((nbytes,), np.dtype(np.uint8))
        if made.data.ptr % 256:
            raise AssertionError(f"new device memory is at {made.data.ptr:#x}, which is not aligned to 256 bytes")
        return made

    def write(self, buffer: Array, data: HostArray) -> None:
        data = np.ascontiguousarray(data)
        with self.arrays.runtime.device(self.device.index):
            self.arrays.runtime.memcpy(buffer.data.ptr, data.ctypes.data, data.nbytes, TO_DEVICE)

    def read(self, buffer: Array) -> HostArray:
        data = np.empty(buffer.nbytes, np.uint8)
        with self.arrays.runtime.device(self.device.index):
            self.arrays.runtime.memcpy_async(data.ctypes.data, buffer.data.ptr, data.nbytes, TO_HOST, self.stream)
            self.arrays.runtime.stream_synchronize(self.stream)
        return data

    def view(self, buffer: Array, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
        """Return the address of the view, which kernels receive."""
        return buffer.data.ptr + offset

    def synchronize(self) -> None:
        with self.arrays.runtime.device(self.device.index):
            self.arrays.runtime.stream_synchronize(self.stream)


# Problems


def operand(
    dtype: str, rows: int, cols: int, order: str = "row", batch: tuple[int, ...] = (), alignment: int = 256,
    **changes: Any,
) -> Operand:  # fmt: skip
    """Return a dense operand; ``changes`` are fields of MatrixLayout."""
    layout = MatrixLayout.contiguous(rows, cols, batch, order)
    return Operand(as_dtype(dtype), replace(layout, **changes), alignment)


def strided(
    dtype: str, rows: int, cols: int, row_stride: int, col_stride: int, batch: tuple[int, ...] = (),
    batch_strides: tuple[int, ...] = (), alignment: int = 256,
) -> Operand:  # fmt: skip
    """Return an operand with any strides, which count elements."""
    layout = MatrixLayout(rows, cols, row_stride, col_stride, batch, batch_strides)
    return Operand(as_dtype(dtype), layout, alignment)


def bias(dtype: str = "float32", axis: str = "n", stride: int = 1) -> Bias:
    return Bias(as_dtype(dtype), axis, stride)


def problem(
    m: int = 16, n: int = 16, k: int = 16, dtype: str = "float32", out: str | None = None,
    batch: tuple[int, ...] = (), a: str = "row", b: str = "row", d: str = "row", index: int = 0,
    c: Operand | None = None, bias: Bias | None = None, **changes: Any,
) -> GemmProblem:  # fmt: skip
    """Return a problem on device ``index`` with dense operands; ``changes`` are fields of GemmProblem.

    ``out`` is the dtype of the result, if not ``dtype``; ``a``, ``b`` and ``d`` are the orders of the operands and the
    result, "row" or "col".
    """
    result = as_dtype(out or dtype)
    values: dict[str, Any] = {
        "a": operand(dtype, m, k, a, batch), "b": operand(dtype, k, n, b, batch),
        "out": operand(result.name, m, n, d, batch),
        "compute_dtype": compute_dtype(as_dtype(dtype), as_dtype(dtype), result), "batch": batch,
        "device": Device("musa", index),
    }  # fmt: skip
    return GemmProblem(m=m, n=n, k=k, **{**values, **changes}).having(c=c, bias=bias)


# Operands on a device


class Placed(NamedTuple):
    """One operand, on the host and on the device."""

    memory: HostArray
    """The one-dimensional memory that was copied to the device, with the gaps between the elements."""
    values: HostArray
    """A view of ``memory`` as the problem describes the operand."""
    there: Array
    """The copy of ``memory``."""
    address: int
    """The address of the operand's element [0, ..., 0], which kernels receive."""


class Operands:
    """Small whole numbers for a problem with operands of any strides, on its device. Sums of them are exact."""

    def __init__(self, problem: GemmProblem, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.problem, self.arrays = problem, array.arrays(problem.device.index)

        def make(operand: Operand) -> Placed:
            layout, size = operand.layout, operand.dtype.itemsize
            shape = (*problem.batch, layout.rows, layout.cols)
            steps = (*layout.batch_strides, layout.row_stride, layout.col_stride)
            low = sum((n - 1) * s for n, s in zip(shape, steps) if s < 0)
            high = sum((n - 1) * s for n, s in zip(shape, steps) if s > 0)
            memory = rng.integers(-4, 5, high - low + 1).astype(operand.dtype)
            strides = tuple(s * size for s in steps)
            values: HostArray = np.ndarray(shape, operand.dtype, memory.view(np.uint8).data, -low * size, strides)
            there = self.arrays.from_host(memory)
            return Placed(memory, values, there, there.data.ptr - low * size)

        self.a, self.b, self.out = make(problem.a), make(problem.b), make(problem.out)
        self.c = make(problem.c) if problem.c else None
        self.bias: Placed | None = None
        if problem.bias:
            length = problem.n if problem.bias.axis == "n" else problem.m
            values = rng.integers(-4, 5, length).astype(problem.bias.dtype)
            there = self.arrays.from_host(values)
            self.bias = Placed(values, values, there, there.data.ptr)

    @property
    def wide(self) -> HostArray:
        """a @ b of the values, in the accumulator's type."""
        compute = self.problem.compute_dtype
        product: HostArray = self.a.values.astype(compute) @ self.b.values.astype(compute)
        return product

    def launch(
        self, run: Callable[..., object], alpha: complex = 1, beta: complex = 0, stream: int = 0, in_place: bool = False
    ) -> None:
        """Call the kernel; wait for nothing. With ``in_place`` the addend is the result's memory."""
        addend = None if beta == 0 else self.out if in_place else self.c
        if beta != 0 and addend is None:
            raise ValueError(f"beta is {beta}, but the problem has no c")
        others = {name: x.address for name, x in (("c", addend), ("bias", self.bias)) if x is not None}
        run(self.a.address, self.b.address, self.out.address, alpha, beta, stream, **others)

    def copied(self, stream: int) -> Array:
        """Return a copy of the result's memory, enqueued on ``stream``: it is what later work on that stream reads."""
        there = self.out.there
        copy = self.arrays.empty(there.shape, there.dtype)
        self.arrays.runtime.memcpy_async(copy.data.ptr, there.data.ptr, there.nbytes, ON_DEVICE, stream)
        return copy

    def result(self, there: Array | None = None) -> HostArray:
        """Return the result, or that in a copy of its memory, once all work is done."""
        memory, like = (there or self.out.there).numpy(), self.out.values
        offset = self.out.address - self.out.there.data.ptr
        values: HostArray = np.ndarray(like.shape, like.dtype, memory.view(np.uint8).data, offset, like.strides)
        return values.copy()

    def run(self, run: Callable[..., object], **options: Any) -> HostArray:
        """Call the kernel, as :meth:`launch` does; return the result."""
        self.launch(run, **options)
        return self.result()


# Calls at the same time


@contextmanager
def interrupted(target: Any, name: str, call: Callable[[], None]) -> Iterator[None]:
    """Run ``call()`` once, after the first call of the method ``name`` in a block, as a signal handler may."""
    method, own = getattr(target, name), name in vars(target)
    called = False

    def first(*arguments: Any) -> Any:
        nonlocal called
        result = method(*arguments)
        if not called:
            called = True
            call()
        return result

    setattr(target, name, first)
    try:
        yield
    finally:
        if own:
            setattr(target, name, method)
        else:
            delattr(target, name)
    if not called:
        raise AssertionError(f"{name} was not called")


def nested_products(run: Callable[..., object], asked: GemmProblem, target: Any, name: str) -> None:
    """Assert that two products are right, one of which interrupts the other after ``target.name``.

    Both are of the same kernel, on the same stream and on two.
    """
    runtime = array.arrays(asked.device.index).runtime
    streams = [stream_of_its_own(runtime) for _ in range(2)]
    sets = [Operands(asked, seed) for seed in range(4)]
    found = []
    for other, outer, inner in zip(streams, sets[::2], sets[1::2]):
        with interrupted(target, name, lambda: inner.launch(run, stream=other)):  # noqa: B023 - called at once
            outer.launch(run, stream=streams[0])
        found += [(outer, outer.copied(streams[0])), (inner, inner.copied(other))]
    for stream in streams:
        runtime.stream_synchronize(stream)
    right = [np.array_equal(operands.result(copy), operands.wide) for operands, copy in found]
    if not all(right):
        raise AssertionError(f"right: {right}, of outer and nested products, on one stream and on two")
    for stream in streams:
        runtime.stream_destroy(stream)


def per_thread_products(run: Callable[..., object], asked: GemmProblem) -> None:
    """Assert that products are right which two threads put on their per-thread streams.

    The threads share some operands. Work is awaited at the end only.
    """
    runtime, meet = array.arrays(asked.device.index).runtime, Barrier(2)
    sets = [[Operands(asked, 10 * thread + turn) for turn in range(3)] for thread in range(2)]
    sets[1][0] = sets[0][0]

    def work(mine: list[Operands]) -> list[tuple[Operands, Array]]:
        found = []
        with runtime.device(asked.device.index):
            for operands in mine:
                meet.wait(60)
                operands.launch(run, stream=PER_THREAD_STREAM)
                found.append((operands, operands.copied(PER_THREAD_STREAM)))
            meet.wait(60)
            runtime.synchronize()
        return found

    with ThreadPoolExecutor(2) as pool:
        found = [pair for pairs in pool.map(work, sets) for pair in pairs]
    right = [np.array_equal(operands.result(copy), operands.wide) for operands, copy in found]
    if not all(right):
        raise AssertionError(f"right: {right}, of 3 products of either thread")


# Answers


def answers(backend: str) -> dict[str, str]:
    """Return what ``backend`` answers to a product with each of gemmhub's options: "" for an offer, else its reason.

    Raises AssertionError for a refusal without a reason or a remedy.
    """
    found = {}
    for name, options in _options().items():
        a, b = options.pop("a", _zeros(64, 128)), options.pop("b", _zeros(128, 256))
        found[name] = _reason(name, gemmhub.explain(a, b, **options)[backend])
    ends = np.array([32, 64], np.int32)
    for where, offsets in (("host", ends), ("device", array.from_numpy(ends))):
        name = f"groups by ends on the {where}"
        decision = gemmhub.explain_grouped(_zeros(64, 128), _zeros(2, 128, 256), offsets).decisions[0]
        assert decision is not None
        found[name] = _reason(name, decision[backend])
    return found


def _reason(name: str, verdict: Verdict) -> str:
    if verdict.status not in ("chosen", "eligible", "refused"):
        raise AssertionError(f"{verdict.backend} answers {name} by {verdict}")
    if verdict.status != "refused":
        return ""
    if not (verdict.reason and verdict.remedy):
        raise AssertionError(f"{verdict.backend} refuses {name} without a reason or a remedy: {verdict}")
    return verdict.reason


def _options() -> dict[str, dict[str, Any]]:
    """The options by the name of each request, with other operands where they need them."""
    single: dict[str, Any] = {"dtype": "float32"}
    small = {x: _zeros(*shape, dtype="float8_e4m3fn") for x, shape in (("a", (64, 128)), ("b", (128, 256)))}
    requests: dict[str, dict[str, Any]] = {
        "alpha": {"alpha": 2.0},
        "c": {"c": _zeros(64, 256), "beta": 1.0},
        "bias": {"bias": _zeros(256)},
        "scale_a per tensor": {"scale_a": _zeros(1, 1, **single)},
        "scale_a per row": {"scale_a": _zeros(64, 1, **single)},
        "scale_b per column": {"scale_b": _zeros(1, 256, **single)},
        "scales of blocks": {"scale_a": _zeros(64, 1, **single), "scale_b": _zeros(1, 2, **single)},
        "scales of float8": {**small, "scale_a": _zeros(1, 1, **single), "out_dtype": "float16"},
        "scale_out": {"scale_out": _zeros(1, **single)},
        "amax": {"amax": _zeros(1, **single)},
        "pre_activation": {"activation": "gelu", "pre_activation": _zeros(64, 256)},
        "symmetric": {"b": _zeros(64, 128).T, "symmetric": True},
    }
    requests |= {f"reproducible {x}": {"reproducible": x} for x in ("run", "batch", "mma.32x32x16.arow.brow.k32")}
    return requests | {x: {"activation": x} for x in EPILOGUES}


def _zeros(*shape: int, dtype: str = "float16") -> Array:
    return array.from_numpy(np.zeros(shape, as_dtype(dtype)))
