"""PackedBlocks: a Dask array whose blocks are packed by the workers that hold them."""

from __future__ import annotations

from typing import Any

from gemmhub import dtypes
from gemmhub._doors.dask import block, cluster
from gemmhub.dtypes import DType
from gemmhub.errors import InputError, ShapeError


class PackedBlocks:
    """The result of :func:`gemmhub.pack` for a Dask array: pass it as ``b`` to matmul and plan.

    It is lazy: each block is packed at its first use. ``persist()`` packs all of them now, and keeps them on the
    workers, so that products do not pack again. A block serves only the backend that packed it: every worker needs that
    backend.

    Attributes: ``shape`` (k, n), ``chunks``, ``dtype`` and ``ndim`` of the operand; ``a_dtype``, the dtype of a;
    ``blocks``, the Dask array of the packed blocks.
    """

    __slots__ = ("a_dtype", "blocks")
    ndim = 2

    def __init__(self, blocks: Any, a_dtype: DType) -> None:
        self.blocks = blocks
        self.a_dtype = a_dtype

    @property
    def shape(self) -> tuple[int, int]:
        k, n = self.blocks.shape
        return int(k), int(n)

    @property
    def dtype(self) -> DType:
        return self.blocks.dtype  # type: ignore[no-any-return]

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        return self.blocks.chunks  # type: ignore[no-any-return]

    def persist(self, **options: Any) -> PackedBlocks:
        """Pack all blocks now and keep them on the workers; ``options`` are those of Dask's ``persist``."""
        return PackedBlocks(self.blocks.persist(**options), self.a_dtype)

    def __repr__(self) -> str:
        k, n = self.shape
        rows, cols = map(len, self.chunks)
        return f"<PackedBlocks {k}x{n} {self.dtype} in {rows}x{cols} blocks for a of {self.a_dtype}>"


def pack(
    b: Any, a_dtype: Any = None, m: int = 1024, backend: str | None = None, reproducible: str | None = None
) -> PackedBlocks:
    """Pack a Dask array block by block, as :func:`gemmhub.pack` does."""
    if isinstance(b, PackedBlocks):
        raise InputError("b", "a packed operand", "an array", "it is packed already")
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise InputError("m", f"{m!r}", "a positive int")
    if b.ndim != 2:
        raise ShapeError("b", f"shape {b.shape}", "(k, n)", "pack the matrices of a batch one by one")
    dtypes.info(b.dtype)
    left = b.dtype if a_dtype is None else dtypes.as_dtype(a_dtype, "a_dtype")
    options = {"a_dtype": left, "m": m, "backend": backend, "reproducible": reproducible}
    blocks = b.map_blocks(_pack, version=cluster.version(), options=options, dtype=b.dtype, meta=b._meta)
    return PackedBlocks(blocks, left)


def _pack(b: Any, version: str, options: dict[str, Any]) -> Any:
    return block.pack(version, b, options)


_pack.__name__ = "gemmhub-pack"  # begins the keys of its tasks; the argument for that has changed its name in Dask
