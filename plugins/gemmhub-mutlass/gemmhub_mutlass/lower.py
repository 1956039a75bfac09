"""Lowers a problem to row-major products with one evenly spaced batch each, the form that the kernels take.

:func:`lowered` returns these products, or a refusal. It calls no library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gemmhub import lowering
from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import BatchDim, fold_batch
from gemmhub.problem import GemmProblem, Operand
from gemmhub_mutlass.variants import SIMT, TENSOR, TF32, VECTOR_BYTES

LARGEST = 2**31 - 1
"""Largest size: sizes are C ints."""
MAX_BATCH = 65535
"""Largest batch of one launch: the third dimension of its grid."""
MAX_LAUNCHES = 4096
"""Largest number of launches of a call whose batch is not evenly spaced."""

_SPREAD = 16
"""The leading dimension of a matrix of one row (or column), which is free, is a multiple of this."""
_RESULTS = {
    "float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32"), "float32": ("float32",), "int8": ("int32",),
}  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A stack of matrices as they are stored; strides count elements."""

    column: bool
    """Whether it is column-major."""
    ld: int
    step: int
    """The stride from one matrix of the batch to the next."""
    vectors: bool
    """Whether the 16 bytes that a kernel reads or writes at a time are always aligned and within a row (or column)."""


@dataclass(frozen=True)
class Form:
    """``D = alpha A B + beta C``, D and C row-major m x n, ``count`` times."""

    m: int
    n: int
    k: int
    count: int
    a: Matrix
    b: Matrix
    c: Matrix
    """Equal to ``d`` where there is no addend."""
    d: Matrix

    @property
    def vectors(self) -> bool:
        """Whether both operands can be read by vectors."""
        return self.a.vectors and self.b.vectors

    @property
    def result_vectors(self) -> bool:
        return self.c.vectors and self.d.vectors


@dataclass(frozen=True)
class Lowered:
    """The launches for a problem."""

    form: Form
    swapped: bool
    """Whether A is the problem's b and B the problem's a, both transposed."""
    offsets: tuple[tuple[int, int, int, int], ...]
    """For each launch, the offsets in bytes of A, B, C and D."""


def maths(problem: GemmProblem, arch: str) -> tuple[str, ...] | Refusal:
    """Return the kinds of arithmetic for ``problem`` on ``arch``, fastest first; a refusal where there is none."""
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    if a not in _RESULTS or b not in _RESULTS:
        given = a if a not in _RESULTS else b
        return Refusal(
            f"MUTLASS's kernels here multiply {', '.join(_RESULTS)}, not {given}",
            "use another backend (mublas), or convert the operands",
        )
    if a != b:
        return Refusal(f"the operands are {a} and {b}: MUTLASS multiplies operands of one dtype", "convert one of them")
    if out not in _RESULTS[a]:
        allowed = " or ".join(f"out_dtype={name!r}" for name in _RESULTS[a])
        return Refusal(f"MUTLASS's product of {a} is {' or '.join(_RESULTS[a])} here, not {out}", f"give {allowed}")
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(f"c is {problem.c.dtype}: MUTLASS adds only a c of the result's dtype", f"convert c to {out}")
    if a != "float32":
        return (TENSOR,)
    single = (SIMT,) if arch == "mp_22" else ()
    if problem.permits_tf32:
        return (TF32, *single)  # tf32 is allowed, not required
    return single or Refusal(
        f"on {arch} MUTLASS multiplies float32 on tensor cores only, rounded to TF32, which precision "
        f'"{problem.precision}" forbids',
        'allow it with precision="tf32", or use another backend (mublas)',
    )


def lowered(problem: GemmProblem) -> Lowered | Refusal:
    """Return the lowered form of ``problem``, whose result has elements, or a refusal."""
    problem = fold_batch(problem) or problem
    calls = lowering.equivalent_calls(problem, "row")
    if isinstance(calls, Refusal):
        return calls
    found: list[Lowered] = []
    for call in sorted(calls, key=lambda call: call.swapped):
        answer = _read(problem, call.swapped, call.batch)
        if isinstance(answer, Refusal):
            return answer
        found.append(answer)
    return max(found, key=lambda each: (each.form.vectors, each.form.result_vectors))


