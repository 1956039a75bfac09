"""The candidates for a product: configurations, which are all that a compiled kernel is specialised for.

Sizes, leading dimensions and scalars are arguments. The configurations for mp_22 follow MUTLASS's own list of kernels.
For mp_31 little is public: the tile of the public example, and two that published programs name; one that does not
compile is refused at its first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TENSOR, TF32, SIMT = "tensor", "tf32", "simt"
"""The arithmetic: tensor cores in the operands' dtype, on float32 rounded to TF32, and float32 without tensor cores."""

VECTOR_BYTES = 16
"""Bytes that one load of an aligned operand reads."""
_TILE_K_BYTES = 64


class Tile(NamedTuple):
    """The tile of the result that a thread block computes, and its extent along K."""

    m: int
    n: int
    k: int
    atoms: tuple[int, int] = (1, 1)
    """Copies of the MMA instruction along M and N (of a multiply-add: threads), an argument of MUTLASS 0.1."""

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
"""Architectures that MUTLASS has kernels for."""


def tiles(arch: str, math: str, itemsize: int) -> tuple[Tile, ...]:
    """Return the tiles to choose from, the default first; none where MUTLASS has no such kernels for ``arch``."""
    if math == SIMT:
        return _SIMT_22 if arch == "mp_22" else ()
    if arch == "mp_22":
        return tuple(Tile(m, n, _TILE_K_BYTES // itemsize, atoms) for m, n, atoms in _TENSOR_22)
    return tuple(Tile(m, n, nbytes // itemsize) for m, n, nbytes in _TENSOR_31)


@dataclass(frozen=True)
class Configuration:
    """A compiled kernel. Its result is row-major; a column-major one is that of the transposed problem."""

    arch: str
    math: str
    dtype: str
    """The dtype of a and b."""
    result: str
    """The dtype of the result and the addend."""
    tile: Tile
    column_a: bool
    """Whether a is stored column-major."""
    column_b: bool
    vectors: bool
    """Whether a and b are read 16 bytes at a time (less where a tile is small), else an element at a time."""
    result_vectors: bool
    """The same for the result and the addend."""

    @property
    def itemsize(self) -> int:
        return {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4}[self.dtype]

    @property
    def name(self) -> str:
        """The name that users see and choose it by."""
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
    """Yield all configurations for one kind of problem, the default first."""
    for math in maths:
        for tile in tiles(arch, math, {"int8": 1, "float32": 4}.get(dtype, 2)):
            yield Configuration(arch, math, dtype, result, tile, column_a, column_b, vectors, result_vectors)
