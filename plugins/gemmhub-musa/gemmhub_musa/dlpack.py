"""DLPack capsules for memory on MUSA devices.

DLPack has no device number for MUSA. torch_musa's tensors, and the libraries that read them, use kDLExtDev.

numpy makes the capsule: of an array at the device's address, which it never looks at. So its life is managed in C,
where a capsule may be destroyed while an exception is on its way. Then the device is written into it.
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
"""kDLBfloat, which numpy does not know."""


class _Tensor(ctypes.Structure):
    """The first members of DLTensor, with which a DLManagedTensor begins."""

    _fields_ = (
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
    )  # fmt: skip


_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _At:
    """What numpy makes an array of; the array refers to it, and so to the memory's owner."""

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
    """A DLPack capsule; ``strides`` in bytes. ``owner`` lives as long as the consumer needs the memory.

    BufferError for dtypes without a code, and strides that are no whole number of elements.
    """
    bfloat16 = dtype.name == "bfloat16"
    stand_in = np.dtype(np.uint16) if bfloat16 else dtype
    if stand_in.isbuiltin != 1:
        raise BufferError(f"DLPack has no code for {dtype} that consumers share")
    # Arrays without elements have no address, of which some versions of numpy make none.
    seen = np.empty(shape, stand_in) if 0 in shape else np.asarray(_At(owner, address, stand_in, shape, strides))
    made = seen.__dlpack__()
    tensor = _Tensor.from_address(_pointer(made, _NAME))
    tensor.device_type, tensor.device_id = DEVICE, device
    if bfloat16:
        tensor.code = _BFLOAT16
    return made
