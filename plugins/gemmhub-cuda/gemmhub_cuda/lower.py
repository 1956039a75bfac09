"""Lowers a problem to the kernels' operands, strides and form, or returns a refusal. No driver is called.

The kernels write a d that is contiguous along N, and read a and b K-major or MN-major. A column-major result is
computed as d^T = b^T a^T: :func:`gemmhub.lowering.lower` swaps the operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmhub_nvidia import scales
from gemmhub_nvidia.scales import ScaleAccess

from gemmhub import lowering
from gemmhub.capability import Refusal
from gemmhub.lowering import BatchDim, BlasCall, fold_batch, lower
from gemmhub.problem import GemmProblem, Operand
from gemmhub_cuda.variants import batch as batch_kernel
from gemmhub_cuda.variants import mma
from gemmhub_cuda.variants.form import FORMATS, TYPES, Form

LONGEST = 2**31 - 512
"""Largest number of elements along a side: coordinates have 31 bits, and a tile may overhang."""
MAX_BATCH = 65535
"""Largest batch of one launch: gridDim.z."""
_OLDEST = (7, 0)
_FURTHEST = 2**31 - 2**16
"""Largest number of elements from the first to the last row that a CTA of the float32 kernel reads at once."""


@dataclass(frozen=True)
class Lowering:
    """A problem as the kernels run it: ``m`` and ``n`` are the kernel's own."""

    swapped: bool
    """Whether the kernel's a is the problem's b, and its b the problem's a."""
    m: int
    n: int
    k: int
    form: Form
    lda: int
    """Leading dimension of a in elements, and likewise for b, c and d."""
    ldb: int
    ldc: int
    ldd: int
    batch: BatchDim
    """The batch dimension of one launch."""
    outer: tuple[BatchDim, ...]
    """Batch dimensions that take launches of their own."""
    scales: tuple[ScaleAccess | None, ScaleAccess | None] = (None, None)
    """The access to the quantization scales of a and of b."""

    def offsets(self, max_count: int | None = None) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield for each launch the offsets of a, b, c and d in bytes, and its number of matrices.

        ``max_count``: the largest batch of one launch, by default :data:`MAX_BATCH`.
        """
        max_count = max_count or MAX_BATCH
        sizes = (self.form.input_bytes,) * 2 + (self.form.output_bytes,) * 2
        for offsets in lowering.offsets(self.outer, sizes):
            for first in range(0, self.batch.count, max_count):
                steps = (first * stride * size for stride, size in zip(self.batch.strides, sizes))
                a, b, c, d = (x + y for x, y in zip(offsets, steps))
                yield a, b, c, d, min(max_count, self.batch.count - first)


def lowered(problem: GemmProblem, capability: tuple[int, int]) -> Lowering | Refusal:
    """Lower ``problem``, whose result has elements, for a card of that compute capability, or return a refusal."""
    refusal = check_types(problem, capability)
    if refusal is not None:
        return refusal
    problem = fold_batch(problem) or problem
    call = lower(problem, "row")
    if isinstance(call, Refusal):
        return call
    if max(problem.m, problem.n, problem.k, problem.batch_count) > LONGEST:
        return Refusal(f"a side is longer than {LONGEST} elements", "multiply in parts")
    batch, outer = lowering.split(call.batch, lambda dim: True)
    first, second = (problem.b, problem.a) if call.swapped else (problem.a, problem.b)
    a_scales, b_scales = (scales.access(problem, name) for name in ("ba" if call.swapped else "ab"))
    if len(call.batch) > 1 and any(x is not None and x.batch for x in (a_scales, b_scales)):
        return Refusal(
            "the batch of the operands is not evenly spaced, and matrices have scales of their own",
            "pass contiguous operands, or multiply in parts",
        )
    a = _read(first, "row" if not call.swapped else "col", call.m, [x.stride_a for x in call.batch])
    b = _read(second, "col" if not call.swapped else "row", call.n, [x.stride_b for x in call.batch])
    refusal = _check_span(call, a, b) if problem.a.dtype.itemsize == 4 else None
    if refusal is not None:
        return refusal
    bias = problem.bias
    form = Form(
        a_m_major=a.mn_major,
        b_n_major=b.mn_major,
        a_alignment=a.alignment,
        b_alignment=b.alignment,
        input=_input(first, second),
        output=problem.out.dtype.name,
        scaled=not problem.alpha_is_one,
        addend=problem.c is not None,
        bias=call.bias_axis,
        bias_type=bias.dtype.name if bias else "float32",
        activation=problem.activation,
        scales=scales.use(problem),
    )
    return Lowering(
        call.swapped, call.m, call.n, call.k, form, a.ld, b.ld, call.ldc, call.ldd, batch, outer,
        (a_scales, b_scales),
    )  # fmt: skip


def _input(a: Operand, b: Operand) -> str:
    """Return the input of the kernel for these operands: a dtype, or a pair of 8-bit formats."""
    if a.dtype.name in FORMATS:
        return f"{FORMATS[a.dtype.name]}.{FORMATS[b.dtype.name]}"
    return str(a.dtype.name)


def check_types(problem: GemmProblem, capability: tuple[int, int]) -> Refusal | None:
    """Return a refusal of dtypes or an epilogue that there is no kernel for."""
    a, b = (x.dtype.name for x in (problem.a, problem.b))
    if a in FORMATS and b in FORMATS:
        return _check_float8(problem, capability)
    if any(name in problem.operands for name in scales.NAMES.values()):
        return Refusal(f"{a} by {b} has no quantization scales", "scale the result, or pass float8 operands")
    if a == b == "int8":
        return _check_bytes(problem, capability)
    if a != b or a not in TYPES:
        return Refusal(
            f"there is no kernel for {a} by {b}",
            "pass two float32, two float16, two bfloat16, two int8 or two float8 operands",
        )
    if a != "float32" and capability < mma.OLDEST:
        return Refusal(
            f"the kernel for {a} is for compute capability 8.0 and later; this card is {capability[0]}.{capability[1]}",
            "convert the operands to float32, or use another backend, gemmhub-cublas for one",
        )
    return _check_epilogue(problem)


def _check_float8(problem: GemmProblem, capability: tuple[int, int]) -> Refusal | None:
    """Return a refusal of a float8 product that there is no kernel for."""
    if capability < batch_kernel.FLOAT8:
        return Refusal(
            "float8 needs compute capability {}.{} or later; this card is {}.{}".format(
                *batch_kernel.FLOAT8, *capability
            ),
            "convert the operands, times their scales, to float16 or bfloat16",
        )
    return scales.refusal(problem) or _check_epilogue(problem)


def _check_epilogue(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of a result or an epilogue that there is no kernel for."""
    out = problem.out.dtype.name
    if out not in TYPES:
        return Refusal(f"there is no kernel for a result of {out}", f"give out_dtype= one of {', '.join(TYPES)}")
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(f"c is {problem.c.dtype}, the result {out}", f"convert c to {out}")
    bias = problem.bias
    if bias is not None and bias.dtype.name not in TYPES:
        return Refusal(f"the bias is {bias.dtype}", f"convert it to one of {', '.join(TYPES)}")
    if bias is not None and bias.stride != 1:
        return Refusal(
            f"the bias has a stride of {bias.stride} elements: the kernels take contiguous ones",
            "pass a contiguous copy of the bias",
        )
    return None


