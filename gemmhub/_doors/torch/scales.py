"""Quantization scales as tensors: as matrices, as a factor for each element of their operand, and sums over those."""

from __future__ import annotations

from typing import Any

import torch

from gemmhub.operands import BLOCK

Tensor = Any


def matrix(name: str, x: Tensor) -> Tensor:
    """A scale with the dimensions of its operand: one dimension abbreviates rows of a and columns of b."""
    if x.dim() > 1:
        return x
    x = x.reshape(-1)
    return x.unsqueeze(1) if name == "scale_a" else x.unsqueeze(0)


def gathered(x: Tensor, shape: Any) -> Tensor:
    """``x``, which has an element for each of the operand, summed over the blocks of a scale of this shape."""
    for dim in (-2, -1):
        count, size = shape[dim], x.shape[dim]
        if count != 1 and count != size:
            missing = count * BLOCK - size
            x = torch.nn.functional.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))
            x = x.unflatten(dim, (count, BLOCK)).sum(dim)
    return x
