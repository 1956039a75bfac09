"""The test problems of the conformance kit.

A :class:`~gemmhub.testing.case.Case` describes one problem completely. :func:`matrix` is the fixed set that every
backend runs, and :func:`draw` makes random ones. The full cross product of the axes would be billions of cases; the
matrix has each value of each axis alone (for backends that accept few) and each value together with the important
values of every other axis (a covering array, built greedily as in AETG: Cohen, Dalal, Fredman, Patton, IEEE
Trans. Software Eng. 23, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from gemmhub import dtypes, epilogues
from gemmhub.operands import OPERANDS
from gemmhub.testing.axes import DTYPES, MAIN_DTYPES, SHAPES, Values, axes
from gemmhub.testing.case import Case, lacking, possible
from gemmhub.testing.forms import forms

EPILOGUES: tuple[Values, ...] = (
    {},
    {"alpha": 0.7, "c": "row", "beta": -1.3, "bias": "n", "activation": "relu"},
    {"alpha": 0.7, "c": "out", "beta": -1.3, "bias": "m", "activation": "gelu"},
    {"bias": "n", "activation": "silu"},
    {"bias": "n", "activation": "gelu_tanh"},
)
"""Epilogues of the cases of rows' bits, and of :func:`draw_few_kernels`."""


def _plain() -> Values:
    """The default values of all axes."""
    plain: Values = {}
    for axis in axes().values():
        plain.update(axis.values[0])
    return plain


def _alone() -> Iterator[Values]:
    """Each value of each axis with every other axis at its default, and the special runs."""
    plain = _plain()
    for values in DTYPES:
        yield {**plain, **values, "m": 17, "n": 24, "k": 40}
        # Sums that cancel reveal an accumulator narrower than promised.
        yield {**plain, **values, "m": 16, "n": 32, "k": 128, "data": "cancelling", "b": "col"}
    forms_of_a: tuple[Values, ...] = ({}, {"m": 1}, {"batch": (3,), "a": "col"}, {"batch": (2,), "b_batch": "missing"})
    for index, values in enumerate(DTYPES):
        rows = {**plain, **values, "m": 21, "n": 28, "k": 66, **forms_of_a[index % 4]}
        yield {**rows, "reproducible": "batch", "every_candidate": True}
    for index, main in enumerate(MAIN_DTYPES):
        # Every shape in the two most common dtypes, half of them in each of the others.
        for m, n, k in SHAPES if index < 2 else SHAPES[index % 2 :: 2]:
            yield {**plain, **main, "m": m, "n": n, "k": k}
        for name, axis in axes().items():
            if name not in ("dtypes", "shape"):
                for values in axis.values[1:]:
                    yield {**plain, **main, "m": 32, "n": 64, "k": 48, **values}
        for activation in epilogues.EPILOGUES:
            for data in ("nonfinite", "wide"):
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
        yield {**plain, **main, "m": 64, "n": 64, "k": 8192, "reproducible": "run"}
        rows = {**plain, **main, "reproducible": "batch"}
        yield {**rows, "m": 130, "n": 34, "k": 97, "every_candidate": True, "threads": 3}
        yield {**rows, "m": 16, "n": 24, "k": 2048, "every_candidate": True, "b": "col"}
        for epilogue in (EPILOGUES[1 + index % 4], EPILOGUES[1 + (index + 1) % 4]):
            yield {**rows, "m": 37, "n": 40, "k": 64, **epilogue}
        yield {**plain, **main, "m": 16, "n": 48, "k": 32, "c": "row", "beta": 1, "c_dtype": "compute"}
        yield {**plain, **main, "m": 16, "n": 48, "k": 32, "bias": "n", "bias_dtype": "compute"}
        # Square: shapes do not reveal a bias along the wrong axis, or a transposed result.
        for bias in ("n", "m"):
            yield {**plain, **main, "m": 32, "n": 32, "k": 32, "bias": bias, "out": "col", "b": "col"}
    float32 = {**plain, "a_dtype": "float32", "b_dtype": "float32", "out_dtype": "float32"}
    # Scalars beyond float32's range, with operands that bring the result into range.
    for dtype, result in (("float32", "float32"), ("bfloat16", "float32"), ("complex64", "complex64")):
        scaled = {**plain, "a_dtype": dtype, "b_dtype": dtype, "out_dtype": result, "m": 32, "n": 64, "k": 48}
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
    every = axes()

    def value(choice: tuple[str, int]) -> Values:
        return every[choice[0]].values[choice[1]]

    choices = [(name, i) for name, axis in every.items() for i in range(len(axis.values))]
    main = {(name, i) for name, axis in every.items() for i in range(axis.main)}
    wanted: dict[frozenset[tuple[str, int]], None] = {}
    for x, y in combinations(choices, 2):
        if x[0] != y[0] and (x in main or y in main) and possible({**value(x), **value(y)}):
            wanted[frozenset((x, y))] = None
    rng = np.random.default_rng(20240229)
    while wanted:
        chosen: list[tuple[str, int]] = sorted(next(iter(wanted)))
        values = {**value(chosen[0]), **value(chosen[1])}
        del wanted[frozenset(chosen)]
        rest = [name for name in every if name not in (chosen[0][0], chosen[1][0])]
        # The dtypes limit all other values, so they come first.
        rest.sort(key=lambda name: name != "dtypes")
        for name in rest:
            options = [(name, i) for i in range(len(every[name].values))]
            options = [x for x in options if possible({**values, **value(x)})]
            gains = [sum(frozenset((x, y)) in wanted for y in chosen) for x in options]
            best = [x for x, gain in zip(options, gains) if gain == max(gains)]
            pick = best[int(rng.integers(len(best)))] if max(gains) else options[0]
            for y in chosen:
                wanted.pop(frozenset((pick, y)), None)
            chosen.append(pick)
            values.update(value(pick))
        yield values


