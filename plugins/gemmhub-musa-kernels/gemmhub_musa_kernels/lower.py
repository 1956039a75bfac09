"""Lowers a problem to the kernels' form: any strides, and a result whose rows are contiguous where that is possible.

``lowered`` swaps the operands of a column-major result (D^T = B^T A^T), merges batch dimensions, and refuses
problems that no kernel takes. It is independent of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import collapse, fold_batch
from gemmhub.problem import GemmProblem, Operand

OPERANDS = ("float16", "bfloat16")
RESULTS = ("float16", "bfloat16", "float32")
"""Dtypes of the operands, which are equal, and of the result, c and bias."""
BATCH_DIMS = 4
_LINE = 128
"""Bytes of a memory transaction."""
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Strides:
    """The strides of a stack of matrices in elements: from row to row, column to column, matrix to matrix."""

    row: int
    col: int
    batch: tuple[int, ...]
    alignment: int = 256
    """Alignment of the first matrix in bytes."""
    padded: bool = False
    """Whether it is a copy by this plugin, whose rows can be read to the end of a line (:func:`pitch`)."""

    @property
    def in_vectors(self) -> bool:
        """Whether lines of 16-bit elements can be moved 16 bytes at a time."""
        line = self.col if self.row == 1 else self.row
        return self.alignment % 16 == 0 and not any(step % 8 for step in (line, *self.batch))

    @property
    def transposed(self) -> Strides:
        """The strides of the transposed matrices."""
        return replace(self, row=self.col, col=self.row)


@dataclass(frozen=True)
class Gemm:
    """D = activation(alpha A B + beta C + bias), as the kernels compute it."""

    m: int
    n: int
    k: int
    a: Strides
    b: Strides
    c: Strides | None
    d: Strides
    batch: tuple[int, ...]
    """Sizes, outermost first; at most BATCH_DIMS."""
    swapped: bool
    """Whether A is the problem's b and B its a, all transposed."""
    bias_axis: str | None
    """ "m": an element for each row of D; "n": one for each column."""
    pinned: bool = False
    """Whether the bits of a row are promised: matrix kernels then take A along K and B along N, copied where they are
    not, and operands are not swapped."""

    @property
    def batch_count(self) -> int:
        """Matrices of the batch."""
        return prod(self.batch)

    def order(self, operand: str) -> str | None:
        """Return the contiguous dimension of "a" or "b": K ("deep"), M or N ("wide"), or none (None)."""
        wide, deep = (self.a.row, self.a.col) if operand == "a" else (self.b.col, self.b.row)
        if wide == 1 or (self.extent(operand) == 1 and deep != 1):
            return "wide"
        return "deep" if deep == 1 or self.k == 1 else None

    @property
    def unfit(self) -> tuple[str, ...]:
        """The operands of a pinned product that matrix kernels cannot read in its order."""
        fits = {"a": self.k == 1 or self.a.col == 1, "b": self.n == 1 or self.b.col == 1}
        return tuple(operand for operand in "ab" if not fits[operand])

    def extent(self, operand: str) -> int:
        """Return m for "a", n for "b"."""
        return self.m if operand == "a" else self.n

    def strides(self, operand: str) -> Strides:
        """Return the strides of "a" or "b"."""
        return self.a if operand == "a" else self.b

    def shared(self, operand: str) -> bool:
        """Return whether all matrices of the batch have the same "a" or "b"."""
        return not any(self.strides(operand).batch)


def pitch(extent: int) -> int:
    """Return the elements from row to row of a copied operand with rows of ``extent``: each starts a line."""
    each = _LINE // 2
    return -(-extent // each) * each


def lowered(problem: GemmProblem) -> Gemm | Refusal:
    """Return the kernels' form of ``problem``, whose result has elements; a refusal where no kernel takes it."""
    refusal = _unfit(problem)
    if refusal is not None:
        return refusal
    packed = problem.packed_by is not None
    if packed:
        b = MatrixLayout(problem.k, problem.n, pitch(problem.n), 1, problem.batch, (0,) * len(problem.batch))
        problem = replace(problem, b=Operand(problem.b.dtype, b, _LINE), packed_by=None)
    problem = fold_batch(problem) or problem
    operands = [problem.a, problem.b, problem.c, problem.out]
    layouts = [_layout(x.layout, problem.batch) if x else None for x in operands]
    swap = not problem.pinned and _swaps(problem.out.layout.essential)
    steps = [x.batch_strides if x else (0,) * len(problem.batch) for x in layouts]
    dims = collapse(problem.batch, *steps)
    if len(dims) > BATCH_DIMS:
        return Refusal(
            f"the batch has {len(dims)} dimensions that no even spacing merges; the kernels take {BATCH_DIMS}",
            "pass contiguous operands, or multiply in parts",
        )
    left, right, c, d = (
        Strides(x.row_stride, x.col_stride, tuple(strides[i] for _, strides in dims), operand.alignment)
        if x is not None and operand is not None
        else None
        for i, (x, operand) in enumerate(zip(layouts, operands))
    )
    assert left is not None
    assert right is not None
    assert d is not None
    right = replace(right, padded=packed)
    axis = problem.bias.axis if problem.bias else None
    m, n = problem.m, problem.n
    if swap:
        left, right, c, d = right.transposed, left.transposed, c.transposed if c else None, d.transposed
        axis = {"m": "n", "n": "m", None: None}[axis]
        m, n = n, m
    return Gemm(m, n, problem.k, left, right, c, d, tuple(size for size, _ in dims), swap, axis, problem.pinned)


def _unfit(problem: GemmProblem) -> Refusal | None:
    a, b, out = problem.a.dtype, problem.b.dtype, problem.out.dtype
    if a != b or a.name not in OPERANDS or out.name not in RESULTS:
        return Refusal(
            f"the kernels multiply float16 by float16 or bfloat16 by bfloat16, with a result of {', '.join(RESULTS)}; "
            f"not {a} by {b} to {out}",
            "convert the operands (.astype), or use another backend",
        )
    added = [(name, x.dtype) for name, x in (("c", problem.c), ("bias", problem.bias)) if x is not None]
    for name, dtype in added:
        if dtype.name not in RESULTS:
            return Refusal(f"{name} is {dtype}: the kernels add {', '.join(RESULTS)}", f"convert {name} to {out}")
    named: tuple[tuple[str, Operand | None], ...]
    named = (("a", problem.a), ("b", problem.b), ("out", problem.out), ("c", problem.c))
    for name, operand in named:
        if operand is not None and operand.alignment < operand.dtype.itemsize:
            return Refusal(
                f"the address of {name} is aligned to {operand.alignment} bytes, less than an element",
                f"pass a contiguous copy of {name}",
            )
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "the batch": problem.batch_count}
    for name, size in sizes.items():
        if size > _LARGEST:
            return Refusal(f"{name} is {size}: the kernels allow {_LARGEST}", "multiply in parts")
    return None


def _swaps(out: MatrixLayout) -> bool:
    """Return whether a result of that layout is written as its transpose: only its columns are contiguous."""
    return out.row_stride == 1 and out.col_stride != 1


def _layout(layout: MatrixLayout, batch: tuple[int, ...]) -> MatrixLayout:
    """Return ``layout`` with a stride for each dimension of ``batch``, and 0 along dimensions of one element."""
    missing = (0,) * (len(batch) - len(layout.batch_strides))
    return replace(layout, batch=batch, batch_strides=missing + layout.batch_strides).essential
