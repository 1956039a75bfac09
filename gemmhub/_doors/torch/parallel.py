"""Tensor parallelism of linear layers that gemmhub computes: styles for torch's ``parallelize_module``."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from gemmhub._doors.torch import nn
from gemmhub.errors import InputError


def _multiply_here(module: Any, style: str) -> None:
    """Convert a plain linear layer to :class:`gemmhub.torch.Linear`."""
    reason = nn.reason_to_leave(module)
    if reason:
        raise InputError("module", reason, "a torch.nn.Linear", f"use torch's own {style} for it")
    if type(module) is torch.nn.Linear:
        nn.convert(module)


class ColumnParallel(ColwiseParallel):
    """Split the columns of a linear layer's product, its output features, over a mesh of one dimension.

    Parameters are those of :class:`torch.distributed.tensor.parallel.ColwiseParallel`; the layer is a
    :class:`torch.nn.Linear` or :class:`gemmhub.torch.Linear`, and is computed by gemmhub.

    See Also
    --------
    gemmhub.torch.RowParallel : the style that divides the weight by input features.

    Examples
    --------
    ``parallelize_module(model, mesh, {"up": ColumnParallel(), "down": RowParallel()})``
    """

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        _multiply_here(module, "ColwiseParallel")
        return super()._apply(module, device_mesh)


class RowParallel(RowwiseParallel):
    """Split k of a linear layer's product, its input features, over a mesh of one dimension.

    Partial sums leave each device in float32, are added in it, and are rounded once. Parameters are those of
    :class:`torch.distributed.tensor.parallel.RowwiseParallel`.
    """

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        _multiply_here(module, "RowwiseParallel")
        return super()._apply(module, device_mesh)
