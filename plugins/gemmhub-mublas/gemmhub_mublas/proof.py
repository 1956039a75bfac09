"""Every way of calling a library proves itself before it gets a user's product.

Once for each device, way, dtypes and epilogue: first the small products of :mod:`gemmhub_musa.selftest` in all storage
orders, then one with everything at once: padded rows, an addend, the epilogue, a batch; and float32 values whose
product shows if they were rounded to fewer bits on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from gemmhub_musa import selftest
from gemmhub_musa.runtime import TO_DEVICE, TO_HOST, Runtime

from gemmhub import accuracy
from gemmhub.backend import Kernel, Run
from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.kit import locks
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_mublas.probe import Devices

_Sizes = tuple[int, int, int]
_SIZES = 5, 3, 8
_WIDE = 16
_WIDE_SIZES = 32, 16, 48
"""m, n, k; the wide ones for 8-bit operands, which some libraries take in multiples of 16 only."""
_ROOM = 2**20
"""Bytes that a proof may need on the device."""
_BETA = 2
_PAD = 16


class _Way(Hashable, Protocol):
    @property
    def batched(self) -> bool:
        """Made for more than one matrix."""


W = TypeVar("W", bound=_Way)


class Proofs(Generic[W]):
    """What has been proven so far."""

    def __init__(self, library: str, kernel: Callable[[GemmProblem, W], Run | Refusal]) -> None:
        """``kernel`` prepares a problem in one way, proven or not."""
        self._library = library
        self._kernel = kernel
        self._outcomes: dict[Hashable, int | Refusal] = {}
        self._lock = locks.lock()

    def of(self, devices: Devices, problem: GemmProblem, way: W) -> Refusal | None:
        """None where ``way`` is right for problems like ``problem``; the proof is made now if it is the first one.

        Raises AllocationError, StatusError or MusaError where the device is not in a state to tell.
        """
        key = (
            problem.device.index, way, problem.a.dtype, problem.b.dtype, problem.out.dtype, problem.precision,
            problem.activation, problem.bias and problem.bias.dtype,
        )  # fmt: skip
        with self._lock:
            outcome = self._outcomes.get(key)
            if outcome is None:
                index = problem.device.index
                with devices.runtime.device(index):
                    devices.runtime.free(devices.runtime.malloc(_ROOM))
                    devices.handles.reserve(index)
                outcome = self._outcomes[key] = self._prove(devices.runtime, problem, way)
        if isinstance(outcome, Refusal):
            return outcome
        sizes = problem.m, problem.n, problem.k
        if any(size % outcome for size in sizes):
            return Refusal(
                f"{self._library} has {problem.a.dtype} products for sizes that are multiples of {outcome} only, not "
                f"{'x'.join(map(str, sizes))}",
                "pad the operands with zeros",
            )
        return None

    def _prove(self, runtime: Runtime, problem: GemmProblem, way: W) -> int | Refusal:
        """What sizes must be multiples of."""
        failures: list[KernelError] = []
        refusal = self._tried(runtime, problem, way, selftest.SIZES, _SIZES, failures)
        if refusal is None:
            return 1
        if not failures:
            return refusal
        if (
            problem.a.dtype.itemsize == 1
            and self._tried(runtime, problem, way, _WIDE_SIZES, _WIDE_SIZES, failures) is None
        ):
            return _WIDE
        # The library said no, rather than computed wrong.
        types = "{} by {} with a result of {}".format(*(x.dtype for x in (problem.a, problem.b, problem.out)))
        return Refusal(
            f"{way} does not run {types} on this device, as a small product shows: {failures[0].message}",
            "use another backend, or other dtypes (cards before mp_22 have no 16-bit products, before mp_31 no fp8)",
            refusal.traceback,
        )

    def _tried(
        self, runtime: Runtime, problem: GemmProblem, way: W, plain: _Sizes, full: _Sizes, failures: list[KernelError]
    ) -> Refusal | None:
        """None where all is right. What the library itself refuses is added to ``failures``."""

        def prepare(asked: GemmProblem) -> Kernel | Refusal:
            run = self._kernel(asked, way)
            if isinstance(run, Refusal):
                return run
            plain_run = run

            def watched(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
                try:
                    plain_run(a, b, out, c, bias, alpha, beta, stream)
                except KernelError as error:
                    failures.append(error)
                    raise

            return Kernel(watched, str(way))

        index, out = problem.device.index, problem.out.dtype.name
        refusal = selftest.check(prepare, runtime, index, problem.a.dtype.name, out, plain)
        if refusal is not None:
            return refusal
        asked = _everything(problem, full, way.batched)
        try:
            kernel = prepare(asked)
            return kernel if isinstance(kernel, Refusal) else _compared(runtime, asked, kernel)
        except Exception as error:  # whatever a library does on first contact
            reason = f"the first product with everything ({asked.key}) failed: {type(error).__name__}: {error}"
            return Refusal(reason, selftest.REMEDY, repr(error))


def _everything(problem: GemmProblem, sizes: tuple[int, int, int], batched: bool) -> GemmProblem:
    """A problem of the kind of ``problem`` with padded rows, an addend in place and, if ``batched``, a batch of 2."""
    m, n, k = sizes
    batch = (2,) if batched else ()

    def operand(like: Operand, rows: int, cols: int, order: str) -> Operand:
        lead = _PAD + (cols if order == "row" else rows)
        steps = (lead * (rows if order == "row" else cols) + _PAD,) * len(batch)
        row, col = (lead, 1) if order == "row" else (1, lead)
        return Operand(like.dtype, MatrixLayout(rows, cols, row, col, batch, steps), _PAD)

    out = operand(problem.out, m, n, "row")
    return replace(
        problem, m=m, n=n, k=k, a=operand(problem.a, m, k, "row"), b=operand(problem.b, k, n, "col"), out=out, c=out,
        batch=batch, alpha_is_one=True, bias=replace(problem.bias, axis="n", stride=1) if problem.bias else None,
        packed_by=None,
    )  # fmt: skip


class _Image:
    """An operand in host memory, as it lies on the device; NaN patterns between its rows."""

    def __init__(self, operand: Operand, values: Any) -> None:
        layout, size = operand.layout, operand.dtype.itemsize
        shape = (*layout.batch, layout.rows, layout.cols)
        strides = tuple(size * x for x in (*layout.batch_strides, layout.row_stride, layout.col_stride))
        nbytes = size * (1 + sum((n - 1) * s // size for n, s in zip(shape, strides)))
        self.data = np.full(nbytes, 0xFF, np.uint8)
        self.values = np.ndarray(shape, operand.dtype, self.data.data, 0, strides)
        self.values[...] = values


def _drawn(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], trap: bool) -> Any:
    """Small whole numbers; with ``trap`` positive ones that a rounding to 11 bits or fewer makes all smaller."""
    if not trap:
        return rng.integers(-4, 5, shape).astype(dtype)
    return (1.0 + rng.integers(0, 16, shape) * 2.0**-10 + 2.0**-11 - rng.integers(1, 8, shape) * 2.0**-22).astype(dtype)


def _compared(runtime: Runtime, problem: GemmProblem, kernel: Kernel) -> Refusal | None:
    """Run ``problem`` on a stream of its own; a refusal with the numbers where it is beyond gemmhub's error bound."""
    rng = np.random.default_rng(7)
    trap = problem.a.dtype.kind in "fc" and problem.a.dtype.itemsize >= 4
    a, b, out = (
        _Image(x, _drawn(rng, x.dtype, (*problem.batch, x.layout.rows, x.layout.cols), trap))
        for x in (problem.a, problem.b, problem.out)
    )
    bias = _drawn(rng, problem.bias.dtype, (problem.n,), False) if problem.bias else None
    expected = accuracy.reference(
        a.values, b.values, model=accuracy.problem_model(problem), beta=_BETA, c=out.values.copy(), bias=bias,
        activation=problem.activation, out_dtype=problem.out.dtype,
    )  # fmt: skip
    images = [a.data, b.data, out.data] + ([] if bias is None else [bias.view(np.uint8)])
    with runtime.device(problem.device.index):
        places: list[int] = []
        stream = runtime.stream_create()
        try:
            for data in images:
                places.append(runtime.malloc(data.nbytes))
                runtime.memcpy(places[-1], data.ctypes.data, data.nbytes, TO_DEVICE)
            runtime.synchronize()
            at_bias = None if bias is None else places[3]
            kernel.run(places[0], places[1], places[2], places[2], at_bias, 1, _BETA, stream)
            runtime.stream_synchronize(stream)
            runtime.memcpy(out.data.ctypes.data, places[2], out.data.nbytes, TO_HOST)
        finally:
            runtime.stream_destroy(stream)
            for place in places:
                runtime.free(place)
    ratio = expected.ratio(out.values)
    if float(np.max(ratio)) <= 1.0:
        return None
    where = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    got, right = out.values[where], expected.value[where]
    return Refusal(
        f"the first product with everything ({problem.key}) by {kernel.description} is wrong: at "
        f"{tuple(map(int, where))} it has {got}, not {right}",
        selftest.REMEDY,
    )
