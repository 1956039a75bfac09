"""Operands of a case: values, and memory in the layouts of the case, with guard bytes around.

Everything outside a matrix (guards, padding between rows, gaps between elements) is filled with NaN bit
patterns or garbage: a kernel that reads it computes wrong results, one that writes it is caught by comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gemmhub import accuracy, dtypes
from gemmhub.backend import Kernel
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType
from gemmhub.layout import MatrixLayout
from gemmhub.problem import Bias, GemmProblem, Operand, Scale
from gemmhub.testing.cases import Case

Array = Any
_GUARD = 256


class Unrepresentable(Exception):  # noqa: N818 - a limit of an array library, not an error
    """An array that the memory's array library cannot express."""


class Memory:
    """The memory of operands. This class is the host; subclass it for a device.

    ``device`` is part of the problem, and the kernel receives ``stream``. ``view`` may raise :class:`Unrepresentable`
    where the device's arrays cannot express something (a dtype, a negative stride): such cases are skipped.
    """

    device: Device = CPU
    stream: int | None = None

    def empty(self, nbytes: int) -> Array:
        """A new one-dimensional uint8 array; on devices at an address that is a multiple of 256."""
        return np.empty(nbytes, np.uint8)

    def write(self, buffer: Array, data: Array) -> None:
        """Copy ``data`` (host, uint8, of equal length) into ``buffer``."""
        buffer[:] = data

    def read(self, buffer: Array) -> Array:
        """The bytes of ``buffer`` as a new host array."""
        return buffer.copy()

    def view(self, buffer: Array, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        """An array over ``buffer`` that shares its memory; ``strides`` and ``offset`` count bytes."""
        return np.ndarray(shape, dtype, buffer=buffer, offset=offset, strides=strides)

    def synchronize(self) -> None:
        """Wait for all work on ``stream`` and all copies."""


HOST = Memory()


@dataclass(frozen=True)
class Strides:
    """The strides of a stack of matrices in its memory, in elements."""

    batch: tuple[int, ...]
    row: int
    col: int
    first: int
    """Index of element [0, ..., 0]."""
    size: int
    """Number of elements from the lowest to the highest address, inclusive."""


def _up(x: int) -> int:
    """The next multiple of 16 above ``x``, a leading dimension that tensor cores and TMA can use."""
    return (x // 16 + 1) * 16


def strides(layout: str, batch: tuple[int, ...], rows: int, cols: int) -> Strides:
    """Return the strides of a (*batch, rows, cols) stack in one of the layouts of the kit.

    "row", "col": dense. "row_padded", "col_padded": the leading dimension is the next multiple of 16, with gaps
    between matrices. "row_odd", "col_odd": the leading dimension is 3 more than the minimum.
    "interleaved": row-major, the batch between rows and columns, as a transposed (rows, *batch, cols) array.
    "strided": every second element of longer rows. "reversed": row-major with the rows in reverse order.
    "rows0": one row for all, with a stride of 0.
    """
    gap = 0
    dense_rows, dense_cols = max(1, rows), max(1, cols)  # no leading dimension is 0
    if layout == "interleaved":
        inner, total = dense_cols, max(1, prod(batch))
        row, col = inner * total, 1
        steps = tuple(inner * prod(batch[i + 1 :]) for i in range(len(batch)))
        return Strides(steps, row, col, 0, dense_rows * row)
    if layout in ("row", "row_padded", "row_odd"):
        lead = {"row": dense_cols, "row_padded": _up(cols), "row_odd": cols + 3}[layout]
        row, col, span = lead, 1, rows * lead
    elif layout in ("col", "col_padded", "col_odd"):
        lead = {"col": dense_rows, "col_padded": _up(rows), "col_odd": rows + 3}[layout]
        row, col, span = 1, lead, cols * lead
    elif layout == "strided":
        row, col, span = 2 * cols + 1, 2, rows * (2 * cols + 1)
    elif layout == "reversed":
        row, col, span = -dense_cols, 1, rows * cols
    elif layout == "rows0":
        row, col, span = 0, 1, cols
    else:
        raise ValueError(f"unknown layout {layout!r}")
    span = max(1, span)
    if layout.endswith("padded"):
        gap = 32
    steps = tuple((span + gap) * prod(batch[i + 1 :]) for i in range(len(batch)))
    first = (rows - 1) * cols if layout == "reversed" and rows else 0
    return Strides(steps, row, col, first, max(1, (span + gap) * prod(batch)))


class Placed:
    """One operand: its host image, and the array that a kernel receives."""

    def __init__(
        self, memory: Memory, dtype: DType, shape: tuple[int, ...], steps: tuple[int, ...], first: int, size: int
    ) -> None:
        self.memory, self.dtype, self.shape = memory, dtype, shape
        self.steps = steps
        """Strides in elements, one per dimension of ``shape``."""
        self.offset = _GUARD + first * dtype.itemsize
        self.strides = tuple(step * dtype.itemsize for step in steps)
        nbytes = (2 * _GUARD + (first + size) * dtype.itemsize + 255) // 256 * 256
        self.image = np.empty(nbytes, np.uint8)
        self.values = HOST.view(self.image, dtype, shape, self.strides, self.offset)
        self.buffer = memory.empty(nbytes)
        self.array = self.view(shape, self.strides)

    def view(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """The same memory in another shape."""
        return self.memory.view(self.buffer, self.dtype, shape, strides, self.offset)

    @property
    def alignment(self) -> int:
        """The alignment in bytes, as :class:`~gemmhub.problem.Operand` defines it."""
        if self.memory.device.kind == "cpu":
            return self.dtype.itemsize
        return self.offset & -self.offset if self.offset % 256 else 256

    def fill(self, values: Array, garbage: np.random.Generator | None) -> None:
        """Write ``values``; everything around them becomes NaN bit patterns, or ``garbage``."""
        if garbage is None:
            self.image[:] = 0xFF
        else:
            self.image[:] = garbage.integers(0, 256, self.image.size, np.uint8)
        if values is not None:
            self.values[...] = values
        self.memory.write(self.buffer, self.image)

    def read(self) -> tuple[Array, Array]:
        """The current (values, all bytes)."""
        now = self.memory.read(self.buffer)
        return HOST.view(now, self.dtype, self.shape, self.strides, self.offset), now

    def outside(self) -> Array:
        """Mask of the bytes that belong to no element."""
        mask = np.ones(self.image.size, np.bool_)
        shape, strides = (*self.shape, self.dtype.itemsize), (*self.strides, 1)
        np.ndarray(shape, np.bool_, buffer=mask, offset=self.offset, strides=strides)[...] = False
        return mask


def draw_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, kind: str, exact: bool) -> Array:
    """Draw the values of one operand.

    "normal": standard normal; for integer results integers over their whole range (products wrap).
    "wide": normal times powers of two over a wide range, subnormal half numbers included.
    "nonfinite": a few NaN and infinities among normal values.
    "tiny", "huge": normal times 2**-60 or 2**60.
    "large": near the square root of the largest half number, so that sums overflow it (infinity is correct).
    "tf32_trap": positive values that truncation and rounding to 11 significant bits both change downwards by
    nearly 2**-11, so that the errors of a whole sum add up. "bf16_trap": likewise 8 bits; the second of two bfloat16
    parts is near 2**-8, so that each of the three products of "bf16x3" matters. "bf16x2_trap": two bfloat16 parts
    (16 bits) lose nearly 2**-17.
    """
    facts = dtypes.info(dtype)
    if facts.kind == "bool":
        return rng.random(shape) < 0.5
    if not facts.inexact:
        limits = np.iinfo(dtype)
        low, high = (int(limits.min), int(limits.max)) if exact else (max(-100, int(limits.min)), 100)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    if facts.kind == "complex":
        part = np.dtype(np.float32 if facts.itemsize == 8 else np.float64)
        values = np.empty(shape, dtype)
        values.real, values.imag = (draw_values(rng, shape, part, kind, exact) for _ in range(2))
        return values
    values = rng.standard_normal(shape)
    if kind == "wide":
        low, high = {
            "float16": (-22, 2), "float8_e4m3fn": (-5, 2), "float8_e5m2": (-12, 3), "float64": (-150, 150),
        }.get(facts.name, (-20, 20))  # fmt: skip
        values = np.ldexp(values, rng.integers(low, high, shape))
    elif kind in ("tiny", "huge"):
        values = np.ldexp(values, -60 if kind == "tiny" else 60)
    elif kind == "large":
        values = rng.uniform(60.0, 300.0, shape)
    elif kind.endswith("_trap"):
        # 1 + steps that the short format represents + just below half a step of it.
        step, low_part = {
            "tf32_trap": (2.0**-10, 2.0**-11), "bf16_trap": (2.0**-7, 2.0**-8),
            "bf16x2_trap": (2.0**-7, 2.0**-9 + 2.0**-17),
        }[kind]  # fmt: skip
        values = 1.0 + rng.integers(0, 16, shape) * step + low_part - rng.integers(1, 8, shape) * 2.0**-22
    elif kind == "nonfinite" and values.size:
        for bad in (np.nan, np.inf, -np.inf):
            values[tuple(rng.integers(0, size) for size in shape)] = bad
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _broadcast(batch: tuple[int, ...], how: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(batch dimensions of the array, those of its memory) for a kind of broadcasting."""
    if how in ("missing", "stride0", "one"):
        return {"missing": (), "stride0": batch, "one": (1,) * len(batch)}[how], (1,) * (how != "missing") * len(batch)
    return (batch[1:], batch[1:]) if how == "outer" else (batch, batch)


class Operands:
    """All arguments of one call of a kernel, and its expected result."""

    def __init__(self, case: Case, memory: Memory = HOST) -> None:
        self.case, self.memory = case, memory
        if memory.device != CPU and not (dtypes.single(case.alpha) and dtypes.single(case.beta)):
            raise Unrepresentable("scalars beyond float32's range are refused on devices")
        a, b, out = (dtypes.as_dtype(x) for x in (case.a_dtype, case.b_dtype, case.out_dtype))
        self.a, a_operand = self._matrix(a, case.m, case.k, case.a, case.a_batch)
        self.b, b_operand = self._matrix(b, case.k, case.n, case.b, case.b_batch)
        self.out, out_operand = self._matrix(out, case.m, case.n, case.out, "full")
        self.c: Placed | None = None
        c_operand = None
        if case.c == "out":
            c_operand = out_operand
        elif case.c is not None:
            c_dtype = dtypes.as_dtype(case.c_dtype or case.out_dtype)
            layout, how = ("row", "missing") if case.c == "shared" else (case.c, "full")
            self.c, c_operand = self._matrix(c_dtype, case.m, case.n, layout, how)
        self.bias: Placed | None = None
        bias = None
        if case.bias is not None:
            dtype = dtypes.as_dtype(case.bias_dtype or case.out_dtype)
            length, step = (case.n if case.bias == "n" else case.m), case.bias_stride
            self.bias = Placed(memory, dtype, (length,), (step,), case.offset + case.bias_offset, max(1, length * step))
            bias = Bias(dtype, case.bias, step)
        self.scales: dict[str, Placed] = {}
        scales: dict[str, Scale] = {}
        for name, kind, axis, size in (("scale_a", case.scale_a, "m", case.m), ("scale_b", case.scale_b, "n", case.n)):
            if kind is not None:
                length, step = (1, 1) if kind == "one" else (size, case.scale_stride)
                place = case.offset, max(1, length * step)
                self.scales[name] = Placed(memory, np.dtype(np.float32), (length,), (step,), *place)
                scales[name] = Scale(None) if length == 1 else Scale(axis, step)
        self.problem = GemmProblem(
            m=case.m, n=case.n, k=case.k, a=a_operand, b=b_operand, out=out_operand,
            compute_dtype=case.compute_dtype, batch=case.batch, c=c_operand, bias=bias,
            alpha_is_one=case.alpha == 1, activation=case.activation, precision=case.precision,
            deterministic=case.deterministic, device=memory.device,
            scale_a=scales.get("scale_a"), scale_b=scales.get("scale_b"),
        )  # fmt: skip
        self.seed, self.filled = case.seed, False
        self.addend: Array | None = None
        """Values of c, in its own array or in the result's memory."""
        self.previous: dict[str, Array] = {}
        """Values of the inputs before the last rewrite."""

    def _matrix(self, dtype: DType, rows: int, cols: int, layout: str, how: str) -> tuple[Placed, Operand]:
        batch = self.case.batch
        shape, stored = _broadcast(batch, how)
        lie = strides(layout, stored, rows, cols)
        # Where one matrix serves all (memory 1, array more), the array has a stride of 0.
        steps = tuple(0 if x == 1 else step for x, step in zip(stored, lie.batch))
        first = self.case.offset + lie.first
        placed = Placed(self.memory, dtype, (*shape, rows, cols), (*steps, lie.row, lie.col), first, lie.size)
        described = MatrixLayout(rows, cols, lie.row, lie.col, batch, (0,) * (len(batch) - len(steps)) + steps)
        return placed, Operand(dtype, described, placed.alignment)

    @property
    def inputs(self) -> dict[str, Placed]:
        named = {"a": self.a, "b": self.b, "c": self.c, "bias": self.bias, **self.scales}
        return {name: placed for name, placed in named.items() if placed is not None}

    def fill(self, seed: int, b: Array | None = None) -> None:
        """Draw new values for all inputs (except a given ``b``) from ``seed``, into the same memory."""
        if self.filled:
            self.previous = {name: placed.values.copy() for name, placed in self.inputs.items()}
        self.filled, self.seed = True, seed
        case, rng = self.case, np.random.default_rng(seed)
        exact = accuracy.problem_model(self.problem).exact and dtypes.info(self.out.dtype).kind in ("int", "uint")
        for name, placed in self.inputs.items():
            steps = placed.steps
            shape = tuple(1 if step == 0 else size for size, step in zip(placed.shape, steps))
            values = draw_values(rng, shape, placed.dtype, case.data, exact)
            if case.data == "cancelling" and name in ("a", "b"):
                values = _cancelling(values, name, seed)
            placed.fill(b if name == "b" and b is not None else values, None)
        self.addend = None if self.c is None else self.c.values
        if case.c == "out":
            self.addend = draw_values(rng, self.out.shape, self.out.dtype, case.data, exact)
        self.poison(seed)

    def poison(self, seed: int) -> None:
        """Fill the result's memory as before a call."""
        garbage = np.random.default_rng(seed) if self.case.poison == "garbage" else None
        self.out.fill(self.addend if self.case.c == "out" else None, garbage)

    def run(self, kernel: Kernel, packed: object = None) -> None:
        """Call ``kernel`` and wait; ``packed`` is b's packed form, if any."""
        case = self.case
        addend = self.out.array if case.c == "out" else None if self.c is None else self.c.array
        bias = None if self.bias is None else self.bias.array
        right = self.b.array if packed is None else packed
        self.memory.synchronize()
        with np.errstate(all="ignore"):
            kernel.run(
                self.a.array, right, self.out.array, addend, bias, case.alpha, case.beta, self.memory.stream,
                **{name: placed.array for name, placed in self.scales.items()},
            )  # fmt: skip
        self.memory.synchronize()

    def expected(self, **changes: Any) -> accuracy.Reference:
        """The expected result; ``changes`` replace arguments of :func:`gemmhub.accuracy.reference` (for diagnosis)."""
        case = self.case
        bias = None if self.bias is None else self.bias.values
        if bias is not None and case.bias == "m":
            bias = bias[:, np.newaxis]
        arguments: dict[str, Any] = {
            "a": self.a.values, "b": self.b.values, "model": accuracy.problem_model(self.problem),
            "alpha": case.alpha, "beta": case.beta, "c": self.addend, "bias": bias,
            "activation": case.activation, "out_dtype": self.out.dtype,
            **{name: placed.values for name, placed in self.scales.items()},
        }  # fmt: skip
        arguments.update(changes)
        with np.errstate(all="ignore"):
            return accuracy.reference(arguments.pop("a"), arguments.pop("b"), **arguments)


def _cancelling(values: Array, name: str, seed: int) -> Array:
    """Arrange the terms of every sum, except the first few, in pairs that cancel, in random order."""
    if dtypes.info(values.dtype).kind in ("bool", "int", "uint"):
        return values
    axis = values.ndim - (1 if name == "a" else 2)
    terms = np.moveaxis(values, axis, 0)
    half = max(0, len(terms) - 3) // 2
    terms[half : 2 * half] = -terms[:half] if name == "a" else terms[:half]
    order = np.random.default_rng(seed).permutation(len(terms))
    return np.moveaxis(terms[order], 0, axis)


def dense(problem: GemmProblem) -> GemmProblem:
    """``problem`` with every operand contiguous, as a backend that ignores layouts may take it."""

    def contiguous(operand: Operand) -> Operand:
        layout = operand.layout
        return replace(operand, layout=MatrixLayout.contiguous(layout.rows, layout.cols, problem.batch))

    return replace(
        problem, a=contiguous(problem.a), b=contiguous(problem.b), out=contiguous(problem.out),
        c=None if problem.c is None else contiguous(problem.c),
        bias=None if problem.bias is None else replace(problem.bias, stride=1),
        scale_a=None if problem.scale_a is None else replace(problem.scale_a, stride=1),
        scale_b=None if problem.scale_b is None else replace(problem.scale_b, stride=1),
    )  # fmt: skip
