"""The public functions for NumPy: arrays whose products run on gemmhub in code that is written for NumPy."""

from __future__ import annotations

from gemmhub._doors.numpy_subclass import HubArray, asarray

__all__ = ["HubArray", "asarray"]


def __dir__() -> list[str]:
    return sorted(__all__)
