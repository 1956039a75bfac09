"""Operands of torch on the CPU."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.dlpack.operands import DLPackArrays
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import torch_dtypes
from gemmhub.dtypes import ML_DTYPES, DType
from gemmhub.errors import InputError

Array = Any


class TorchHostArrays(DLPackArrays):
    """Dense ``torch.Tensor`` on the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.increment_version = tensors.increment_version()
        self._formats = _formats()

    def view(self, x: Any, argument: str) -> Array:
        if not tensors.is_tensor(x):
            return super().view(x, argument)
        found = tensors.address(x, argument)
        known = self._formats.get(x.dtype)
        if known is None:
            raise dtypes.unsupported(argument, x.dtype)
        if not x.is_cpu:
            raise InputError(argument, f"a tensor on {x.device}", "tensors on the CPU", "move it there with .cpu()")
        code, dtype = known
        if not found:
            return np.empty(tuple(x.shape), dtype)  # NumPy before 2 rejects an address of 0
        size = dtype.itemsize
        strides = tuple([step * size for step in x.stride()])
        native = np.asarray(_Memory(x, code, found, tuple(x.shape), strides))
        return native if native.dtype is dtype else native.view(dtype)

    def wrap(self, native: Array, operands: tuple[Any, ...]) -> Array:
        if not isinstance(native, np.ndarray):
            native = np.asarray(native)
        torch: Any = sys.modules["torch"]
        if native.dtype.itemsize > 2 or native.dtype not in _bits():
            return torch.from_numpy(native)
        bits = native.view(np.int16 if native.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, native.dtype.name))


class _Memory:
    """The memory of a tensor as NumPy's array interface, which keeps the tensor.

    ``x.numpy()`` does not serve: it lacks bfloat16 and float8, and afterwards torch cannot resize the tensor's storage,
    which FSDP does. DLPack does not serve: NumPy before 2.1 imports it read-only.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Any, code: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "shape": shape, "typestr": code, "data": (address, False), "strides": strides, "version": 3,
        }  # fmt: skip


def _formats() -> dict[Any, tuple[str, DType]]:
    """(Code of the array interface, dtype) of each of torch's dtypes. Dtypes that NumPy lacks are passed as bytes."""
    to_ours, _ = torch_dtypes()
    return {
        theirs: (f"|V{ours.itemsize}" if ours.name in ML_DTYPES else ours.str, ours) for theirs, ours in to_ours.items()
    }


@cache
def _bits() -> frozenset[DType]:
    """Dtypes that torch imports from NumPy only as integers."""
    return frozenset(map(dtypes.as_dtype, ML_DTYPES))


@cache
def torch_host_arrays() -> TorchHostArrays:
    """The array library torch on the CPU."""
    return TorchHostArrays()
