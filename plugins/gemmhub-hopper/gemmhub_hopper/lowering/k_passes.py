"""K passes: the division of K so that copies of the operands fit into the workspace, and the layout of that workspace.

Each pass copies its part of the operands and then launches the kernel, which adds their product to the sums of the
passes before. The sums are float32: they are kept in the result itself, or in the workspace where the result is
narrower. The first pass adds beta * c and the bias, the last one applies the activation. So a small workspace costs
time and nothing else.

    counters and marks | copy of a | copy of b | sums | partial sums of split-K
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gemmhub_nvidia.scratch import COUNTERS

from gemmhub_hopper.lowering import f16_planes
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.lowering.operands import OperandAccess
from gemmhub_hopper.variants.config import BY_ROWS, F16X3, INT8, Form, Shape, Variant, variant
from gemmhub_hopper.variants.tensor_map import Stored

MARKS = 2048
"""32-bit words of the marks of an operand (split_planes.cuh). They are at the end of the counters."""
A_MARKS, B_MARKS = COUNTERS - 8 * MARKS, COUNTERS - 4 * MARKS
"""Offsets of the marks of the kernel's a and b, in bytes from the start of the workspace."""
FINISHED = A_MARKS - 4
"""Offset of the counter of consumer warpgroups that are done."""
COUNTER = 8
"""Bytes of a counter of split-K."""
MAX_SPLITS = 128
"""Largest number of splits of split-K: about the SMs of a card, so that one tile uses all of them."""
_LINE = 256
"""Alignment of the parts of the workspace, in bytes."""


def counters(form: Form) -> int:
    """Return how many counters split-K may use."""
    return (FINISHED if form.num_planes > 1 else COUNTERS) // COUNTER


@dataclass(frozen=True)
class KPasses:
    """A division of K into passes. Offsets are bytes from the start of the workspace; None for what is not there."""

    k_blocks: int
    """Blocks of K in each pass; the last one may have fewer."""
    count: int
    """The number of passes."""
    a: int | None
    """Offset of the copy of the kernel's a."""
    b: int | None
    """Offset of the copy of the kernel's b."""
    sums: int | None
    """Offset of the sums of the passes before."""
    partials: int
    """Offset of the partial sums of split-K."""
    nbytes: int
    """Bytes of the workspace in all."""

    def k(self, form: Form) -> int:
        """Return the elements along K of a copy."""
        return self.k_blocks * form.block_k


def _up(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def sums(lowering: Lowering) -> Stored:
    """Return the layout of the sums in the workspace."""
    inner, outer = (lowering.m, lowering.n) if lowering.form.transposed_d else (lowering.n, lowering.m)
    ld = -(-inner // 4) * 16
    return Stored(inner, outer, lowering.batch, ld, ld * outer)


def fewest(lowering: Lowering, partials: int, limit: int) -> KPasses | str:
    """Return the fewest passes for a workspace of ``limit`` bytes, of which split-K takes ``partials``; or the reason
    why there are none.
    """
    if not lowering.copied:
        marks = lowering.form.num_planes > 1 and not lowering.form.split_planes_b
        nbytes = COUNTERS + partials if partials or marks else 0
        if nbytes > limit:
            return f"it needs {nbytes} bytes of workspace: {limit} are allowed"
        return KPasses(lowering.k_blocks, 1, None, None, None, COUNTERS, nbytes)
    single = _k_passes(lowering, partials, lowering.k_blocks, 1)
    if single.nbytes <= limit:
        return single
    # All results may have to be computed again; sums of integers are not kept in float32; before a gate there are twice
    # as many sums as results.
    if lowering.form.scheme in (BY_ROWS, INT8) or lowering.form.gate:
        return f"it needs {single.nbytes} bytes of workspace: {limit} are allowed"
    # Scales of float16 planes are those of full groups, also of a packed operand.
    count, unit = 2, f16_planes.GROUP_K // lowering.form.block_k if lowering.form.input == F16X3 else 1
    shortest = _k_passes(lowering, partials, unit, count)
    if shortest.nbytes > limit:
        return f"copies of its operands need at least {shortest.nbytes} bytes of workspace: {limit} are allowed"
    each = _k_passes(lowering, partials, 2 * unit, count).nbytes - shortest.nbytes
    blocks = unit * (1 + (limit - shortest.nbytes) // each if each else -(-lowering.k_blocks // unit))
    while _k_passes(lowering, partials, blocks, count).nbytes > limit:  # sizes are rounded up
        blocks -= unit
    count = -(-lowering.k_blocks // blocks)
    blocks = -(-lowering.k_blocks // (count * unit)) * unit
    return _k_passes(lowering, partials, blocks, -(-lowering.k_blocks // blocks))


def _k_passes(lowering: Lowering, partials: int, blocks: int, count: int) -> KPasses:
    form, at = lowering.form, COUNTERS
    copies_at: list[int | None] = []
    for access in (lowering.a, lowering.b):
        nbytes = _copy_bytes(access, form, blocks * form.block_k)
        copies_at.append(at if nbytes else None)
        at += _up(nbytes)
    sums_at = None
    if count > 1 and form.output != "float32":
        layout = sums(lowering)
        sums_at, at = at, at + _up(layout.count * layout.stride)
    return KPasses(blocks, count, copies_at[0], copies_at[1], sums_at, at, at + partials)


def _copy_bytes(access: OperandAccess, form: Form, k: int) -> int:
    """Return the bytes for a copy of an operand; 0 where there is none.

    Those of float16 planes are followed by scales, and may be replaced by bfloat16 planes where they are rejected.
    """
    nbytes = access.copy_bytes(form, k)
    if form.input != F16X3 or not nbytes:
        return nbytes
    planes = f16_planes.nbytes(access.rows, k, access.count, access.copy(form, k))
    return max(planes, access.copy_bytes(_by_bfloat16_planes(form), k))


@lru_cache(maxsize=1024)
def _by_bfloat16_planes(form: Form) -> Form:
    return replace(form, input="split")


def variants(shape: Shape, form: Form, split_k: bool, count: int) -> tuple[Variant, ...]:
    """Return the kernels of the first pass, of those between, and of the last one, of ``count`` passes."""
    if count == 1:
        return (variant(shape, form, split_k),)
    # There is a tensor map for the result only, not for sums in the workspace.
    tma_store = form.tma_store and form.output == "float32"
    first = replace(form, output="float32", tma_store=tma_store, activation=None, stores_before=False)
    last = replace(form, addend="float32", bias=None, bias_type="float32")
    between = replace(last, output="float32", tma_store=tma_store, activation=None, stores_before=False)
    forms = (first, last) if count == 2 else (first, between, last)
    return tuple(variant(shape, x, split_k) for x in forms)
