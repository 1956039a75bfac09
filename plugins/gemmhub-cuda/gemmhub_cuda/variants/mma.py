"""The variants of the tensor-core kernel, kernels/mma.cu: tile shapes, macros and refused combinations.

It multiplies bfloat16 and float16 on cards of compute capability 8.0 and later, for operands of every order, size and
alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.variants.form import Form
from gemmhub_cuda.variants.variant import TensorShape, TensorVariant

OLDEST = (8, 0)
"""The first compute capability with cp.async and mma.sync of bfloat16."""


@dataclass(frozen=True)
class Shape(TensorShape):
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
    def order(self) -> str:
        """The order of the products of an element: 16 along K by each mma, one after another, the last step first."""
        return f"mma.k16.r{self.k}"

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.warp_m * self.warp_n // 32

    @property
    def fragments(self) -> int:
        """Registers of a thread for two sets of fragments of the operands."""
        return 2 * ((self.warp_m + self.warp_n) // 16 * 4)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA: the ring, or the results in its memory, and 112 to align it."""
        ring = self.stages * 2 * self.k * (self.m + self.n)
        results = self.warps * 16 * 4 * (self.warp_n + 8)
        return max(ring, results + 16) + 112

    def variant(self, form: Form, split_k: bool) -> Variant:
        """Return the kernel of this shape for ``form``."""
        return Variant(self, form, split_k)


@dataclass(frozen=True)
class Variant(TensorVariant):
    """One compilation of the kernel."""

    shape: Shape
    split_k: bool = False
    """Whether the kernel has split-K."""

    main = "mma.cu"

    def _form_refusal(self) -> str | None:
        if self.form.input == "float32":
            return "tensor cores do not multiply float32 without rounding it"
        alignment = self.form.alignment
        if self.shape.accumulators > 64 and alignment < 16:
            count = self.shape.accumulators
            return f"with {count} accumulators a thread has no registers for rows that are aligned to {alignment} bytes"
        return None

    @property
    def _own_macros(self) -> dict[str, int]:
        shape = self.shape
        return {
            "STAGES": shape.stages, "WARP_M": shape.warp_m, "WARP_N": shape.warp_n, "SPLIT": int(self.split_k),
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
