"""The library's opaque objects: matrix layouts, operations and configured algorithms, shared between products.

Two sizes of a product differ in a layout or two; the layout of b, the operation and the algorithm are the same.
So objects are looked up by what they hold. A shared object is not changed once it is created, so that any number of
threads may use it; only the addresses of a bias and of scales are part of an operation and differ from call to call,
and such a call leases an operation of its own (:meth:`Operation.at`).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_void_p
from functools import lru_cache, partial
from typing import Any, NamedTuple

from gemmhub_cublas.library import Library, check
from gemmhub_cublas.lower import BIAS_ALIGNMENT, Form, Matrix
from gemmhub_cublas.scales import Scaling

CONFIG = "iIiIIIIHH"
"""The C types of a configuration's numbers, in the order of cublasLtMatmulAlgoConfigAttributes."""
ALGO_BYTES = 64
"""Bytes of cublasLtMatmulAlgo_t."""
KEPT = 1024
"""Largest number of objects of each type that are kept for later products. Kernels keep those that they use."""
_TRANS_A, _TRANS_B, _EPILOGUE, _FAST_ACCUMULATION, _BIAS_TYPE = 3, 4, 7, 25, 26
_A_SCALE_MODE, _B_SCALE_MODE = 31, 32
BIAS_POINTER, A_SCALE_POINTER, B_SCALE_POINTER, D_SCALE_POINTER, AMAX_POINTER = 8, 17, 18, 20, 21
"""Attributes of an operation that are addresses."""
_BATCH_COUNT, _BATCH_STRIDE = 5, 6


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", c_char * ALGO_BYTES),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class ObjectType:
    """The functions for one type of opaque objects: cublasLt<name>Create, -SetAttribute and -Destroy."""

    def __init__(self, library: Library, name: str) -> None:
        self.name = name
        self.create, self.set, self.destroy = (
            getattr(library.lt, f"cublasLt{name}{verb}") for verb in ("Create", "SetAttribute", "Destroy")
        )


class Object:
    """An opaque object of the library, which is destroyed with this one."""

    __slots__ = ("_type", "handle")

    def __init__(self, object_type: ObjectType, *arguments: Any) -> None:
        """Create the object. Raises StatusError where that fails."""
        handle = c_void_p()
        self._type = object_type
        self.handle = None
        status = object_type.create(byref(handle), *arguments)
        if status:
            check(f"cublasLt{object_type.name}Create", status)
        self.handle = handle.value

    def set(self, attribute: int, width: str, value: int) -> None:
        """Set an attribute whose C type the :mod:`struct` letter ``width`` names."""
        data = struct.pack(width, value)
        status = self._type.set(self.handle, attribute, data, len(data))
        if status:
            check(f"cublasLt{self._type.name}SetAttribute({attribute})", status)

    def __del__(self) -> None:
        if self.handle is not None:
            self._type.destroy(self.handle)


class Operation:
    """The operation of a form, and its variants with other addresses of the bias and of scales."""

    def __init__(
        self, object_type: ObjectType, compute: int, scale: int, trans_a: bool, trans_b: bool, epilogue: int,
        bias_type: int | None, scaling: Scaling | None,
    ) -> None:  # fmt: skip
        self._arguments = object_type, compute, scale, trans_a, trans_b, epilogue, bias_type, scaling
        self._free: list[Object] = []
        self.shared = self._created()
        """The operation that is never changed; its bias and scales, if any, have addresses without memory."""

    def _created(self) -> Object:
        object_type, compute, scale, trans_a, trans_b, epilogue, bias_type, scaling = self._arguments
        created = Object(object_type, compute, scale)
        created.set(_TRANS_A, "i", trans_a)
        created.set(_TRANS_B, "i", trans_b)
        created.set(_EPILOGUE, "I", epilogue)
        # The library chooses algorithms by the alignment of these addresses, and does not read from them.
        if bias_type is not None:
            created.set(_BIAS_TYPE, "i", bias_type)
            created.set(BIAS_POINTER, "Q", 256 + BIAS_ALIGNMENT)
        if scaling is not None:
            created.set(_FAST_ACCUMULATION, "b", 0)
            for mode, attribute in ((scaling.a, _A_SCALE_MODE), (scaling.b, _B_SCALE_MODE)):
                if mode:  # a library before 12.8 has one mode, and no attribute of it
                    created.set(attribute, "i", mode)
            for pointer in scale_pointers(scaling):
                created.set(pointer, "Q", 256)
        return created

    def at(self, addresses: Mapping[int, int]) -> Object:
        """Lease an operation with these addresses, by attribute, for one call.

        A concurrent or nested call has another. Every call of an operation passes the same attributes.
        """
        try:
            leased = self._free.pop()
        except IndexError:
            leased = self._created()
        for attribute, address in addresses.items():
            leased.set(attribute, "Q", address)
        return leased

    def give_back(self, leased: Object) -> None:
        """End the lease of ``leased``."""
        self._free.append(leased)


