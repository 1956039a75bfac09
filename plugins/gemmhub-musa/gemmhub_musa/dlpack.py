"""Makes DLPack capsules for memory on MUSA devices.

DLPack has no device number for MUSA. torch_musa's tensors, and the libraries that read them, use kDLExtDev.

NumPy makes the capsule, from an array at the device's address, which it never reads. So the capsule's life is managed
in C, where it may be destroyed while an exception propagates. The device is then written into it.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_uint8, c_uint16, c_void_p, py_object

import numpy as np

from gemmhub.dtypes import DType

DEVICE = 12
"""kDLExtDev."""

_NAME = b"dltensor"
_BFLOAT16 = 4
"""kDLBfloat, which NumPy does not have."""


class _Tensor(ctypes.Structure):
    """The first members of DLTensor, with which a DLManagedTensor begins."""

    _fields_ = (
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
    )  # fmt: skip


_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _At:
    """The object that NumPy makes an array from; the array refers to it, and so to the memory's owner."""

    def __init__(
        self, owner: object, address: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "typestr": dtype.str, "shape": shape, "strides": strides,
        }  # fmt: skip


def capsule(
    owner: object, address: int, device: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
) -> object:
    """Return a DLPack capsule; ``strides`` are in bytes. ``owner`` lives as long as the consumer needs the memory.

    Raises BufferError for dtypes without a code, and for strides that are no whole number of elements.
    """
    bfloat16 = dtype.name == "bfloat16"
    stand_in = np.dtype(np.uint16) if bfloat16 else dtype
    if stand_in.isbuiltin != 1:
        raise BufferError(f"DLPack has no code for {dtype} that consumers share")
    # Arrays without elements have no address, and some versions of NumPy make none from a null address.
    seen = np.empty(shape, stand_in) if 0 in shape else np.asarray(_At(owner, address, stand_in, shape, strides))
    made = seen.__dlpack__()
    tensor = _Tensor.from_address(_pointer(made, _NAME))
    tensor.device_type, tensor.device_id = DEVICE, device
    if bfloat16:
        tensor.code = _BFLOAT16
    return made
