"""CPU operands of any library that exports DLPack; results return through its own namespace."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from gemmhub._arrays.array_types import library_name
from gemmhub._arrays.host.operands import SEQUENCES, NumpyArrays
from gemmhub._arrays.torch import tensors
from gemmhub._base.guard import words
from gemmhub._base.wording import instance
from gemmhub.array_library import HostArrays
from gemmhub.dtypes import ML_DTYPES
from gemmhub.errors import InputError
from gemmhub.packed import PackedB

Array = Any

_WITHOUT_LIBRARY = (PackedB, *SEQUENCES)


class DLPackArrays(NumpyArrays):
    """CPU arrays of one other library, viewed through DLPack; results return through its own namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def view(self, x: Any, argument: str) -> Array:
        try:
            tensor = hasattr(x, "data_ptr")
            if tensor:
                if getattr(x, "is_neg", bool)():  # DLPack does not export this flag
                    raise tensors.lazy(argument)
            elif isinstance(x, SEQUENCES):
                return super().view(x, argument)
            native = _lent(x)
            if native is None:
                native = np.from_dlpack(x)
            if tensor and native.size and not x.data_ptr():  # a fake tensor, for which NumPy allocated memory
                raise ValueError("it has no memory")
        except (InputError, MemoryError):
            raise
        except Exception as error:  # __dlpack__ is foreign code
            raise InputError(
                argument, f"{instance(type(x))} that NumPy cannot view: {words(error)}",
                "CPU arrays that export DLPack", viewable(x),
            ) from error  # fmt: skip
        return native

    def holds(self, out: object) -> bool:
        return not isinstance(out, SEQUENCES)

    def key(self, x: Any) -> Hashable:
        """The facts of an array. TypeError for what is copied to one."""
        if isinstance(x, SEQUENCES):
            raise TypeError(f"{instance(type(x))} has no key")
        return HostArrays.key(self, x)

    def wrap(self, native: Array, operands: tuple[Any, ...]) -> Array:
        for like in operands:
            if like is not None and not isinstance(like, _WITHOUT_LIBRARY):
                break
        if not isinstance(native, np.ndarray):
            native = np.asarray(native)
        if native.dtype.name in ML_DTYPES and library_name(like.__class__) == "jax":
            return sys.modules["jax"].numpy.asarray(native)
        try:
            result = (_from_dlpack(like.__class__) or like.__array_namespace__().from_dlpack)(native)
        except (AttributeError, BufferError, RuntimeError) as error:
            raise InputError(
                "a, b",
                f"a result of {native.dtype} cannot become {instance(type(like))}: {words(error)}",
                "arrays whose library has from_dlpack",
                "pass numpy.from_dlpack(x) and convert the result",
            ) from None
        return unconverted(result, native)


def _lent(x: Any) -> Array | None:
    """A view without a copy of JAX's array on the CPU, of a dtype that NumPy's DLPack lacks; else None."""
    cls: Any = type(x)
    if library_name(cls) != "jax" or str(getattr(x, "dtype", "")) not in ML_DTYPES:
        return None
    native = np.asarray(x)
    if native.size and native.ctypes.data != x.unsafe_buffer_pointer():
        return None
    return native


def viewable(x: Any) -> str:
    """The remedy for an array that NumPy cannot view."""
    if has(x, "is_conj") and x.is_conj():
        return "pass x.resolve_conj()"
    name = str(getattr(x, "dtype", "")).rpartition(".")[2]
    if name not in ML_DTYPES:  # NumPy's DLPack lacks these
        return ""
    if not has(x, "data_ptr"):
        return "pass numpy.asarray(x)"
    bits = "int16" if name == "bfloat16" else "uint8"
    return f"pass x.view(torch.{bits}).numpy().view(ml_dtypes.{name})"


@lru_cache(maxsize=64)
def _from_dlpack(cls: type) -> Any:
    """``from_dlpack`` of the library that defines a type of array, or of a base class's; None where the arrays have
    ``__array_namespace__``.
    """
    if hasattr(cls, "__array_namespace__"):
        return None
    for base in cls.__mro__:
        library: Any = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(library, "from_dlpack"):
            return library.from_dlpack
    raise AttributeError("its library has no from_dlpack")


def unconverted(result: Array, native: Array) -> Array:
    """``result``, an array of another library; InputError where it has another dtype, as in JAX without 64 bits."""
    cls: Any = type(result)
    try:
        if result.dtype.itemsize == native.dtype.itemsize:
            return result
    except AttributeError:  # dtypes without a name
        return result
    raise InputError(
        "out_dtype", f"{native.dtype}, which {library_name(cls)} converts to {result.dtype}",
        "dtypes of the operands' library",
        "pass another out_dtype; JAX has 64-bit dtypes after jax.config.update('jax_enable_x64', True)",
    )  # fmt: skip


@cache
def dlpack_arrays(name: str) -> DLPackArrays:
    """The array library ``name`` on the CPU."""
    return DLPackArrays(name)


def has(x: object, name: str) -> bool:
    """Like hasattr, also where ``__getattr__`` or a property raises any exception: then, whether the class has it.

    Reading the attribute raises the exception again, for the caller to see.
    """
    try:
        return hasattr(x, name)
    except Exception:
        return hasattr(type(x), name)