def scale_pointers(scaling: Scaling | None) -> tuple[int, ...]:
    """Return the attributes that are the addresses of a scaling: of the factors of A, B and D, and of the amax."""
    if scaling is None:
        return ()
    there = {
        A_SCALE_POINTER: scaling.a is not None, B_SCALE_POINTER: scaling.b is not None,
        D_SCALE_POINTER: scaling.result, AMAX_POINTER: scaling.amax,
    }  # fmt: skip
    return tuple(attribute for attribute, used in there.items() if used)


class Descriptors(NamedTuple):
    """The operation of a form and the layouts of its matrices."""

    operation: Operation
    a: Object
    b: Object
    c: Object
    d: Object

    @property
    def handles(self) -> tuple[int | None, ...]:
        """The handles of the shared operation, A, B, C and D."""
        operation, a, b, c, d = self
        return operation.shared.handle, a.handle, b.handle, c.handle, d.handle


class Objects:
    """The objects of a library that are kept for later products."""

    def __init__(self, library: Library) -> None:
        layouts, operations = ObjectType(library, "MatrixLayout"), ObjectType(library, "MatmulDesc")
        self.preferences = ObjectType(library, "MatmulPreference")
        self._layout = lru_cache(KEPT)(partial(_layout, layouts))
        self._operation = lru_cache(KEPT)(partial(Operation, operations))
        self.algorithm = lru_cache(KEPT)(partial(_algorithm, library.lt))
        """:func:`_algorithm` of this library, by its other arguments."""
        self.descriptors = lru_cache(KEPT)(self._descriptors)
        """The descriptors of a form. Raises StatusError where one cannot be created."""

    def _descriptors(self, form: Form) -> Descriptors:
        count, layout = form.products, self._layout

        def of(matrix: Matrix) -> Object:
            code, rows, cols, ld, stride, _ = matrix
            return layout(code, rows, cols, ld, count, stride if count > 1 else 0)

        a, b, d = of(form.a), of(form.b), of(form.d)
        operation = self._operation(
            form.compute, form.scale, form.trans_a, form.trans_b, form.epilogue, form.bias_type, form.scaling
        )
        return Descriptors(operation, a, b, d if form.c is form.d else of(form.c), d)


def _layout(object_type: ObjectType, code: int, rows: int, cols: int, ld: int, count: int, stride: int) -> Object:
    layout = Object(object_type, code, rows, cols, ld)
    if count > 1:
        layout.set(_BATCH_COUNT, "i", count)
        layout.set(_BATCH_STRIDE, "q", stride)
    return layout


def _algorithm(lt: Any, handle: int, types: tuple[int, ...], numbers: tuple[int, ...]) -> bytes | None:
    """Return the cublasLtMatmulAlgo_t of the configuration ``numbers``; None where the library has none for ``types``.

    ``types`` are the compute type and those of scalars, A, B, C and D; ``handle`` is the library's for the device.
    """
    algo = ctypes.create_string_buffer(ALGO_BYTES)
    if lt.cublasLtMatmulAlgoInit(handle, *types, numbers[0], algo):
        return None
    for attribute, (number, width) in enumerate(zip(numbers, CONFIG)):
        value = struct.pack(width, number)
        # The id is set already; attributes that a version of the library lacks may stay at their default, 0.
        refused = attribute and lt.cublasLtMatmulAlgoConfigSetAttribute(algo, attribute, value, len(value))
        if refused and number:
            return None
    return bytes(algo)
