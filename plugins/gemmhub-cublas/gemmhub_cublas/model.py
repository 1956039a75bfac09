"""How long cuBLAS should take: the best of some tiles, in rounds of one a multiprocessor, beside what memory must move.

It ranks cuBLASLt among other backends before anything is measured; tuning replaces it. This is a model of a good
library, of which :mod:`gemmhub_cublas.corrections` tells where it was measured to be off, better so where it is told
the algorithm that will run. Constants and corrections are fitted by benchmarks/cublas_model_fit.py to times on an H200,
of which the script says how far estimates are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemmhub.native.cuda import Gpu
from gemmhub.problem import GemmProblem
from gemmhub_cublas import corrections, facts
from gemmhub_cublas.corrections import Chosen
from gemmhub_cublas.facts import Size

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""


class Constants(NamedTuple):
    """Cycles where not said else, of a multiprocessor at its highest clock."""

    launch: float
    """Seconds from kernel to kernel."""
    start: float
    """Of a kernel: launching blocks, the first load."""
    multiply: float
    """For a cycle of arithmetic at the peak."""
    feed: float
    """Bytes that a multiprocessor gets in a cycle for its tiles."""
    least: float
    """Of 128 bytes of k."""
    tile: float
    """Of a tile, besides its arithmetic."""
    store: float
    """Bytes of results, of 4 an element, that a multiprocessor gets rid of in a cycle."""
    split: float
    """Of adding up the parts of a split k."""
    parts: float
    """Bytes of them in a cycle."""
    reading: float
    """Share of memory's bandwidth."""
    writing: float
    overlap: float
    """Of the lesser of computing and moving data that adds to the greater."""


HALF = Constants(
    launch=1.591e-6, start=2092.0, multiply=1.266, feed=100.1, least=163.7, tile=83.27, store=57.04, split=7317.0,
    parts=62.33, reading=0.9132, writing=0.6441, overlap=0.2689,
)  # fmt: skip
TF32 = Constants(
    launch=2.974e-6, start=2308.0, multiply=1.307, feed=48.8, least=209.8, tile=151.6, store=37.99, split=1556.0,
    parts=13.85, reading=0.9491, writing=0.5305, overlap=0.2381,
)  # fmt: skip
SINGLE = Constants(
    launch=2.517e-6, start=1890.0, multiply=1.24, feed=74.79, least=203.9, tile=1200.0, store=85.23, split=6421.0,
    parts=40.0, reading=0.8511, writing=0.9515, overlap=0.9,
)  # fmt: skip
"""float32 and all that is wider."""

MISALIGNED = {"half": {2: 5.8, 4: 3.7, 8: 2.2}, "tf32": {4: 2.8, 8: 1.9}}
"""By kind and by the bytes that rows and addresses are aligned to: the factor on all but a kernel's fixed time. Rows
that are not aligned to 16 bytes exclude TMA, and the library's other kernels load a few elements at a time. Fitted to
25 products of benchmarks/map.py and of torch.matmul on an H100 and an H200.
"""

_TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (128, 32), (32, 128),
    (64, 16), (16, 64), (128, 16), (16, 128),
)  # fmt: skip
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_K_BYTES = 128
_COUNTED = 4
"""Bytes of an element of sums."""
_HALF_RATE = {7: 1024, 8: 2048, 9: 4096, 10: 8192, 12: 2048}
"""float16 operations of tensor cores in a clock of a multiprocessor, by major compute capability."""
_NO_TENSOR_CORES = 256
_SINGLE_RATE = 256
"""Likewise float32 without tensor cores."""
_DOUBLE_RATE = {8: 128, 9: 256, 10: 128}
_LITTLE_DOUBLE = 4


def rate(problem: GemmProblem, gpu: Gpu) -> float:
    """Operations a second that the device's units for these dtypes make at most."""
    major = gpu.capability[0]
    half = _HALF_RATE.get(major, _NO_TENSOR_CORES)
    compute, itemsize = problem.compute_dtype.name, problem.a.dtype.itemsize
    if compute in ("float64", "complex128"):
        each = _DOUBLE_RATE.get(major, _LITTLE_DOUBLE) if gpu.capability[1] == 0 else _LITTLE_DOUBLE
    elif itemsize == 1:
        each = 2 * half
    elif itemsize == 2:
        each = half
    elif problem.precision != "ieee" and major >= 8:
        each = half // 2
    else:
        each = _SINGLE_RATE
    return float(each) * gpu.sms * gpu.clock


def kind(problem: GemmProblem) -> str:
    """Whose constants are used: one of corrections.KINDS."""
    if problem.a.dtype.itemsize <= 2:
        return "half"
    return "tf32" if problem.compute_dtype.name == "float32" and problem.precision != "ieee" else "single"


def constants(problem: GemmProblem) -> Constants:
    return {"half": HALF, "tf32": TF32, "single": SINGLE}[kind(problem)]


