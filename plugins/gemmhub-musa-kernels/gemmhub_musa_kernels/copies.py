"""Which operands are copied before a product, so that their rows are dense along m or n ("wide") and start lines.

The pipelined kernel reads a step of 32 elements in depth. Of an operand that is dense along k that is half a line of
128 bytes, so each tile asks for each line twice. One whose rows are not aligned it moves in small units, and one that
is dense along neither dimension it cannot read at all. A copy costs a launch, and reads and writes the operand once. It
is made where it moves fewer lines than it saves: counted, not measured. All that it depends on is in the problem, so
that a decision can show it; the tuner times both.
"""

from __future__ import annotations

from math import ceil

from gemmhub_musa_kernels.lower import Gemm, pitch

REACH = 128
"""Rows, or columns, of the usual tile: an operand is read once for each such stretch of the other one."""
_REACH_OF_WMMA = 16
"""That of the kernel that takes any strides."""
_HALF_LINES, _UNALIGNED = 2.0, 2.0
"""How much dearer an operand is to read that is dense along k, and one whose rows are not aligned. For the latter lines
alone would say 1.5: there are more instructions, too."""
_LAUNCH_BYTES = 4.8e6
"""What a card with 768 GB/s moves in the 6.3 us that a launch costs (as published for S4000 and S5000)."""
MOST_BYTES = 48 * 2**20
"""Of scratch memory for a call; gemmhub allows 64 MiB unless told otherwise."""


def scratch_bytes(gemm: Gemm, operand: str) -> int:
    """What a copy of "a" or "b" takes."""
    return 2 * gemm.k * pitch(gemm.extent(operand))


def worthwhile(gemm: Gemm) -> tuple[str, ...]:
    """The operands to copy, "a" before "b"."""
    found: list[str] = []
    left = MOST_BYTES
    for operand, other in (("a", gemm.n), ("b", gemm.m)):
        nbytes = scratch_bytes(gemm, operand)
        if _saved(gemm, operand, other, nbytes) > _LAUNCH_BYTES and nbytes <= left:
            found.append(operand)
            left -= nbytes
    return tuple(found)


def _saved(gemm: Gemm, operand: str, other: int, nbytes: int) -> float:
    """Bytes that need not be moved."""
    if not (gemm.shared(operand) or gemm.batch_count == 1):
        return 0.0
    order, strides = gemm.order(operand), gemm.strides(operand)
    factor = (_HALF_LINES if order == "deep" else 1.0) * (1.0 if strides.in_vectors else _UNALIGNED)
    times = ceil(other / REACH) * gemm.batch_count
    if order is None:
        factor = ceil(other / _REACH_OF_WMMA) / ceil(other / REACH)
    return nbytes * (times * (factor - 1.0) - 2.0)
