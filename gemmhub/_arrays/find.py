"""Look-up of the array library of an operand, by its type."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gemmhub._arrays import array_types
from gemmhub._arrays.array_types import library_name
from gemmhub._arrays.cupy.operands import CupyArrays, cupy_arrays
from gemmhub._arrays.dlpack.operands import dlpack_arrays, has
from gemmhub._arrays.host.operands import NUMPY, SEQUENCES
from gemmhub._arrays.plugin_arrays import torch_type
from gemmhub._arrays.spec.operands import ArraySpec, spec_arrays
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import torch_host_arrays
from gemmhub._arrays.torch.operands import TorchArrays, torch_arrays
from gemmhub._base import device_types, registered
from gemmhub._base.wording import instance
from gemmhub.array_library import ArrayLibrary
from gemmhub.errors import DeviceError, InputError


def arrays_of(x: object, argument: str) -> ArrayLibrary:
    """The array library of one operand: that of its type where one is registered, else a built-in one.

    Raises DeviceError for arrays on a device that no library here can address, InputError for other objects.
    """
    if isinstance(x, (np.ndarray, np.generic, *SEQUENCES)):
        return NUMPY
    cls: Any = type(x)
    library: ArrayLibrary | None = registered.direct(x)
    if library is not None:
        return library
    if isinstance(x, ArraySpec):
        return spec_arrays(x.device)
    if array_types.is_symbol(cls):
        raise array_types.traced(x, argument)
    if tensors.is_tensor(x):
        tensors.require_version(argument)
        tensors.memory(x, argument)
        return native_arrays(x, argument) or torch_host_arrays()
    if _may_be_on_a_device(x):
        from gemmhub._arrays.dlpack import adopted

        arrays = native_arrays(x, argument) or adopted.arrays(x, argument)
        if arrays is not None:
            return arrays
    if has(x, "__dlpack_device__"):
        return dlpack_arrays(library_name(cls))
    if has(x, "__array_interface__") or has(x, "__array__") or _is_buffer(x):
        return NUMPY
    raise InputError(
        argument,
        f"{instance(cls)} is not an array",
        "arrays of numpy, cupy, torch; nested sequences of numbers; arrays that export DLPack or the CUDA array "
        "interface",
        f"convert it, or register a library for {cls.__qualname__}: gemmhub.array_library.register",
    )


def native_arrays(x: Any, argument: str) -> CupyArrays | TorchArrays | None:
    """The arrays of a cupy array or a torch tensor on a device; None for anything else.

    Raises DeviceError for tensors on devices that gemmhub cannot address.
    """
    if tensors.is_tensor(x):
        device_type = x.device.type
        if device_type == "cpu":
            return None
        known = torch_type(device_type, sys.modules["torch"])
        if known is None:
            raise DeviceError(
                argument, f"a tensor on {x.device}", f"tensors on {device_types.listed()}",
                "copy it to the host, or install the plugin that registers its device type",
            )  # fmt: skip
        return torch_arrays(known.name, x.device.index)
    cupy = getattr(sys.modules.get("cupy"), "ndarray", None)  # None while cupy is still being imported
    if cupy is not None and isinstance(x, cupy):
        return cupy_arrays(x.device.id)
    return None


def _may_be_on_a_device(x: object) -> bool:
    # Torch tensors have __cuda_array_interface__ on any device: it raises AttributeError on the CPU.
    return has(x, "__dlpack_device__") or has(x, "__cuda_array_interface__")


def _is_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True
