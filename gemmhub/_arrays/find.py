"""Look-up of the array library of an operand, by its type."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from gemmhub._arrays import array_types
from gemmhub._arrays.array_types import library_name
from gemmhub._arrays.cupy.operands import CupyArrays, cupy_arrays
from gemmhub._arrays.dlpack.operands import dlpack_arrays, has
from gemmhub._arrays.host.operands import NUMPY, SEQUENCES
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import torch_host_arrays
from gemmhub._arrays.torch.operands import TorchArrays, torch_arrays
from gemmhub._base import registered
from gemmhub._base.geometry import MOST_ALIGNED
from gemmhub.array_library import ArrayLibrary
from gemmhub.errors import DeviceError, InputError

TORCH_KINDS = ("cuda", "musa")
"""Device types of torch that gemmhub addresses; "cpu" is left to DLPack."""


def arrays_of(x: object, argument: str) -> ArrayLibrary:
    """The array library of one operand: that of its type where one is registered, else a built-in one.

    Raises DeviceError for arrays on a device that no library here can address, InputError for other objects.
    """
    if isinstance(x, (np.ndarray, np.generic, *SEQUENCES)):
        return NUMPY
    kind: Any = type(x)
    library: ArrayLibrary | None = registered.direct(x)
    if library is not None:
        return library
    own = getattr(kind, "__gemmhub_family__", None)
    if own is not None:
        message = "__gemmhub_family__ is now gemmhub.array_library.register(); the old name is removed in gemmhub 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return own(x)  # type: ignore[no-any-return]
    if array_types.is_symbol(kind):
        raise array_types.traced(x, argument)
    if tensors.is_tensor(x):
        tensors.require_version(argument)
        tensors.memory(x, argument)
        return native_arrays(x, argument) or torch_host_arrays()
    if _may_be_on_a_device(x):
        from gemmhub._arrays.dlpack import adopted

        found = native_arrays(x, argument) or adopted.arrays(x, argument)
        if found is not None:
            return found
    if has(x, "__dlpack_device__"):
        return dlpack_arrays(library_name(kind))
    if has(x, "__array_interface__") or has(x, "__array__") or _is_buffer(x):
        return NUMPY
    raise InputError(
        argument,
        f"a {kind.__qualname__} is not an array",
        "arrays of numpy, cupy, torch; nested sequences of numbers; arrays that export DLPack or the CUDA array "
        "interface",
    )


def native_arrays(x: Any, argument: str) -> CupyArrays | TorchArrays | None:
    """The arrays of a cupy array or a torch tensor on a device; None for anything else.

    Raises DeviceError for tensors on devices that gemmhub cannot address.
    """
    if tensors.is_tensor(x):
        kind = x.device.type
        if kind == "cpu":
            return None
        if kind not in TORCH_KINDS or (kind == "cuda" and sys.modules["torch"].version.hip):
            raise DeviceError(
                argument, f"a tensor on {x.device}", "tensors on cpu, cuda and musa", "copy it to the host"
            )
        return torch_arrays(kind, x.device.index)
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


def layout_key(x: Any) -> tuple[Any, ...]:
    """What a decision may depend on besides type, dtype and shape: strides, alignment, device.

    Raises AttributeError for objects without these attributes.
    """
    if isinstance(x, np.ndarray):
        return x.strides, x.flags.aligned
    if hasattr(x, "data_ptr"):  # a torch tensor
        return x.stride(), x.device, x.data_ptr() % MOST_ALIGNED
    if _may_be_on_a_device(x):
        return x.strides, x.data.device_id, x.data.ptr % MOST_ALIGNED  # a cupy array
    return x.strides, False
