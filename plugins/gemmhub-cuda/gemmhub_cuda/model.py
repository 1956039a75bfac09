"""The cost model: the seconds of a candidate, from waves of CTAs, each bounded by its slowest resource.

The CTAs that an SM runs at once take, for each step of TILE_K, the longer of two times. One is what they need of shared
units: arithmetic, instruction issue slots, shared memory, bandwidth from L2. The other is what one CTA takes alone: its
instructions one after the other, and the latencies that it waits for. The reduction of split-K follows. All of this
overlaps with moving the operands from memory. Operands that are not aligned to 16 bytes slow the whole down
(:data:`MISALIGNED`).

fitted.py has the constants, fitted to measurements. :mod:`gemmhub_cuda.corrections` corrects the estimate on cards
where it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_scratch import COUNTERS, MOST_COUNTERS
from gemmhub_cuda import batch, batch_model, mma, sgemm
from gemmhub_cuda.fitted import SINGLE, TENSOR, Fitted
from gemmhub_cuda.lower import Lowering
from gemmhub_cuda.sources import Variant

Shape = sgemm.Shape | mma.Shape | batch.Shape
LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
MISALIGNED = {2: 2.7, 4: 2.1, 8: 1.45}
"""Factors on the time of the tensor-core kernel, by the bytes of a load; a full load has 16 bytes.

