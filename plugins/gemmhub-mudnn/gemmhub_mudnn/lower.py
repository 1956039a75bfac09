"""Lowers a problem to muDNN's form: row-major tensors as they are stored, transposition flags, one batch.

muDNN computes ``d = alpha op(a) op(b) + beta c + bias`` with d row-major and a bias that has an element per column
of d. It takes the shape that an operand has in memory beside the flag that transposes it, the strides of a dense
tensor along dimensions of size 1, and no stride of 0: a matrix that serves a whole batch is a batch of one. No library
is called here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from gemmhub import lowering
from gemmhub.capability import Refusal
from gemmhub.lowering import BatchDim, fold_batch
from gemmhub.problem import GemmProblem, Operand

DTYPES = ("float16", "bfloat16", "float32")
MAX_LAUNCHES = 4096
"""Largest number of launches of a call whose batch is not evenly spaced."""
_INT32 = 2**31
_VECTOR = 16
"""The usual alignment of operands in bytes: arrays have it, slices may not."""


@dataclass(frozen=True)
class Tensor:
    """A stack of ``count`` matrices as they are stored: rows of ``cols`` elements, ``ld`` elements apart."""

    count: int
    rows: int
    cols: int
    ld: int
    stride: int
    """The batch stride in elements."""

    @property
    def dense(self) -> bool:
        return self.ld == self.cols and self.stride == self.rows * self.ld


@dataclass(frozen=True)
class Form:
    """One product, without addresses and scalars."""

    dtype: str
    """The dtype of a and b."""
    result: str
    """The dtype of c, d and the bias."""
    tensor_math: bool
    """Whether it runs on tensor cores; float32 operands are then rounded to TF32."""
    trans_a: bool
    trans_b: bool
    a: Tensor
    b: Tensor
    c: Tensor
    """Equal to d where there is no addend."""
    d: Tensor
    stack: bool
    """Whether it is a BatchMatMul of three dimensions, even for a batch of one; else a MatMul of two."""
    addend: bool = False
    bias: bool = False
    deterministic: bool = False


@dataclass(frozen=True)
class Lowered:
    """The calls of the library for a problem."""

    main: Form | None
    """The product; None where k is 0."""
    zero: Form | None
    """The same result from a column and a row of zeros; for k = 0, and for problems whose alpha may be 0."""
    swapped: bool
    """Whether the library's a is the problem's b, and its b the problem's a."""
    offsets: tuple[tuple[int, int, int, int], ...]
    """For each launch, the offsets in bytes of the library's a, b, c and d."""
    aligned: bool
    """Whether every operand of every launch is aligned to 16 bytes."""

    @property
    def forms(self) -> tuple[Form, ...]:
        return tuple(form for form in (self.main, self.zero) if form is not None)

    @property
    def zero_bytes(self) -> int:
        """Size of the zeros that serve ``zero`` as a and b."""
        if self.zero is None:
            return 0
        itemsize = 4 if self.zero.dtype == "float32" else 2
        return itemsize * max(self.zero.a.count * self.zero.a.rows, self.zero.b.cols)


def tensor_math(problem: GemmProblem) -> bool:
    """Return whether tensor cores keep the promised accuracy: not for float32 that may not be rounded to tf32."""
    return problem.a.dtype.name != "float32" or problem.permits_tf32


