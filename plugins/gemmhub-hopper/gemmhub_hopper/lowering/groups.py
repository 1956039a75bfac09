"""Lowers grouped products: groups divide one dimension, and their ends are on the device (kernels/group_cursor.cuh).

The kernel reads groups in place, whatever row of an operand they begin at. So an operand whose rows (columns) the
groups divide is contiguous along K, and operands whose K they divide are contiguous along the other side. The kernel
itself splits float32 into planes, and tf32 that is contiguous along M goes through registers. What is not read in
place is refused; nothing is copied.
"""

from __future__ import annotations

from dataclasses import replace

from gemmhub.capability import Refusal
from gemmhub.lowering import BatchDim
from gemmhub.problem import GemmProblem, Groups, Operand
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.lowering.lower import LONGEST, Lowering, Scheme
from gemmhub_hopper.lowering.operands import TMA_ALIGNMENT, OperandAccess, obstacle, stored
from gemmhub_hopper.variants.config import EIGHT_BIT, GATED
from gemmhub_hopper.variants.tensor_map import Stored

_OPTIONS = {
    **dict.fromkeys(("bfloat16", "float16", *EIGHT_BIT), ((False, False),)),
    "tf32": ((False, False), (True, False)), "split": ((True, True),),
}  # fmt: skip
"""For each input of the tensor cores that grouped products have: whether the kernel's a goes through registers, and
whether its b is split in shared memory."""
DIVIDED = frozenset({"m", "n", "k"})
"""The dimensions of a problem that groups may divide."""
_EXCHANGED = {"m": "n", "n": "m"}


def lowerings(problem: GemmProblem) -> tuple[Lowering, ...] | Refusal:
    """Return the lowerings of a grouped problem, or the reason why no kernel takes it.

    There are two, as it is and swapped, with a gated activation the first alone; of tf32 there may be one of these, or
    each once more with the kernel's a through registers.
    """
    groups, out = problem.groups, problem.out
    assert groups is not None
    # Without groups, as a stack whose divided operands are shared.
    stack = replace(problem, groups=None, batch=(groups.count,))
    refusal = lower.check_types(stack) or _refusal(problem, groups)
    if refusal is not None:
        return refusal
    order = out.layout.order
    if order is None:
        return Refusal("the result is contiguous along neither side", "omit out=, or pass a contiguous one")
    if problem.c is not None and not problem.c.layout.stored(order):
        return Refusal("c is not stored in the order of the result", "pass c contiguous along the same side")
    of_c = _stride(problem.c) if problem.c else 0
    dim = BatchDim(groups.count, _stride(problem.a), _stride(problem.b), of_c, _stride(out))
    input_type, orientations = _input_type(problem, groups), (False,) if problem.activation in GATED else (False, True)
    schemes = [Scheme(input_type, *x, swapped) for x in _OPTIONS[input_type] for swapped in orientations]
    results = [_of_groups(x, problem, groups, order) for x in lower.by_schemes(stack, order, dim, schemes)]
    refusals = [x for x in results if isinstance(x, Refusal)]
    return tuple(x for x in results if not isinstance(x, Refusal)) or (refusals or [_not_in_place(problem, groups)])[0]


def even_lowerings(problem: GemmProblem) -> tuple[Lowering, ...] | Refusal:
    """Return :func:`even` of each of the lowerings of a grouped problem, or the reason why there are none."""
    result = lowerings(problem)
    return result if isinstance(result, Refusal) else tuple(even(x) for x in result)