def _with_operands() -> Iterator[Values]:
    """The other operands of the table: every form alone, and together with every other part of the epilogue."""
    for index, (dtype, result) in enumerate((
        ("float32", "float32"), ("bfloat16", "bfloat16"), ("float8_e4m3fn", "bfloat16"), ("int8", "float32"),
        ("float16", "float16"), ("float64", "float64"), ("int8", "float64"), ("uint8", "float32"),
        ("float8_e4m3fn", "float8_e4m3fn"), ("int8", "bfloat16"), ("bfloat16", "float8_e5m2"), ("uint8", "float16"),
    )):  # fmt: skip
        plain = {**_plain(), "a_dtype": dtype, "b_dtype": dtype, "out_dtype": result}
        square = {**plain, "m": 32, "n": 32, "k": 32}  # no shape distinguishes the axes
        for name in OPERANDS:
            for form in forms(name) if index < 4 and name not in ("c", "bias") else ():
                batch = {"batch": (2,)} if form.startswith("batch") else {}
                yield {**plain, **batch, "m": 17, "n": 290, "k": 300, "operands": {name: form}}
        for pair in ({"scale_a": "row"}, {"scale_b": "column"}, {"scale_a": "row", "scale_b": "column"}):
            yield {**square, "operands": pair}
        both = {"operands": {"scale_a": "row", "scale_b": "column"}}
        yield {**plain, **both, "m": 17, "n": 41, "k": 70, "b": "col", "out": "col", "operand_stride": 2}
        yield {**square, **both, "batch": (3,), "b_batch": "missing", "m": 5, "packed": True}
        epilogue = {"alpha": 0.7, "c": "row", "beta": -1.3, "bias": "n", "activation": "gelu"}
        yield {**square, **both, **epilogue, "batch": (3,), "b_batch": "missing"}
        yield {**square, **both, "alpha": 0, "c": "row", "beta": 1}
        yield {**plain, **both, "m": 130, "n": 150, "k": 600, "threads": 4, "reproducible": "run"}
        yield {**plain, **both, "m": 33, "n": 40, "k": 64, "bias": "n", "reproducible": "batch"}
        blocks = {"scale_a": "1x128", "scale_b": "128x128"}
        yield {**plain, "m": 9, "n": 150, "k": 300, "operands": blocks, "c": "row", "beta": 2, "reproducible": "batch"}
        yield {**plain, "m": 40, "n": 256, "k": 256, "operands": blocks, "packed": True}
        yield {**plain, "m": 1, "n": 385, "k": 257, "operands": blocks, "b": "col", "operand_stride": 3}
        every = {**blocks, "scale_out": "tensor", "pre_activation": "matrix", "amax": "tensor"}
        for activation in (None, *epilogues.EPILOGUES):
            padded = {"m": 9, "n": 140, "k": 130, "out": "row_padded"}
            for values in (padded, {"m": 32, "n": 32, "k": 32, "out": "col", "wide": True}):
                yield {**plain, **values, **epilogue, "operands": every, "activation": activation, "bias": "m"}
        for data in ("nonfinite", "wide", "large"):
            yield {**square, "operands": {"amax": "tensor", "pre_activation": "matrix"}, "data": data}
        yield {**square, "operands": every, "activation": "silu", "threads": 4}
        yield {**square, "operands": every, "batch": (2, 3), "b_batch": "outer", "activation": "relu"}


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
        for batch in axes()["batch"].values:
            yield {**empty, **batch}
            yield {**empty, **batch, "c": "row", "beta": 1, "bias": "n"}
        for batch in batches:
            yield {**empty, **batch, "packed": True}


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


