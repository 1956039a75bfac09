"""The tiles of the pipelined kernel: what a block and a warp compute, and how many steps are in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

EDGE = {128: 32, 32: 16}
"""Rows and columns of the pipelined kernel's fragments, by warp."""
DEPTH = 16
"""Their elements along K."""
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

        sums = 4 * self.warps_m * EDGE[warp] * (self.n + 4)
        return max(operand(self.m, deep_a) + operand(self.n, deep_b), sums)


USUAL = {128: Tile(128, 128, 32, 2, 2), 32: Tile(128, 128, 32, 2, 4)}
SMALL = {128: Tile(64, 64, 32, 2, 1), 32: Tile(64, 64, 32, 2, 2)}
OTHERS = {
    128: (
        Tile(128, 128, 32, 1, 1), Tile(256, 128, 32, 2, 1), Tile(128, 128, 32, 2, 1),
        Tile(128, 128, 32, 2, 2, group=8), Tile(128, 128, 32, 2, 2, stages=3), Tile(128, 128, 64, 2, 2),
        Tile(128, 64, 32, 2, 1), Tile(64, 128, 32, 1, 2),
    ),
    32: (
        Tile(128, 128, 32, 4, 4), Tile(128, 128, 32, 2, 4, group=8), Tile(128, 128, 32, 2, 4, stages=3),
        Tile(128, 128, 64, 2, 4), Tile(128, 64, 32, 4, 2), Tile(64, 128, 32, 2, 4),
    ),
}  # fmt: skip
"""Tiles worth timing, by warp: one whose structure published kernels have, one for small results, and others. Of those
for mp_22, the first two give each warp 128x128 of the result."""


def of(warp: int) -> tuple[Tile, ...]:
    """Return the tiles for warps of so many threads."""
    return (USUAL[warp], SMALL[warp], *OTHERS[warp])
