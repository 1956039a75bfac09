"""The candidates for a product, each a lowering, a tile shape and a split-K; their estimates and refusals.

wave_model.py and batch_model.py have the cost models of the kernels. :mod:`gemmhub_cuda.corrections` corrects the
estimates on cards where it was fitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_scratch import COUNTERS, MOST_COUNTERS
from gemmhub_cuda import batch, mma, sgemm
from gemmhub_cuda.fitted import Fitted
from gemmhub_cuda.lower import Lowering
from gemmhub_cuda.variant import Shape, Variant

_MAX_SPLITS = 64
"""Largest number of splits of split-K."""
_NAME = re.compile(r"([^/]+)(?:/([1-9]\d*))?")
"""The name of a choice: shape, splits of split-K."""

_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM = 97, 81, 39  # CUdevice_attribute
_SLOW_SINGLE = ((7, 0), (7, 2), (7, 5), (8, 0))
"""Compute capabilities with 64 float32 multiply-adds per cycle and SM; others have 128."""
_TENSOR = {(8, 0): 1024, (8, 7): 1024, (9, 0): 1270}
"""16-bit multiply-adds of mma.sync per cycle and SM; others have 512. On 9.0 it is 0.62 of wgmma's 2048."""


@dataclass(frozen=True)
class Card:
    """The facts of a device that the model uses."""

    sms: int
    """SMs of the device."""
    clock: float
    """The highest clock of the SMs, in Hz."""
    bandwidth: float
    """Bandwidth of the memory, in bytes a second."""
    capability: tuple[int, int]
    """The compute capability."""
    shared_per_block: int
    """Largest shared memory of a CTA in bytes, if a kernel opts in."""
    shared_per_sm: int
    """Shared memory of an SM in bytes."""
    threads_per_sm: int
    """Threads that an SM runs at once."""
    name: str = ""
    """The name that the driver reports."""

    @property
    def single_cycles(self) -> int:
        """Cycles in which each scheduler of an SM issues a float32 multiply-add of a warp."""
        return 2 if self.capability in _SLOW_SINGLE else 1

    @property
    def tensor_rate(self) -> int:
        """16-bit multiply-adds of mma.sync per cycle and SM."""
        return _TENSOR.get(self.capability, 512)

    @classmethod
    def of(cls, gpu: Gpu) -> Card:
        """Return the facts of ``gpu``, from the driver."""
        per_block, per_sm, threads = map(gpu.attribute, (_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM))
        return cls(gpu.sms, gpu.clock, gpu.bandwidth, gpu.capability, per_block, per_sm, threads, gpu.name)


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
        from zero and then added to the splits before. Sums of int8 are exact.
        """
        if self.lowering.form.input == "int8":
            return "exact"
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
        """Bytes that a launch moves at least."""
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
    def launches(self) -> int:
        """Launches of a call."""
        return sum(1 for _ in self.offsets())

    def ctas_per_sm(self, card: Card) -> int:
        """Return how many CTAs an SM runs at once."""
        variant = self.variant
        by_shared = card.shared_per_sm // (variant.shared_bytes + 1024)
        return max(1, min(variant.ctas_per_sm, by_shared, card.threads_per_sm // variant.threads))

    def offsets(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield for each launch the offsets of a, b, c and d in bytes, and its number of matrices."""
        return self.lowering.offsets(self.shape.most_matrices(self.tiles[0] * self.tiles[1]))

    def grid(self, count: int, at_once: int) -> tuple[int, int, int]:
        """Return the grid of a launch for ``count`` matrices on a card that runs ``at_once`` CTAs at once."""
        return self.shape.grid(self.tiles[0] * self.tiles[1], self.splits, count, at_once)

    def group(self, at_once: int) -> int:
        """Return the rows of tiles in a group, so that the CTAs that run at once read the least from memory."""
        rows = self.tiles[0]
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= rows]
        return min(sizes, key=lambda size: size * self.shape.m + -(-at_once // size) * self.shape.n)


def seconds(choice: Choice, card: Card, fitted: Fitted | None = None) -> float:
    """Return the seconds of a call, host time included. ``fitted``: other constants than those of fitted.py."""
    return choice.shape.seconds(choice, card, fitted)


def choices(lowering: Lowering, card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Return the estimates and choices, each shape with its best split-K, the fastest first."""
    found: dict[str, tuple[float, Choice]] = {}
    for timed in all_choices(lowering, card, workspace):
        found.setdefault(timed[1].shape.name, timed)
    return list(found.values())


def all_choices(lowering: Lowering, card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Return the estimates and choices of every shape and split-K that may be fastest, the fastest first."""
    found = [(seconds(x, card), x) for shape in _shapes(lowering) for x in _splits(lowering, shape, card, workspace)]
    return sorted(found, key=lambda pair: pair[0])


def _shapes(lowering: Lowering) -> tuple[Shape, ...]:
    """Return the shapes that may be fastest."""
    form = lowering.form
    if form.input == "float32":
        return sgemm.SHAPES
    warps = batch.fitting(lowering.m, lowering.n, lowering.k, form.input_bytes)
    if form.input == "int8":
        return warps
    return (*mma.SHAPES, *(warps if max(lowering.m, lowering.n) <= batch.WIDEST else ()))


def _splits(lowering: Lowering, shape: Shape, card: Card, workspace: int) -> Iterator[Choice]:
    """Yield ``shape`` without split-K, and with numbers of splits that fill at most one wave."""
    unsplit = Choice(lowering, shape, 1)
    if refusal(unsplit, card, workspace) is None:
        yield unsplit
    if not shape.has_split_k:
        return
    most = Choice(lowering, shape, 2).ctas_per_sm(card)
    longest = min(_MAX_SPLITS, unsplit.k_blocks // 4)
    for splits in sorted({min(longest, blocks * card.sms // unsplit.counters) for blocks in range(1, most + 1)}):
        choice = Choice(lowering, shape, splits)
        if splits > 1 and refusal(choice, card, workspace) is None:
            yield choice


_SHAPES: dict[str, Shape] = {shape.name: shape for shape in (*sgemm.SHAPES, *mma.SHAPES, *batch.SHAPES)}


def named(lowering: Lowering, name: str) -> Choice | None:
    """Return the choice of that name (:attr:`Choice.name`); None where there is no such shape."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in _SHAPES:
        return None
    return Choice(lowering, _SHAPES[found[1]], int(found[2] or 1))


def refusal(choice: Choice, card: Card, workspace: int) -> str | None:
    """Return why ``choice`` does not run; None where it runs."""
    if choice.splits > 1:
        if not choice.shape.has_split_k:
            return f"the kernel of {choice.shape.name} has no split-K"
        if choice.splits > choice.k_blocks:
            return f"K has {choice.k_blocks} blocks: fewer than {choice.splits} splits"
        if choice.counters > MOST_COUNTERS:
            return f"split-K takes {choice.counters} counters: there are {MOST_COUNTERS}"
        if choice.workspace_bytes > workspace:
            return f"it needs {choice.workspace_bytes} bytes of workspace: {workspace} are allowed"
    no_grid = choice.shape.grid_refusal(choice.tiles[0] * choice.tiles[1], choice.splits)
    return no_grid or choice.variant.refusal(card.shared_per_block)
