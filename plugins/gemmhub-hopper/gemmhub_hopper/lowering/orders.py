"""Orders of addition: the names of the orders in which wgmma adds the products of one element.

Each wgmma adds its products, 16 (tf32: 8) along K, to the sum before, as one sum in fixed point: neither the positions
of products among these nor which operand is the kernel's a matter. So all lowerings of 16-bit and tf32 operands share
bits: as they are or swapped, through registers, shifted, or copied in one K pass; K remainders are zeros.

Of split operands the order of the products of planes changes where operands are swapped. One lowering of them has a
name, the swapped one, because its narrow side may be the problem's few rows. Of float32 it is the one that splits both
operands in the kernel: it serves every m, without planes in memory. Where one operand has 16 bits it is the only one.
"""

from __future__ import annotations

from gemmhub.problem import GemmProblem
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.lowering.operands import REAL, name_of
from gemmhub_hopper.variants.config import BF16X3, INT8

BY_TWO_PLANES = "wgmma.k16.bf16x3"
"""Order of float32 by two planes of bfloat16."""
PROMOTED = "wgmma.k32.p128"
"""Order of 8-bit floats: the sums of each 128 along K are promoted to float32, times their scales if K has any."""
EXACT = "exact"
"""Order of 8-bit integers, whatever the parts of K are."""


def order_of(lowering: Lowering) -> str | None:
    """Return the name of the order of ``lowering`` without split-K, in one K pass; None where it has none."""
    form = lowering.form
    if form.float8:
        return PROMOTED
    if form.input == INT8:
        return EXACT
    if form.stored_planes == 1:
        return f"wgmma.k{32 // form.input_bytes}"
    if form.input == BF16X3:
        return BY_TWO_PLANES if lowering.swapped else None
    mixed = any(x.source_format != REAL for x in (lowering.a, lowering.b))
    if form.input == "split" and (mixed or (form.split_planes_b and lowering.swapped)):
        return "wgmma.k16.bf16x6"
    return None


def parts_of(order: str) -> tuple[str, int]:
    """Return the order of each part of K, and the number of parts, of an order such as "wgmma.k16/s4"."""
    base, _, parts = order.partition("/s")
    return base, int(parts) if parts.isdecimal() else 1


def parts(lowering: Lowering, promise: str) -> int | None:
    """Return the parts of K that ``promise`` of a pinned problem allows; None for any, where sums are exact."""
    return None if order_of(lowering) == EXACT else parts_of(promise)[1]


def pinned(lowerings: tuple[Lowering, ...], problem: GemmProblem) -> tuple[Lowering, ...]:
    """Return those of the lowerings of a pinned ``problem`` that add in its order.

    That for "batch" depends on dtypes and the precision alone: of float32 with "bf16x3" it is that of two planes.
    """
    base, parts = parts_of(problem.reproducible or "")
    if parts < 1:
        return ()
    if base == "batch":
        two = problem.precision == BF16X3 and name_of(problem.a.dtype) == name_of(problem.b.dtype) == "float32"
        base = BY_TWO_PLANES if two else next(filter(None, (order_of(x) for x in lowerings)), "")
    return tuple(x for x in lowerings if order_of(x) == base)
