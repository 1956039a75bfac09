"""The candidates for a product: each a lowering, a tile shape and a split-K, its name, and why it does not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from gemmhub_nvidia.scratch import COUNTERS, MAX_COUNTERS

from gemmhub_cuda.lower import Lowering
from gemmhub_cuda.variants import batch, mma, sgemm
from gemmhub_cuda.variants.card import Card
from gemmhub_cuda.variants.variant import Shape, Variant

_MAX_SPLITS = 128
"""Largest number of splits of split-K: about the SMs of a large card, so that one tile uses all of them."""
_NAME = re.compile(r"([^/]+)(?:/([1-9]\d*))?")
"""The name of a choice: shape, splits of split-K."""


@dataclass(frozen=True)
class Choice:
    """A lowering, a tile shape and a split-K: one candidate for a product."""

    lowering: Lowering
    shape: Shape
    splits: int
    """Splits of split-K; 1 without it."""

    @property
    def name(self) -> str:
        """The name of the candidate, such as "128x128x8t256" or "mma64x64x64x4w4/8": shape and splits."""
        return self.shape.name + (f"/{self.splits}" if self.splits > 1 else "")

    @property
    def order(self) -> str | None:
        """The order in which the products of an element are added, such as "fma.r8" or "mma.k16.r32/s4".

        It is that of the shape; with split-K, each split has whole steps along K, the first ones one more, and is begun
        from zero and then added to the splits before. Sums of int8 are exact. Of 8-bit floats the sums of each 128
        along K are promoted, times their scales if K has any.
        """
        if self.lowering.form.input == "int8":
            return "exact"
        if self.lowering.form.float8:
            return PROMOTED
        order = self.shape.order
        return order and order + (f"/s{self.splits}" if self.splits > 1 else "")

    @property
    def variant(self) -> Variant:
        """The kernel that is launched."""
        return self.shape.variant(self.lowering.form, self.splits > 1)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of one matrix along M and along N."""
        return -(-self.lowering.m // self.shape.m), -(-self.lowering.n // self.shape.n)

    @property
    def k_blocks(self) -> int:
        """Steps along K of a tile."""
        return max(1, -(-self.lowering.k // self.shape.k))

    @property
    def counters(self) -> int:
        """Counters that split-K takes: one for each tile of the batch."""
        return self.tiles[0] * self.tiles[1] * self.lowering.batch.count

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace for counters and partial sums."""
        return COUNTERS + self.counters * self.splits * self.shape.partial_bytes if self.splits > 1 else 0

    @property
    def moved_bytes(self) -> int:
        """Bytes that the launches of a batch move at least."""
        lowering = self.lowering
        count = lowering.batch.count
        a, b = (count if stride else 1 for stride in lowering.batch.strides[:2])
        results = lowering.m * lowering.n * count * (2 if lowering.form.addend else 1) * lowering.form.output_bytes
        return (
            (a * lowering.m + b * lowering.n) * lowering.k * lowering.form.input_bytes
            + results
            + 2 * self.workspace_bytes
        )

    @property
    def batches(self) -> int:
        """Batches of a call, each with launches of its own."""
        return prod(dim.count for dim in self.lowering.outer)

    @property
    def launches(self) -> int:
        """Launches of a call."""
        return sum(1 for _ in self.offsets())

    def ctas_per_sm(self, card: Card) -> int:
        """Return how many CTAs an SM runs at once."""
        return max(1, self.variant.ctas_per_sm(card.sm))

    def offsets(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield for each launch the offsets of a, b, c and d in bytes, and its number of matrices."""
        return self.lowering.offsets(self.shape.max_matrices(self.tiles[0] * self.tiles[1]))

    def grid(self, count: int, at_once: int) -> tuple[int, int, int]:
        """Return the grid of a launch for ``count`` matrices on a card that runs ``at_once`` CTAs at once."""
        return self.shape.grid(self.tiles[0] * self.tiles[1], self.splits, count, at_once)

    def group(self, at_once: int) -> int:
        """Return the rows of tiles in a group, so that the CTAs that run at once read the least from memory."""
        rows, tiles = self.tiles[0], at_once * self.shape.cta_tiles
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= rows and (size == 1 or self.shape.grouped)]
        return min(sizes, key=lambda size: size * self.shape.m + -(-tiles // size) * self.shape.n)

    def refusal(self, card: Card, workspace: int) -> str | None:
        """Return why the candidate does not run on ``card`` with so many bytes of workspace; None where it runs."""
        if self.splits > 1:
            if not self.shape.has_split_k:
                return f"the kernel of {self.shape.name} has no split-K"
            if self.splits > self.k_blocks:
                return f"K has {self.k_blocks} blocks: fewer than {self.splits} splits"
            if self.counters > MAX_COUNTERS:
                return f"split-K takes {self.counters} counters: there are {MAX_COUNTERS}"
            if self.workspace_bytes > workspace:
                return f"it needs {self.workspace_bytes} bytes of workspace: {workspace} are allowed"
        if any(x is not None and x.batch for x in self.lowering.scales) and self.launches > 1:
            return "the batch takes several launches, and matrices have scales of their own"
        no_grid = self.shape.grid_refusal(self.tiles[0] * self.tiles[1], self.splits)
        return no_grid or self.variant.refusal(card.shared_per_block)


PROMOTED = "mma.k32.p128"
"""The order of 8-bit floats in all shapes."""
BATCH_ORDERS = {
    "float32": "fma.r8", "float16": "mma.k16.r64", "bfloat16": "mma.k16.r64", "int8": "exact",
    "float8_e4m3fn": PROMOTED, "float8_e5m2": PROMOTED,
}  # fmt: skip
"""The order of pinned products that name none, by dtype: that of the fastest shapes for 1024 x 1024 x 1024."""


def proposed(lowering: Lowering, card: Card, workspace: int, order: str | None = None) -> Iterator[Choice]:
    """Yield the choices that may be fastest: every shape that suits the product, with several numbers of splits.

    ``order``: that of a pinned problem (:attr:`Choice.order`), which all choices have; None where they may have any.
    """
    for shape in _shapes(lowering):
        if order is None:
            yield from _splits(lowering, shape, card, workspace)
            continue
        parts = order.partition("/s")[2]
        choice = Choice(lowering, shape, int(parts) if parts.isdecimal() else 1)
        if choice.order == order and choice.refusal(card, workspace) is None:
            yield choice


def _shapes(lowering: Lowering) -> tuple[Shape, ...]:
    """Return the shapes that may be fastest."""
    form = lowering.form
    if form.input == "float32":
        return sgemm.SHAPES
    if form.float8:
        return batch.fitting(lowering.m, lowering.n, lowering.k, form.input_bytes, promoted=True)
    warps = batch.fitting(lowering.m, lowering.n, lowering.k, form.input_bytes)
    if form.input == "int8":
        return warps
    return (*mma.SHAPES, *(warps if max(lowering.m, lowering.n) <= batch.WIDEST else ()))


def _splits(lowering: Lowering, shape: Shape, card: Card, workspace: int) -> Iterator[Choice]:
    """Yield ``shape`` without split-K, and with numbers of splits that fill at most one wave."""
    unsplit = Choice(lowering, shape, 1)
    if unsplit.refusal(card, workspace) is None:
        yield unsplit
    if not shape.has_split_k:
        return
    max_blocks = Choice(lowering, shape, 2).ctas_per_sm(card)
    longest = min(_MAX_SPLITS, unsplit.k_blocks // 4)
    for splits in sorted({min(longest, blocks * card.sms // unsplit.counters) for blocks in range(1, max_blocks + 1)}):
        choice = Choice(lowering, shape, splits)
        if splits > 1 and choice.refusal(card, workspace) is None:
            yield choice


SHAPES: dict[str, Shape] = {shape.name: shape for shape in (*sgemm.SHAPES, *mma.SHAPES, *batch.SHAPES)}


def named(lowering: Lowering, name: str) -> Choice | None:
    """Return the choice of that name (:attr:`Choice.name`); None where there is no such shape."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in SHAPES:
        return None
    return Choice(lowering, SHAPES[match[1]], int(match[2] or 1))
