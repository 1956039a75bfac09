"""The cuBLASLt descriptors of one form, which live as long as their Python object."""

from __future__ import annotations

import struct
from ctypes import byref, c_void_p
from typing import Any

from gemmhub_cublas.library import Library, check
from gemmhub_cublas.lower import Form, Matrix

_TRANS_A, _TRANS_B, _EPILOGUE, _BIAS_POINTER, _BIAS_TYPE = 3, 4, 7, 8, 26
_BATCH_COUNT, _BATCH_STRIDE = 5, 6


class Object:
    """An opaque object of the library, which is destroyed with this one."""

    def __init__(self, library: Library, kind: str, *arguments: Any) -> None:
        """Call cublasLt<kind>Create. Raises StatusError where it fails."""
        lt, handle = library.lt, c_void_p()
        self._destroy = getattr(lt, f"cublasLt{kind}Destroy")
        self._set = getattr(lt, f"cublasLt{kind}SetAttribute")
        self._kind = kind
        self.handle = None
        check(f"cublasLt{kind}Create", getattr(lt, f"cublasLt{kind}Create")(byref(handle), *arguments))
        self.handle = handle.value

    def set(self, attribute: int, width: str, value: int) -> None:
        """Set an attribute whose C type the :mod:`struct` letter ``width`` names."""
        data = struct.pack(width, value)
        check(f"cublasLt{self._kind}SetAttribute({attribute})", self._set(self.handle, attribute, data, len(data)))

    def __del__(self) -> None:
        if self.handle is not None:
            self._destroy(self.handle)


def _layout(library: Library, matrix: Matrix, count: int) -> Object:
    layout = Object(library, "MatrixLayout", matrix.type, matrix.rows, matrix.cols, matrix.ld)
    if count > 1:
        layout.set(_BATCH_COUNT, "i", count)
        layout.set(_BATCH_STRIDE, "q", matrix.stride)
    return layout


class Descriptors:
    """The descriptors of the operation and of the layouts of A, B, C and D."""

    def __init__(self, library: Library, form: Form) -> None:
        self.operation = Object(library, "MatmulDesc", form.compute, form.scale)
        self.operation.set(_TRANS_A, "i", form.trans_a)
        self.operation.set(_TRANS_B, "i", form.trans_b)
        self.operation.set(_EPILOGUE, "I", form.epilogue)
        if form.bias_type is not None:
            self.operation.set(_BIAS_TYPE, "i", form.bias_type)
            # The library chooses algorithms by the alignment of this address; nothing reads it until it is replaced.
            self.set_bias(256 + form.bias_alignment)
        self.layouts = [_layout(library, matrix, form.count) for matrix in (form.a, form.b, form.c, form.d)]

    def set_bias(self, address: int) -> None:
        """Set the address of the bias for the next product."""
        self.operation.set(_BIAS_POINTER, "Q", address)

    @property
    def handles(self) -> tuple[int | None, ...]:
        """The handles of the operation, A, B, C and D."""
        return (self.operation.handle, *(layout.handle for layout in self.layouts))
