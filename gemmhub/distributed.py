"""gemmhub past one device: write products of arrays of Dask into stores, and predict what clusters would do.

:func:`gemmhub.matmul` itself takes arrays of Dask.
"""

from __future__ import annotations

from gemmhub._doors.dask.store import Stored, store

__all__ = ["Stored", "store"]
