"""The table of dtypes and the rules for result dtypes.

Every dtype inside gemmhub is a ``numpy.dtype``; bfloat16 and the two fp8 types are those of
``ml_dtypes``. Backends do not decide result dtypes: the problem states them, and a backend
refuses those it cannot produce.

===========================================  ==========  =================================
operands                                     result      accumulated in
===========================================  ==========  =================================
float16, float16                             float16     float32
bfloat16, bfloat16                           bfloat16    float32
float16, bfloat16                            float32     float32
float32 with float16, bfloat16 or float32    float32     float32 (see ``precision``)
float64 with any of the above                float64     float64
complex64, complex128 and floats             as numpy    the result's precision
float8 with float8, float16 or bfloat16      out_dtype   float32
int8 or uint8 with int8 or uint8             int32       int32, exact modulo 2**32
other integers and bool                      as numpy    the result, exact modulo its width
bool, int8 or uint8 with bfloat16            bfloat16    float32
16-bit integers with bfloat16                float32     float32
32- and 64-bit integers with bfloat16        float64     float64
integers with float16/32/64 or complex       as numpy    the result (at least float32)
===========================================  ==========  =================================

``out_dtype`` may replace the result:

====================================  ==========================================================================
operands                              ``out_dtype``
====================================  ==========================================================================
complex, at least one                 complex64, complex128
float8, float16, bfloat16, float32    float16, bfloat16, float32, float64, complex64, complex128, float8_e4m3fn,
                                      float8_e5m2
other real floats, at least one       float16, bfloat16, float32, float64, complex64, complex128
int8 or uint8 with int8 or uint8      any integer type, float16, bfloat16, float32, float64
other integers                        any integer type, float32, float64
bool with bool                        bool, any integer type, float16, float32, float64
====================================  ==========================================================================

The accumulator is never narrower than ``out_dtype``, and never real where ``out_dtype`` is complex. The epilogue of an
8-bit integer product is computed in float32, in float64 for a result of that (:func:`epilogue_dtype`). A result of
float8 saturates as :func:`gemmhub.quantize` does: what is beyond the largest number, infinities too, becomes the
largest number with its sign, and NaN stays NaN.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple, cast

import numpy as np

from gemmhub.errors import DTypeError

DType = np.dtype[Any]

ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Names of the dtypes that come from ml_dtypes."""

