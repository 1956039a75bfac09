"""The trials of an audit: the kit's cases, and cases for the faults of libraries, where they are claimed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gemmhub import dtypes
from gemmhub._audit.claims import Claims
from gemmhub.testing.axes import MAIN_DTYPES
from gemmhub.testing.case import Case, possible
from gemmhub.testing.cases import draw, matrix

KINDS = {
    "product": "a product, within its bound",
    "nan in c": "a product with beta = 0 and NaN in c",
    "alias": "a product that is written over an operand",
    "threads": "the same call in four threads, each with operands of its own",
    "repeat": "equal calls, in bits",
    "rows": "a product, and the same rows among others, in bits",
    "large": "a product of more than 2**31 elements",
}
"""Kinds of trials."""

_PROMISES = ("threads", "repeat", "rows")
"""Kinds of trials in which a backend is called with a promise on bits, where it takes one."""

EFFORTS = {"quick": (7, 0, 1), "normal": (1, 300, 3), "full": (1, 4000, 8)}
"""For each name of an effort: the step through the kit's matrix, the number of random cases, and a measure of the
number of K remainders, and of trials on bits and threads, of each product.
"""


@dataclass(frozen=True)
class Trial:
    """One product, and the kind of test."""

    kind: str
    case: Case

    def __str__(self) -> str:
        return f"{self.kind}: {self.case}"


def trials(claims: Claims, effort: str, seed: int) -> Iterator[Trial]:
    """Yield the trials of an effort for what is claimed, each once.

    The order is fixed by ``seed``; the short ones that reveal the most faults are first.
    """
    step, random, each = EFFORTS[effort]
    seen: set[str] = set()
    products = sorted(claims.products)
    for trial in (*_known_faults(products, each), *_matrix(step, claims), *_drawn(random, claims, seed)):
        case = _plain(trial.case, claims)
        if trial.kind in _PROMISES and "reproducible" in claims.takes:
            case = replace(case, reproducible="batch" if "rows" in claims.bits else "run")
        if not claims.covers(case) or (trial.kind == "alias" and "alias" not in claims.features):
            continue
        if trial.kind == "product" and case.beta == 0 and case.c is not None and "zero beta" not in claims.features:
            continue
        name = f"{trial.kind} {case}"
        if name not in seen:
            seen.add(name)
            yield Trial(trial.kind, case)


def _plain(case: Case, claims: Claims) -> Case:
    """The case as any library is called: without packing, promises on bits, threads and other candidates."""
    out = case.out if "out" in claims.features else "row"
    precision = case.precision if claims.precision is None else claims.precision if _single(case) else "ieee"
    return replace(
        case, packed=False, reproducible=None, threads=1, out=out, precision=precision, every_candidate=False
    )  # fmt: skip


def _single(case: Case) -> bool:
    """Whether the precision of float32 products matters to ``case``."""
    wide = {"float32", "complex64"}
    return case.compute_dtype.name in wide and bool({case.a_dtype, case.b_dtype} & wide)


def _matrix(step: int, claims: Claims) -> Iterator[Trial]:
    """Every ``step``-th of the kit's cases that are claimed."""
    claimed = [case for case in matrix() if claims.covers(_plain(case, claims))]
    for case in claimed[::step]:
        yield Trial("product", case)


def _drawn(count: int, claims: Claims, seed: int) -> Iterator[Trial]:
    """Random cases of what is claimed; up to 40 are drawn for each that is kept."""
    rng = np.random.default_rng(seed)
    products, kept = sorted(claims.products), 0
    for _ in range(40 * count if products else 0):
        a, b, out = products[int(rng.integers(len(products)))]
        case = draw(rng, claims.takes)
        if not any(dtypes.info(dtypes.as_dtype(x)).inexact for x in (a, b)):
            case = replace(case, data="normal", alpha=1, beta=int(case.beta.real))
        case = replace(case, a_dtype=a, b_dtype=b, out_dtype=out, c_dtype=None, bias_dtype=None)
        if not possible(vars(case)):
            continue
        if claims.covers(_plain(case, claims)):
            yield Trial("product", case)
            kept += 1
            if kept == count:
                return


