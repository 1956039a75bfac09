"""Cases of grouped products, whose offsets are on a device: forms, ends of groups, operands, layouts.

Ends are data: a kernel that was prepared for a case runs it with other ends, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gemmhub import dtypes
from gemmhub.epilogues import columns
from gemmhub.problem import Groups
from gemmhub.testing.case import differences


@dataclass(frozen=True)
class GroupedCase:
    """One grouped problem, with the ends of its groups. ``GroupedCase("m", (3, 3, 8))`` is one of bfloat16."""

    divides: str
    """The dimension that offsets divide: "m", "n" or "k"."""
    ends: tuple[int, ...]
    """The offsets. They may be out of order and beyond the extent, negative, too."""
    m: int = 40
    """Rows of a, all of them where groups divide m."""
    n: int = 48
    k: int = 64
    a_dtype: str = "bfloat16"
    b_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    a: str = "row"
    """Layout of each matrix of a; :func:`gemmhub.testing.memory.strides` lists the names."""
    b: str = "row"
    out: str = "row"
    alpha: float = 1
    c: bool = False
    """Whether ``beta`` times an addend is added."""
    beta: float = 1
    """Its factor, where there is one."""
    bias: str | None = None
    """Form of the bias: "n", "batch n" with one for each group; None for no bias."""
    operands: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Forms of the scales by name, as :attr:`gemmhub.backend.Backend.takes` names them."""
    activation: str | None = None
    precision: str = "ieee"
    reproducible: str | None = None
    offset: int = 0
    """Offset of each operand, in elements, from an address that is a multiple of 256."""
    data: str = "normal"
    """Kind of values: those of :func:`gemmhub.testing.operands.draw_values`, and "alternate": of every second group,
    what offsets divide is NaN."""
    seed: int = 0

    def __repr__(self) -> str:
        """The expression that creates this case, without default values."""
        return f"GroupedCase({', '.join(f'{name}={value!r}' for name, value in differences(self))})"

    def __str__(self) -> str:
        """A short name."""
        words = [self.divides, f"{self.m}x{self.n}x{self.k}", f"{self.a_dtype}->{self.out_dtype}"]
        words += [f"{len(self.ends)} groups to {self.ends[-1]}"]
        plain = ("divides", "ends", "m", "n", "k", "a_dtype", "b_dtype", "out_dtype", "seed")
        for name, value in differences(self):
            if isinstance(value, Mapping):
                words += [f"{operand}={form}" for operand, form in value.items()]
            elif name not in plain:
                words.append(f"{name}={value}")
        return " ".join(words).replace(" ", "-")

    @property
    def groups(self) -> Groups:
        """The groups of its problem."""
        return Groups(len(self.ends), self.divides)

    @property
    def extent(self) -> int:
        """Size of the dimension that is divided."""
        return {"m": self.m, "n": self.n, "k": self.k}[self.divides]

    @property
    def out_columns(self) -> int:
        """Columns of the result."""
        return columns(self.activation, self.n)

    @property
    def compute_dtype(self) -> dtypes.DType:
        a, b, out = (dtypes.as_dtype(x) for x in (self.a_dtype, self.b_dtype, self.out_dtype))
        return dtypes.compute_dtype(a, b, out)

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the problem in :attr:`gemmhub.backend.Backend.takes`."""
        parts = {
            "groups": self.divides,
            "c": "matrix" if self.c else None,
            "bias": self.bias,
            **self.operands,
            "activation": self.activation,
        }
        parts["precision"] = None if self.precision == "ieee" else self.precision
        parts["reproducible"] = None if self.reproducible is None else "run" if self.reproducible == "run" else "batch"
        return {name: form for name, form in parts.items() if form is not None}


def spans(ends: Sequence[int], extent: int) -> list[slice]:
    """The groups that these ends have by the contract: each is at least the one before it, and at most the extent."""
    last, found = 0, []
    for end in ends:
        stop = min(max(last, end), extent)
        found.append(slice(last, stop))
        last = stop
    return found


_ENDS: Mapping[str, tuple[int, ...]] = {
    "even": (16, 32, 48, 64),
    "a tile and a part": (64, 64, 134, 135, 185),
    "odd starts": (1, 4, 9, 16, 25, 36, 49),
    "one has all": (0, 0, 70, 70),
    "nothing": (0, 0, 0),
    "one group": (33,),
    "many": (*range(0, 60, 2), *(60,) * 10, *range(61, 75)),
    "empty at both ends": (0, 0, 5, 40, 40),
    "out of order": (5, 3, 20, -1, 30, 2**31 - 1, 7),
    "negative": (-5, -(2**31), 9, 8),
}
"""Offsets by what they test."""

_WIDE: dict[str, Any] = {"m": 300, "n": 296, "k": 328}
_FLOAT8: dict[str, Any] = {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn"}
_DTYPES: tuple[dict[str, Any], ...] = (
    {"a_dtype": "float16", "b_dtype": "float16", "out_dtype": "float16"},
    {"out_dtype": "float32"},
    {"a_dtype": "float32", "b_dtype": "float32", "out_dtype": "float32"},
    _FLOAT8,
)
_EPILOGUES: tuple[dict[str, Any], ...] = (
    {"bias": "n"}, {"bias": "batch n", "alpha": 0.7}, {"activation": "gelu"}, {"bias": "n", "activation": "swiglu"},
    {"bias": "batch n", "activation": "silu", "alpha": -1.5}, {"alpha": 0, "data": "nonfinite", "bias": "n"},
    {"c": True, "data": "alternate"}, {"c": True, "beta": -0.5, "bias": "batch n", "activation": "gelu", "alpha": 2},
)  # fmt: skip
_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"b": "col"}, {"a": "col"}, {"a": "col", "b": "col", "out": "col"},
    {"a": "row_padded", "b": "col_padded", "out": "row_padded"}, {"offset": 8}, {"offset": 1, "a": "row_odd"},
)  # fmt: skip
_SCALES: Mapping[str, tuple[dict[str, str], ...]] = {
    "m": ({"scale_a": "row", "scale_b": "batch column"}, {"scale_a": "batch tensor", "scale_b": "batch tensor"},
          {"scale_a": "1x128", "scale_b": "batch 128x128"}, {"scale_a": "tensor", "scale_b": "column"}),
    "k": ({"scale_a": "row", "scale_b": "column"}, {"scale_a": "batch row", "scale_b": "batch column"}),
    "n": ({"scale_a": "batch row", "scale_b": "column"}, {"scale_a": "batch 1x128", "scale_b": "128x1"}),
}  # fmt: skip


@lru_cache(maxsize=1)
def grouped_cases() -> tuple[GroupedCase, ...]:
    """The fixed grouped problems, in a fixed order with fixed seeds."""
    found: dict[str, GroupedCase] = {}
    for divides in ("m", "k", "n"):
        for values in _values(divides):
            if divides == "n" and (values.get("activation") == "swiglu" or values.get("bias") == "batch n"):
                continue  # gemmhub refuses them
            case = GroupedCase(divides, **values, seed=len(found))
            found.setdefault(str(case), case)
    return tuple(found.values())


def _values(divides: str) -> Iterator[dict[str, Any]]:
    def having(name: str, beyond: int = 11, **values: Any) -> dict[str, Any]:
        ends = _ENDS[name]
        extent = max(0, *(end for end in ends if end < 2**20)) + beyond
        return {"ends": ends, divides: extent, **values}

    for name in _ENDS:
        yield having(name)
    yield having("even", beyond=0)
    yield having("odd starts", beyond=0, data="alternate")
    sizes = {name: size for name, size in _WIDE.items() if name != divides}
    yield having("a tile and a part", beyond=70, **sizes)
    yield having("many", beyond=200, **sizes, data="wide")
    for dtype in _DTYPES:
        yield having("odd starts", **dtype)
        yield having("a tile and a part", **dtype, data="alternate", bias="n")
    for epilogue in _EPILOGUES:
        yield having("empty at both ends", **epilogue)
    for layout in _LAYOUTS:
        yield having("odd starts", **layout, data="alternate")
    for scales in _SCALES[divides]:
        yield having("odd starts", **_FLOAT8, **{"n": 288, "k": 320, **sizes, "m": 49} | {divides: 60}, operands=scales)
    for data in ("nonfinite", "alternate"):
        yield having("a tile and a part", data=data)
    if divides == "k":
        yield having("nothing", beyond=0, bias="n")
        yield having("nothing", beyond=0)
    else:
        yield having("empty at both ends", k=0, bias="n")
    for promise in ("run", "batch"):
        yield having("a tile and a part", reproducible=promise)