STANDARD = (
    "float16", "float32", "float64", "complex64", "complex128", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
SUPPORTED = STANDARD + ML_DTYPES

SHORT_DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16",
    "fp32": "float32", "f32": "float32", "fp64": "float64", "f64": "float64", "double": "float64",
    "c64": "complex64", "c128": "complex128", "i16": "int16", "i32": "int32", "i64": "int64",
    "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "float8_e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip
"""Short names of dtypes, whose numbers count bits; "float8_e4m3" is the type without infinities, as in torch."""

_AMBIGUOUS = {"i8": ("int8", "int64"), "u8": ("uint8", "uint64")}
"""Names whose number counts bytes in NumPy: refused."""

PRECISIONS = ("ieee", "bf16x3", "tf32", "bf16")
"""Precisions of float32 and complex64 products; :mod:`gemmhub.accuracy` has their bounds."""


def permits_tf32(precision: str) -> bool:
    """Return whether ``precision``, one of :data:`PRECISIONS`, lets float32 operands be rounded to tf32."""
    return precision in ("tf32", "bf16")


_SIGNIFICAND_BITS = {
    "float8_e5m2": 3, "float8_e4m3fn": 4, "bfloat16": 8, "float16": 11,
    "float32": 24, "float64": 53, "complex64": 24, "complex128": 53,
}  # fmt: skip
_SMALLEST_NORMAL_EXPONENT = {
    "float8_e5m2": -14, "float8_e4m3fn": -6, "bfloat16": -126, "float16": -14,
    "float32": -126, "float64": -1022, "complex64": -126, "complex128": -1022,
}  # fmt: skip
_LARGEST = {
    "float8_e5m2": 57344.0, "float8_e4m3fn": 448.0, "bfloat16": 3.3895313892515355e38, "float16": 65504.0,
    "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308,
    "complex64": 3.4028234663852886e38, "complex128": 1.7976931348623157e308,
}  # fmt: skip


class DTypeInfo(NamedTuple):
    """Facts about one dtype. ``kind`` is "bool", "int", "uint", "float", "float8" or "complex"."""

    name: str
    kind: str
    itemsize: int
    unit_roundoff: float
    """2**-p for p significand bits; 0 for integers."""
    smallest_normal: float
    """Smallest positive normal number; 0 for integers."""
    largest: float
    """Largest finite value."""

    @property
    def inexact(self) -> bool:
        return self.kind in ("float", "float8", "complex")


def saturates(dtype: DType) -> bool:
    """Return whether numbers beyond the range of a result dtype become its largest number: those of float8 do."""
    return info(dtype).kind == "float8"


@lru_cache(maxsize=256)
def name_of(dtype: DType) -> str:
    """Return ``dtype.name``, which takes NumPy microseconds at each time."""
    return str(dtype.name)


@cache
def info(dtype: DType) -> DTypeInfo:
    """Return the facts about a supported dtype; :class:`~gemmhub.errors.DTypeError` for any other."""
    name = dtype.name
    if name not in SUPPORTED or not dtype.isnative:
        raise unsupported("dtype", dtype)
    if name in _SIGNIFICAND_BITS:
        kind = "float8" if name.startswith("float8") else "complex" if dtype.kind == "c" else "float"
        roundoff = 2.0 ** -_SIGNIFICAND_BITS[name]
        return DTypeInfo(name, kind, dtype.itemsize, roundoff, 2.0 ** _SMALLEST_NORMAL_EXPONENT[name], _LARGEST[name])
    if name == "bool":
        return DTypeInfo(name, "bool", 1, 0.0, 0.0, 1.0)
    kind = "int" if dtype.kind == "i" else "uint"
    return DTypeInfo(name, kind, dtype.itemsize, 0.0, 0.0, float(np.iinfo(dtype).max))


def holds(wide: DType, narrow: DType) -> bool:
    """Whether the inexact dtype ``wide`` represents every number of ``narrow``. (NumPy calls int64 to float64 safe.)"""
    if info(narrow).inexact:
        return bool(np.can_cast(narrow, wide))
    return info(narrow).largest * info(wide).unit_roundoff <= 1


def unsupported(argument: str, dtype: object) -> DTypeError:
    """The error for a dtype outside the table."""
    like = _like(dtype) if isinstance(dtype, str) else None
    remedy = "convert it, for example with .astype(numpy.float32)"
    if argument.endswith("dtype"):
        remedy = "name one of these" + (f"; {like}?" if like else "")
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        remedy = "its byte order is not this machine's: convert with .astype(x.dtype.newbyteorder('='))"
    return DTypeError(argument, f"dtype {dtype} is not supported", ", ".join(SUPPORTED), remedy)


def _like(name: str) -> str | None:
    """Return the supported dtype that a name, full or short, resembles most; None where it resembles none."""
    import difflib

    full = SHORT_DTYPES | {name: name for name in SUPPORTED}
    close = difflib.get_close_matches(name.lower(), full, 1, 0.75)
    return full[close[0]] if close else None


def as_dtype(value: object, argument: str = "out_dtype") -> DType:
    """Convert a numpy dtype, a scalar type, a torch dtype, or a name ("bfloat16", "bf16") to a numpy dtype."""
    original = value
    if isinstance(value, str):
        if value.lower() in _AMBIGUOUS:
            bits, bytes_ = _AMBIGUOUS[value.lower()]
            raise DTypeError(
                argument, f"{value!r}, which is {bits} to some and {bytes_} to NumPy", ", ".join(SUPPORTED),
                f"name {bits} or {bytes_}",
            )  # fmt: skip
        value = SHORT_DTYPES.get(value.lower(), value)
    if (type(value).__module__, type(value).__name__) == ("torch", "dtype"):
        value = str(value).rpartition(".")[2]
    if isinstance(value, str) and value in ML_DTYPES:
        import ml_dtypes

        value = getattr(ml_dtypes, value)
    try:
        dtype: DType = np.dtype(cast(Any, value))
    except MemoryError:
        raise
    except Exception:  # numpy parses strings and reads attributes of objects: foreign code
        raise unsupported(argument, original) from None
    if value is None or dtype.name not in SUPPORTED or not dtype.isnative:
        raise unsupported(argument, original if value is None else dtype)
    return dtype


def result_dtype(a: DType, b: DType) -> DType:
    """Return the dtype of ``a`` times ``b`` where the call has no ``out_dtype``.

    It is not cached: numpy.longlong and numpy.int64 are equal as keys, and each is its own result.
    """
    classes = {info(a).kind, info(b).kind}
    if "float8" in classes:
        raise DTypeError("out_dtype", f"{a} by {b} has no natural result", ", ".join(_allowed(a, b)), "pass out_dtype=")
    if a.itemsize == b.itemsize == 1 and classes <= {"int", "uint"}:
        return np.dtype(np.int32)
    if a == b and name_of(a) == "bfloat16":
        return a
    if "bfloat16" in (name_of(a), name_of(b)):
        other = b if name_of(a) == "bfloat16" else a
        if name_of(other) == "float16":
            return np.dtype(np.float32)
        # Of other dtypes float16 and bfloat16 hold the same ones: bool and 8-bit integers.
        promoted: DType = np.result_type(np.float16, other)
        return promoted if promoted != np.float16 else a if other is b else b
    promoted = np.result_type(a, b)
    return promoted


def output_dtype(a: DType, b: DType, wanted: DType | None) -> DType:
    """Return the dtype of the product; ``wanted`` is ``out_dtype`` or the dtype of ``out``, None without either."""
    if wanted is None:
        return result_dtype(a, b)
    allowed = _allowed(a, b)
    if name_of(wanted) not in allowed:
        raise DTypeError("out_dtype", f"{wanted} for {a} by {b}", ", ".join(allowed), "omit out_dtype= or convert")
    return wanted


@lru_cache(maxsize=256)
def _allowed(a: DType, b: DType) -> tuple[str, ...]:
    """The names of the dtypes that ``out_dtype`` may be."""
    facts = info(a), info(b)
    classes = {x.kind for x in facts}
    if "complex" in classes:
        return ("complex64", "complex128")
    if classes & {"float", "float8"}:
        floats = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
        narrow = all(x.inexact and x.itemsize <= 4 for x in facts)
        return floats + ("float8_e4m3fn", "float8_e5m2") * narrow
    if classes == {"bool"}:
        return tuple(name for name in STANDARD if not name.startswith("complex"))
    halves = ("float16", "bfloat16") if _eight_bit(a, b) else ()
    return (*(n for n in STANDARD if n.startswith(("int", "uint"))), *halves, "float32", "float64")


def _eight_bit(a: DType, b: DType) -> bool:
    """Whether both are int8 or uint8."""
    return all(x.itemsize == 1 and info(x).kind in ("int", "uint") for x in (a, b))


@cache
def compute_dtype(a: DType, b: DType, out: DType) -> DType:
    """Return the dtype of the accumulator, never narrower than the operands' result or ``out``."""
    classes = {info(a).kind, info(b).kind}
    if classes <= {"bool", "int", "uint"}:
        if info(out).kind == "float":
            return np.dtype(np.int32) if _eight_bit(a, b) else np.dtype(np.float64)
        return out
    wide = {"float64", "complex128"} & {x.name for x in (a, b, out) if info(x).inexact}
    if "float8" not in classes:
        wide |= {"float64", "complex128"} & {result_dtype(a, b).name}
    if "complex" in {*classes, info(out).kind}:
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


@lru_cache(maxsize=256)
def epilogue_dtype(compute: DType, out: DType) -> DType:
    """Return the dtype that scalars, scales, addends and the activation are computed in: that of the accumulator.

    Sums of integers whose result is floating are converted to the result's dtype first, to float32 where that is
    narrower.
    """
    if info(compute).inexact:
        return compute
    return np.dtype(np.float32) if info(out).inexact and out.itemsize < 4 else out


_SINGLE = 2.0**-126, _LARGEST["float32"]
"""The range of float32's normal numbers."""


def single(value: complex) -> bool:
    """Whether rounding the scalar to float32 (complex64) costs no more than a relative 2**-24: each part is 0, NaN,
    infinite or in the range of float32's normal numbers.
    """
    low, high = _SINGLE
    real, imaginary = abs(value.real), abs(value.imag)
    return not (0 < real < low or high < real < inf or 0 < imaginary < low or high < imaginary < inf)


def scaled_dtype(compute: DType, out: DType, alpha: complex, beta: complex) -> DType:
    """Return ``compute``, or float64 (complex128) where alpha or beta overflows or underflows in the epilogue's dtype.

    That dtype is :func:`epilogue_dtype`.
    """
    epilogue = epilogue_dtype(compute, out)
    if name_of(epilogue) not in ("float32", "complex64") or (single(alpha) and single(beta)):
        return compute
    return np.dtype(np.complex128 if epilogue.kind == "c" else np.float64)


def scalar_class(value: Any) -> tuple[Any, ...]:
    """Return the facts of a scalar that checks and decisions may depend on, as part of a cache key."""
    zero, one = value == 0, value == 1
    if isinstance(value, complex):
        return type(value), zero, one, False, single(value)
    size = abs(value)
    small = size < 2**31 and value == int(value)
    return type(value), zero, one, small, 2.0**-126 <= size <= 2.0**127 or zero or single(value)
