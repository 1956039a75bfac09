"""One candidate: a tile shape and a split-K for a lowered problem, whether it runs, and its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

from gemmhub_hopper.candidates import symmetric
from gemmhub_hopper.lowering import k_passes
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.lower import Lowering, with_rows
from gemmhub_hopper.lowering.operands import OperandAccess
from gemmhub_hopper.lowering.orders import EXACT, order_of
from gemmhub_hopper.variants import config
from gemmhub_hopper.variants.config import Shape, Variant
from gemmhub_hopper.variants.shapes import shapes

_NAME = re.compile(r"(\d+x\d+x\d+p?(?:c\dx\d)?(?:k\d)?)([hx]?r?s?)(t?)(?:/([1-9]\d*))?")
"""The name of a choice: shape, letters of the form, operands swapped, splits of split-K."""
MAX_WORK_TILES = 2**31 - 2**16
"""Bound of the work tiles: their numbers are 31-bit, and clusters count beyond the last one."""
_MIN_SPLITS, _MIN_WORK = 6, 40
"""Splits, and quads of registers of all splits, from which on each CTA reduces a slice: as in kernels/split_k.cuh."""
MAX_SLICES = 32
"""Largest number of slices: CTAs of further splits reduce none."""


class Occupancy(Protocol):
    """The numbers of clusters that a device runs at once."""

    def max_active_clusters(self, size: int) -> int:
        """Return how many clusters of ``size`` CTAs run at once, one CTA on each SM."""


@dataclass(frozen=True)
class Choice:
    """A lowering, a tile shape and a split-K: one candidate for a product."""

    lowering: Lowering
    shape: Shape
    splits: int
    """Splits of split-K; 1 without it."""

    @property
    def name(self) -> str:
        """The name of the candidate, such as "128x256x4" or "64x16x16rt/8".

        Behind the shape stand the letters of the form, "t" where the operands are swapped, and "/" with the splits of
        split-K.
        """
        letters = self.lowering.form.letters + "t" * self.lowering.swapped
        return self.shape.name + letters + (f"/{self.splits}" if self.splits > 1 else "")

    @cached_property
    def variant(self) -> Variant:
        """The kernel that is launched where there is one K pass."""
        return config.variant(self.shape, self.lowering.form, self.splits > 1)

    @property
    def copied(self) -> tuple[OperandAccess, ...]:
        """The operands that a pre-pass copies."""
        return self.lowering.copied

    @property
    def order(self) -> str | None:
        """The order in which the products of an element are added in one K pass, such as "wgmma.k16/s4"; None where it
        has no name (:func:`gemmhub_hopper.lowering.orders.order_of`).

        Each wgmma adds its products, 16 (tf32: 8; 8 bits: 32) along K, to the sum before, in the order of K. "/s" with
        a number states that K is cut into so many parts, each begun from zero and then added to the ones before: by
        split-K, or by CTAs of a cluster that share K. A part is a number of full blocks of K, as long as those of a
        stage, which depend on the input alone; the first parts have one block more (kernels/tile_scheduler.cuh). Sums
        of integers are exact in any parts.
        """
        order, parts = order_of(self.lowering), self.splits * self.shape.cluster_k
        return order and order + (f"/s{parts}" if parts > 1 and order != EXACT else "")

    def with_rows(self, rows: int) -> Choice | None:
        """Return the choice for another m of the problem; None where its lowering is another one."""
        lowering = with_rows(self.lowering, rows)
        return None if lowering is None else type(self)(lowering, self.shape, self.splits)

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Cluster tiles of one matrix along M and along N."""
        shape, lowering = self.shape, self.lowering
        return -(-lowering.m // (shape.m * shape.cluster_m)), -(-lowering.n // (shape.n * shape.cluster_n))

    @cached_property
    def matrix_tiles(self) -> int:
        """Cluster tiles of one matrix that are computed."""
        if self.lowering.form.symmetric:
            shape = self.shape
            tiles: int = symmetric.tiles(*self.tiles, shape.m * shape.cluster_m, shape.n * shape.cluster_n)
            return tiles
        return self.tiles[0] * self.tiles[1]

    @property
    def work_tiles(self) -> int:
        """Work tiles of all clusters: cluster tiles of the batch, times splits."""
        return self.matrix_tiles * self.splits * self.lowering.batch

    @property
    def counters(self) -> int:
        """Counters that split-K takes: one for each consumer warpgroup's part of a tile."""
        tiles = self.matrix_tiles * self.lowering.batch
        return tiles * self.shape.cluster_size * self.shape.warpgroups_per_tile

    @property
    def partial_bytes(self) -> int:
        """Bytes of workspace for the partial sums of split-K."""
        partials = self.counters * self.splits * self.shape.m // self.shape.warpgroups_per_tile * self.shape.out_n * 4
        return (self.splits > 1) * partials

    def reduces_by_slices(self, at_once: int) -> bool:
        """Return whether each split reduces a slice of the tile (split_k.cuh); else the last to arrive reduces all."""
        shape, splits = self.shape, self.splits
        quads = shape.m // shape.warpgroups_per_tile * shape.out_n // 512
        many = (quads >= 4) & (splits >= _MIN_SPLITS) & (splits * quads >= _MIN_WORK)
        cooperative = (shape.warpgroups_per_tile == shape.consumers) & self.lowering.form.one_by_one
        return many & cooperative & (self.work_tiles <= at_once)

    def k_passes(self, workspace: int) -> KPasses | str:
        """Return the K passes that its copies need in ``workspace`` bytes, or the reason why it does not run."""
        return k_passes.fewest(self.lowering, self.partial_bytes, workspace)

    def grid(self, card: Occupancy) -> int:
        """Return the CTAs of the launch. A cluster that shares K has one work tile; others are persistent."""
        if self.shape.cluster_k > 1:
            return self.work_tiles * self.shape.cluster_size
        return min(self.work_tiles, card.max_active_clusters(self.shape.cluster_size)) * self.shape.cluster_size

    def group(self, card: Occupancy) -> int:
        """Return the rows of cluster tiles in a group, so that the CTAs that run at once read the least from memory."""
        shape = self.shape
        height, width = shape.m * shape.cluster_m, shape.n * shape.cluster_n
        best = best_group(self.tiles[0], height, width, card.max_active_clusters(shape.cluster_size))
        return symmetric.band(best, height, width) if self.lowering.form.symmetric else best


def best_group(rows: int, height: int, width: int, at_once: int) -> int:
    """Return how many of ``rows`` rows of ``height`` x ``width`` tiles are scheduled together: :meth:`Choice.group`."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < 2 * rows]
    return min(sizes, key=lambda size: min(size, rows) * height + -(-at_once // min(size, rows)) * width)


class Name(NamedTuple):
    """The parts of :attr:`Choice.name`."""

    shape: str
    letters: str
    swapped: bool
    splits: int


@lru_cache(maxsize=1024)
def parsed(name: str) -> Name | None:
    """Return the parts of a candidate's name; None where no kernel of matrices has such a name."""
    match = _NAME.fullmatch(name)
    return match and Name(match[1], match[2], bool(match[3]), int(match[4] or 1))


def named(lowerings: Iterable[Lowering], name: str) -> Choice | None:
    """Return the choice of that name (:attr:`Choice.name`); None where there is none."""
    parts = parsed(name)
    if parts is None:
        return None
    for lowering in lowerings:
        if (lowering.form.letters, lowering.swapped) == (parts.letters, parts.swapped):
            shape = shapes(lowering.form).by_name.get(parts.shape)
            if shape is not None:
                return Choice(lowering, shape, parts.splits)
    return None


def runnable(choice: Choice, workspace: int) -> KPasses | str:
    """Return the K passes of ``choice`` in ``workspace`` bytes, or the reason why it does not run."""
    passes = choice.k_passes(workspace)
    if isinstance(passes, str):
        return passes
    shared, last = choice.shape.cluster_k, choice.lowering.k_blocks - (passes.count - 1) * passes.k_blocks
    if shared > last:
        return f"the last K pass has {last} blocks of K: fewer than the {shared} CTAs that share them"
    if choice.splits > k_passes.MAX_SPLITS:
        return f"split-K of {choice.splits}: at most {k_passes.MAX_SPLITS} is allowed"
    if choice.splits > 1:
        if choice.splits * shared > passes.k_blocks:
            return f"a K pass has {passes.k_blocks} blocks of K: fewer than the {choice.splits * shared} CTAs for them"
        limit = k_passes.counters(choice.lowering.form)
        if choice.counters > limit:
            return f"split-K takes {choice.counters} counters: there are {limit}"
    if choice.work_tiles >= MAX_WORK_TILES:
        return f"{choice.work_tiles} work tiles: fewer than {MAX_WORK_TILES} are allowed"
    for variant in k_passes.variants(choice.shape, choice.lowering.form, choice.splits > 1, passes.count):
        if variant.refusal is not None:
            return variant.refusal
    return passes
