"""The candidates for a product: kernels, and tiles for the pipelined one, in order of preference. Tuning times them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil

from gemmhub.dtypes import DType
from gemmhub_musa_kernels.copies import REACH
from gemmhub_musa_kernels.lower import Gemm
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WARP, WMMA

_EDGE = {128: 32, 32: 16}
"""Rows and columns of the pipelined kernel's fragments, by warp."""
_VECTOR = 8
"""16-bit elements in 16 bytes."""


@dataclass(frozen=True)
class Tile:
    """A tile of the pipelined kernel; pipelined.mu defines each number."""

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    stages: int = 2
    group: int = 4

    def __str__(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}", f"{self.warps_m}x{self.warps_n}warps"]
        parts += [f"{self.stages}stages"] * (self.stages != 2) + [f"group{self.group}"] * (self.group != 4)
        return "-".join(parts)

    @property
    def defines(self) -> dict[str, str]:
        """The macros of the kernel's file, with their values."""
        return {f"GEMMHUB_{field.name.upper()}": str(getattr(self, field.name)) for field in fields(self)}

    def threads(self, warp: int) -> int:
        """Return the threads of a block."""
        return self.warps_m * self.warps_n * warp

    def shared_bytes(self, warp: int, deep_a: bool, deep_b: bool) -> int:
        """Return the bytes of shared memory that a block uses, as the kernel computes them."""

        def operand(extent: int, deep: bool) -> int:
            run, lines = (self.k, extent) if deep else (extent, self.k)
            return 2 * lines * (self.stages * run + _VECTOR)

        sums = 4 * self.warps_m * _EDGE[warp] * (self.n + 4)
        return max(operand(self.m, deep_a) + operand(self.n, deep_b), sums)


USUAL = {128: Tile(128, 128, 32, 2, 2), 32: Tile(128, 128, 32, 2, 4)}
SMALL = {128: Tile(64, 64, 32, 2, 1), 32: Tile(64, 64, 32, 2, 2)}
OTHERS = {
    128: (
        Tile(128, 128, 32, 2, 1), Tile(128, 128, 32, 2, 2, group=8), Tile(128, 128, 32, 2, 2, stages=3),
        Tile(128, 128, 64, 2, 2), Tile(128, 64, 32, 2, 1), Tile(64, 128, 32, 1, 2),
    ),
    32: (
        Tile(128, 128, 32, 4, 4), Tile(128, 128, 32, 2, 4, group=8), Tile(128, 128, 32, 2, 4, stages=3),
        Tile(128, 128, 64, 2, 4), Tile(128, 64, 32, 4, 2), Tile(64, 128, 32, 2, 4),
    ),
}  # fmt: skip
"""Tiles worth timing, by warp: the usual one, the one for small results, and others that tuning may prefer."""


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


def candidates(
    gemm: Gemm, arch: str, multiprocessors: int, shared_bytes: int, transposed: tuple[str, ...]
) -> tuple[Candidate, ...]:
    """Return every candidate for ``gemm``, the best guess first. ``transposed``: operands to copy first."""
    warp = WARP[arch]
    if arch == "mp_21":
        return (Candidate(SCALAR),)  # it has no matrix instructions that are public
    plain = (Candidate(WMMA), Candidate(SCALAR))
    found: list[Candidate] = []
    for copied in (transposed,) if gemm.pinned else dict.fromkeys((transposed, ())):
        if not gemm.pinned and any(gemm.order(operand) is None and operand not in copied for operand in "ab"):
            continue
        deep = deep_operands(gemm, copied)
        tiles = ceil(gemm.m / REACH) * ceil(gemm.n / REACH) * gemm.batch_count
        usual = [USUAL[warp], SMALL[warp]] if tiles >= multiprocessors else [SMALL[warp], USUAL[warp]]
        found += [
            Candidate(PIPELINED, tile, copied)
            for tile in (*usual, *OTHERS[warp])
            if tile.shared_bytes(warp, *deep) <= shared_bytes
        ]
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
        edge, depth = _EDGE[WARP[arch]], candidate.tile.k
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
