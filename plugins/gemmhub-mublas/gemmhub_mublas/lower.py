"""Lowers a problem to column-major products with one evenly spaced batch each, the form of muBLAS and muBLASLt.

:func:`lowered` returns these products, or a refusal. It calls no library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from gemmhub import lowering
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.lowering import BlasCall, fold_batch
from gemmhub.problem import GemmProblem

LARGEST = 2**31 - 1
"""Largest size, leading dimension and batch count: C ints."""
MAX_LAUNCHES = 4096
"""Largest number of launches of a call whose batch is not evenly spaced."""
_ZERO_K = {1: 16}
"""K of a product of zeros, by itemsize; 1 for all others. Kernels for 8-bit types take long rows only."""


@dataclass(frozen=True)
class Matrix:
    """A stack of column-major matrices as they are stored, before any transposition."""

    dtype: str
    rows: int
    cols: int
    ld: int
    stride: int
    """The batch stride in elements."""
    alignment: int
    """The alignment of every matrix in bytes."""

    @property
    def itemsize(self) -> int:
        return as_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Form:
    """``D = op(A) op(B)`` of the scalars' type ``compute``, column-major, ``count`` times; C has D's dtype."""

    compute: str
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    count: int = 1
    precision: str = "ieee"
    bias: str | None = None
    """The dtype of a bias that has an element for each row of D."""
    activation: str | None = None

    @property
    def types(self) -> tuple[str, str, str, str]:
        """dtypes of A, B and D, and the accumulator's."""
        return self.a.dtype, self.b.dtype, self.d.dtype, self.compute


@dataclass(frozen=True)
class Lowered:
    """The calls of the library for a problem."""

    main: Form | None
    """The product; None where k is 0."""
    zero: Form | None
    """The same result from a product of zeros; for k = 0, and for problems whose alpha may be 0."""
    swapped: bool
    """Whether the library's A is the problem's b, and its B the problem's a."""
    offsets: tuple[tuple[int, int, int, int], ...]
    """For each launch, the offsets in bytes of the library's A, B, C and D."""

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that calls need, ``main`` first."""
        return tuple(form for form in (self.main, self.zero) if form is not None)

    @property
    def zero_bytes(self) -> int:
        """Bytes of the zeros that serve as A and as B of ``zero``."""
        if self.zero is None:
            return 0
        return max(x.ld * x.cols * x.itemsize for x in (self.zero.a, self.zero.b))


def lowered(problem: GemmProblem, fused: bool, batched: bool = True) -> Lowered | Refusal:
    """Return the lowered form of ``problem``, whose result has elements, or a refusal.

    It is muBLASLt's if ``fused``, with a bias and an activation, and takes a batch in one call if ``batched``.
    """
    refusal = _options(problem, fused)
    if refusal is not None:
        return refusal
    problem = fold_batch(problem) or problem
    calls = lowering.equivalent_calls(problem, "col")
    call = calls if isinstance(calls, Refusal) else lowering.with_bias(calls, problem, "the library")
    if isinstance(call, Refusal):
        return call
    refusal = _too_large(call)
    if refusal is not None:
        return refusal
    dim, outer = lowering.split(call.batch) if batched else (lowering.SINGLE, call.batch)
    launches = prod(each.count for each in outer)
    if launches > MAX_LAUNCHES:
        return Refusal(
            f"the batch takes {launches} launches (one runs an evenly spaced batch"
            f"{'' if batched else ', but not with the installed header'}): at most {MAX_LAUNCHES} are allowed",
            "pass contiguous operands, or multiply in parts",
        )
    first, second = (problem.b, problem.a) if call.swapped else (problem.a, problem.b)
    operands = (first, second, problem.c or problem.out, problem.out)
    m, n, k = call.m, call.n, call.k
    sizes = ((k, m) if call.trans_a else (m, k), (n, k) if call.trans_b else (k, n), (m, n), (m, n))
    lds = (call.lda, call.ldb, call.ldc, call.ldd)
    a, b, c, d = (
        Matrix(
            operand.dtype.name, *sizes[i], lds[i], dim.strides[i],
            lowering.alignment(operand, [each.strides[i] for each in (*outer, dim)]),
        )
        for i, operand in enumerate(operands)
    )  # fmt: skip
    compute = problem.compute_dtype.name
    form = Form(
        compute, m, n, k, call.trans_a, call.trans_b, a, b, c, d, dim.count, problem.precision,
        problem.bias.dtype.name if problem.bias else None, problem.activation,
    )  # fmt: skip
    # An integer product is finite, so that alpha = 0 needs no form of its own.
    zero = k == 0 or not (problem.alpha_is_one or compute == "int32")
    return Lowered(
        form if k else None,
        _without_product(form) if zero else None,
        call.swapped,
        tuple(lowering.offsets(outer, [x.dtype.itemsize for x in operands])),
    )


def _options(problem: GemmProblem, fused: bool) -> Refusal | None:
    if problem.reproducible and problem.compute_dtype.kind != "i":
        return Refusal(
            f"nothing is public about whether {'muBLASLt' if fused else 'muBLAS'} gives the same bits in every run",
            "leave reproducible= out, or use a backend that promises it",
        )
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(
            f"c is {problem.c.dtype}: the library adds only a c of the result's dtype",
            f"convert c to {problem.out.dtype}",
        )
    return None


def _too_large(call: BlasCall) -> Refusal | None:
    """Refuse sizes beyond the library's 32-bit integers; batch strides are 64-bit."""
    numbers = {
        "m": call.m, "n": call.n, "k": call.k, "a leading dimension": max(call.lda, call.ldb, call.ldc, call.ldd),
        "the batch": max((dim.count for dim in call.batch), default=1),
    }  # fmt: skip
    for name, number in numbers.items():
        if number > LARGEST:
            return Refusal(
                f"{name} is {number} here: the library allows {LARGEST}",
                "multiply in parts along that dimension",
            )
    return None


def _without_product(form: Form) -> Form:
    """Return ``form`` with A^T and B of zeros, and a short inner dimension."""
    k = _ZERO_K.get(form.a.itemsize, 1)
    a = Matrix(form.a.dtype, k, form.m, k, 0, 256)
    b = Matrix(form.b.dtype, k, form.n, k, 0, 256)
    return replace(form, k=k, trans_a=True, trans_b=False, a=a, b=b)


def stored(form: Form) -> str:
    """Return the storage of the operands, as a text."""
    words = [
        f"{name} {x.dtype} {x.rows}x{x.cols} with leading dimension {x.ld}, aligned to {x.alignment} bytes"
        for name, x in (("A", form.a), ("B", form.b), ("D", form.d))
    ]
    letters = "".join("T" if x else "N" for x in (form.trans_a, form.trans_b))
    return f"column-major {letters}: {'; '.join(words)}"
