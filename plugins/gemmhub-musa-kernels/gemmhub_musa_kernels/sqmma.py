"""The kernel for mp_31 that multiplies by squads from shared memory: the products that it takes, and its candidate.

No card has run it: it was run on the simulator only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels.choose import Candidate, deep_operands
from gemmhub_musa_kernels.lower import Gemm
from gemmhub_musa_kernels.probe import Card
from gemmhub_musa_kernels.sources import SQMMA
from gemmhub_musa_kernels.tiles import Tile

ARCH = "mp_31"
_MIN_FLOPS = 3.2e9
"""Operations below which the kernel is not offered: one wave of its tiles leaves most of the card idle there."""
_RATE = 200e12
"""Assumed operations a second: a guess below the 293 to 362 TFLOPS that are published for muDNN on an S5000."""
_LAUNCH = 6.3e-6
"""Seconds for a launch, as published for the S5000."""
_EDGE = 128


@dataclass(frozen=True)
class SquadTile(Tile):
    """A tile of the kernel: a squad of four warps for every 128 rows. ``warps_m`` counts the multiplying warps."""

    def threads(self, warp: int) -> int:
        """Return the threads of a block: those that multiply, and a squad with the one that starts copies."""
        return self.warps_m * self.warps_n * warp + _EDGE

    def shared_bytes(self, warp: int, deep_a: bool, deep_b: bool) -> int:
        """Return the bytes of shared memory that a block uses."""
        return 2 * self.stages * self.k * (self.m + self.n)


TILE = SquadTile(256, 128, 64, 8, 1, stages=3)


def fits(gemm: Gemm) -> bool:
    """Return whether tensor copies can read the operands in place: one matrix each, in lines of whole 16 bytes."""
    return gemm.batch_count == 1 and not gemm.pinned and all(_readable(gemm, operand) for operand in "ab")


def _readable(gemm: Gemm, operand: str) -> bool:
    order, strides = gemm.order(operand), gemm.strides(operand)
    if order is None or not strides.in_vectors:
        return False
    along_k = order == "deep"
    between = strides.row if along_k == (operand == "a") else strides.col
    lines = gemm.extent(operand) if along_k else gemm.k
    return between > 0 or lines == 1  # copies know neither one line many times, nor lines backwards


def candidates(problem: GemmProblem, gemm: Gemm, card: Card) -> tuple[Candidate, ...]:
    """Return the kernel's candidate where it is worthwhile, else none."""
    room = TILE.shared_bytes(32, *deep_operands(gemm, ())) <= card.shared_bytes
    worthwhile = card.arch == ARCH and room and problem.flops >= _MIN_FLOPS and fits(gemm)
    return (Candidate(SQMMA, TILE),) if worthwhile else ()


def order(gemm: Gemm) -> str:
    """Return the name of the order in which the kernel adds the products of one element: one chain along K."""
    deep_a, deep_b = deep_operands(gemm, ())
    left, right = (name + ("row" if row else "col") for name, row in zip("ab", (deep_a, not deep_b)))
    return f"sqmma.128x128x{TILE.k}.{'swapped.' if gemm.swapped else ''}{left}.{right}"


def seconds(problem: GemmProblem) -> float:
    """Return the assumed seconds of a call."""
    return problem.flops / _RATE + _LAUNCH
