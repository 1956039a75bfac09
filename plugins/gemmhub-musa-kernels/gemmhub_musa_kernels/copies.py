"""Chooses the operands to copy before a product, so that they are contiguous along M or N and their rows start lines.

The pipelined kernel reads 32 elements along K at a time. In an operand contiguous along K that is half a line of 128
bytes, so each tile reads each line twice. An operand whose rows are not aligned moves in small units, and one that is
contiguous along neither dimension cannot be read at all. A copy costs a launch, and reads and writes the operand once.
It is made where it moves fewer lines than it saves: counted, not measured. The problem alone decides, so that `explain`
shows the copy; tuning times both.
"""

from __future__ import annotations

from math import ceil

from gemmhub.capability import Copy
from gemmhub_musa_kernels.lower import Gemm, pitch

REACH = 128
"""Rows, or columns, of the default tile: an operand is read once for each such stretch of the other one."""
_REACH_OF_WMMA = 16
"""The same for the kernel that takes any strides."""
_HALF_LINES, _UNALIGNED = 2.0, 2.0
"""The cost of reading an operand contiguous along K, and one whose rows are not aligned, over that of a copied one. For
the latter the count of lines is 1.5; there are more instructions, too."""
_LAUNCH_BYTES = 4.8e6
"""Bytes that a card with 768 GB/s moves in the 6.3 us of a launch (as published for S4000 and S5000)."""
MOST_BYTES = 48 * 2**20
"""The most scratch memory for a call; gemmhub's default limit is 64 MiB."""


def scratch_bytes(gemm: Gemm, operand: str) -> int:
    """Return the bytes that a copy of "a" or "b" takes."""
    lines, elements = lines_of(gemm, operand)
    return 2 * lines * pitch(elements)


def lines_of(gemm: Gemm, operand: str) -> tuple[int, int]:
    """Return the number of lines of a copy of "a" or "b", and the elements of each: along M or N, or along K for "a" of
    a pinned product."""
    extent = gemm.extent(operand)
    return (extent, gemm.k) if gemm.pinned and operand == "a" else (gemm.k, extent)


def worthwhile(gemm: Gemm) -> tuple[str, ...]:
    """Return the operands to copy, "a" before "b"."""
    found: list[str] = []
    left = MOST_BYTES
    for operand, other in (("a", gemm.n), ("b", gemm.m)):
        nbytes = scratch_bytes(gemm, operand)
        if _saved(gemm, operand, other, nbytes) > _LAUNCH_BYTES and nbytes <= left:
            found.append(operand)
            left -= nbytes
    return tuple(found)


def listed(gemm: Gemm, operands: tuple[str, ...]) -> tuple[Copy, ...]:
    """Return the copies of ``operands`` as `explain` lists them, under the caller's names."""
    without = "pack(b) does it once, and there are candidates that read it in place"
    why = {
        "deep": f"transposed first in each call, as it is contiguous along K; {without}",
        "wide": f"copied first in each call, as its rows are not aligned to 16 bytes; {without}",
        None: "copied first in each call, as it is contiguous along neither dimension",
    }
    pinned = "copied row-major first in each call, as the bits of rows are pinned to one order of sums"
    named = {"a": "b", "b": "a"} if gemm.swapped else {"a": "a", "b": "b"}
    return tuple(
        [Copy(named[x], scratch_bytes(gemm, x), pinned if gemm.pinned else why[gemm.order(x)]) for x in operands]
    )


def _saved(gemm: Gemm, operand: str, other: int, nbytes: int) -> float:
    """Return the bytes that a copy saves; negative where it moves more."""
    if not (gemm.shared(operand) or gemm.batch_count == 1):
        return 0.0
    order, strides = gemm.order(operand), gemm.strides(operand)
    factor = (_HALF_LINES if order == "deep" else 1.0) * (1.0 if strides.in_vectors else _UNALIGNED)
    times = ceil(other / REACH) * gemm.batch_count
    if order is None:
        factor = ceil(other / _REACH_OF_WMMA) / ceil(other / REACH)
    return nbytes * (times * (factor - 1.0) - 2.0)
