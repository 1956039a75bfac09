"""The cost model of cuBLASLt: waves of the best of some tile sizes, overlapped with the memory traffic.

It models a good library in general and no particular algorithm. :mod:`gemmhub_cublas.corrections` corrects it where it
was measured. The constants are fitted to times on an H200, :data:`MISALIGNED` to times on an H100 and an H200.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple, Protocol

from gemmhub.problem import GemmProblem
from gemmhub_cublas.lower import ITEMSIZE, Form, Lowered
from gemmhub_cublas.scales import OUTER

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
TMA = 16
"""Bytes to which TMA requires addresses and strides to be aligned."""


class Card(Protocol):
    """The facts of a device that estimates use; :class:`gemmhub_nvidia.driver.Gpu` has them."""

    @property
    def name(self) -> str: ...
    @property
    def sms(self) -> int: ...
    @property
    def clock(self) -> float:
        """Highest clock in Hz."""
        ...

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth in bytes a second."""
        ...

    @property
    def capability(self) -> tuple[int, int]: ...


class Constants(NamedTuple):
    """The constants of the model, in cycles of an SM at its highest clock unless another unit is stated."""

    launch: float
    """Seconds between the end of one kernel and the start of the next."""
    start: float
    """Launching the CTAs of a kernel and their first load."""
    multiply: float
    """Cycles that one cycle of arithmetic at the peak rate takes."""
    feed: float
    """Bytes of operands that an SM loads in a cycle."""
    min_stage: float
    """Least cycles for 128 bytes along K."""
    tile: float
    """Overhead of a tile, besides its arithmetic."""
    store: float
    """Bytes of results, at 4 an element, that an SM stores in a cycle."""
    split: float
    """Overhead of the reduction of split-K."""
    partials: float
    """Bytes of partial sums that an SM adds in a cycle."""
    reading: float
    """Share of the memory bandwidth that reading reaches."""
    writing: float
    """Share of the memory bandwidth that writing reaches."""
    overlap: float
    """Fraction of the shorter one of computing and moving data that does not overlap with the longer one."""


HALF = Constants(
    launch=1.591e-6, start=2092.0, multiply=1.266, feed=100.1, min_stage=163.7, tile=83.27, store=57.04, split=7317.0,
    partials=62.33, reading=0.9132, writing=0.6441, overlap=0.2689,
)  # fmt: skip
TF32 = Constants(
    launch=2.974e-6, start=2308.0, multiply=1.307, feed=48.8, min_stage=209.8, tile=151.6, store=37.99, split=1556.0,
    partials=13.85, reading=0.9491, writing=0.5305, overlap=0.2381,
)  # fmt: skip
SINGLE = Constants(
    launch=2.517e-6, start=1890.0, multiply=1.24, feed=74.79, min_stage=203.9, tile=1200.0, store=85.23, split=6421.0,
    partials=40.0, reading=0.8511, writing=0.9515, overlap=0.9,
)  # fmt: skip
"""Products of float32 and of wider types."""

MISALIGNED = {"half": {2: 5.8, 4: 3.7, 8: 2.2}, "tf32": {4: 2.8, 8: 1.9}}
"""Factors on all but a kernel's fixed time, by dtype class and by the alignment of rows and addresses in bytes.

Rows that are not aligned to 16 bytes exclude TMA, and the library's other kernels load a few elements at a time. Fitted
to 25 products of benchmarks/run/map.py and of torch.matmul on an H100 and an H200.
"""

BYTE_ORDER = 2.6
"""Factor for int8 operands that are not both contiguous along K, for which the library has slow kernels only.

The smaller one of two on an H100: 2.6 for 256 products of 256 x 256 x 256, 3.6 for 1000 of 16 x 16 x 16. The
corrections are fitted to the other order.
"""

BYTE_BATCH = 1.5
"""Factor for int8 batches of matrices up to 64 x 64 in the fast order, the smallest of four on an H100: 1.57 to 2.1.

The corrections are fitted to single products.
"""

BLOCKS, ROWS = 1.25, 1.5
"""Factors for quantization scales of blocks, and of rows and columns: geometric means over 2600 random products on an
H100, beside products with one factor for each operand. Of small and few rows both cost more than of large products.
"""

_TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (128, 32), (32, 128),
    (64, 16), (16, 64), (128, 16), (16, 128),
)  # fmt: skip
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_K_BYTES = 128
_ACCUMULATOR = 4
"""Bytes of an accumulator."""
_HALF_RATE = {7: 1024, 8: 2048, 9: 4096, 10: 8192, 12: 2048}
"""float16 operations of the tensor cores of an SM in a cycle, by major compute capability."""
_NO_TENSOR_CORES = 256
"""The same without tensor cores."""
_SINGLE_RATE = 256
"""float32 operations of an SM in a cycle, without tensor cores."""
_DOUBLE_RATE = {8: 128, 9: 256, 10: 128}
"""float64 operations of an SM in a cycle, by major compute capability of cards for data centres."""
_LITTLE_DOUBLE = 4
"""The same for other cards."""


def rated(card: Card) -> bool:
    """Return whether the driver reports the device's rates: it may report 0."""
    return bool(card.sms and card.clock and card.bandwidth)


