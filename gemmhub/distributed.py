"""Products beyond one device: Dask arrays in stores, predictions for clusters, and the measurements that they need.

:func:`gemmhub.matmul` itself takes Dask arrays and DTensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gemmhub._doors.predict import Forecast, Prediction, predict
from gemmhub.kit import install

if TYPE_CHECKING:
    from gemmhub._doors.dask.store import Stored, store
    from gemmhub._doors.torch.speeds import Speeds, measure

__all__ = ["Forecast", "Prediction", "Speeds", "Stored", "measure", "predict", "store"]

_LATER = {"Stored": "dask.store", "store": "dask.store", "Speeds": "torch.speeds", "measure": "torch.speeds"}


def __getattr__(name: str) -> Any:
    """Import names that need Dask or torch at first use."""
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = module.partition(".")[0]
    try:
        return getattr(importlib.import_module(f"gemmhub._doors.{module}"), name)
    except ModuleNotFoundError as error:
        raise install.missing(error, f"{__name__}.{name}", library, library) from None


def __dir__() -> list[str]:
    return sorted(__all__)
