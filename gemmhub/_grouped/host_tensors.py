"""Repeated grouped calls of torch tensors on the CPU, as those of ndarrays that view their memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import torch_host_arrays
from gemmhub._grouped import repeated

Tensor = Any


def product(a: Any, b: Any, offsets: Any, options: Mapping[str, Any]) -> Tensor | None:
    """The result of a call of plain tensors whose signature is known; None, with nothing done, for any other call.

    Tensors are plain where their elements are those in memory, and no mode of torch changes or records the product.
    """
    torch: Any = sys.modules["torch"]
    given = [x for x in (a, b, offsets) if x is not None]
    if not all(isinstance(x, torch.Tensor) and x.is_cpu for x in given) or tensors.traced(given):
        return None
    if tensors.any_autocast()():
        return None
    recorded = torch.is_grad_enabled()
    for x in given:
        if x.layout is not torch.strided or x.is_nested or x.is_conj() or x.is_neg() or (recorded and x.requires_grad):
            return None
    arrays = torch_host_arrays()
    left, right, ends = (None if x is None else arrays.view(x, "operand") for x in (a, b, offsets))
    result = repeated.product(left, right, ends, None, options)
    return None if result is None else arrays.wrap(result, (a, b))