def even(lowering: Lowering) -> Lowering:
    """Return the stack of products that a grouped one is estimated by: groups of one size."""
    count, divided = lowering.groups, lowering.form.divided

    def part(access: OperandAccess, lines: int) -> OperandAccess:
        direct = access.direct
        assert direct is not None
        stack = Stored(direct.inner, lines, count, direct.ld, direct.ld * lines)
        rows, k = (access.rows, lines) if divided == "k" else (lines, access.k)
        return replace(access, rows=rows, k=k, count=count, step=1, direct=stack)

    if divided == "k":
        k = -(-lowering.k // count)
        return replace(lowering, k=k, a=part(lowering.a, k), b=part(lowering.b, k))
    if divided == "m":
        m = -(-lowering.m // count)
        return replace(lowering, m=m, batch=count, a=part(lowering.a, m))
    n = -(-lowering.n // count)
    return replace(lowering, n=n, batch=count, b=part(lowering.b, n))


def _stride(operand: Operand) -> int:
    """Return the elements from the matrix of one group to that of the next; 0 of an operand that groups divide."""
    return operand.layout.batch_strides[0] if operand.layout.batch_strides else 0


def _input_type(problem: GemmProblem, groups: Groups) -> str:
    """Return what the tensor cores multiply: where groups divide K no tf32, which they take along K alone."""
    input_type = lower.input_type_of(problem)
    return "split" if input_type == "tf32" and groups.divides == "k" else input_type


def _refusal(problem: GemmProblem, groups: Groups) -> Refusal | None:
    """Return a refusal of what the kernel for groups does not take."""
    if lower.BEFORE in problem.operands:
        return Refusal(f"{lower.BEFORE} of groups has no kernel", "omit it, and activation=, and apply that afterwards")
    mixed = problem.a.dtype != problem.b.dtype and problem.a.dtype.itemsize > 1
    if mixed or _input_type(problem, groups) not in _OPTIONS:
        return Refusal(
            f"there is no kernel for groups of {problem.a.dtype} by {problem.b.dtype}",
            "pass operands of one dtype: bfloat16, float16, float32, int8 or 8-bit floats",
        )
    if groups.divides == "k" and problem.a.dtype.itemsize == 1:
        return Refusal(
            "groups divide k, and tensor cores take 8-bit operands only where they are contiguous along it",
            "pass 16-bit operands",
        )
    if groups.divides == "n" and problem.activation in GATED:
        return Refusal(
            f"groups divide the columns, of which {problem.activation} takes pairs",
            "omit activation=, and apply it afterwards",
        )
    if problem.activation in GATED and _input_type(problem, groups) == "split":
        return Refusal(
            f"{problem.activation} has no kernel for groups of {problem.a.dtype} with precision={problem.precision!r} "
            f"that divide {groups.divides}",
            "omit activation=, and apply it afterwards; or pass 16-bit operands, or tf32 where groups divide m",
        )
    if groups.divides == "k" and problem.k == 0:
        return Refusal("there are no elements along k for the groups", "fill the result by its epilogue of zeros")
    if max(problem.m, problem.n, problem.k) > LONGEST:
        return Refusal(f"a side is longer than {LONGEST} elements", "multiply in parts")
    return None


def _not_in_place(problem: GemmProblem, groups: Groups) -> Refusal:
    """Return the refusal of float32 that is to be split, and that TMA does not read in place."""
    of_a, of_b = (obstacle(name, x, groups.count, _stride(x)) for name, x in (("a", problem.a), ("b", problem.b)))
    name, why = ("a", of_a) if of_a else ("b", of_b)
    sides = {"m": {"a": "k"}, "n": {"b": "k"}, "k": {"a": "m", "b": "n"}}[groups.divides]
    return _copied(name, why, sides.get(name, ""))


def _copied(name: str, why: str, along: str) -> Refusal:
    """Return the refusal of an operand that would be copied; ``along``: the side that it must be contiguous along."""
    side = f" contiguous along {along}" if along else ""
    return Refusal(
        f"{name} would be copied first ({why})",
        f"pass {name}{side}, with address, leading dimension and batch stride aligned to {TMA_ALIGNMENT} bytes",
    )


def _of_groups(lowering: Lowering, problem: GemmProblem, groups: Groups, order: str) -> Lowering | Refusal:
    """Return the lowering of a stack as that of groups, or the reason why the kernel does not read an operand."""
    divided = _EXCHANGED.get(groups.divides, groups.divides) if lowering.swapped else groups.divides
    read_by_groups = {"m": (lowering.a,), "n": (lowering.b,), "k": (lowering.a, lowering.b)}[divided]
    for access in (lowering.a, lowering.b):
        along = "k" if divided != "k" else "m" if access.name == "a" else "n"
        only = access in read_by_groups or lowering.form.only_k_major
        if access.why.startswith(lower.SECOND_HALF):
            pairs = f"{problem.activation}_interleaved"
            of_k = "pass b contiguous along k, or " * (divided != "k")
            of_pairs = f", or take {pairs}" * (pairs in GATED)
            return Refusal(
                f"b would be copied first ({access.why.removeprefix('copied: ')})",
                f"{of_k}pad each half to {TMA_ALIGNMENT} bytes{of_pairs}",
            )
        if access.direct is None or access.shifted:
            why = access.why.removeprefix("copied: ") or "its rows are not aligned to 16 bytes"
            return _copied(access.name, why, along if only else "")
        if access in read_by_groups and access.mn_major != (divided == "k"):
            return Refusal(
                f"{access.name} is contiguous along {groups.divides}, which the groups divide: TMA reads from any line "
                "of an operand on, not from any element of a line on",
                f"pass {access.name} contiguous along {along}",
            )
    bias_group = problem.bias.batch_strides[0] if problem.bias and problem.bias.batch_strides else 0
    if divided == "k":
        form = replace(lowering.form, divided=divided)
        return replace(lowering, form=form, groups=groups.count, bias_group=bias_group)
    _, d = stored(problem.out.layout, order, problem.out.dtype.itemsize, 1, 0)
    # TMA stores from any line of the result on, not from any element of a line on.
    whole_lines = (order == "row") == (groups.divides == "m")
    form = replace(lowering.form, divided=divided, tma_store=lowering.form.tma_store and whole_lines)
    return replace(lowering, batch=1, form=form, d=d, d_batch=0, c_batch=0, groups=groups.count, bias_group=bias_group)
