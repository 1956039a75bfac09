"""The test problems of the conformance kit, as data.

A :class:`Case` describes one problem completely: sizes, dtypes, memory layouts of the operands, the
epilogue, the kind of data and its seed. :func:`matrix` is the fixed set that every backend runs, and
:func:`draw` makes random ones. The full cross product of the axes would be billions of cases; the matrix has
each value of each axis alone (for backends that accept few) and each value together with the important
values of every other axis (a covering array, built greedily as in AETG: Cohen, Dalal, Fredman, Patton, IEEE
Trans. Software Eng. 23, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub.errors import DTypeError
from gemmhub.testing.axes import AXES, MAIN_DTYPES, SHAPES, Values


@dataclass(frozen=True)
class Case:
    """One test problem. Every field has a plain default, so ``Case(m=3, n=4, k=5)`` is a float32 product."""

    m: int
    n: int
    k: int
    a_dtype: str = "float32"
    b_dtype: str = "float32"
    out_dtype: str = "float32"
    a: str = "row"
    """Layout of a; :func:`gemmhub.testing.operands.strides` lists the names."""
    b: str = "row"
    out: str = "row"
    batch: tuple[int, ...] = ()
    a_batch: str = "full"
    """Batch of a: "full", or a kind of broadcasting: "stride0", "one" (dimensions of size 1), "missing", "outer" (the
    outermost dimension is missing)."""
    b_batch: str = "full"
    alpha: complex = 1
    beta: complex = 0
    c: str | None = None
    """Layout of c: None for no addend, a layout, "out" (the addend is the result's own memory), "shared" (no batch
    dimensions) or "rows0" (all rows are the same memory)."""
    c_dtype: str | None = None
    """Dtype of c; None for that of the result."""
    bias: str | None = None
    """Axis of the bias, "m" or "n"; None for no bias."""
    bias_stride: int = 1
    bias_offset: int = 0
    """Further offset of the bias in elements: its alignment is not part of a problem."""
    bias_dtype: str | None = None
    scale_a: str | None = None
    """None, "one" (a single factor) or "each" (one for each row of a; of ``scale_b``: for each column of b)."""
    scale_b: str | None = None
    scale_stride: int = 1
    activation: str | None = None
    precision: str = "ieee"
    deterministic: bool = False
    offset: int = 0
    """Offset of each operand, in elements, from an address that is a multiple of 256."""
    data: str = "normal"
    """Kind of values; :func:`gemmhub.testing.operands.draw_values` explains each."""
    poison: str = "nan"
    """Content of the result before the call: "nan" or "garbage"."""
    packed: bool = False
    """Whether b is packed by :meth:`~gemmhub.backend.Backend.pack`."""
    threads: int = 1
    """Number of threads that call the kernel at once, each with its own operands."""
    every_candidate: bool = False
    """Whether all candidates are run, not only the first."""
    seed: int = 0

    def __repr__(self) -> str:
        """The expression that creates this case, without default values."""
        given = [f for f in fields(self) if f.name in ("m", "n", "k") or getattr(self, f.name) != f.default]
        return f"Case({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in given)})"

    def __str__(self) -> str:
        """A short name: the differences from a plain product."""
        plain = ("m", "n", "k", "a_dtype", "b_dtype", "out_dtype", "seed")
        words = [f"{self.m}x{self.n}x{self.k}", f"{self.a_dtype},{self.b_dtype}->{self.out_dtype}"]
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name not in plain and value != f.default:
                words.append(f"{f.name}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join(words).replace(" ", "-")

    @property
    def compute_dtype(self) -> dtypes.DType:
        a, b, out = (dtypes.as_dtype(x) for x in (self.a_dtype, self.b_dtype, self.out_dtype))
        return dtypes.scaled_dtype(dtypes.compute_dtype(a, b, out), out, self.alpha, self.beta)


def possible(values: Values) -> bool:
    """Whether gemmhub ever makes this call, by the rules of its table of dtypes and of its options.

    ``values`` are fields of a case; missing ones are assumed to fit.
    """
    if "out_dtype" not in values:
        return any(possible({**values, **choice}) for choice in AXES["dtypes"].values)
    a, b, out = (dtypes.as_dtype(values[x]) for x in ("a_dtype", "b_dtype", "out_dtype"))
    try:
        dtypes.output_dtype(a, b, out)
    except DTypeError:
        return False
    compute = dtypes.compute_dtype(a, b, out)
    kind = dtypes.info(out).kind
    operands = [dtypes.info(a), dtypes.info(b)]
    scalars = [values.get("alpha", 1), values.get("beta", 0)]
    if kind == "bool" and (values.get("c") or values.get("bias") or scalars[0] != 1):
        return False
    if kind in ("int", "uint") and any(x != int(x.real) or (kind == "uint" and x.real < 0) for x in scalars):
        return False
    if kind != "complex" and any(isinstance(x, complex) for x in scalars):
        return False
    if kind != "float" and (values.get("scale_a") or values.get("scale_b")):
        return False
    activation = values.get("activation")
    if activation and (kind in ("complex", "bool") or (activation != "relu" and kind in ("int", "uint"))):
        return False
    single = compute.name in ("float32", "complex64")
    if values.get("precision", "ieee") != "ieee" and not (
        single and any(x.inexact and x.itemsize > 2 for x in operands)
    ):
        return False
    data = values.get("data", "normal")
    if data == "nonfinite" and scalars[0] == 0:
        return False  # edges() has these cases
    return data == "normal" or any(x.inexact for x in operands)


def _plain() -> Values:
    """The default values of all axes."""
    plain: Values = {}
    for axis in AXES.values():
        plain.update(axis.values[0])
    return plain


def _alone() -> Iterator[Values]:
    """Each value of each axis with every other axis at its default, and the special runs."""
    plain = _plain()
    for values in AXES["dtypes"].values:
        yield {**plain, **values, "m": 17, "n": 24, "k": 40}
        # Sums that cancel reveal an accumulator narrower than promised.
        yield {**plain, **values, "m": 16, "n": 32, "k": 128, "data": "cancelling", "b": "col"}
    for index, main in enumerate(MAIN_DTYPES):
        # Every shape in the two most common dtypes, half of them in each of the others.
        for m, n, k in SHAPES if index < 2 else SHAPES[index % 2 :: 2]:
            yield {**plain, **main, "m": m, "n": n, "k": k}
        for name, axis in AXES.items():
            if name not in ("dtypes", "shape"):
                for values in axis.values[1:]:
                    yield {**plain, **main, "m": 32, "n": 64, "k": 48, **values}
        for activation, data in (("relu", "nonfinite"), ("gelu", "nonfinite"), ("gelu", "wide"), ("silu", "wide")):
            yield {**plain, **main, "m": 32, "n": 32, "k": 32, "activation": activation, "data": data}
        for a in ("row", "col"):
            for b in ("row", "col"):
                layouts = {**plain, **main, "a": a, "b": b, "m": 32, "n": 48, "k": 64}
                for out in ("row", "col"):
                    yield {**layouts, "out": out}
                yield {**layouts, "batch": (3,)}
                yield {**layouts, "packed": True}
        yield {**plain, **main, "m": 5, "n": 37, "k": 19, "packed": True}
        yield {**plain, **main, "m": 5, "n": 16, "k": 32, "batch": (3,), "b_batch": "missing", "packed": True}
        # Folding the batch into m would read one addend as a stack of them.
        yield {**plain, **main, "m": 5, "n": 16, "k": 32, "batch": (3,), "b_batch": "missing", "c": "shared", "beta": 1}
        yield {**plain, **main, "m": 64, "n": 64, "k": 64, "threads": 4}
        yield {**plain, **main, "m": 33, "n": 65, "k": 70, "threads": 4}
        for m, n, k in ((1, 64, 256), (64, 64, 64), (130, 66, 70), (16, 16, 2048)):
            yield {**plain, **main, "m": m, "n": n, "k": k, "every_candidate": True}
        yield {**plain, **main, "m": 64, "n": 64, "k": 8192, "deterministic": True}
        yield {**plain, **main, "m": 16, "n": 48, "k": 32, "c": "row", "beta": 1, "c_dtype": "compute"}
        yield {**plain, **main, "m": 16, "n": 48, "k": 32, "bias": "n", "bias_dtype": "compute"}
        # Square: shapes do not reveal a bias along the wrong axis, or a transposed result.
        for bias in ("n", "m"):
            yield {**plain, **main, "m": 32, "n": 32, "k": 32, "bias": bias, "out": "col", "b": "col"}
    float32 = {**plain, "a_dtype": "float32", "b_dtype": "float32", "out_dtype": "float32"}
    # Scalars beyond float32's range, with operands that bring the result into range.
    for kind, result in (("float32", "float32"), ("bfloat16", "float32"), ("complex64", "complex64")):
        scaled = {**plain, "a_dtype": kind, "b_dtype": kind, "out_dtype": result, "m": 32, "n": 64, "k": 48}
        for alpha, data in ((1e40, "tiny"), (1e-42, "huge")):
            yield {**scaled, "alpha": alpha, "data": data}
            yield {**scaled, "data": data, "c": "row", "beta": alpha}
    for trap, precision in (
        ("tf32_trap", "ieee"),
        ("bf16x2_trap", "ieee"),
        ("bf16_trap", "ieee"),
        ("tf32_trap", "bf16x3"),
        ("bf16_trap", "bf16x3"),
        ("bf16_trap", "tf32"),
    ):
        for m, n, k in ((8, 8, 8), (64, 64, 32), (33, 17, 65), (1, 128, 40), (128, 128, 64)):
            yield {**float32, "m": m, "n": n, "k": k, "data": trap, "precision": precision}


def _edges() -> Iterator[Values]:
    """Yield the values of :func:`edges`."""
    for main in MAIN_DTYPES:
        plain = {**_plain(), **main, "m": 32, "n": 32, "k": 32}
        for k in (31, 63):
            yield {**plain, "m": 64, "n": 64, "k": k, "a": "col", "b": "row"}
            yield {**plain, "m": 64, "n": 64, "k": k, "a": "row_padded", "b": "col_padded"}
        yield {**plain, "m": 16, "n": 16, "k": 31, "batch": (8,), "a": "interleaved"}
        yield {**plain, "m": 16, "n": 31, "k": 16, "batch": (8,), "b": "interleaved", "out": "interleaved"}
        for dtype in (None, "compute"):
            yield {**plain, "bias": "n", "bias_dtype": dtype, "bias_offset": 1}
            yield {**plain, "bias": "m", "bias_dtype": dtype, "bias_offset": 1, "out": "col"}
        yield {**plain, "alpha": 0, "data": "nonfinite"}
        yield {**plain, "alpha": 0, "data": "nonfinite", "c": "row", "beta": 1, "bias": "n"}


def _covering() -> Iterator[Values]:
    """Yield cases until each value of each axis is combined with the important values of every other axis."""
    choices = [(name, i) for name, axis in AXES.items() for i in range(len(axis.values))]
    main = {(name, i) for name, axis in AXES.items() for i in range(axis.main)}
    wanted: dict[frozenset[tuple[str, int]], None] = {}
    for x, y in combinations(choices, 2):
        if x[0] != y[0] and (x in main or y in main) and possible({**_value(x), **_value(y)}):
            wanted[frozenset((x, y))] = None
    rng = np.random.default_rng(20240229)
    while wanted:
        chosen: list[tuple[str, int]] = sorted(next(iter(wanted)))
        values = {**_value(chosen[0]), **_value(chosen[1])}
        del wanted[frozenset(chosen)]
        rest = [name for name in AXES if name not in (chosen[0][0], chosen[1][0])]
        # The dtypes limit all other values, so they come first.
        rest.sort(key=lambda name: name != "dtypes")
        for name in rest:
            options = [(name, i) for i in range(len(AXES[name].values))]
            options = [x for x in options if possible({**values, **_value(x)})]
            gains = [sum(frozenset((x, y)) in wanted for y in chosen) for x in options]
            best = [x for x, gain in zip(options, gains) if gain == max(gains)]
            pick = best[int(rng.integers(len(best)))] if max(gains) else options[0]
            for y in chosen:
                wanted.pop(frozenset((pick, y)), None)
            chosen.append(pick)
            values.update(_value(pick))
        yield values


def _scaled() -> Iterator[Values]:
    """Scales of operands, alone and with every other part of the epilogue."""
    square = {**_plain(), "m": 32, "n": 32, "k": 32}  # no shape tells the one axis from the other
    for kind, result in (
        ("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("float64", "float64"),
        ("float8_e4m3fn", "bfloat16"), ("int8", "float32"), ("int8", "float64"), ("uint8", "float32"),
    ):  # fmt: skip
        plain = {**square, "a_dtype": kind, "b_dtype": kind, "out_dtype": result}
        for scale_a, scale_b in (("one", None), (None, "one"), ("each", None), (None, "each"), ("each", "each")):
            yield {**plain, "scale_a": scale_a, "scale_b": scale_b}
        both = {"scale_a": "each", "scale_b": "each"}
        yield {**plain, **both, "m": 17, "n": 41, "k": 70, "b": "col", "out": "col", "scale_stride": 2}
        yield {**plain, **both, "batch": (3,), "b_batch": "missing", "m": 5, "packed": True}
        epilogue = {"alpha": 0.7, "c": "row", "beta": -1.3, "bias": "n", "activation": "gelu"}
        yield {**plain, **both, **epilogue, "batch": (3,), "b_batch": "missing"}
        yield {**plain, **both, "alpha": 0, "c": "row", "beta": 1}
        yield {**plain, **both, "m": 130, "n": 150, "k": 600, "threads": 4, "deterministic": True}


def results(a: str, b: str) -> tuple[str, ...]:
    """Return every dtype that ``out_dtype`` may give the product of these operands, the natural one among them."""
    return tuple(x for x in dtypes.SUPPORTED if possible({"a_dtype": a, "b_dtype": b, "out_dtype": x}))


def _results() -> Iterator[Values]:
    """Every ``out_dtype`` of the main operands, and k = 0 in every batch: alone and batched, b packed and not."""
    plain = {**_plain(), "m": 17, "n": 24, "k": 40}
    batches: tuple[Values, ...] = ({}, {"batch": (3,), "b_batch": "missing"})
    for main in MAIN_DTYPES:
        a, b = main["a_dtype"], main["b_dtype"]
        for out in results(a, b):
            for batch in batches:
                for packed in (False, True):
                    yield {**plain, **main, "out_dtype": out, **batch, "packed": packed}
        empty = {**plain, **main, "m": 5, "n": 16, "k": 0}
        for batch in AXES["batch"].values:
            yield {**empty, **batch}
            yield {**empty, **batch, "c": "row", "beta": 1, "bias": "n"}
        for batch in batches:
            yield {**empty, **batch, "packed": True}


def _value(choice: tuple[str, int]) -> Values:
    return AXES[choice[0]].values[choice[1]]


def _case(values: Values, seed: int) -> Case | None:
    """The case of ``values``, with dependent fields adjusted; None if there is none."""
    values = dict(values)
    if values["c"] is None:
        values["beta"] = 0
    if values["c"] in (None, "out"):
        values["c_dtype"] = None
    if values["bias"] is None:
        values["bias_dtype"] = None
    if not values["batch"] and values["c"] == "shared":
        values["c"] = "row"
    if not possible(values):
        return None
    case = Case(**values, seed=seed)
    compute = case.compute_dtype.name
    dtype = {"compute": None if compute == case.out_dtype else compute, None: None}
    return replace(case, c_dtype=dtype[case.c_dtype], bias_dtype=dtype[case.bias_dtype])


@lru_cache(maxsize=1)
def edges() -> tuple[Case, ...]:
    """The cases of the matrix for faults that hardly any other case reveals; every selection should include them.

    - K is one less than a multiple of a tile's K, and rows are aligned: a bound that is off by one reads the next row,
      or the next element, which are NaN.
    - Rows are aligned and matrices of a batch are not: vector loads depend on the batch strides, too.
    - Only the bias is not aligned.
    - alpha is 0: the operands are ignored, NaN or not.
    """
    unique: dict[str, Case] = {}
    for values in _edges():
        case = _case({**values, "data": "normal"}, seed=len(unique))
        inexact = dtypes.info(dtypes.as_dtype(values["a_dtype"])).inexact
        if case is not None and (inexact or values["data"] == "normal"):
            case = replace(case, data=values["data"])
            unique.setdefault(str(case), case)
    return tuple(unique.values())


@lru_cache(maxsize=1)
def matrix() -> tuple[Case, ...]:
    """The fixed test problems, in a fixed order with fixed seeds; a few hundred."""
    unique: dict[str, Case] = {}

    def add(every: Iterable[Values], seed: int) -> None:
        for values in every:
            case = _case(values, seed + len(unique))
            if case is not None:
                unique.setdefault(str(case), case)

    add((*_alone(), *_covering()), 1000)
    for case in edges():
        unique.setdefault(str(case), case)
    add(_scaled(), 5000)
    add(_results(), 9000)
    return tuple(unique.values())


EPILOGUES: tuple[Values, ...] = (
    {},
    {"alpha": 0.7, "c": "row", "beta": -1.3, "bias": "n", "activation": "relu"},
    {"alpha": 0.7, "c": "out", "beta": -1.3, "bias": "m", "activation": "gelu"},
    {"bias": "n", "activation": "silu"},
)
"""Epilogues of :func:`draw_few_kernels`."""


def draw_few_kernels(count: int, dtype: Callable[[np.random.Generator, bool], str], aligned: float) -> Iterator[Case]:
    """``count`` random problems for a backend that compiles kernels: few epilogues, sizes up to 360, some up to 2048.

    ``dtype`` draws the operands' dtype, given whether there is an epilogue; with the probability ``aligned`` all sizes
    are multiples of 8. The problems are the same in every run.
    """
    rng = np.random.default_rng(0)
    for i in range(count):
        longest = 11 if i % 20 == 0 else 8.5
        m, n, k = (int(2 ** rng.uniform(0, longest)) for _ in range(3))
        if rng.random() < aligned:
            m, n, k = (-(-size // 8) * 8 for size in (m, n, k))
        epilogue = EPILOGUES[rng.integers(len(EPILOGUES))]
        kind = dtype(rng, bool(epilogue))
        values: Values = {
            "out_dtype": str(rng.choice([kind, "float32"])), "a": str(rng.choice(["row", "col"])),
            "b": str(rng.choice(["row", "col"])), "out": "row" if epilogue else str(rng.choice(["row", "col"])),
            "batch": (3,) if rng.random() < 0.1 else (),
        }  # fmt: skip
        yield Case(m, n, k, kind, kind, **values, seed=i, **epilogue)


def draw(rng: np.random.Generator) -> Case:
    """A random problem: most axes at their default, sizes up to 200, data seeded from ``rng``.

    In some k is 0, the result has any dtype that ``out_dtype`` may give it, or b is packed.
    """
    while True:
        values: dict[str, Any] = {}
        for name, axis in AXES.items():
            plain = name != "dtypes" and rng.random() < 0.6
            values.update(axis.values[0 if plain else int(rng.integers(len(axis.values)))])
        sizes = np.exp(rng.uniform(0.0, np.log(200.0), 3)).astype(int)
        values.update(zip("mnk", (int(x) for x in sizes)))
        if rng.random() < 0.1:
            values["k"] = 0
        if rng.random() < 0.25:
            values["out_dtype"] = str(rng.choice(results(values["a_dtype"], values["b_dtype"])))
        if rng.random() < 0.2:
            values["packed"] = True
            values["b_batch"] = "missing" if values["batch"] else "full"
        if rng.random() < 0.1:
            values["scale_a"], values["scale_b"] = (str(x) for x in rng.choice(["one", "each"], 2))
        case = _case(values, seed=int(rng.integers(2**31)))
        if case is not None:
            return case