def matrix() -> tuple[Case, ...]:
    """The fixed test problems, in a fixed order with fixed seeds; about two thousand."""
    return _matrix(tuple(epilogues.EPILOGUES), tuple(OPERANDS))


@lru_cache(maxsize=2)
def _matrix(names: tuple[str, ...], operands: tuple[str, ...]) -> tuple[Case, ...]:
    """The cases while these are the tables of epilogues and operands."""
    unique: dict[str, Case] = {}

    def add(every: Iterable[Values], seed: int) -> None:
        for values in every:
            case = _case(values, seed + len(unique))
            if case is not None:
                unique.setdefault(str(case), case)

    add((*_alone(), *_covering()), 1000)
    for case in edges():
        unique.setdefault(str(case), case)
    add(_with_operands(), 5000)
    add(_results(), 9000)
    return tuple(unique.values())


def draw_few_kernels(count: int, dtype: Callable[[np.random.Generator, bool], str], aligned: float) -> Iterator[Case]:
    """``count`` random problems for a backend that compiles kernels: few epilogues, sizes up to 360, some up to 2048.

    ``dtype`` draws the operands' dtype from a flag for an epilogue; with the probability ``aligned`` all sizes
    are multiples of 8. The problems are the same in every run.
    """
    rng = np.random.default_rng(0)
    for i in range(count):
        longest = 11 if i % 20 == 0 else 8.5
        m, n, k = (int(2 ** rng.uniform(0, longest)) for _ in range(3))
        if rng.random() < aligned:
            m, n, k = (-(-size // 8) * 8 for size in (m, n, k))
        epilogue = EPILOGUES[rng.integers(len(EPILOGUES))]
        operand_dtype = dtype(rng, bool(epilogue))
        values: Values = {
            "out_dtype": str(rng.choice([operand_dtype, "float32"])), "a": str(rng.choice(["row", "col"])),
            "b": str(rng.choice(["row", "col"])), "out": "row" if epilogue else str(rng.choice(["row", "col"])),
            "batch": (3,) if rng.random() < 0.1 else (),
        }  # fmt: skip
        yield Case(m, n, k, operand_dtype, operand_dtype, **values, seed=i, **epilogue)


def draw(rng: np.random.Generator, takes: Mapping[str, frozenset[str] | None] | None = None) -> Case:
    """A random problem: most axes at their default, sizes up to 200, data seeded from ``rng``.

    In some k is 0, the result has any dtype that ``out_dtype`` may give it, or b is packed. ``takes`` is
    :attr:`gemmhub.backend.Backend.takes` of a backend, which then gets nothing else; None for everything.
    """
    while True:
        values: dict[str, Any] = {}
        for name, axis in axes().items():
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
            if values["a_batch"] in ("one", "outer"):
                values["a_batch"] = "full"  # one of the operands has every matrix of the result
        if rng.random() < 0.2:
            names = [name for name in OPERANDS if name not in ("c", "bias") and rng.random() < 0.5]
            values["operands"] = {name: str(rng.choice([*forms(name)])) for name in names}
            values["operand_stride"], values["wide"] = int(rng.integers(1, 3)), bool(rng.integers(2))
        case = _case(values, seed=int(rng.integers(2**31)))
        if case is not None and (takes is None or not lacking(case, takes)):
            return case
