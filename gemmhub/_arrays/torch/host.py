"""Operands of torch on the CPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.dlpack.operands import DLPackArrays
from gemmhub._arrays.torch import calls, tensors
from gemmhub._arrays.torch.operands import torch_dtypes
from gemmhub._base.geometry import as_matrix, expand, reach
from gemmhub.array_library import FastPath
from gemmhub.dtypes import ML_DTYPES, DType
from gemmhub.errors import DeviceError
from gemmhub.operands import OPERANDS, Product
from gemmhub.problem import GemmProblem

Array = Any


class TorchHostArrays(DLPackArrays):
    """Dense ``torch.Tensor`` on the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.module = torch = sys.modules["torch"]
        self.torch_device = torch.device("cpu")
        self.increment_version = tensors.increment_version()
        self._formats = _formats()

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath:  # type: ignore[override]
        return calls.fast_path(self, settings, alpha, beta)

    def dtype_of(self, dtype: DType) -> Any:
        """torch's dtype for ``dtype``."""
        return torch_dtypes()[1][dtype]

    def raw_stream(self, index: int | None) -> None:
        """There are no streams."""

    def at_addresses(
        self, run: Callable[..., None], problem: GemmProblem, shape: tuple[int, ...], a: Any, b: Any, out: Any,
        operands: Mapping[str, Any],
    ) -> Callable[..., None] | None:  # fmt: skip
        """``run`` of a kernel, as a function of the addresses of operands with the layouts of these; None where kernels
        get a copy of one.
        """
        left, right = self.view(a, "a"), self.view(b, "b")
        result = np.empty(shape, problem.out.dtype) if out is None else self.view(out, "out")
        product_shape = (*shape[:-1], problem.n) if right.ndim > 1 else shape
        product = Product(
            problem.m, problem.n, problem.k, problem.batch, left.ndim, right.ndim, product_shape, problem.out.dtype,
            problem.compute_dtype,
        )  # fmt: skip
        readers = {}
        for name, x in operands.items():
            view = self.view(x, name)
            native = OPERANDS[name].native(view, product)
            if native.ctypes.data != view.ctypes.data:
                return None
            readers[name] = _reader(native)
        read_a, read_b = _reader(as_matrix(left, "a")), _reader(as_matrix(right, "b"))
        read_out = _reader(expand(result, left.ndim, right.ndim))

        def at_addresses(x: int, y: int, z: int, alpha: Any, beta: Any, stream: None, **named: int) -> None:
            arrays = {name: readers[name](address) for name, address in named.items()} if named else named
            # Infinity and NaN are results: the caller's state must not make an exception of one.
            with np.errstate(all="ignore"):
                run(read_a(x), read_b(y), read_out(z), alpha, beta, None, **arrays)

        return at_addresses

    def key(self, x: Any) -> Hashable:
        return tensors.key(x)

    def view(self, x: Any, argument: str) -> Array:
        if not tensors.is_tensor(x):
            return super().view(x, argument)
        pointer = tensors.address(x, argument)
        known = self._formats.get(x.dtype)
        if known is None:
            raise dtypes.unsupported(argument, x.dtype)
        if not x.is_cpu:
            raise DeviceError(argument, f"a tensor on {x.device}", "tensors on the CPU", "move it there with .cpu()")
        code, dtype = known
        if not pointer:
            return np.empty(tuple(x.shape), dtype)  # NumPy before 2 rejects an address of 0
        size = dtype.itemsize
        strides = tuple([step * size for step in x.stride()])
        native = np.asarray(_Memory(x, code, pointer, tuple(x.shape), strides))
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


def _reader(like: Array) -> Callable[[int], Array]:
    """A function of an address: the memory there as an array with the shape, dtype and strides of ``like``."""
    ndarray, shape, dtype, strides = np.ndarray, like.shape, like.dtype, like.strides
    memory: Callable[[int], Any] = (ctypes.c_char * reach(like)[1]).from_address
    return lambda address: ndarray(shape, dtype, memory(address), 0, strides)


def _formats() -> dict[Any, tuple[str, DType]]:
    """(Code of the array interface, dtype) of each of torch's dtypes. Dtypes that NumPy lacks are passed as bytes."""
    to_ours, _ = torch_dtypes()
    return {
        torch_dtype: (f"|V{hub_dtype.itemsize}" if hub_dtype.name in ML_DTYPES else hub_dtype.str, hub_dtype)
        for torch_dtype, hub_dtype in to_ours.items()
    }


@cache
def _bits() -> frozenset[DType]:
    """Dtypes that torch imports from NumPy only as integers."""
    return frozenset(map(dtypes.as_dtype, ML_DTYPES))


@cache
def torch_host_arrays() -> TorchHostArrays:
    """The array library torch on the CPU."""
    return TorchHostArrays()
