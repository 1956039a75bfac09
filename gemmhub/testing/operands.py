"""Operands of a case: their values, in memory of the layouts of the case, and the result that they have."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gemmhub import accuracy, dtypes
from gemmhub.backend import Kernel
from gemmhub.capability import CPU
from gemmhub.dtypes import DType
from gemmhub.layout import MatrixLayout
from gemmhub.operands import OPERANDS, Described, Product, Scale, described, layout
from gemmhub.operands import Operands as Table
from gemmhub.problem import GemmProblem, Operand
from gemmhub.testing.case import Case, broadcast
from gemmhub.testing.forms import shape
from gemmhub.testing.memory import HOST, Array, Memory, Placed, Unrepresentable, strides


def draw_values(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, distribution: str, exact: bool
) -> Array:
    """Draw the values of one operand.

    "normal": standard normal; for integer results integers over their whole range (products wrap).
    "wide": normal times powers of two over a wide range, subnormal half numbers included.
    "nonfinite": a few NaN and infinities among normal values.
    "residual": all terms of a sum cancel, and the last of an odd number is 0: the result is the rounding errors of
    partial sums, whose bits depend on the order.
    "tiny", "huge": normal times 2**-60 or 2**60.
    "large": near the square root of the largest half number, so that sums overflow it (infinity is correct).
    "tf32_trap": positive values that truncation and rounding to 11 significant bits both change downwards by
    nearly 2**-11, so that the errors of a whole sum add up. "bf16_trap": likewise 8 bits; the second of two bfloat16
    parts is near 2**-8, so that each of the three products of "bf16x3" matters. "bf16x2_trap": two bfloat16 parts
    (16 bits) lose nearly 2**-17.
    "extremes": of integers the smallest and the largest alone, for integer results.
    """
    facts = dtypes.info(dtype)
    if facts.kind == "bool":
        return rng.random(shape) < 0.5
    if not facts.inexact:
        limits = np.iinfo(dtype)
        low, high = (int(limits.min), int(limits.max)) if exact else (max(-100, int(limits.min)), 100)
        if distribution == "extremes":
            return rng.choice(np.array((low, low, high), dtype), shape)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    if facts.kind == "complex":
        part = np.dtype(np.float32 if facts.itemsize == 8 else np.float64)
        values = np.empty(shape, dtype)
        values.real, values.imag = (draw_values(rng, shape, part, distribution, exact) for _ in range(2))
        return values
    values = rng.standard_normal(shape)
    if distribution == "wide":
        low, high = {
            "float16": (-22, 2), "float8_e4m3fn": (-5, 2), "float8_e5m2": (-12, 3), "float64": (-150, 150),
        }.get(facts.name, (-20, 20))  # fmt: skip
        values = np.ldexp(values, rng.integers(low, high, shape))
    elif distribution in ("tiny", "huge"):
        values = np.ldexp(values, -60 if distribution == "tiny" else 60)
    elif distribution == "residual":
        values = np.ldexp(values, 6)  # so that no rounding error is subnormal in float16
    elif distribution == "large":
        values = rng.uniform(60.0, 300.0, shape)
    elif distribution.endswith("_trap"):
        # 1 + steps that the short format represents + just below half a step of it.
        step, low_part = {
            "tf32_trap": (2.0**-10, 2.0**-11), "bf16_trap": (2.0**-7, 2.0**-8),
            "bf16x2_trap": (2.0**-7, 2.0**-9 + 2.0**-17),
        }[distribution]  # fmt: skip
        values = 1.0 + rng.integers(0, 16, shape) * step + low_part - rng.integers(1, 8, shape) * 2.0**-22
    elif distribution == "nonfinite" and values.size:
        for bad in (np.nan, np.inf, -np.inf):
            values[tuple(rng.integers(0, size) for size in shape)] = bad
    with np.errstate(all="ignore"):
        return values.astype(dtype)


class Operands:
    """All arguments of one call of a kernel, and its expected result."""

    def __init__(self, case: Case, memory: Memory = HOST) -> None:
        self.case, self.memory = case, memory
        if memory.device != CPU and not (dtypes.single(case.alpha) and dtypes.single(case.beta)):
            raise Unrepresentable("scalars beyond float32's range are refused on devices")
        a, b, out = (dtypes.as_dtype(x) for x in (case.a_dtype, case.b_dtype, case.out_dtype))
        self.a = self._matrix(a, case.m, case.k, case.a, case.a_batch)
        self.b = self._matrix(b, case.k, case.n, case.b, case.b_batch)
        self.out = self._matrix(out, case.m, case.out_columns, case.out, "full")
        self.product = Product(
            case.m, case.n, case.k, case.batch, self.a.values.ndim, self.b.values.ndim, (*case.batch, case.m, case.n),
            out, dtypes.compute_dtype(a, b, out),
        )  # fmt: skip
        self.others: dict[str, Placed] = {}
        """The operands beside a, b and out in memory of their own, by name."""
        self.arrays: dict[str, Array] = {}
        """The arrays that a kernel receives for the operands beside a, b and out."""
        operands: dict[str, Described] = {}
        for name in OPERANDS:
            if name == "c" and case.c == "out":
                operands[name], self.arrays[name] = self._operand(self.out), self.out.array
            elif name in case.parts:
                operands[name] = self._add(name)
        self.problem = GemmProblem(
            m=case.m, n=case.n, k=case.k, a=self._operand(self.a), b=self._operand(self.b),
            out=self._operand(self.out), compute_dtype=case.compute_dtype, batch=case.batch, operands=Table(operands),
            alpha_is_one=case.alpha == 1, activation=case.activation, precision=case.precision,
            reproducible=case.reproducible, device=memory.device,
        )  # fmt: skip
        self.seed, self.filled = case.seed, False
        self.addend: Array | None = None
        """Values of c, in its own array or in the result's memory."""
        self.previous: dict[str, Array] = {}
        """Values of the inputs before the last rewrite."""

    def _matrix(self, dtype: DType, rows: int, cols: int, layout: str, form: str) -> Placed:
        shape, stored = broadcast(self.case.batch, form)
        placement = strides(layout, stored, rows, cols)
        # Where one matrix serves all (memory 1, array more), the array has a stride of 0.
        steps = tuple(0 if x == 1 else step for x, step in zip(stored, placement.batch))
        first = self.case.offset + placement.first
        steps = (*steps, placement.row, placement.col)
        return Placed(self.memory, dtype, (*shape, rows, cols), steps, first, placement.size)

    def _operand(self, placed: Placed) -> Operand:
        return Operand(placed.dtype, layout(placed.values, self.case.batch), placed.alignment)

    def _add(self, name: str) -> Described:
        """Place an operand beside a, b and out; return its description."""
        placed = self.others[name] = self._place(name)
        native, description = described(name, placed.values, self.product)
        self.arrays[name] = placed.view(native.shape, native.strides)
        if isinstance(description, Operand):
            description = replace(description, alignment=placed.alignment)
        return description

    def _place(self, name: str) -> Placed:
        case, form = self.case, self.case.parts[name]
        allowed = OPERANDS[name].dtypes(self.product)
        dtype, step, offset = allowed[-1 if case.wide else 0], case.operand_stride, case.offset
        if name == "c":
            how = ("row", "missing") if case.c == "shared" else (str(case.c), "full")
            return self._matrix(dtypes.as_dtype(case.c_dtype or case.out_dtype), case.m, case.n, *how)
        if form == "matrix":
            return self._matrix(dtype, case.m, case.n, case.out, "full")
        if name == "bias":
            dtype, step = dtypes.as_dtype(case.bias_dtype or case.out_dtype), case.bias_stride
            offset += case.bias_offset
        sizes = shape(name, form, case.m, case.n, case.k, case.batch)
        steps = tuple(step * prod(sizes[i + 1 :]) for i in range(len(sizes)))
        return Placed(self.memory, dtype, sizes, steps, offset, max(1, step * prod(sizes)))

    @property
    def inputs(self) -> dict[str, Placed]:
        """The operands that a call reads."""
        read = {name: placed for name, placed in self.others.items() if not OPERANDS[name].written}
        return {"a": self.a, "b": self.b, **read}

    @property
    def written(self) -> dict[str, Placed]:
        """The result, and the operands that a call writes."""
        return {"out": self.out, **{name: x for name, x in self.others.items() if OPERANDS[name].written}}

    @property
    def options(self) -> dict[str, Any]:
        """The operands and scalars by name, as :attr:`gemmhub.backend.Kernel.direct_epilogue` takes them."""
        read = {name: placed.array for name, placed in self.inputs.items() if name not in ("a", "b")}
        in_place = {"c": self.out.array} if self.case.c == "out" else {}
        return {**read, **in_place, "alpha": self.case.alpha, "beta": self.case.beta}

    def fill(self, seed: int, b: Array | None = None) -> None:
        """Draw new values for all inputs (except ``b`` where it is passed) from ``seed``, into the same memory."""
        if self.filled:
            self.previous = {name: placed.values.copy() for name, placed in self.inputs.items()}
        self.filled, self.seed = True, seed
        case, rng = self.case, np.random.default_rng(seed)
        exact = accuracy.problem_model(self.problem).exact and dtypes.info(self.out.dtype).kind in ("int", "uint")
        for name, placed in self.inputs.items():
            steps = placed.steps
            shape = tuple(1 if step == 0 else size for size, step in zip(placed.shape, steps))
            values = draw_values(rng, shape, placed.dtype, case.data, exact)
            if case.data in ("cancelling", "residual") and name in ("a", "b"):
                values = _cancelling(values, name, seed, 3 if case.data == "cancelling" else 0)
            placed.fill(b if name == "b" and b is not None else values, None)
        self.addend = self.others["c"].values if "c" in self.others else None
        if case.c == "out":
            self.addend = draw_values(rng, self.out.shape, self.out.dtype, case.data, exact)
        self.poison(seed)

    def poison(self, seed: int) -> None:
        """Fill what a call writes as before a call."""
        garbage = np.random.default_rng(seed) if self.case.poison == "garbage" else None
        for name, placed in self.written.items():
            placed.fill(self.addend if name == "out" and self.case.c == "out" else None, garbage)

    def run(self, kernel: Kernel, packed: object = None) -> None:
        """Call ``kernel`` and wait; ``packed`` is b's packed form, if any."""
        right = self.b.array if packed is None else packed
        self.memory.synchronize()
        with np.errstate(all="ignore"):
            kernel.run(
                self.a.array, right, self.out.array, self.case.alpha, self.case.beta, self.memory.stream, **self.arrays
            )
        self.memory.synchronize()

    def expected(self, **changes: Any) -> accuracy.Reference:
        """The expected result; ``changes`` replace arguments of :func:`gemmhub.accuracy.reference` (for diagnosis)."""
        case = self.case
        arguments: dict[str, Any] = {
            "a": self.a.values, "b": self.b.values, "model": accuracy.problem_model(self.problem),
            "alpha": case.alpha, "beta": case.beta, "activation": case.activation, "out_dtype": self.out.dtype,
            **{name: placed.values for name, placed in self.inputs.items() if name not in ("a", "b")},
        }  # fmt: skip
        if self.addend is not None:
            arguments["c"] = self.addend
        if "pre_activation" in self.others:
            arguments["pre_dtype"] = self.others["pre_activation"].dtype
        if "amax" in self.others:
            arguments["amax"] = True
        arguments.update(changes)
        with np.errstate(all="ignore"):
            return accuracy.reference(arguments.pop("a"), arguments.pop("b"), **arguments)


