"""Operands of torch on the CPU."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from gemmhub._arrays.dlpack.operands import DLPackArrays, viewable
from gemmhub._arrays.torch import tensors
from gemmhub.dtypes import ML_DTYPES
from gemmhub.errors import InputError

Array = Any


class TorchHostArrays(DLPackArrays):
    """Dense ``torch.Tensor`` on the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.increment_version = tensors.increment_version()

    def view(self, x: Any, argument: str) -> Array:
        if not tensors.is_tensor(x):
            return super().view(x, argument)
        tensors.address(x, argument)
        try:
            return x.detach().numpy()  # NumPy before 2.1 imports DLPack read-only
        except (RuntimeError, TypeError) as error:
            raise InputError(
                argument, f"a tensor of {x.dtype} that NumPy cannot view: {error}", "dtypes that NumPy has",
                viewable(x),
            ) from error  # fmt: skip

    def wrap(self, native: Array, operands: tuple[Any, ...]) -> Array:
        name = native.dtype.name
        if name not in ML_DTYPES:
            return super().wrap(native, operands)
        torch: Any = sys.modules["torch"]  # which takes these dtypes from NumPy as bits only
        bits = np.asarray(native).view(np.int16 if native.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, name))


@cache
def torch_host_arrays() -> TorchHostArrays:
    """The arrays of torch tensors on the CPU."""
    return TorchHostArrays()