def _known_faults(products: list[tuple[str, str, str]], each: int) -> Iterator[Trial]:
    """Trials for faults that libraries have had."""
    names = ("a_dtype", "b_dtype", "out_dtype")
    main = {tuple(x.values()) for x in MAIN_DTYPES}
    for number, product in enumerate(products):
        common = product in main or product[0] == product[2]
        named = dict(zip(names, product))
        exact = dtypes.info(dtypes.as_dtype(product[2])).kind in ("int", "uint")

        def case(m: int, n: int, k: int, named: dict[str, str] = named, number: int = number, **values: object) -> Case:
            return Case(m, n, k, **named, seed=20 + number + k + 3 * m, **values)  # type: ignore[arg-type]

        for k in _remainders(each) if common else (33, 65, 130):  # K remainders
            yield Trial("product", case(3, 5, k))
            yield Trial("product", case(16, 16, k, b="col"))
            yield Trial("product", case(1, 8, k, b="row_padded"))
        for parts in (2, 3, 5, 10) if common else ():  # split K: a remainder behind parts of whole steps of 64
            yield Trial("product", case(64, 128, 64 * parts + 8))
        for size in (1, 2, 7, 33):  # vectors, in every storage order
            for order in ("row", "col", "row_odd", "col_odd"):
                yield Trial("product", case(size, 1, 40 + size, a=order, b="col" if size % 2 else "row"))
                yield Trial("product", case(1, size, 40 + size, b=order))
        for layout in ("row_odd", "col_odd", "row_padded", "col_padded"):  # leading dimensions and NaN beside rows
            for k in (7, 31, 33):
                yield Trial("product", case(9, 17, k, a=layout))
                yield Trial("product", case(9, 17, k, b=layout))
        for batch in ({"batch": (3,)}, {"batch": (2, 3), "b_batch": "outer"}, {"batch": (3,), "b_batch": "missing"}):
            for layout in ("row", "col", "row_odd"):
                yield Trial("product", case(5, 6, 9, a=layout, **batch))
            yield Trial("product", case(6, 6, 9, **batch))
        if product[0] != "bool":
            yield from _epilogues(named, 20 + number, exact)
        if exact:
            for k in (1, 2, 3, 17, 64, 2049):
                yield Trial("product", case(4, 6, k, data="extremes"))
        else:
            for data in ("nonfinite", "cancelling", "wide", "large"):
                yield Trial("product", case(6, 7, 65, data=data))
            yield Trial("product", case(4, 4, 6000, data="cancelling"))
            yield Trial("product", case(8, 8, 12, alpha=0, data="nonfinite"))
            yield Trial("nan in c", case(8, 9, 12, c="row", beta=0))
            yield Trial("nan in c", case(8, 9, 12, c="row", beta=0, batch=(2,)))
        yield Trial("product", case(4, 6, 0))
        yield Trial("product", case(0, 6, 4))
        for over in (5, 16, 33, 64) if product[0] == product[2] else ():
            yield Trial("alias", case(over, over, over))
            yield Trial("alias", case(over, over, over, a="col", b="row_odd"))
        sizes = ((17, 24, 65), (64, 64, 300), (5, 130, 1024), (33, 40, 4100), (96, 200, 700), (257, 31, 513))
        for m, n, k in (*sizes, (8, 8, 8), (1, 512, 512))[: max(2, each)]:
            yield from (Trial(kind, case(m, n, k, data=_data(exact))) for kind in ("threads", "repeat", "rows"))


def _epilogues(named: dict[str, str], seed: int, exact: bool) -> Iterator[Trial]:
    """Trials of scalars and addends, alone and together."""
    scaled = {"alpha": 3} if exact else {"alpha": 0.7}
    addend = {"c": "row", "beta": 2 if exact else -1.3}
    for index, values in enumerate((
        scaled, addend, {"c": "row", "beta": 1}, {"bias": "n"}, {"bias": "m"}, {**scaled, **addend},
        {**scaled, "bias": "n"},
        {**scaled, **addend, "bias": "n"}, {**scaled, **addend, "bias": "m"}, {**addend, "c": "col_odd"},
    )):  # fmt: skip
        for m, n, k in ((6, 7, 9), (16, 16, 33)):
            for batch in ((), (2,)):
                case = Case(m, n, k, **named, seed=seed + index, batch=batch, **values)  # type: ignore[arg-type]
                yield Trial("product", case)


def _data(exact: bool) -> str:
    """Data whose sums are their rounding errors, so that another order of summation changes the bits."""
    return "normal" if exact else "residual"


def _remainders(each: int) -> tuple[int, ...]:
    """Values of k: small ones, and neighbours of multiples of tiles."""
    small = (1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 47, 63, 64, 65, 100, 127, 129, 257)
    more = (*range(1, 70), 96, 97, 127, 128, 129, 130, 191, 193, 255, 257, 300, 511, 513, 1000, 1025)
    return small if each == 1 else more
