"""The variants of the tensor-core kernel, kernels/mma.cu: tile shapes, macros and refused combinations.

It multiplies bfloat16 and float16 on cards of compute capability 8.0 and later, for operands of every order, size and
alignment. A variant, one compilation, has a :class:`Shape`, which the cost model chooses, and a
:class:`~gemmhub_cuda.form.Form`, which the problem demands.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.form import Form

OLDEST = (8, 0)
"""The first compute capability with cp.async and mma.sync of bfloat16."""
_REGISTERS = 65536
"""Registers of an SM, which are allocated in units of eight for each thread."""
_SHARED = 228 * 1024
"""Bytes of shared memory of an SM of compute capability 9.0; each CTA takes 1 KiB more than it asks for."""


@dataclass(frozen=True)
class Shape:
    """The tiling of a product: a CTA's tile, its step along K, and a warp's tile."""

    m: int
    n: int
    k: int
    stages: int
    """Stages of the ring in shared memory: one is in use, the others are being loaded."""
    warp_m: int
    warp_n: int

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.m // self.warp_m * (self.n // self.warp_n)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def name(self) -> str:
        """The name of the shape, such as "mma128x128x32x4w8": tile, stages, warps."""
        return f"mma{self.m}x{self.n}x{self.k}x{self.stages}w{self.warps}"

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.warp_m * self.warp_n // 32

    @property
    def registers(self) -> int:
        """Registers of a thread, at most 255: accumulators, two sets of fragments, and 72 for the rest."""
        fragments = (self.warp_m + self.warp_n) // 16 * 4
        return min(255, self.accumulators + 2 * fragments + 72)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs for which the largest SM has registers and shared memory."""
        by_registers = _REGISTERS // (-(-self.registers // 8) * 8 * self.threads)
        return max(1, min(by_registers, _SHARED // (self.shared_bytes + 1024)))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA: the ring, or the results in its place, and 112 to align it."""
        ring = self.stages * 2 * self.k * (self.m + self.n)
        results = self.warps * 16 * 4 * (self.warp_n + 8)
        return max(ring, results + 16) + 112

    @property
    def partial_bytes(self) -> int:
        """Bytes of workspace for the partial sums of one tile of one split."""
        return 4 * self.m * self.n


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    shape: Shape
    form: Form
    split_k: bool = False
    """Whether the kernel has split-K."""

    main = "mma.cu"

    @property
    def name(self) -> str:
        """The name of the shape."""
        return self.shape.name

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.shape.threads

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA."""
        return self.shape.shared_bytes

    def refusal(self, shared_limit: int) -> str | None:
        """Return why there is no such kernel on a card; None where it can be compiled.

        A CTA has at most ``shared_limit`` bytes of shared memory: 163 KiB on compute capability 8.0, 99 KiB on 8.6 and
        8.9, 227 KiB on 9.0.
        """
        if self.form.input == "float32":
            return "tensor cores do not multiply float32 without rounding it"
        alignment = self.form.alignment
        if self.shape.accumulators > 64 and alignment < 16:
            count = self.shape.accumulators
            return f"with {count} accumulators a thread has no registers for rows that are aligned to {alignment} bytes"
        if self.shared_bytes > shared_limit:
            return f"{self.shared_bytes} bytes of shared memory: a CTA has at most {shared_limit}"
        return None

    @property
    def macros(self) -> dict[str, int]:
        """The macros of params.cuh and mma.cu."""
        shape = self.shape
        return {
            **self.form.macros,
            "TILE_M": shape.m, "TILE_N": shape.n, "TILE_K": shape.k, "STAGES": shape.stages,
            "WARP_M": shape.warp_m, "WARP_N": shape.warp_n, "THREADS": shape.threads, "BLOCKS": shape.ctas_per_sm,
            "SPLIT": int(self.split_k), "SHARED_BYTES": self.shared_bytes,
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
"""The shapes from which the cost model chooses."""
