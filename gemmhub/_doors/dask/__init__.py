"""The deferring library for Dask: a product is a lazy array, whose blocks each worker computes with its backends."""

from __future__ import annotations


def register() -> None:
    """Register for calls with Dask arrays, and with operands that were packed block by block."""
    import dask.array as da
    from dask.array.dispatch import concatenate_lookup

    from gemmhub import array_library
    from gemmhub._doors.dask import calls, packed

    concatenate_lookup.register_lazy("torch", _concatenate_tensors)

    array_library.register_deferring(da.Array, calls.take)
    array_library.register_deferring(packed.PackedBlocks, calls.take)


def _concatenate_tensors() -> None:
    """Teach Dask to concatenate torch tensors, as it does for NumPy, cupy and others itself."""
    import torch
    from dask.array.dispatch import concatenate_lookup

    concatenate_lookup.register(torch.Tensor, lambda blocks, axis=0: torch.cat(list(blocks), dim=axis))
