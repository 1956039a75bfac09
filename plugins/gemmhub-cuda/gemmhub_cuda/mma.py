"""The variants of the tensor-core kernel, kernels/mma.cu: how a product is cut up, and what follows from that.

It multiplies bfloat16 and float16 on cards of compute capability 8.0 and later, for operands of every order, size and
alignment. A variant is a :class:`Shape`, which the cost model chooses, and a :class:`~gemmhub_cuda.form.Form`, which
the problem demands; one compilation.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.form import Form

OLDEST = (8, 0)
"""The first compute capability that has cp.async and the instruction for bfloat16."""
_REGISTERS = 65536
"""Of a multiprocessor, to be given out by eights."""
_SHARED = 228 * 1024
"""Bytes of shared memory of a multiprocessor of capability 9.0; each block takes 1 KiB more than it asks for."""


@dataclass(frozen=True)
class Shape:
    """How a product is cut up: for a block, a step of it along k, and a warp."""

    m: int
    n: int
    k: int
    stages: int
    """Tiles of k in shared memory: one in use, the others on their way."""
    warp_m: int
    warp_n: int

    @property
    def warps(self) -> int:
        return self.m // self.warp_m * (self.n // self.warp_n)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def name(self) -> str:
        """Such as "mma128x128x32x4w8": tile, stages, warps."""
        return f"mma{self.m}x{self.n}x{self.k}x{self.stages}w{self.warps}"

    @property
    def sums(self) -> int:
        """Elements of the tile that a thread has."""
        return self.warp_m * self.warp_n // 32

    @property
    def registers(self) -> int:
        """That a thread may use, of at most 255: sums, two sets of fragments, and 72 for all else."""
        fragments = (self.warp_m + self.warp_n) // 16 * 4
        return min(255, self.sums + 2 * fragments + 72)

    @property
    def blocks(self) -> int:
        """For which the largest multiprocessor has registers and shared memory."""
        by_registers = _REGISTERS // (-(-self.registers // 8) * 8 * self.threads)
        return max(1, min(by_registers, _SHARED // (self.shared_bytes + 1024)))

    @property
    def shared_bytes(self) -> int:
        """Of a block: the ring, or in its place what the results go through; and 112 to align it."""
        ring = self.stages * 2 * self.k * (self.m + self.n)
        results = self.warps * 16 * 4 * (self.warp_n + 8)
        return max(ring, results + 16) + 112

    @property
    def partial_bytes(self) -> int:
        """Of workspace for each part of each tile, where k is split."""
        return 4 * self.m * self.n


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    shape: Shape
    form: Form
    split: bool = False
    """k may be cut into parts."""

    main = "mma.cu"

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def threads(self) -> int:
        return self.shape.threads

    @property
    def shared_bytes(self) -> int:
        return self.shape.shared_bytes

    def refusal(self, shared_limit: int) -> str | None:
        """Why there can be no such kernel where a block has at most ``shared_limit`` bytes of shared memory (163 KiB on
        compute capability 8.0, 99 KiB on 8.6 and 8.9, 227 KiB on 9.0); None when it can be compiled."""
        if self.form.input == "float32":
            return "tensor cores do not multiply float32 without rounding it"
        aligned = self.form.aligned
        if self.shape.sums > 64 and aligned < 16:
            return (
                f"beside {self.shape.sums} sums a thread has no registers for rows that are aligned to {aligned} bytes"
            )
        if self.shared_bytes > shared_limit:
            return f"{self.shared_bytes} bytes of shared memory, a block has at most {shared_limit}"
        return None

    @property
    def macros(self) -> dict[str, int]:
        """What params.cuh and mma.cu ask for."""
        shape = self.shape
        return {
            **self.form.macros,
            "TILE_M": shape.m, "TILE_N": shape.n, "TILE_K": shape.k, "STAGES": shape.stages,
            "WARP_M": shape.warp_m, "WARP_N": shape.warp_n, "THREADS": shape.threads, "BLOCKS": shape.blocks,
            "SPLIT": int(self.split), "SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


SHAPES = (
    Shape(256, 128, 32, 4, 64, 64), Shape(256, 128, 64, 3, 64, 64), Shape(256, 128, 64, 4, 64, 64),
    Shape(128, 256, 32, 4, 64, 64), Shape(128, 256, 64, 3, 64, 64), Shape(128, 256, 64, 4, 64, 64),
    Shape(128, 128, 32, 4, 64, 64), Shape(128, 128, 64, 3, 64, 64),
    Shape(128, 128, 32, 4, 64, 32), Shape(128, 128, 64, 3, 64, 32),
    Shape(128, 64, 64, 3, 64, 32), Shape(64, 128, 64, 3, 32, 64),
    Shape(64, 64, 64, 4, 32, 32), Shape(64, 64, 32, 5, 32, 32),
    Shape(32, 128, 64, 4, 32, 32), Shape(32, 64, 64, 5, 16, 32),
    Shape(16, 128, 64, 5, 16, 32), Shape(16, 64, 64, 6, 16, 16),
)  # fmt: skip
"""Those that the cost model chooses from. Where the product is narrow along n, its operands change places."""
