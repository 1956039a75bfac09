"""The deferring function of torch: calls of one product, and of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmhub._doors.torch import calls

_GROUPED = ("grouped_matmul", "explain_grouped", "spot_check_grouped")


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a call with tensors; NotImplemented where they are plain memory."""
    if call in _GROUPED:
        from gemmhub._doors.torch import grouped  # here: most programs have no grouped products

        return grouped.take(call, operands, options)
    return calls.take(call, operands, options)