def rate(problem: GemmProblem, card: Card) -> float:
    """Return the peak rate of the device for these dtypes, in operations a second."""
    major = card.capability[0]
    half = _HALF_RATE.get(major, _NO_TENSOR_CORES)
    compute, itemsize = problem.compute_dtype.name, problem.a.dtype.itemsize
    if compute in ("float64", "complex128"):
        each = _DOUBLE_RATE.get(major, _LITTLE_DOUBLE) if card.capability[1] == 0 else _LITTLE_DOUBLE
    elif itemsize == 1:
        each = 2 * half
    elif itemsize == 2:
        each = half
    elif problem.permits_tf32 and major >= 8:
        each = half // 2
    else:
        each = _SINGLE_RATE
    return float(each) * card.sms * card.clock


def dtype_class(problem: GemmProblem) -> str:
    """Return the dtype class of a product: "byte", "half", "tf32", or "single" for float32 and wider dtypes."""
    if problem.a.dtype.itemsize <= 2:
        return "half" if problem.a.dtype.itemsize == 2 else "byte"
    return "tf32" if problem.compute_dtype.name == "float32" and problem.permits_tf32 else "single"


def constants(problem: GemmProblem) -> Constants:
    """Return the constants for the dtype class of ``problem``."""
    return {"half": HALF, "byte": HALF, "tf32": TF32, "single": SINGLE}[dtype_class(problem)]


def seconds(problem: GemmProblem, lowered: Lowered, card: Card) -> float:
    """Return the seconds of a call of ``problem``, lowered as ``lowered``, on a card that is :func:`rated`."""
    c = constants(problem)
    # float32 vectors have kernels of their own, which are bound by memory alone.
    vector = c is SINGLE and 1 in (problem.m, problem.n)
    min_cycles = c.start + (0.0 if vector else min(_cycles_of_tiles(problem, card)))
    moved = problem.m * problem.n * problem.batch_count * problem.out.dtype.itemsize
    memory = ((problem.nbytes - moved) / c.reading + moved / c.writing) / card.bandwidth + c.start / card.clock
    computing = min_cycles / card.clock
    fixed = c.start / card.clock
    overlapped = max(computing, memory) + c.overlap * min(computing, memory)
    slowdown = MISALIGNED.get(dtype_class(problem), {}).get(alignment(lowered.forms[0]), 1.0)
    return fixed + slowdown * (overlapped - fixed) + c.launch + LAUNCH * (len(lowered.offsets) - 1)


def byte_order(problem: GemmProblem, lowered: Lowered) -> float:
    """Return the factor on the seconds of an int8 product by the order of its operands and its batch, else 1."""
    form = lowered.forms[0]
    if problem.compute_dtype.name != "int32":
        return 1.0
    if not form.trans_a or form.trans_b:
        return BYTE_ORDER
    return BYTE_BATCH if form.products > 1 and max(problem.m, problem.n) <= 64 else 1.0


def scales(lowered: Lowered) -> float:
    """Return the factor on the seconds of a product by its quantization scales, else 1."""
    if lowered.in_blocks:
        return BLOCKS
    scaling = lowered.forms[0].scaling
    return ROWS if scaling is not None and OUTER in (scaling.a, scaling.b) else 1.0


def alignment(form: Form) -> int:
    """Return the alignment in bytes of the addresses and leading dimensions of a, b and d, at most :data:`TMA`."""
    return min(TMA, *alignments(form))


def alignments(form: Form) -> tuple[int, int, int]:
    """Return the alignments of a, b and d in bytes, at every column."""
    # The leading dimension of a single column is not used.
    a, b, d = (_power(gcd(x.alignment, x.ld * ITEMSIZE[x.type] if x.cols > 1 else 0)) for x in (form.a, form.b, form.d))
    return a, b, d


def _power(number: int) -> int:
    """Return the largest power of two that divides ``number``."""
    return number & -number


def _cycles_of_tiles(problem: GemmProblem, card: Card) -> list[float]:
    """Return the cycles of the product for each tile size."""
    each = rate(problem, card) / (card.sms * card.clock)
    return [_cycles(problem, tile, each, card.sms, constants(problem)) for tile in _TILES]


def _cycles(problem: GemmProblem, tile: tuple[int, int], each: float, sms: int, c: Constants) -> float:
    """Return the cycles for this tile size with the best split-K; an SM makes ``each`` operations in a cycle."""
    size = problem.a.dtype.itemsize
    area = tile[0] * tile[1]
    tiles = -(-problem.m // tile[0]) * -(-problem.n // tile[1]) * problem.batch_count
    stages = max(1, -(-problem.k * size // _K_BYTES))
    operations = 8 if problem.compute_dtype.kind == "c" else 2
    stage = max(c.multiply * operations * area * _K_BYTES / size / each, sum(tile) * _K_BYTES / c.feed, c.min_stage)
    around = c.tile + area * _ACCUMULATOR / c.store
    cycles = []
    for splits in _SPLITS:
        if splits > stages or (splits > 1 and tiles * splits > 2 * sms):
            break
        added = c.split + splits * area * _ACCUMULATOR / c.partials if splits > 1 else 0.0
        cycles.append(-(-tiles * splits // sms) * (-(-stages // splits) * stage + around) + added)
    return min(cycles)
