"""libmublas by ctypes: its functions, declared; its status codes as text."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, byref, c_char_p, c_int, c_int64, c_longlong, c_void_p
from typing import Any

from gemmhub_musa.backend import CallError

from gemmhub_mublas import symbols
from gemmhub_mublas.enums import DEFAULT_MATH, Codes
from gemmhub_mublas.symbols import Found

_BASE: dict[str, tuple[Any, ...]] = {
    "mublasCreate": (c_void_p,),
    "mublasSetStream": (c_void_p, c_void_p),
    "mublasSetPointerMode": (c_void_p, c_int),
}
"""Functions that the library must have, and their arguments. All return a status."""

_MANGLED = {
    "mublasGemmEx": (
        "_Z12mublasGemmExP15_mublasHandle_t17mublasOperation_tS1_iiiPKvS3_14musaDataType_tiS3_S4_iS3_PvS4_i"
        "19mublasComputeType_t16mublasGemmAlgo_t"
    ),
    "mublasGemmStridedBatchedEx": (
        "_Z26mublasGemmStridedBatchedExP15_mublasHandle_t17mublasOperation_tS1_iiiPKvS3_14musaDataType_tixS3_S4_ixS3_Pv"
        "S4_ixi19mublasComputeType_t16mublasGemmAlgo_t"
    ),
    "mublasGemmBatchedEx": (
        "_Z19mublasGemmBatchedExP15_mublasHandle_t17mublasOperation_tS1_iiiPKvPKS3_14musaDataType_tiS5_S6_iS3_PKPvS6_ii"
        "19mublasComputeType_t16mublasGemmAlgo_t"
    ),
}
"""The names under which SDKs up to 4.x export them."""

_CTYPES = {"p": c_void_p, "e": c_int, "i": c_int, "x": c_longlong}
EX_KINDS = {name: symbols.parameters(mangled) for name, mangled in _MANGLED.items()}
"""Kinds of their parameters, see :func:`gemmhub_mublas.symbols.parameters`."""
_TYPED_KINDS = {
    "mublas{}gemm": "peeiiippipippi",
    "mublas{}gemmStridedBatched": "peeiiippixpixppixi",
    "mublas{}gemmBatched": "peeiiippipippii",
}
"""The same for the functions of one dtype, which are exported as C does."""

GEMM, STRIDED, BATCHED = "gemm", "strided", "batched"
"""Kinds of calls: one product; an evenly spaced batch; a batch whose addresses are in arrays."""
_EX = {GEMM: "mublasGemmEx", STRIDED: "mublasGemmStridedBatchedEx", BATCHED: "mublasGemmBatchedEx"}
_TYPED = dict(zip((GEMM, STRIDED, BATCHED), _TYPED_KINDS))


class LibraryError(Exception):
    """There is no usable library; ``reason`` and ``remedy`` are for the user."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class StatusError(CallError):
    """A call of the library failed: ``status`` is its code."""

    def __init__(self, function: str, status: int, text: str) -> None:
        super().__init__(f"{function}: {text}")
        self.status = status


def function_name(letter: str | None, kind: str) -> str:
    """Return the function for products of ``kind``: for the dtype of ``letter`` ("S", "D", "C", "Z"), or the Ex one."""
    return _EX[kind] if letter is None else _TYPED[kind].format(letter)


def status_words(lib: CDLL | None) -> Callable[[int], str]:
    """Return a function that formats a status: its number, which is not public, and the library's text for it."""
    text = None
    for name in ("mublasGetStatusString", "mublasStatus_to_string"):  # its newer and its older name
        text = text or getattr(lib, name, None)
    if text is not None:
        text.restype, text.argtypes = c_char_p, (c_int,)

    def words(status: int) -> str:
        meaning = text(status) if text is not None else None
        return f"status {status}" + (f" ({meaning.decode(errors='replace')})" if meaning else "")

    return words


class Library:
    """A loaded libmublas, with the numbers of its enumerations."""

    def __init__(self, lib: CDLL, codes: Codes) -> None:
        """Raises LibraryError where the library lacks a function that every product needs."""
        for name, arguments in _BASE.items():
            function = getattr(lib, name, None)
            if function is None:
                raise LibraryError(f"{self._where(lib)} has no function {name}", "install a complete MUSA SDK")
            function.restype, function.argtypes = c_int, arguments
        self.lib = lib
        self.codes = codes
        self.where = self._where(lib)
        self._math = self._declared("mublasSetMathMode", "pe")
        self._math_mode = codes.first(DEFAULT_MATH)
        self.words = status_words(lib)
        self.functions: dict[str, Found] = {}
        """Functions that the library has, by name."""
        for kind in (GEMM, STRIDED, BATCHED):
            name = _EX[kind]
            self._found(symbols.resolve(lib, name, _MANGLED[name], EX_KINDS[name]), name, EX_KINDS[name])
            for letter in "SDCZ":
                name = _TYPED[kind].format(letter)
                function = getattr(lib, name, None)
                found = None if function is None else Found(function, name, "plain")
                self._found(found, name, _TYPED_KINDS[_TYPED[kind]])

    @staticmethod
    def _where(lib: CDLL) -> str:
        return str(symbols.where(lib) or lib._name)

    def _found(self, found: Found | None, name: str, kinds: str) -> None:
        if found is not None:
            found.function.restype, found.function.argtypes = c_int, tuple(_CTYPES[kind] for kind in kinds)
            self.functions[name] = found

    def _declared(self, name: str, kinds: str) -> Any:
        function = getattr(self.lib, name, None)
        if function is not None:
            function.restype, function.argtypes = c_int, tuple(_CTYPES[kind] for kind in kinds)
        return function

    def check(self, function: str, status: int) -> None:
        """Raise StatusError unless ``status`` is success."""
        if status:
            raise StatusError(function, status, self.words(status))

    def create(self) -> int:
        """Return a new handle on the current device. Raises StatusError where the library makes none."""
        handle = c_void_p()
        self.check("mublasCreate", self.lib.mublasCreate(byref(handle)))
        return handle.value or 0

    def version(self, handle: int) -> str:
        """Return the version number that the library reports; "unknown" where it reports none."""
        function, number = self._declared("mublasGetVersion", "pp"), c_int64()
        # Eight zero bytes, in case the number is wider than an int.
        return str(number.value) if function is not None and function(handle, byref(number)) == 0 else "unknown"

    def set_up(self, handle: int, stream: int) -> None:
        """Set ``handle`` to this stream, scalars in host memory and full precision, whatever it was set to before."""
        self.check("mublasSetStream", self.lib.mublasSetStream(handle, stream))
        host = self.codes.values["MUBLAS_POINTER_MODE_HOST"]
        self.check("mublasSetPointerMode", self.lib.mublasSetPointerMode(handle, host))
        if self._math is not None and self._math_mode is not None:
            self.check("mublasSetMathMode", self._math(handle, self._math_mode))
