"""Past one device: products of arrays of Dask in stores, and predictions for clusters.

:func:`gemmhub.matmul` itself takes arrays of Dask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmhub._doors.predict import Forecast, Prediction, predict

if TYPE_CHECKING:
    from gemmhub._doors.dask.store import Stored, store

__all__ = ["Forecast", "Prediction", "Stored", "predict", "store"]


def __getattr__(name: str) -> Any:
    """What needs Dask is imported when it is first used."""
    if name not in ("Stored", "store"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gemmhub._doors.dask import store

    return getattr(store, name)
