"""Arrays of Dask: a product is a lazy array, whose blocks workers compute with the backends that each of them has."""

from __future__ import annotations


def register() -> None:
    """Take the calls with arrays of Dask, and with operands that were packed block by block."""
    import dask.array as da
    from dask.array.dispatch import concatenate_lookup

    from gemmhub import array_library
    from gemmhub._doors.dask import calls, packed

    concatenate_lookup.register_lazy("torch", _concatenate_tensors)

    array_library.register_deferring(da.Array, calls.take)
    array_library.register_deferring(packed.PackedBlocks, calls.take)


def _concatenate_tensors() -> None:
    """Let Dask put blocks of torch together: it does so for NumPy, cupy and others itself."""
    import torch
    from dask.array.dispatch import concatenate_lookup

    concatenate_lookup.register(torch.Tensor, lambda blocks, axis=0: torch.cat(list(blocks), dim=axis))
