"""Shapes, dtypes and devices of products of tensors, of sizes that may be symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gemmhub import dtypes
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import output_dtype, torch_dtypes

Tensor = Any


def product(a: Tensor, b: Tensor) -> tuple[Any, ...]:
    """The shape of the product of two tensors that fit."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))


def result(a: Tensor, b: Tensor, wanted: Any) -> tuple[tuple[Any, ...], Any]:
    """The shape of the product, with all its columns, and torch's dtype of the result."""
    if wanted is not None and not isinstance(wanted, torch.dtype):
        wanted = torch_dtypes()[1][dtypes.as_dtype(wanted)]
    return product(a, b), output_dtype(a.dtype, b.dtype, wanted)


def check_devices(arguments: Mapping[str, Any]) -> None:
    """Raise DeviceError unless all tensors among the arguments of a call are on one device."""
    tensors.check_one_device({name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)})
