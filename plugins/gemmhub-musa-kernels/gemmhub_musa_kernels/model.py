"""Estimates the time of a product, to rank tiles and to rank the kernels among other backends; tuning replaces it.

gemmhub has measured none of these kernels on a card. A pipelined product's cycles are counted: those of the matrix
instructions, and of shared memory for loading fragments and storing copies, as if nothing overlapped. What cannot be
counted is set so that the tile with the structure of a published kernel has that kernel's speed on an MTT S4000. For
other cards no speed is published, so that there are cycles to rank tiles by, and no seconds.
"""

from __future__ import annotations

from math import ceil

from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.lower import Gemm
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WMMA
from gemmhub_musa_kernels.tiles import DEPTH, EDGE, Tile

LAUNCH = 6.3e-6
"""Seconds for a launch, as published for the S5000."""
CLOCK, MULTIPROCESSORS = 1.744e9, 56
"""The S4000's, as published."""
FLOP_PER_CYCLE = 1024.0
"""Operations of a multiprocessor's matrix units in a cycle: 100 TFLOPS of an S4000. Assumed of other cards."""
PUBLISHED = 53.6e12
"""Operations a second of a kernel with the structure of the usual tile on an S4000, at large sizes."""
_SHARED_BYTES = 128.0
"""Bytes that a multiprocessor's shared memory moves in a cycle: 32 banks of 4 bytes. With wide banks it may be more."""
_UNCOUNTED = FLOP_PER_CYCLE * MULTIPROCESSORS * CLOCK / PUBLISHED - 1.0 - 12.0 / 32.0
"""Cycles of latencies, barriers and instructions, over those of the matrix units: what is left of the published
kernel's, of which 12 for each 32 are of shared memory."""
_RATE = {WMMA: 3.6e12, SCALAR: 0.5e12}
"""Operations a second of the other kernels on mp_22. The scalar kernel's is a guess from its reads of L2."""
_BANDWIDTH = 768e9
"""Memory bandwidth of mp_22 in bytes a second."""


def instruction_cycles(tile: Tile, warp: int, hidden: bool = False) -> float:
    """Return the cycles for each matrix instruction of a multiprocessor.

    ``hidden``: as if all of shared memory's overlapped with those of the matrix units.
    """
    edge, fragment = EDGE[warp], 2.0 * EDGE[warp] * DEPTH
    units = 2.0 * edge * edge * DEPTH / FLOP_PER_CYCLE
    loaded = fragment * (tile.warps_m * edge / tile.m + tile.warps_n * edge / tile.n)
    copied = fragment * (edge / tile.m + edge / tile.n)
    return units * (1.0 + _UNCOUNTED) + (0.0 if hidden else (loaded + copied) / _SHARED_BYTES)


def cycles(tile: Tile, gemm: Gemm, warp: int, multiprocessors: int) -> float:
    """Return the cycles of the multiprocessor with the most tiles. Sums pass through shared memory once a tile."""
    tiles = ceil(gemm.m / tile.m) * ceil(gemm.n / tile.n) * gemm.batch_count
    instructions = tile.m * tile.n / EDGE[warp] ** 2 * (ceil(gemm.k / tile.k) * tile.k / DEPTH)
    sums = 2.0 * 4 * tile.m * tile.n / _SHARED_BYTES
    return ceil(tiles / multiprocessors) * (instructions * instruction_cycles(tile, warp) + sums)


def ranked(found: tuple[Candidate, ...], gemm: Gemm, warp: int, multiprocessors: int) -> tuple[Candidate, ...]:
    """Return candidates in their order, but the tiles of a kernel with the same copies by their cycles."""
    kinds = list(dict.fromkeys((each.kernel, each.transposed) for each in found))

    def key(each: Candidate) -> tuple[int, float]:
        counted = cycles(each.tile, gemm, warp, multiprocessors) if each.tile else 0.0
        return kinds.index((each.kernel, each.transposed)), counted

    return tuple(sorted(found, key=key))


def seconds(
    problem: GemmProblem, arch: str, kernel: str, copied_bytes: int, launches: int, counted: float = 0.0
) -> float | None:
    """Return the seconds of a call with ``launches`` that also copies ``copied_bytes``; None without a published speed.

    ``counted`` are the pipelined kernel's :func:`cycles`.
    """
    if arch != "mp_22":
        return None
    computing = counted / CLOCK if kernel == PIPELINED else problem.flops / _RATE[kernel]
    traffic = problem.nbytes + 3.0 * copied_bytes
    return max(computing, traffic / _BANDWIDTH) + LAUNCH * launches