def unaligned(problem: GemmProblem, lowered: Lowered, arch: str) -> Refusal | None:
    """Return a refusal for unaligned operands on ``arch`` if its kernels take whole vectors only (mp_31)."""
    form = lowered.form
    if arch != "mp_31" or (form.vectors and form.result_vectors):
        return None
    names = ("b", "a", "c", "out") if lowered.swapped else ("a", "b", "c", "out")
    matrices = (form.a, form.b, form.c, form.d)
    bad = [name for name, x in zip(names, matrices) if not x.vectors and (name != "c" or problem.c is not None)]
    each = VECTOR_BYTES // min(problem.a.dtype.itemsize, problem.out.dtype.itemsize)
    return Refusal(
        f"MUTLASS's kernels for {arch} move {VECTOR_BYTES} bytes at a time, which does not fit {', '.join(bad)}: "
        "address, leading dimension and contiguous dimension must be multiples of that",
        f"pad the operands to multiples of {each} elements, or use another backend (mublas)",
    )


def _read(problem: GemmProblem, swapped: bool, batch: tuple[BatchDim, ...]) -> Lowered | Refusal:
    """Return the problem with a row-major result; if ``swapped``, the result of the transposed matrices."""
    first, second = (problem.b, problem.a) if swapped else (problem.a, problem.b)
    operands = (first, second, problem.c or problem.out, problem.out)
    layouts = [x.layout.transposed if swapped else x.layout for x in operands]
    m, n, k = layouts[3].rows, layouts[3].cols, problem.k
    inner, outer = lowering.split(batch, _fits)
    refusal = _too_large({"m": m, "n": n, "k": k}, prod(dim.count for dim in outer))
    if refusal is not None:
        return refusal
    matrices = []
    for which, (operand, layout) in enumerate(zip(operands, layouts)):
        alignment = lowering.alignment(operand, [dim.strides[which] for dim in (*outer, inner)])
        orders = ("row", "col") if which < 2 else ("row",)
        stored = [_matrix(layout, order, operand, alignment, inner.strides[which]) for order in orders]
        # A matrix of one row or column is stored in both orders: in one of them it may be read by vectors.
        fitting = [x for x in stored if x is not None]
        matrices.append(max(fitting, key=lambda x: x.vectors))
    a, b, c, d = matrices
    offsets = lowering.offsets(outer, [x.dtype.itemsize for x in operands])
    return Lowered(Form(m, n, k, inner.count, a, b, c, d), swapped, tuple(offsets))


def _matrix(layout: MatrixLayout, order: str, operand: Operand, alignment: int, step: int) -> Matrix | None:
    """Return ``layout`` as a matrix of the storage order ``order``; None where it has another one."""
    if not layout.stored(order):
        return None
    inner, outer = (layout.cols, layout.rows) if order == "row" else (layout.rows, layout.cols)
    ld = layout.leading_dimension(order)
    if outer <= 1:
        ld = -(-inner // _SPREAD) * _SPREAD or _SPREAD
    size = operand.dtype.itemsize
    vectors = alignment % VECTOR_BYTES == 0 and ld * size % VECTOR_BYTES == 0 and inner * size % VECTOR_BYTES == 0
    return Matrix(order == "col", ld, step, vectors)


def _too_large(sizes: dict[str, int], launches: int) -> Refusal | None:
    for name, size in sizes.items():
        if size > LARGEST:
            return Refusal(f"{name} is {size} here: MUTLASS allows {LARGEST}", "multiply in parts along that dimension")
    if launches > MAX_LAUNCHES:
        return Refusal(
            f"the batch takes {launches} launches (one runs up to {MAX_BATCH} evenly spaced products): at most "
            f"{MAX_LAUNCHES} are allowed",
            "pass contiguous operands, or multiply in parts",
        )
    return None


def _fits(dim: BatchDim) -> bool:
    return lowering.forwards(dim) and dim.count <= MAX_BATCH
