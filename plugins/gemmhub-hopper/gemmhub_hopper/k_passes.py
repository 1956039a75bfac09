"""K passes: cutting k so that copies of the operands fit into the workspace, and the layout of that workspace.

Of each slab of k first the operands are copied, then the kernel adds their product to what the slabs before have made.
These sums are float32: they are kept in the result itself, or in the workspace where the result is narrower. The first
slab brings in beta * c and the bias, the last one the activation. So a small workspace costs time, and nothing else.

    counters and marks | copy of a | copy of b | sums | parts of a split k
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmhub.kit.cuda_scratch import COUNTERS
from gemmhub_hopper.config import Form, Shape, Variant, variant
from gemmhub_hopper.lower import Lowered
from gemmhub_hopper.tensor_map import Stored

MARKS = 2048
"""Words of the marks of an operand (split_planes.cuh). Those of the kernel's a and b are the last of the counters."""
A_MARKS, B_MARKS = COUNTERS - 8 * MARKS, COUNTERS - 4 * MARKS
"""Bytes from the start of the workspace."""
FINISHED = A_MARKS - 4
"""The counter of consumers that are done."""
COUNTER = 8
"""Bytes of a counter of the parts of a split k."""
MOST_PARTS = 32
"""Of a split k."""
_LINE = 256


def counters(form: Form) -> int:
    """That a split k may use."""
    return (FINISHED if form.input == "split" else COUNTERS) // COUNTER


@dataclass(frozen=True)
class Slabs:
    """How k is cut. Places are bytes from the start of the workspace; None for what is not there."""

    blocks: int
    """Of k in each slab; the last one may have fewer."""
    count: int
    a: int | None
    """The copy of the kernel's a."""
    b: int | None
    sums: int | None
    partials: int
    nbytes: int
    """Of workspace in all."""

    def k(self, form: Form) -> int:
        """Elements along k that a copy has."""
        return self.blocks * form.block_k


def _up(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def sums(way: Lowered) -> Stored:
    """How sums lie in the workspace."""
    inner, outer = (way.m, way.n) if way.form.transposed else (way.n, way.m)
    ld = -(-inner // 4) * 16
    return Stored(inner, outer, way.batch, ld, ld * outer)


def cut(way: Lowered, partials: int, limit: int) -> Slabs | str:
    """The fewest slabs for a workspace of ``limit`` bytes, of which ``partials`` are for parts of a split k; or why
    there are none.
    """
    if not way.copied:
        marks = way.form.input == "split" and not way.form.b_split
        nbytes = COUNTERS + partials if partials or marks else 0
        if nbytes > limit:
            return f"it needs {nbytes} bytes of workspace, {limit} are allowed"
        return Slabs(way.k_blocks, 1, None, None, None, COUNTERS, nbytes)
    whole = _slabs(way, partials, way.k_blocks, 1)
    if whole.nbytes <= limit:
        return whole
    count = 2
    least = _slabs(way, partials, 1, count)
    if least.nbytes > limit:
        return f"copies of its operands need {least.nbytes} bytes of workspace at least, {limit} are allowed"
    each = _slabs(way, partials, 2, count).nbytes - least.nbytes
    blocks = 1 + (limit - least.nbytes) // each if each else way.k_blocks
    while _slabs(way, partials, blocks, count).nbytes > limit:  # what is rounded up
        blocks -= 1
    count = -(-way.k_blocks // blocks)
    blocks = -(-way.k_blocks // count)
    return _slabs(way, partials, blocks, -(-way.k_blocks // blocks))


def _slabs(way: Lowered, partials: int, blocks: int, count: int) -> Slabs:
    form, at = way.form, COUNTERS
    places: list[int | None] = []
    for reading in (way.a, way.b):
        nbytes = reading.copy_bytes(form, blocks * form.block_k)
        places.append(at if nbytes else None)
        at += _up(nbytes)
    sums_at = None
    if count > 1 and form.output != "float32":
        made = sums(way)
        sums_at, at = at, at + _up(made.count * made.stride)
    return Slabs(blocks, count, places[0], places[1], sums_at, at, at + partials)


def variants(shape: Shape, form: Form, split: bool, count: int) -> tuple[Variant, ...]:
    """The kernels of the first slab, of those between, and of the last one."""
    if count == 1:
        return (variant(shape, form, split),)
    # Only of the result is there a tensor map.
    tma_store = form.tma_store and form.output == "float32"
    first = replace(form, output="float32", tma_store=tma_store, activation=None)
    last = replace(form, addend="float32", bias=None, bias_type="float32")
    between = replace(last, output="float32", tma_store=tma_store, activation=None)
    forms = (first, last) if count == 2 else (first, between, last)
    return tuple(variant(shape, x, split) for x in forms)
