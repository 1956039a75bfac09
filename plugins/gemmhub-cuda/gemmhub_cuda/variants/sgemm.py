"""The variants of the float32 kernel, kernels/sgemm.cu: tile shapes, macros and refused combinations."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.variants import variant
from gemmhub_cuda.variants.form import Form


@dataclass(frozen=True)
class Shape(variant.Shape):
    """The tiling of a product: a CTA's tile, its step along K, and a warp's tile."""

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    ctas_per_sm: int
    """CTAs per SM for whose accumulators its 65536 registers are enough."""

    stages = 2

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n)

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.warp_m * self.warp_n // 32

    @property
    def name(self) -> str:
        """The name of the shape, such as "128x128x8t256": the CTA's tile, its threads."""
        return f"{self.m}x{self.n}x{self.k}t{self.threads}"

    @property
    def order(self) -> str:
        """The order of the products of an element: fused multiply-adds, one after another, the last step first."""
        return f"fma.r{self.k}"

    def operand_bytes(self, mn_major: bool, side: int) -> int:
        """Return the bytes of an operand in a stage: ``Loader::BYTES`` of sgemm.cu."""
        pad = 0 if mn_major else 4
        rows = self.k * (side + pad)
        return 4 * (rows if mn_major else rows + (self.k - 1) // 8 * 8)

    def variant(self, form: Form, split_k: bool) -> Variant:
        """Return the kernel of this shape for ``form``."""
        return Variant(self, form, split_k)


@dataclass(frozen=True)
class Variant(variant.Variant):
    """One compilation of the kernel."""

    shape: Shape
    split_k: bool = False
    """Whether the kernel has split-K."""

    main = "sgemm.cu"

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return f"sgemm-{self.shape.name}"

    @property
    def wide(self) -> bool:
        """Whether operands are loaded 16 bytes at a time."""
        return self.form.alignment >= 16

    @property
    def ctas_by_registers(self) -> int:
        """CTAs for which an SM has registers: half as many where single elements are loaded, which need addresses."""
        return self.shape.ctas_per_sm if self.wide else max(1, self.shape.ctas_per_sm // 2)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA: two stages."""
        shape, form = self.shape, self.form
        of_a, of_b = shape.operand_bytes(form.a_m_major, shape.m), shape.operand_bytes(form.b_n_major, shape.n)
        return shape.stages * (of_a + of_b)

    def _form_refusal(self) -> str | None:
        if self.form.input != "float32":
            return "the kernel without tensor cores multiplies float32"
        if self.shape.accumulators > 64 and (self.split_k or not self.wide):
            count = self.shape.accumulators
            return f"with {count} accumulators a thread has registers for wide loads without split-K only"
        return None

    @property
    def _own_macros(self) -> dict[str, int]:
        return {"WARP_M": self.shape.warp_m, "WARP_N": self.shape.warp_n, "SPLIT": int(self.split_k)}


SHAPES = (
    Shape(256, 128, 8, 64, 64, ctas_per_sm=1), Shape(128, 128, 8, 64, 64, ctas_per_sm=2), Shape(128, 128, 16, 64, 64,
    ctas_per_sm=2), Shape(128, 128, 8, 32, 64, ctas_per_sm=2), Shape(128, 64, 8, 32, 64, ctas_per_sm=3), Shape(64, 128,
    8, 32, 64, ctas_per_sm=3), Shape(64, 64, 16, 32, 32, ctas_per_sm=4), Shape(128, 32, 16, 32, 32, ctas_per_sm=3),
    Shape(32, 128, 16, 32, 32, ctas_per_sm=3), Shape(32, 32, 16, 16, 32, ctas_per_sm=8), Shape(128, 16, 16, 32, 16,
    ctas_per_sm=4), Shape(16, 128, 16, 16, 32, ctas_per_sm=4),
)  # fmt: skip
"""The shapes from which the cost model chooses."""
