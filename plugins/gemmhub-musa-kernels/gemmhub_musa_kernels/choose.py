"""The candidates for a product: kernels, and tiles for the pipelined one. Tuning times them."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub.dtypes import DType
from gemmhub_musa_kernels import tiles
from gemmhub_musa_kernels.lower import Gemm
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WARP, WMMA
from gemmhub_musa_kernels.tiles import EDGE, Tile


@dataclass(frozen=True)
class Candidate:
    """A kernel with its tile, and the operands that are copied before it."""

    kernel: str
    tile: Tile | None = None
    transposed: tuple[str, ...] = ()
    """Operands ("a", "b") that are copied first, so that they are contiguous along M or N; others are read in place."""

    @property
    def name(self) -> str:
        """The name that users see and choose it by."""
        parts = [self.kernel] + [str(self.tile)] * (self.tile is not None)
        return "-".join(parts + ["copying"] * bool(self.transposed))


def candidates(gemm: Gemm, arch: str, shared_bytes: int, transposed: tuple[str, ...]) -> tuple[Candidate, ...]:
    """Return every candidate for ``gemm``, the fastest kernels first. ``transposed``: operands to copy first."""
    warp = WARP[arch]
    if arch == "mp_21":
        return (Candidate(SCALAR),)  # it has no matrix instructions that are public
    plain = (Candidate(WMMA), Candidate(SCALAR))
    found: list[Candidate] = []
    for copied in (transposed,) if gemm.pinned else dict.fromkeys((transposed, ())):
        if not gemm.pinned and any(gemm.order(operand) is None and operand not in copied for operand in "ab"):
            continue
        deep = deep_operands(gemm, copied)
        fitting = [tile for tile in tiles.of(warp) if tile.shared_bytes(warp, *deep) <= shared_bytes]
        found += [Candidate(PIPELINED, tile, copied) for tile in fitting]
    return (*found, *plain)


def deep_operands(gemm: Gemm, transposed: tuple[str, ...]) -> tuple[bool, bool]:
    """Return whether a kernel reads A, and B, along K where ``transposed`` are copied first."""
    if gemm.pinned:
        return True, False
    deep_a, deep_b = (gemm.order(operand) == "deep" and operand not in transposed for operand in "ab")
    return deep_a, deep_b


def order(candidate: Candidate, gemm: Gemm, arch: str) -> str:
    """Return the name of the order in which ``candidate`` adds the products of one element.

    No kernel splits K. A matrix kernel's element is one chain of multiplications of fragments along K, with zeros
    beyond it to a multiple of the tile's depth. So the name has all that decides which instructions the chain has: the
    fragments' shape, the storage orders in which they take their left and right operand, and that depth. The other
    numbers of a tile only decide which warp has which fragment. Of a pinned product the storage orders are always
    row-major, and the first tiles of one depth, so that the first candidate's order is that of the card.
    """
    if candidate.kernel == SCALAR:
        return f"{SCALAR}.chain"
    if candidate.tile is None:
        edge, depth, rows = 16, 16, (True, True)
    else:
        edge, depth = EDGE[WARP[arch]], candidate.tile.k
        deep_a, deep_b = deep_operands(gemm, candidate.transposed)
        rows = deep_a, not deep_b
    left, right = (name + ("row" if row else "col") for name, row in zip("ba" if gemm.swapped else "ab", rows))
    return f"mma.{edge}x{edge}x16.{left}.{right}.k{depth}"


C_TYPES = {"float16": "half", "bfloat16": "__mt_bfloat16", "float32": "float"}
"""Names of the dtypes in MUSA."""


def defines(candidate: Candidate, arch: str, operand: DType, result: DType) -> tuple[str, ...]:
    """Return the compiler's flags for the kernel of ``candidate``."""
    named = {"GEMMHUB_WARP": str(WARP[arch]), "GEMMHUB_OPERAND": C_TYPES[operand.name]}
    named["GEMMHUB_RESULT"] = C_TYPES[result.name]
    named |= candidate.tile.defines if candidate.tile else {}
    return tuple(f"-D{name}={value}" for name, value in named.items())
