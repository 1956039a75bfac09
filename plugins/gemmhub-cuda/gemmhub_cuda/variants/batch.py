"""The variants of the kernel for batches of small matrices, kernels/batch.cu: tile shapes, macros and refusals.

A warp computes whole tiles of one matrix, so that many small matrices keep the memory busy. It multiplies float16 and
bfloat16; int8 with int32 results, and 8-bit floats with quantization scales: these in any size, as no other kernel here
does.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.variants.form import Form
from gemmhub_cuda.variants.variant import TensorShape, TensorVariant

WIDEST = 64
"""The widest tile, and the largest m and n for which 16-bit products are proposed."""
FLOAT8 = (8, 9)
"""The first compute capability with mma.sync of 8-bit floats."""
_MAX_TILES = 2**30
"""Largest number of tiles of a launch, whose numbers have 31 bits."""


@dataclass(frozen=True)
class Shape(TensorShape):
    """The tiling of a product: a warp's tile, its step along K, and the warps of a CTA."""

    m: int
    n: int
    k: int
    itemsize: int
    """Bytes of an element of the operands: 1 or 2."""
    stages: int
    """Stages of a warp's ring in shared memory."""
    warps: int
    """Warps of a CTA."""
    promoted: bool = False
    """Whether it multiplies 8-bit floats, whose sums of 128 along K are promoted: they take as many registers again."""

    has_split_k = False

    @property
    def grouped(self) -> bool:  # type: ignore[override]
        """Whether tiles are walked in groups of rows: those of 8-bit floats, whose products are large, too."""
        return self.promoted

    @property
    def cta_tiles(self) -> int:  # type: ignore[override]
        """Tiles that a CTA computes at once: one for each warp."""
        return self.warps

    @property
    def k_bytes(self) -> int:
        """Bytes of a row of an operand in a step along K: 32, 64 or 128."""
        return self.k * self.itemsize

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def name(self) -> str:
        """The name of the shape, such as "batch32x32x32x3w4": tile, stages, warps. Those of int8 begin with "bytes",
        those of 8-bit floats with "float8.".
        """
        prefix = "float8." if self.promoted else "bytes" if self.itemsize == 1 else "batch"
        return f"{prefix}{self.m}x{self.n}x{self.k}x{self.stages}w{self.warps}"

    @property
    def description(self) -> str:
        """The unit, the depth of the ring, and what computes a tile."""
        return f"a tile of a warp, {super().description}"

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread, with those of sums to promote."""
        return self.m * self.n // 32 * (2 if self.promoted else 1)

    @property
    def fragments(self) -> int:
        """Registers of a thread for fragments of the operands."""
        return (self.m + self.n) // 4

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA: each warp's ring and 16 rows of results, and 112 to align them."""
        return self.warps * (self.stages * self.k_bytes * (self.m + self.n) + 64 * (self.n + 8)) + 112

    def variant(self, form: Form, split_k: bool) -> Variant:
        """Return the kernel of this shape for ``form``: without split-K, which it does not have."""
        return Variant(self, form)

    def max_matrices(self, tiles: int) -> int:
        """Return the largest batch of one launch: tiles of all matrices are numbered together."""
        return _MAX_TILES // tiles

    def grid(self, tiles: int, splits: int, count: int, at_once: int) -> tuple[int, int, int]:
        """Return the grid of a launch: at most the CTAs that run at once, whose warps take one tile after another."""
        return min(at_once, -(-tiles * count // self.warps)), 1, 1

    def grid_refusal(self, tiles: int, splits: int) -> str | None:
        """Return why there is no grid for a matrix of ``tiles`` tiles; None where there is one."""
        return f"{tiles} tiles of a matrix: a launch has at most {_MAX_TILES}" if tiles > _MAX_TILES else None


@dataclass(frozen=True)
class Variant(TensorVariant):
    """One compilation of the kernel."""

    shape: Shape

    main = "batch.cu"

    def _form_refusal(self) -> str | None:
        if self.form.input_bytes != self.shape.itemsize:
            return f"{self.shape.name} multiplies elements of {self.shape.itemsize} bytes, not {self.form.input}"
        if self.form.float8 != self.shape.promoted:
            return f"{self.shape.name} multiplies {'8-bit floats' if self.shape.promoted else 'int8'}"
        return None

    @property
    def _own_macros(self) -> dict[str, int]:
        return {"STAGES": self.shape.stages, "SPLIT": 0}


def _ring(m: int, n: int, k_bytes: int) -> tuple[int, int]:
    """Return stages and warps: a few KiB in flight for each warp, and at most 96 KiB of shared memory for a CTA."""
    stages = max(2, min(4, 1 + 8192 // (k_bytes * (m + n))))
    return stages, 2 if m + n >= 96 else 4


_SIDES = (16, 32, 64)
_MAX_PROMOTED = 64 * 32
"""Largest tile of 8-bit floats: a thread has no registers for more accumulators and as many sums to promote."""
SHAPES = tuple(
    Shape(m, n, k_bytes // itemsize, itemsize, *_ring(m, n, k_bytes), promoted)
    for itemsize, promoted in ((2, False), (1, False), (1, True))
    for m in _SIDES
    for n in _SIDES
    for k_bytes in (32, 64, 128)
    if not promoted or m * n <= _MAX_PROMOTED
)
"""The shapes from which the cost model chooses."""


def fitting(m: int, n: int, k: int, itemsize: int, promoted: bool = False) -> tuple[Shape, ...]:
    """Return the shapes whose tile is the smallest that holds m and n, and whose step is not much longer than K.

    Of 8-bit floats (``promoted``) the largest tiles are halves of the widest one.
    """
    side_m, side_n = (next((side for side in _SIDES if side >= size), WIDEST) for size in (m, n))
    sides = [(side_m, side_n)]
    if promoted and side_m * side_n > _MAX_PROMOTED:
        sides = [(side_m // 2, side_n), (side_m, side_n // 2)]
    return tuple(
        x for x in SHAPES
        if (x.m, x.n) in sides and (x.itemsize, x.promoted) == (itemsize, promoted)
        and (x.k_bytes == 32 or x.k_bytes < 2 * k * itemsize)
    )  # fmt: skip
