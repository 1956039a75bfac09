"""Arrays of Dask: a product is a lazy array, whose blocks workers compute with the backends that each of them has."""

from __future__ import annotations


def register() -> None:
    """Take the calls with arrays of Dask, and with operands that were packed block by block."""
    import dask.array as da

    from gemmhub import array_library
    from gemmhub._doors.dask import calls, packed

    array_library.register_deferring(da.Array, calls.take)
    array_library.register_deferring(packed.PackedBlocks, calls.take)
