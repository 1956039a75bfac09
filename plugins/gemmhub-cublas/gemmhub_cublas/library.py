"""Finds and loads libcublasLt, declares its functions and describes its status codes.

A copy that is loaded already (torch's, cupy's) comes first: two copies would hold two sets of kernels on the device.
The one that cuda-pathfinder finds (wheels, conda, CUDA_HOME) comes next, then that of the dynamic linker.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from gemmhub.kit import install

SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
"""Names of the library for the dynamic linker, the newest first."""

STATUS = {
    1: ("NOT_INITIALIZED", "the library could not be initialised on this device, or its handle is gone"),
    3: ("ALLOC_FAILED", "the library could not allocate memory for itself"),
    7: ("INVALID_VALUE", "the library does not support this combination of parameters"),
    8: ("ARCH_MISMATCH", "this device does not support the operation"),
    11: ("MAPPING_ERROR", "device memory could not be accessed"),
    13: (
        "EXECUTION_FAILED",
        "the device refused the work: an earlier kernel failed there (its error is sticky and the context lost: "
        "restart the process), or an address is not of this device",
    ),
    14: ("INTERNAL_ERROR", "an operation inside the library failed"),
    15: ("NOT_SUPPORTED", "the library has no algorithm for this"),
    16: ("LICENSE_ERROR", "the library found no licence"),
}
"""cublasStatus_t: the name without CUBLAS_STATUS_, and its meaning here."""

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cublasLtGetVersion": (c_size_t, ()),
    "cublasLtCreate": (c_int, (c_void_p,)),
    "cublasLtMatmulDescCreate": (c_int, (c_void_p, c_int, c_int)),
    "cublasLtMatmulDescDestroy": (c_int, (c_void_p,)),
    "cublasLtMatmulDescSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatrixLayoutCreate": (c_int, (c_void_p, c_int, c_uint64, c_uint64, c_int64)),
    "cublasLtMatrixLayoutDestroy": (c_int, (c_void_p,)),
    "cublasLtMatrixLayoutSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatmulPreferenceCreate": (c_int, (c_void_p,)),
    "cublasLtMatmulPreferenceDestroy": (c_int, (c_void_p,)),
    "cublasLtMatmulPreferenceSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatmulAlgoGetHeuristic": (c_int, (*(c_void_p,) * 7, c_int, c_void_p, c_void_p)),
    "cublasLtMatmulAlgoInit": (c_int, (c_void_p, *(c_int,) * 7, c_void_p)),
    "cublasLtMatmulAlgoCheck": (c_int, (c_void_p,) * 8),
    "cublasLtMatmulAlgoConfigGetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t, c_void_p)),
    "cublasLtMatmulAlgoConfigSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatmul": (c_int, (*(c_void_p,) * 14, c_size_t, c_void_p)),
}
"""The functions that are called: (result, arguments). Enumerations are ints; handles, descriptors and addresses are
void pointers.
"""


class LibraryError(Exception):
    """There is no usable library: ``reason`` and ``remedy`` explain it to the user."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class StatusError(RuntimeError):
    """A call of cuBLASLt failed with the code ``status``."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: {words(status)}")
        self.status = status


def words(status: int) -> str:
    """Return the name, number and meaning of a status code."""
    name, meaning = STATUS.get(status, ("", ""))
    return f"CUBLAS_STATUS_{name} ({status}): {meaning}" if name else f"unknown status {status}"


def check(function: str, status: int) -> None:
    """Raise StatusError unless ``status`` is success."""
    if status:
        raise StatusError(function, status)


class Library:
    """A loaded cuBLASLt. Its functions are attributes of ``lt``, with declared types."""

    def __init__(self, lt: Any, where: str) -> None:
        """Raise LibraryError where ``lt``, loaded from ``where``, lacks a function."""
        for name, (result, arguments) in FUNCTIONS.items():
            try:
                function = getattr(lt, name)
            except AttributeError:
                raise LibraryError(
                    f"{where} has no function {name}", "install cuBLAS of CUDA 12 or later (gemmhub-cublas[cu13])"
                ) from None
            function.restype = result
            function.argtypes = arguments
        self.lt = lt
        self.untyped_matmul = ctypes.CFUNCTYPE(c_int)(ctypes.cast(lt.cublasLtMatmul, c_void_p).value or 0)
        """cublasLtMatmul without declared types: its arguments must be converted already."""
        self.where = where
        number = lt.cublasLtGetVersion()
        self.major = number // 10000
        self.version = f"{self.major}.{number // 100 % 100}.{number % 100}"


def _loaded() -> Iterator[tuple[Any, str]]:
    for name in SONAMES:
        try:
            yield ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY), f"{name}, loaded already"
        except OSError:
            continue


def _by_pathfinder() -> Iterator[tuple[Any, str]]:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        loaded = load_nvidia_dynamic_lib("cublasLt")
    except (RuntimeError, OSError):
        return
    where = loaded.abs_path or "libcublasLt"
    yield ctypes.CDLL(where, handle=loaded._handle_uint), where


def _by_linker() -> Iterator[tuple[Any, str]]:
    for name in SONAMES:
        try:
            yield ctypes.CDLL(name), name
        except OSError:
            continue


SOURCES: tuple[Callable[[], Iterator[tuple[Any, str]]], ...] = (_loaded, _by_pathfinder, _by_linker)
"""Search steps for the library, in this order: each yields (loaded library, its origin)."""


def load(driver_major: int) -> Library:
    """Return the first usable library. Raises LibraryError where there is none, for the first one that was found.

    ``driver_major`` is the newest CUDA that the driver runs.
    """
    first: LibraryError | None = None
    for source in SOURCES:
        for lt, where in source():
            try:
                library = Library(lt, where)
                if library.major <= driver_major:
                    return library
                raise LibraryError(
                    f"{where} is cuBLAS {library.version}, for CUDA {library.major}; the driver runs up to CUDA "
                    f"{driver_major}",
                    f"{install.command(f'gemmhub-cublas[cu{driver_major}]')}, or update the NVIDIA driver",
                )
            except LibraryError as error:
                first = first or error
    raise first or LibraryError(
        f"cuBLASLt was not found (looked for {', '.join(SONAMES)})",
        install.command(f"gemmhub-cublas[cu{min(driver_major, 13)}]"),
    )
