"""Past one device: products of arrays of Dask in stores, predictions for clusters, and what predictions rest on.

:func:`gemmhub.matmul` itself takes arrays of Dask and DTensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gemmhub._doors.predict import Forecast, Prediction, predict

if TYPE_CHECKING:
    from gemmhub._doors.dask.store import Stored, store
    from gemmhub._doors.torch.speeds import Speeds, measure

__all__ = ["Forecast", "Prediction", "Speeds", "Stored", "measure", "predict", "store"]

_LATER = {
    "Stored": "gemmhub._doors.dask.store", "store": "gemmhub._doors.dask.store",
    "Speeds": "gemmhub._doors.torch.speeds", "measure": "gemmhub._doors.torch.speeds",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """What needs Dask or torch is imported when it is first used."""
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