def seconds(problem: GemmProblem, gpu: Gpu, launches: int, chosen: Chosen | None = None) -> float | None:
    """A call, with that many products, by the algorithm that was chosen where that is said; None where the driver does
    not say how fast the device is.
    """
    if not _rated(gpu):
        return None
    if chosen is not None and launches == 1:
        found = estimates(problem, gpu, chosen.size, [chosen.config])
        if found:
            return found[chosen.config]
    whole, row = _described(problem, gpu)
    if row is not None and launches == 1 and _like_measured(problem):
        whole *= corrections.factors(corrections.trees(kind(problem)), [row])[0]
    return whole + LAUNCH * max(0, launches - 1)


def estimates(problem: GemmProblem, gpu: Gpu, size: Size, configs: Sequence[str]) -> dict[str, float]:
    """Seconds of one launch by each algorithm about which something is known; ``size`` is what the library sees."""
    tables, net = facts.tables(), corrections.net()
    if tables is None or net is None or kind(problem) != "half" or not _rated(gpu):
        return {}
    whole, row = _described(problem, gpu)
    if row is None or not _like_measured(problem):
        return {}
    known = [config for config in configs if tables.knows(config)]
    rows = [row + corrections.of_chosen(Chosen(size, config), tables, whole) for config in known]
    return {config: whole * factor for config, factor in zip(known, corrections.factors(net, rows))}


def _rated(gpu: Gpu) -> bool:
    """Whether the driver tells the device's rates: it may say 0."""
    return bool(gpu.sms and gpu.clock and gpu.bandwidth)


def features(problem: GemmProblem, gpu: Gpu) -> list[float] | None:
    """For the corrections; None where there are none for such a product."""
    return _described(problem, gpu)[1]


def modelled(problem: GemmProblem, gpu: Gpu) -> float:
    """Seconds of one launch, without corrections."""
    return _modelled(problem, gpu, _cycles_of_tiles(problem, gpu))


def _described(problem: GemmProblem, gpu: Gpu) -> tuple[float, list[float] | None]:
    """(:func:`modelled`, :func:`features`)."""
    cycles = _cycles_of_tiles(problem, gpu)
    whole, call = _modelled(problem, gpu, cycles), corrections.measured(problem, gpu)
    if call is None:
        return whole, None
    return whole, corrections.features(problem, call, gpu, rate(problem, gpu), whole, cycles)


def _modelled(problem: GemmProblem, gpu: Gpu, cycles: list[float]) -> float:
    """``cycles``: for each size of tiles."""
    c = constants(problem)
    # float32 vectors have kernels of their own, which wait for memory alone.
    vector = c is SINGLE and 1 in (problem.m, problem.n)
    least = c.start + (0.0 if vector else min(cycles))
    moved = problem.m * problem.n * problem.batch_count * problem.out.dtype.itemsize
    memory = ((problem.nbytes - moved) / c.reading + moved / c.writing) / gpu.bandwidth + c.start / gpu.clock
    computing = least / gpu.clock
    fixed = c.start / gpu.clock
    whole = max(computing, memory) + c.overlap * min(computing, memory)
    return fixed + _slowdown(problem) * (whole - fixed) + c.launch


def _slowdown(problem: GemmProblem) -> float:
    """Of :data:`MISALIGNED`; 1 for aligned operands."""
    return MISALIGNED.get(kind(problem), {}).get(corrections.alignment(problem), 1.0)


def _like_measured(problem: GemmProblem) -> bool:
    """Corrections were fitted to single products of aligned operands. Of batches they were seen to be off by 1.8 times
    where the model alone is off by 1.2.
    """
    return problem.batch_count == 1 and _slowdown(problem) == 1


def _cycles_of_tiles(problem: GemmProblem, gpu: Gpu) -> list[float]:
    """For each size of tiles."""
    each = rate(problem, gpu) / (gpu.sms * gpu.clock)
    return [_cycles(problem, tile, each, gpu.sms, constants(problem)) for tile in _TILES]


def _cycles(problem: GemmProblem, tile: tuple[int, int], each: float, sms: int, c: Constants) -> float:
    """With the best number of parts of k, in tiles of this size; ``each`` operations in a cycle of a multiprocessor."""
    size = problem.a.dtype.itemsize
    area = tile[0] * tile[1]
    tiles = -(-problem.m // tile[0]) * -(-problem.n // tile[1]) * problem.batch_count
    stages = max(1, -(-problem.k * size // _K_BYTES))
    operations = 8 if problem.compute_dtype.kind == "c" else 2
    stage = max(c.multiply * operations * area * _K_BYTES / size / each, sum(tile) * _K_BYTES / c.feed, c.least)
    around = c.tile + area * _COUNTED / c.store
    found = []
    for splits in _SPLITS:
        if splits > stages or (splits > 1 and tiles * splits > 2 * sms):
            break
        added = c.split + splits * area * _COUNTED / c.parts if splits > 1 else 0.0
        found.append(-(-tiles * splits // sms) * (-(-stages // splits) * stage + around) + added)
    return min(found)
