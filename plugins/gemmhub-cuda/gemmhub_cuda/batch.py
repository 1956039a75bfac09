"""The variants of the kernel for batches of small matrices, kernels/batch.cu: tile shapes, macros and refusals.

A warp computes whole tiles of one matrix, so that many small matrices keep the memory busy. It multiplies float16 and
bfloat16, and int8 with int32 results: int8 in any size, as no other kernel here does.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_cuda.form import Form

_REGISTERS = 65536
_SHARED = 228 * 1024
_MOST_REGISTERS = 255
WIDEST = 64
"""The widest tile, and the largest m and n for which 16-bit products are proposed."""


@dataclass(frozen=True)
class Shape:
    """The tiling of a product: a warp's tile, its step along K, and the warps of a CTA."""

    m: int
    n: int
    k_bytes: int
    """Bytes of a row of an operand in a step along K: 32, 64 or 128."""
    itemsize: int
    """Bytes of an element of the operands: 1 or 2."""
    stages: int
    """Stages of a warp's ring in shared memory."""
    warps: int
    """Warps of a CTA."""

    @property
    def k(self) -> int:
        """Elements of a step along K."""
        return self.k_bytes // self.itemsize

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def name(self) -> str:
        """The name of the shape, such as "batch32x32x32x3w4", or "bytes32x32x64x3w4" of int8: tile, stages, warps."""
        kind = "bytes" if self.itemsize == 1 else "batch"
        return f"{kind}{self.m}x{self.n}x{self.k}x{self.stages}w{self.warps}"

    @property
    def registers(self) -> int:
        """Registers of a thread, at most 255: accumulators, fragments, and 72 for the rest."""
        return min(_MOST_REGISTERS, self.m * self.n // 32 + (self.m + self.n) // 4 + 72)

    @property
    def ctas_per_sm(self) -> int:
        """CTAs for which the largest SM has registers and shared memory."""
        by_registers = _REGISTERS // (-(-self.registers // 8) * 8 * self.threads)
        return max(1, min(by_registers, _SHARED // (self.shared_bytes + 1024)))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA: each warp's ring and 16 rows of results, and 112 to align them."""
        return self.warps * (self.stages * self.k_bytes * (self.m + self.n) + 64 * (self.n + 8)) + 112

    @property
    def partial_bytes(self) -> int:
        """Bytes of workspace for a tile of a split: none, as there is no split-K."""
        return 0


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    shape: Shape
    form: Form
    split_k: bool = False
    """Whether split-K is asked for, which the kernel does not have."""

    main = "batch.cu"

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

        A CTA has at most ``shared_limit`` bytes of shared memory.
        """
        if self.split_k:
            return "the kernel for batches has no split-K"
        if self.form.input_bytes != self.shape.itemsize:
            return f"{self.shape.name} multiplies elements of {self.shape.itemsize} bytes, not {self.form.input}"
        if self.shared_bytes > shared_limit:
            return f"{self.shared_bytes} bytes of shared memory: a CTA has at most {shared_limit}"
        return None

    @property
    def macros(self) -> dict[str, int]:
        """The macros of params.cuh and batch.cu."""
        shape = self.shape
        return {
            **self.form.macros,
            "TILE_M": shape.m, "TILE_N": shape.n, "TILE_K": shape.k, "STAGES": shape.stages, "THREADS": shape.threads,
            "BLOCKS": shape.ctas_per_sm, "SPLIT": 0, "SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


def _ring(m: int, n: int, k_bytes: int) -> tuple[int, int]:
    """Return stages and warps: a few KiB in flight for each warp, and at most 96 KiB of shared memory for a CTA."""
    stages = max(2, min(4, 1 + 8192 // (k_bytes * (m + n))))
    return stages, 2 if m + n >= 96 else 4


_SIDES = (16, 32, 64)
SHAPES = tuple(
    Shape(m, n, k_bytes, itemsize, *_ring(m, n, k_bytes))
    for itemsize in (2, 1)
    for m in _SIDES
    for n in _SIDES
    for k_bytes in (32, 64, 128)
)
"""The shapes from which the cost model chooses."""


def fitting(m: int, n: int, k: int, itemsize: int) -> tuple[Shape, ...]:
    """Return the shapes whose tile is the smallest that holds m and n, and whose step is not much longer than K."""
    side_m, side_n = (next((side for side in _SIDES if side >= size), WIDEST) for size in (m, n))
    return tuple(
        x for x in SHAPES
        if (x.m, x.n, x.itemsize) == (side_m, side_n, itemsize) and (x.k_bytes == 32 or x.k_bytes < 2 * k * itemsize)
    )  # fmt: skip
