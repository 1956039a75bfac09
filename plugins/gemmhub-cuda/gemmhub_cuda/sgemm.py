"""The variants of the float32 kernel, kernels/sgemm.cu: how a product is cut up, and what follows from that."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.form import Form


@dataclass(frozen=True)
class Shape:
    """How a product is cut up: for a block, a step of it along k, and a warp."""

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    blocks: int
    """That a multiprocessor has room for: 65536 registers, shared evenly, are enough for the threads' sums."""

    @property
    def threads(self) -> int:
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n)

    @property
    def sums(self) -> int:
        """Elements of the tile that a thread has."""
        return self.warp_m * self.warp_n // 32

    @property
    def name(self) -> str:
        """Such as "128x128x8t256": the block's tile, its threads."""
        return f"{self.m}x{self.n}x{self.k}t{self.threads}"

    @property
    def partial_bytes(self) -> int:
        """Of workspace for each part of each tile, where k is split."""
        return 4 * self.m * self.n

    def operand_bytes(self, mn_major: bool, side: int) -> int:
        """Of a stage of shared memory: ``Loader::BYTES`` of sgemm.cu."""
        pad = 0 if mn_major else 4
        rows = self.k * (side + pad)
        return 4 * (rows if mn_major else rows + (self.k - 1) // 8 * 8)


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    shape: Shape
    form: Form
    split: bool = False
    """k may be cut into parts."""

    main = "sgemm.cu"

    @property
    def name(self) -> str:
        return f"sgemm-{self.shape.name}"

    @property
    def threads(self) -> int:
        return self.shape.threads

    @property
    def wide(self) -> bool:
        """Operands are loaded 16 bytes at a time."""
        return self.form.aligned >= 16

    @property
    def blocks(self) -> int:
        """That a multiprocessor has room for: half as many where single elements are loaded, as each of those needs
        an address in registers."""
        return self.shape.blocks if self.wide else max(1, self.shape.blocks // 2)

    @property
    def shared_bytes(self) -> int:
        shape, form = self.shape, self.form
        return 2 * (shape.operand_bytes(form.a_m_major, shape.m) + shape.operand_bytes(form.b_n_major, shape.n))

    def refusal(self, shared_limit: int) -> str | None:
        """Why there can be no such kernel where a block has at most ``shared_limit`` bytes of shared memory; None when
        it can be compiled."""
        if self.form.input != "float32":
            return "the kernel without tensor cores multiplies float32"
        if self.shape.sums > 64 and (self.split or not self.wide):
            return f"beside {self.shape.sums} sums a thread has registers for wide loads and undivided k only"
        if self.shared_bytes > shared_limit:
            return f"{self.shared_bytes} bytes of shared memory, a block has at most {shared_limit}"
        return None

    @property
    def macros(self) -> dict[str, int]:
        shape = self.shape
        return {
            **self.form.macros,
            "TILE_M": shape.m, "TILE_N": shape.n, "TILE_K": shape.k, "WARP_M": shape.warp_m, "WARP_N": shape.warp_n,
            "THREADS": shape.threads, "BLOCKS": self.blocks, "SPLIT": int(self.split),
            "SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


SHAPES = (
    Shape(256, 128, 8, 64, 64, blocks=1), Shape(128, 128, 8, 64, 64, blocks=2), Shape(128, 128, 16, 64, 64, blocks=2),
    Shape(128, 128, 8, 32, 64, blocks=2), Shape(128, 64, 8, 32, 64, blocks=3), Shape(64, 128, 8, 32, 64, blocks=3),
    Shape(64, 64, 16, 32, 32, blocks=4), Shape(128, 32, 16, 32, 32, blocks=3), Shape(32, 128, 16, 32, 32, blocks=3),
    Shape(32, 32, 16, 16, 32, blocks=8), Shape(128, 16, 16, 32, 16, blocks=4), Shape(16, 128, 16, 16, 32, blocks=4),
)  # fmt: skip
