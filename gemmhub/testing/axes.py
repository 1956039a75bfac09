"""The axes of the conformance matrix and their values.

Each value of an axis is the fields of a case that it sets. The first is the plain one; the first ``main``
are the important ones, which the matrix combines with every value of every other axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gemmhub.dtypes import PRECISIONS
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import OPERANDS
from gemmhub.testing.forms import forms

Values = dict[str, Any]
"""Fields of a case by name."""


@dataclass(frozen=True)
class Axis:
    values: tuple[Values, ...]
    main: int
    """Number of important values, at the front of ``values``."""


def _axis(field: str, values: Sequence[Any], main: int) -> Axis:
    return Axis(tuple({field: value} for value in values), main)


def _dtypes(text: str) -> tuple[Values, ...]:
    short = {
        "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64",
        "c128": "complex128", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "b": "bool",
        **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)}, **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    }  # fmt: skip
    names = ("a_dtype", "b_dtype", "out_dtype")
    return tuple(dict(zip(names, (short[x] for x in word.split(",")))) for word in text.split())


DTYPES = _dtypes(
    """
    f32,f32,f32 f16,f16,f16 bf16,bf16,bf16 i8,i8,i32 f64,f64,f64 c64,c64,c64 e4m3,e4m3,bf16
    c128,c128,c128 b,b,b i16,i16,i16 i32,i32,i32 i64,i64,i64 u8,u8,u8 u16,u16,u16 u32,u32,u32 u64,u64,u64
    f16,f16,f32 f16,f16,f64 f16,f16,bf16 bf16,bf16,f32 bf16,bf16,f16 bf16,bf16,f64 f32,f32,f16 f32,f32,bf16
    f32,f32,f64 f64,f64,f32 f64,f64,f16 c64,c64,c128 c128,c128,c64
    i8,i8,i8 i8,i8,f32 i8,i8,i64 i8,i8,f64 i32,i32,i64 i32,i32,f64 i64,i64,i16 u8,u8,i32 u8,u8,f32 b,b,i32 b,b,f32
    f16,bf16,f32 bf16,f16,f16 f32,f16,f32 bf16,f32,f32 f64,f32,f64 f16,f64,f64 f64,bf16,f64
    c64,f32,c64 f16,c64,c64 f64,c64,c128 c64,c128,c128
    u8,i8,i32 i8,u8,i32 i8,u8,i16 i32,i64,i64 b,i32,i32 i32,f32,f64 f16,i8,f16 i64,c64,c128 f32,u8,f32
    e4m3,e4m3,f16 e4m3,e4m3,f32 e5m2,e4m3,bf16 e4m3,e5m2,f32 e5m2,e5m2,f16 e4m3,f16,f32 bf16,e5m2,bf16
    e4m3,e4m3,f64
    e4m3,e4m3,e4m3 e4m3,e5m2,e5m2 bf16,bf16,e4m3 f16,f16,e5m2 f32,f32,e4m3 bf16,e4m3,e5m2
    i8,i8,bf16 u8,i8,f16 u8,u8,bf16
    """
)
"""Dtypes of (a, b, result)."""
MAIN_DTYPES = DTYPES[:7]
"""The most common of them; the first five are the important values of the axis."""

SHAPES = (
    (13, 17, 19), (64, 64, 64), (1, 37, 53),
    (1, 1, 1), (1, 1, 97), (41, 1, 29), (31, 23, 1), (2, 3, 5), (5, 67, 101), (3, 259, 17), (259, 3, 17),
    (2, 128, 96), (4, 96, 208), (1, 256, 128), (192, 80, 48), (128, 256, 64), (3, 5, 4099), (16, 32, 2048),
    *((t - 1, t, t + 1) for t in (8, 16, 32, 64, 128)),
    *((t + 1, t - 1, t) for t in (8, 16, 32, 64, 128)),
    *((t, t + 1, t - 1) for t in (8, 16, 32, 64, 128)),
    (0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (1, 1, 0),
)  # fmt: skip

LAYOUTS = ("row", "col", "row_padded", "col_padded", "row_odd", "col_odd", "interleaved", "strided", "reversed")
"""Names of layouts that :func:`gemmhub.testing.memory.strides` accepts."""


def _batch(batch: tuple[int, ...], a: str = "full", b: str = "full") -> Values:
    return {"batch": batch, "a_batch": a, "b_batch": b}


def _addend(c: str | None, beta: complex = 1) -> Values:
    return {"c": c, "beta": beta if c else 0}


def _bias(axis: str | None, stride: int = 1) -> Values:
    return {"bias": axis, "bias_stride": stride}


def _others(names: Sequence[str]) -> Iterator[Values]:
    """Yield the operands beside c and bias: none, each in each form alone, and the factors of a and b together."""
    yield {"operands": {}}
    for name in names:
        yield from ({"operands": {name: form}} for form in forms(name))
    for pair in (("tensor", "tensor"), ("row", "column"), ("1x128", "128x128"), ("batch row", "batch column")):
        yield {"operands": dict(zip(("scale_a", "scale_b"), pair))}


def axes() -> dict[str, Axis]:
    """Return the axes that a matrix of cases varies. The first values of all axes make the plain case."""
    return _axes(tuple(EPILOGUES), tuple(OPERANDS))


@lru_cache(maxsize=4)
def _axes(epilogues: tuple[str, ...], operands: tuple[str, ...]) -> dict[str, Axis]:
    return {
        "dtypes": Axis(DTYPES, 5),
        "shape": Axis(tuple({"m": m, "n": n, "k": k} for m, n, k in SHAPES), 3),
        "a": _axis("a", LAYOUTS, 2),
        "b": _axis("b", LAYOUTS, 2),
        "out": _axis("out", LAYOUTS, 2),
        "batch": Axis(
            (
                _batch(()),
                _batch((3,)),
                _batch((3,), b="missing"),
                _batch((3,), a="stride0"),
                _batch((2, 3)),
                _batch((2, 3), a="one"),
                _batch((2, 3), b="outer"),
                _batch((2, 1, 2), b="stride0"),
                _batch((1,)),
                _batch((2, 3), a="outer", b="stride0"),
                _batch((0,)),
            ),
            2,
        ),
        "alpha": _axis("alpha", (1, 0.7, -1, 3, 0, 0.5 - 1.25j), 2),
        "addend": Axis(
            (
                _addend(None),
                _addend("row"),
                _addend("out", -1.3),
                _addend("row", -1.3),
                _addend("out", 2.0),
                _addend("col"),
                _addend("col_padded", -1.3),
                _addend("row_odd", 2),
                _addend("shared"),
                _addend("rows0"),
                _addend("out", 0.5 + 0.5j),
            ),
            3,
        ),
        "bias": Axis((_bias(None), _bias("n"), _bias("m"), _bias("n", 2), _bias("m", 3)), 3),
        "activation": _axis("activation", (None, *epilogues), 2),
        "operands": Axis(tuple(_others([name for name in operands if name not in ("c", "bias")])), 1),
        "precision": _axis("precision", PRECISIONS, 1),
        "reproducible": _axis("reproducible", (None, "run", "batch"), 1),
        "offset": _axis("offset", (0, 1, 3, 8), 2),
        "data": _axis("data", ("normal", "wide", "nonfinite", "cancelling", "large"), 1),
        "poison": _axis("poison", ("nan", "garbage"), 1),
        "packed": _axis("packed", (False,), 1),
        "c_dtype": _axis("c_dtype", (None, "compute"), 1),
        "bias_dtype": _axis("bias_dtype", (None, "compute"), 1),
    }