def _cancelling(values: Array, name: str, seed: int, left: int) -> Array:
    """Arrange the terms of every sum, except ``left`` or one more of them, in pairs that cancel, in random order.

    Where ``left`` is 0, that one is 0, too.
    """
    if dtypes.info(values.dtype).kind in ("bool", "int", "uint"):
        return values
    axis = values.ndim - (1 if name == "a" else 2)
    terms = np.moveaxis(values, axis, 0)
    half = max(0, len(terms) - left) // 2
    terms[half : 2 * half] = -terms[:half] if name == "a" else terms[:half]
    if not left:
        terms[2 * half :] = 0
    order = np.random.default_rng(seed).permutation(len(terms))
    return np.moveaxis(terms[order], 0, axis)


def dense(problem: GemmProblem) -> GemmProblem:
    """``problem`` with every operand contiguous, as a backend that ignores layouts may take it."""

    def contiguous(operand: Operand) -> Operand:
        layout = operand.layout
        return replace(operand, layout=MatrixLayout.contiguous(layout.rows, layout.cols, problem.batch))

    def plain(x: Described) -> Described:
        if isinstance(x, Operand):
            return contiguous(x)
        return replace(x, stride=1, depth_stride=int(x.depth)) if isinstance(x, Scale) else replace(x, stride=1)

    a, b, out = (contiguous(x) for x in (problem.a, problem.b, problem.out))
    return replace(problem, a=a, b=b, out=out).having(**{name: plain(x) for name, x in problem.operands.items()})
