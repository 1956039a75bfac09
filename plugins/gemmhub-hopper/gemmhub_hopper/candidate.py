"""One candidate: a tile shape and a split-K for a lowered problem, whether it runs, and its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from gemmhub_hopper import config, k_passes
from gemmhub_hopper.config import Shape, Variant
from gemmhub_hopper.k_passes import Slabs
from gemmhub_hopper.lower import Lowered
from gemmhub_hopper.operands import Reading
from gemmhub_hopper.shapes import shapes

_NAME = re.compile(r"(\d+x\d+x\d+p?(?:c\dx\d)?(?:k\d)?)(r?)(s?)(t?)(?:/([1-9]\d*))?")
"""Of a choice: shape, through registers, split in shared memory, exchanged, parts of k."""
_MOST_PIECES = 2**31 - 2**16
"""They are numbered by 31 bits, and clusters count beyond the last one."""
_MANY_PARTS, _MUCH = 6, 40
"""Parts of k, and fours of registers of all of them, from which on each adds a slice."""


class Room(Protocol):
    """A device, or what is known of one."""

    def clusters_at_once(self, size: int) -> int:
        """Clusters of ``size`` thread blocks that run at once, a block on each multiprocessor."""


@dataclass(frozen=True)
class Choice:
    """One way of running a product."""

    way: Lowered
    shape: Shape
    splits: int

    @property
    def name(self) -> str:
        """Such as "128x256x4", or "64x16x16rt/8": the shape, "r" where the kernel's a goes through registers, "s" where
        its b is split in shared memory, "t" where operands change places, parts of k.
        """
        form = self.way.form
        letters = "r" * form.a_registers + "s" * form.b_split + "t" * self.way.swapped
        return self.shape.name + letters + (f"/{self.splits}" if self.splits > 1 else "")

    @cached_property
    def variant(self) -> Variant:
        return config.variant(self.shape, self.way.form, self.splits > 1)

    @property
    def copied(self) -> tuple[Reading, ...]:
        """Operands that a pre-pass copies."""
        return self.way.copied

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Cluster tiles of one matrix below and beside each other."""
        shape, way = self.shape, self.way
        return -(-way.m // (shape.m * shape.cluster_m)), -(-way.n // (shape.n * shape.cluster_n))

    @property
    def pieces(self) -> int:
        return self.tiles[0] * self.tiles[1] * self.splits * self.way.batch

    @property
    def slots(self) -> int:
        """Shares of tiles that consumer warpgroups have: counters that a split k takes."""
        return self.tiles[0] * self.tiles[1] * self.way.batch * self.shape.cluster * self.shape.sharers

    @property
    def part_bytes(self) -> int:
        """Of workspace for the parts of a split k."""
        parts = self.slots * self.splits * self.shape.m // self.shape.sharers * self.shape.columns * 4
        return (self.splits > 1) * parts

    def in_slices(self, at_once: int) -> bool:
        """Whether each part of a split k adds a slice of the tile, as split_k.cuh says; else the last one adds all."""
        shape, splits = self.shape, self.splits
        fours = shape.m // shape.sharers * shape.columns // 512
        many = (fours >= 4) & (splits >= _MANY_PARTS) & (splits * fours >= _MUCH)
        no_turns = shape.sharers == shape.consumers
        return many & no_turns & (shape.consumers < 3) & (self.pieces <= at_once)

    def cut(self, workspace: int) -> Slabs | str:
        """The slabs of k that its copies need, in that many bytes of workspace; or why it does not run in them."""
        return k_passes.cut(self.way, self.part_bytes, workspace)

    def grid(self, card: Room) -> int:
        """Thread blocks. A cluster that shares k has one piece."""
        if self.shape.cluster_k > 1:
            return self.pieces * self.shape.cluster
        return min(self.pieces, card.clusters_at_once(self.shape.cluster)) * self.shape.cluster

    def group(self, card: Room) -> int:
        """Rows of cluster tiles to walk together, so that the blocks that run at once read the least from memory."""
        shape, (rows, _) = self.shape, self.tiles
        at_once = card.clusters_at_once(shape.cluster)
        height, width = shape.m * shape.cluster_m, shape.n * shape.cluster_n
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < 2 * rows]
        return min(sizes, key=lambda size: min(size, rows) * height + -(-at_once // min(size, rows)) * width)


@dataclass(frozen=True)
class Choices(Choice):
    """Many of one way at once: numbers are arrays, and so is what is computed of them (tiles, pieces, slots,
    part_bytes, in_slices).
    """

    shape: Any
    """:class:`gemmhub_hopper.shapes.Shapes`."""
    splits: Any


def named(ways: Sequence[Lowered], name: str) -> Choice:
    """The choice of that name (:attr:`Choice.name`). ValueError where there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no kernel called {name}")
    for way in ways:
        if (way.form.a_registers, way.form.b_split, way.swapped) == (bool(found[2]), bool(found[3]), bool(found[4])):
            for shape in shapes(way.form):
                if shape.name == found[1]:
                    return Choice(way, shape, int(found[5] or 1))
    raise ValueError(f"there is no kernel called {name} for this problem")


def runnable(choice: Choice, workspace: int) -> Slabs | str:
    """How k is cut when a product is run so in that many bytes of workspace; or why it cannot be."""
    cut = choice.cut(workspace)
    if isinstance(cut, str):
        return cut
    shared, last = choice.shape.cluster_k, choice.way.k_blocks - (cut.count - 1) * cut.blocks
    if shared > last:
        return f"k, or its last slab, has {last} blocks, fewer than the {shared} that are to share it"
    if choice.splits > k_passes.MOST_PARTS:
        return f"{choice.splits} parts of k, at most {k_passes.MOST_PARTS}"
    if choice.splits > 1:
        if choice.splits * shared > cut.blocks:
            return f"k has {cut.blocks} blocks, fewer than {choice.splits * shared} parts"
        most = k_passes.counters(choice.way.form)
        if choice.slots > most:
            return f"{choice.slots} tiles, at most {most} have counters"
    if choice.pieces >= _MOST_PIECES:
        return f"{choice.pieces} pieces, at most {_MOST_PIECES}"
    for variant in k_passes.variants(choice.shape, choice.way.form, choice.splits > 1, cut.count):
        if variant.refusal is not None:
            return variant.refusal
    return cut