def lowered(problem: GemmProblem) -> Lowered | Refusal:
    """Return the lowered form of ``problem``, whose result has elements, or a refusal."""
    refusal = check(problem)
    if refusal is not None:
        return refusal
    problem = fold_batch(problem) or problem
    calls = lowering.equivalent_calls(problem, "row")
    if isinstance(calls, Refusal):
        return calls
    call = lowering.with_bias(sorted(calls, key=lambda call: call.swapped), problem, "muDNN")
    if isinstance(call, Refusal):
        return call
    m, n, k = call.m, call.n, call.k
    first, second = (problem.b, problem.a) if call.swapped else (problem.a, problem.b)
    addend = problem.c or problem.out
    sizes = ((k, m) if call.trans_a else (m, k), (n, k) if call.trans_b else (k, n), (m, n), (m, n))
    lds = (call.lda, call.ldb, call.ldc, call.ldd)
    dim, outer = lowering.split(call.batch, _even([rows * ld for (rows, cols), ld in zip(sizes, lds)]))
    launches = prod(each.count for each in outer)
    if launches > MAX_LAUNCHES:
        return Refusal(
            f"the batch is not evenly spaced and takes {launches} launches: at most {MAX_LAUNCHES} are allowed",
            "pass contiguous operands, or multiply in parts",
        )
    a, b, c, d = (_tensor(dim.count, rows, cols, ld, step) for (rows, cols), ld, step in zip(sizes, lds, dim.strides))
    large = max(m, n, k, *(max(x.ld, x.stride if x.count > 1 else 0, x.count) for x in (a, b, c, d)))
    if large >= _INT32:
        return Refusal(f"a size or stride is {large}: muDNN allows less than 2**31", "multiply in parts")
    form = Form(
        dtype=problem.a.dtype.name,
        result=problem.out.dtype.name,
        tensor_math=tensor_math(problem),
        trans_a=call.trans_a,
        trans_b=call.trans_b,
        a=a,
        b=b,
        c=c,
        d=d,
        stack=dim.count > 1,
        addend=problem.c is not None,
        bias=problem.bias is not None,
        deterministic=problem.reproducible is not None,
    )
    operands = (first, second, addend, problem.out)
    return Lowered(
        main=form if k else None,
        zero=_without_product(form, m, n) if k == 0 or not problem.alpha_is_one else None,
        swapped=call.swapped,
        offsets=tuple(lowering.offsets(outer, [x.dtype.itemsize for x in operands])),
        aligned=_aligned(operands, outer),
    )


def check(problem: GemmProblem) -> Refusal | None:
    """Return a refusal for dtypes, an addend or a bias that the library does not have."""
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    if a not in DTYPES or b not in DTYPES:
        given = a if a not in DTYPES else b
        if given in ("float64", "complex64", "complex128"):
            return Refusal(f"muDNN multiplies no {given}", "use the backend mublas (pip install gemmhub-mublas)")
        return Refusal(f"muDNN's products of {given} are not supported here", f"convert to one of {', '.join(DTYPES)}")
    if a != b:
        return Refusal(f"the operands are {a} and {b}: muDNN multiplies operands of one dtype", "convert one of them")
    if out not in (a, "float32"):
        return Refusal(
            f"the result is {out}: muDNN's product of {a} is {a} or float32", f"give out_dtype='{a}' or 'float32'"
        )
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(f"c is {problem.c.dtype}: muDNN adds only a c of the result's dtype", f"convert c to {out}")
    if problem.bias is not None:
        if problem.bias.dtype != problem.out.dtype:
            return Refusal(f"the bias is {problem.bias.dtype}: muDNN adds {out} here", f"convert the bias to {out}")
        if problem.bias.stride != 1:
            return Refusal(
                f"the bias has a stride of {problem.bias.stride} elements: muDNN takes contiguous ones",
                "pass a contiguous copy of the bias",
            )
    return None


def _tensor(count: int, rows: int, cols: int, ld: int, step: int) -> Tensor:
    """Return a tensor whose ``stride`` is that of a dense one where there is one matrix, as the library requires."""
    return Tensor(1 if step == 0 else count, rows, cols, ld, rows * ld if step == 0 or count == 1 else step)


def _even(extents: list[int]) -> Callable[[BatchDim], bool]:
    """Return a test whether the library steps through a batch dimension.

    It does where no matrix begins before the last one ended; a and b may also have a stride of 0.
    """

    def even(dim: BatchDim) -> bool:
        a, b, c, d = (step >= extent for step, extent in zip(dim.strides, extents))
        return (a or dim.stride_a == 0) and (b or dim.stride_b == 0) and c and d

    return even


def _without_product(form: Form, m: int, n: int) -> Form:
    """Return ``form`` with a column and a row of zeros, so that alpha has no effect."""
    count = form.d.count
    a, b = Tensor(count, m, 1, 1, m), Tensor(1, 1, n, n, n)
    return replace(form, trans_a=False, trans_b=False, a=a, b=b)


def _aligned(operands: tuple[Operand, ...], outer: tuple[BatchDim, ...]) -> bool:
    for which, operand in enumerate(operands):
        steps = [dim.strides[which] * operand.dtype.itemsize for dim in outer]
        if any(each % _VECTOR for each in (operand.alignment, *steps)):
            return False
    return True