The values for 2 and 4 bytes are geometric means over the four products of map.json in benchmarks/results/h100/ and
h200/ that ran by this kernel (three at 2 bytes, 1.96 to 3.51; one at 4). That for 8 bytes is interpolated. They depend
on the operands alone, so that they rank backends, not shapes.
"""
_SHARED_BYTES = 128.0
"""Bytes that shared memory delivers in a cycle."""
_OVERHEAD = 40.0
"""Instructions for a step of TILE_K of the float32 kernel that neither multiply nor load fragments."""
_MEMORY_SHARPNESS = 4.0
"""Exponent of :func:`overlapped` for computing and memory traffic."""
_MAX_TILES = 2**30
"""Largest number of tiles of a launch of the kernel for batches, whose numbers have 31 bits."""
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
    def variant(self) -> Variant:
        """The kernel that is launched."""
        if isinstance(self.shape, sgemm.Shape):
            return sgemm.Variant(self.shape, self.lowering.form, self.splits > 1)
        if isinstance(self.shape, batch.Shape):
            return batch.Variant(self.shape, self.lowering.form, self.splits > 1)
        return mma.Variant(self.shape, self.lowering.form, self.splits > 1)

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

    def offsets(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield for each launch the offsets of a, b, c and d in bytes, and its number of matrices."""
        most = _MAX_TILES // (self.tiles[0] * self.tiles[1]) if isinstance(self.shape, batch.Shape) else None
        return self.lowering.offsets(most)

    def grid(self, count: int, at_once: int) -> tuple[int, int, int]:
        """Return the grid of a launch for ``count`` matrices on a card that runs ``at_once`` CTAs at once."""
        tiles = self.tiles[0] * self.tiles[1]
        if isinstance(self.shape, batch.Shape):
            return min(at_once, -(-tiles * count // self.shape.warps)), 1, 1
        return tiles * self.splits, 1, count

    def group(self, at_once: int) -> int:
        """Return the rows of tiles in a group, so that the CTAs that run at once read the least from memory."""
        rows = self.tiles[0]
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= rows]
        return min(sizes, key=lambda size: size * self.shape.m + -(-at_once // size) * self.shape.n)


def ctas_per_sm(variant: Variant, card: Card) -> int:
    """Return how many CTAs an SM runs at once."""
    by_shared = card.shared_per_sm // (variant.shared_bytes + 1024)
    by_registers = variant.ctas_per_sm if isinstance(variant, sgemm.Variant) else variant.shape.ctas_per_sm
    return max(1, min(by_registers, by_shared, card.threads_per_sm // variant.threads))


def overlapped(sharpness: float, *times: float) -> float:
    """Return the time of things that overlap: the longest, and a little more where others are nearly as long."""
    longest = max(times)
    return float(longest * sum((time / longest) ** sharpness for time in times) ** (1 / sharpness))


def seconds(choice: Choice, card: Card, fitted: Fitted | None = None) -> float:
    """Return the seconds of a call, host time included. ``fitted``: other constants than those of fitted.py."""
    lowering, shape, variant = choice.lowering, choice.shape, choice.variant
    if isinstance(shape, batch.Shape):
        rate, launches = _TENSOR.get(card.capability, 512), sum(1 for _ in choice.offsets())
        at_once = ctas_per_sm(variant, card)
        return launches * batch_model.seconds(choice, shape, card, rate, moved_bytes(choice), at_once)
    fitted = fitted or (SINGLE if isinstance(shape, sgemm.Shape) else TENSOR)
    steps = -(-choice.k_blocks // choice.splits)
    work_tiles = choice.counters * choice.splits
    loaded = (shape.m + shape.n) * shape.k * lowering.form.input_bytes
    from_memory = min(1.0, moved_bytes(choice) / (work_tiles * steps * loaded)) if lowering.k else 0.0
    latency = fitted.l2_latency + (fitted.memory_latency - fitted.l2_latency) * from_memory
    if isinstance(shape, sgemm.Shape):
        work, alone = _single_step(shape, card, fitted)
        alone += latency  # only the present tile hides it
    else:
        work, alone = _tensor_step(shape, card, fitted)
        alone += latency / (shape.stages - 1)
    work = max(work, loaded / fitted.l2_bytes)
    stored = shape.m * shape.n * (4 if choice.splits > 1 else lowering.form.output_bytes)

    def wave_of(blocks: int) -> float:
        """Return the cycles of a wave with ``blocks`` CTAs on an SM."""
        if not blocks:
            return 0.0
        return (
            fitted.start
            + steps * overlapped(fitted.sharpness, blocks * work, alone)
            + blocks * stored / fitted.store_bytes
        )

    most = ctas_per_sm(variant, card)
    waves, rest = divmod(-(-work_tiles // card.sms), most)
    cycles = waves * wave_of(most) + wave_of(rest)
    if choice.splits > 1:
        readers = -(-choice.counters // card.sms)  # CTAs of an SM that reduce a tile
        cycles += fitted.split_sync + readers * choice.splits * max(
            fitted.split_cycles, shape.partial_bytes / fitted.partial_bytes
        )
    computing = cycles / (card.clock * fitted.clock)
    moving = moved_bytes(choice) / (fitted.dram * card.bandwidth)
    slowdown = 1.0 if lowering.form.input == "float32" else MISALIGNED.get(lowering.form.alignment, 1.0)
    return (slowdown * overlapped(_MEMORY_SHARPNESS, computing, moving) + LAUNCH) * sum(1 for _ in lowering.offsets())


def _single_step(shape: sgemm.Shape, card: Card, fitted: Fitted) -> tuple[float, float]:
    """Return the cycles of a CTA's step in the float32 kernel: of shared units, and of a warp alone."""
    lanes_n = 8 if shape.warp_n >= 32 else 4
    loads = (shape.warp_m * lanes_n // 32 + shape.warp_n // lanes_n) / 4  # of 16 bytes, for one step along K
    quarter = shape.threads / 32 / 4  # warps of each of the four schedulers
    multiply = shape.k * shape.accumulators * (2 if card.capability in _SLOW_SINGLE else 1)
    issue = max(multiply, shape.k * (shape.accumulators + loads) + _OVERHEAD)
    shared = shape.k * 4 * loads * 2
    return quarter * overlapped(fitted.sharpness, issue, shared) / fitted.efficiency.get(
        shape.name, 1.0
    ), issue * fitted.single_warp


def _tensor_step(shape: mma.Shape, card: Card, fitted: Fitted) -> tuple[float, float]:
    """Return the same for the tensor-core kernel."""
    multiply = shape.m * shape.n * shape.k / _TENSOR.get(card.capability, 512)
    # Every fragment is read by its warp, and every tile written once.
    shared = 2 * shape.k * (shape.warps * (shape.warp_m + shape.warp_n) + shape.m + shape.n) / _SHARED_BYTES
    alone = multiply / (shape.warps / 4) * fitted.single_warp
    return overlapped(fitted.sharpness, multiply, shared) / fitted.efficiency.get(shape.name, 1.0), alone


def measured(choice: Choice, card: Card) -> bool:
    """Return whether the model's constants alone were fitted to times of such a kernel on such a card."""
    return isinstance(choice.shape, batch.Shape) and card.name in batch_model.MEASURED


def moved_bytes(choice: Choice) -> int:
    """Return the bytes that a launch moves at least."""
    lowering = choice.lowering
    count = lowering.batch.count
    a, b = (count if stride else 1 for stride in lowering.batch.strides[:2])
    results = lowering.m * lowering.n * count * (2 if lowering.form.addend else 1) * lowering.form.output_bytes
    return (
        (a * lowering.m + b * lowering.n) * lowering.k * lowering.form.input_bytes
        + results
        + 2 * choice.workspace_bytes
    )


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
    if isinstance(shape, batch.Shape):
        return
    most = ctas_per_sm(Choice(lowering, shape, 2).variant, card)
    longest = min(_MAX_SPLITS, unsplit.k_blocks // 4)
    for splits in sorted({min(longest, blocks * card.sms // unsplit.counters) for blocks in range(1, most + 1)}):
        choice = Choice(lowering, shape, splits)
        if splits > 1 and refusal(choice, card, workspace) is None:
            yield choice


def named(lowering: Lowering, name: str) -> Choice:
    """Return the choice of that name (:attr:`Choice.name`). Raises ValueError where there is no such shape."""
    found = _NAME.fullmatch(name)
    every: tuple[Shape, ...] = (*sgemm.SHAPES, *mma.SHAPES, *batch.SHAPES)
    shapes = {shape.name: shape for shape in every}
    if found is None or found[1] not in shapes:
        raise ValueError(f"there is no kernel called {name}")
    return Choice(lowering, shapes[found[1]], int(found[2] or 1))


def refusal(choice: Choice, card: Card, workspace: int) -> str | None:
    """Return why ``choice`` does not run; None where it runs."""
    if choice.splits > 1:
        if choice.splits > choice.k_blocks:
            return f"K has {choice.k_blocks} blocks: fewer than {choice.splits} splits"
        if choice.counters > MOST_COUNTERS:
            return f"split-K takes {choice.counters} counters: there are {MOST_COUNTERS}"
        if choice.workspace_bytes > workspace:
            return f"it needs {choice.workspace_bytes} bytes of workspace: {workspace} are allowed"
    if isinstance(choice.shape, batch.Shape) and choice.tiles[0] * choice.tiles[1] > _MAX_TILES:
        return f"{choice.tiles[0] * choice.tiles[1]} tiles of a matrix: a launch has at most {_MAX_TILES}"
    if choice.tiles[0] * choice.tiles[1] * choice.splits >= 2**31:
        return f"{choice.tiles[0] * choice.tiles[1] * choice.splits} CTAs: a launch has fewer than {2**31}"
    return choice.variant.refusal(card.shared_per_block)