def _check_bytes(problem: GemmProblem, capability: tuple[int, int]) -> Refusal | None:
    """Return a refusal of an int8 product that there is no kernel for."""
    if capability < mma.OLDEST:
        return Refusal(
            f"int8 needs compute capability 8.0 or later; this card is {capability[0]}.{capability[1]}",
            "use another backend, gemmhub-cublas for one",
        )
    if problem.out.dtype.name != "int32":
        return Refusal(f"there is no kernel for int8 with a result of {problem.out.dtype}", "give out_dtype='int32'")
    if not problem.plain:
        return Refusal(
            "the kernel for int8 has no alpha, c, bias or activation",
            "apply them to the product afterwards, or use another backend",
        )
    return None


@dataclass(frozen=True)
class _OperandAccess:
    """The access of a kernel to an operand."""

    mn_major: bool
    """Whether the operand is contiguous along M (N); else along K."""
    ld: int
    """Leading dimension in elements; 0 where there is one contiguous row only, as it is not used then."""
    alignment: int
    """Its alignment in bytes, as in :class:`Form`."""


def _read(operand: Operand, k_major: str, side: int, steps: list[int]) -> _OperandAccess:
    """Return how the kernel reads an operand.

    ``side`` is its m (n), ``k_major`` the order that is contiguous along K, ``steps`` the strides of the batch. An
    operand of one row or column has both orders: the wider loads decide. MN-major rows must also end at a multiple of a
    load: the kernels have no wide loads for remainders.
    """
    accesses, layout = [], operand.layout
    for order in ("row", "col"):
        if layout.stored(order):
            mn_major, rows = order != k_major, layout.rows if order == "row" else layout.cols
            ld = layout.leading_dimension(order) if rows > 1 else 0
            alignment = lowering.alignment(operand, [*steps, ld, side * mn_major])
            accesses.append(_OperandAccess(mn_major, ld, min(16, alignment)))
    return max(accesses, key=lambda access: (access.alignment, not access.mn_major))


def _check_span(call: BlasCall, *accesses: _OperandAccess) -> Refusal | None:
    """Refuse rows that are too far apart: the float32 kernel's offsets within a tile have 31 bits."""
    names = ("b", "a") if call.swapped else ("a", "b")
    for name, access, side in zip(names, accesses, (call.m, call.n)):
        rows = 16 if access.mn_major else min(side, 256)
        if (rows - 1) * access.ld > _FURTHEST:
            return Refusal(
                f"{name} has a leading dimension of {access.ld} elements: a tile would span more than {_FURTHEST}",
                "multiply in parts, each a copy",
            )
    return None
