"""A configuration: everything that a compiled kernel is fixed to. Sizes, leading dimensions and scalars are not.

Which there are follows MUTLASS's own list of kernels for mp_22. For mp_31 little is public: the tile of the public
example, and two that published programs name; what does not compile is refused when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TENSOR, TF32, SIMT = "tensor", "tf32", "simt"
"""Tensor cores in the operands' dtype; float32 operands rounded to TF32; float32 without tensor cores."""

VECTOR_BYTES = 16
"""What one load of an aligned operand takes."""
_TILE_K_BYTES = 64


class Tile(NamedTuple):
    """The part of the result that a thread block makes, and how deep its steps along k are."""

    m: int
    n: int
    k: int
    atoms: tuple[int, int] = (1, 1)
    """Copies of the MMA instruction along m and n; of a multiply-add, that is threads. MUTLASS 0.1 is told."""

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


_TENSOR_22 = ((256, 128, (2, 1)), (128, 128, (1, 1)), (256, 256, (2, 2)), (128, 64, (1, 1)), (128, 32, (1, 1)))
_SIMT_22 = (
    Tile(128, 128, 4, (16, 16)), Tile(128, 128, 8, (16, 32)), Tile(128, 64, 8, (16, 16)), Tile(128, 64, 4, (16, 8)),
    Tile(128, 32, 4, (16, 8)),
)  # fmt: skip
_TENSOR_31 = ((256, 128, 64), (256, 256, 128), (384, 256, 64))
"""m, n, and bytes along k."""

ARCHITECTURES = ("mp_22", "mp_31")
"""Those that MUTLASS has kernels for."""


def tiles(arch: str, math: str, itemsize: int) -> tuple[Tile, ...]:
    """The tiles to choose from, the usual one first; none where MUTLASS has no such kernels for ``arch``."""
    if math == SIMT:
        return _SIMT_22 if arch == "mp_22" else ()
    if arch == "mp_22":
        return tuple(Tile(m, n, _TILE_K_BYTES // itemsize, atoms) for m, n, atoms in _TENSOR_22)
    return tuple(Tile(m, n, nbytes // itemsize) for m, n, nbytes in _TENSOR_31)


@dataclass(frozen=True)
class Configuration:
    """The result is row-major: a column-major one is the row-major one of the transposed problem."""

    arch: str
    math: str
    dtype: str
    """Of a and b."""
    result: str
    """Of the result and the addend."""
    tile: Tile
    column_a: bool
    """a is stored column-major."""
    column_b: bool
    vectors: bool
    """a and b are read 16 bytes at a time (less where a tile is small); else an element at a time."""
    result_vectors: bool
    """The same of the result and the addend."""

    @property
    def itemsize(self) -> int:
        return {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4}[self.dtype]

    @property
    def name(self) -> str:
        """Its name among the candidates."""
        return f"{self.math}_{self.tile}"

    @property
    def alignments(self) -> tuple[int, int, int]:
        """Elements in a load of a, in one of b, in a store of the result."""
        whole = VECTOR_BYTES // self.itemsize
        result = VECTOR_BYTES // (2 if self.result in ("float16", "bfloat16") else 4) if self.result_vectors else 1
        if not self.vectors:
            return 1, 1, result
        if self.math != SIMT:
            return whole, whole, result
        # Every thread of the block loads at least once.
        tile = self.tile
        threads = tile.atoms[0] * tile.atoms[1]
        a, b = (max(1, min(whole, size * tile.k // threads)) for size in (tile.m, tile.n))
        return a, b, result

    def __str__(self) -> str:
        letters = "".join("c" if column else "r" for column in (self.column_a, self.column_b))
        aligned = "" if self.vectors else ", one element a load"
        return f"{self.dtype} to {self.result} {self.name} {letters} for {self.arch}{aligned}"


def configurations(
    arch: str, maths: tuple[str, ...], dtype: str, result: str, column_a: bool, column_b: bool, vectors: bool,
    result_vectors: bool,
) -> Iterator[Configuration]:  # fmt: skip
    """All for one kind of problem, the usual one first."""
    for math in maths:
        for tile in tiles(arch, math, {"int8": 1, "float32": 4}.get(dtype, 2)):
            yield Configuration(arch, math, dtype, result, tile, column_a, column_b, vectors, result_vectors)
