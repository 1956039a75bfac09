"""The claims of an implementation: the products that it documents. What it does not claim is no fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gemmhub.dtypes import PRECISIONS, SHORT_DTYPES, SUPPORTED, single
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import InputError
from gemmhub.operands import OPERANDS
from gemmhub.testing.axes import LAYOUTS
from gemmhub.testing.case import Case, broadcast, lacking
from gemmhub.testing.forms import forms

FEATURES = {
    "out": "a result that the caller passes as out=",
    "alias": "a result in the memory of an operand",
    "batch": "stacks of matrices, which broadcast as numpy.matmul's do",
    "alpha": "a factor of the product",
    "wide scalars": "alpha and beta beyond the range of float32, where the accumulator is float32",
    "zero alpha": "with alpha = 0, NaN in a and b does not reach the result",
    "zero beta": "with beta = 0, NaN in c does not reach the result",
    "c in place": "an addend in the memory of the result",
    "c and bias": "both addends in one call",
    "addend dtypes": "addends of the accumulator's dtype beside a narrower result",
}
"""Features of a product beside its dtypes, layouts and operands."""

BITS = {
    "run": "equal calls give equal bits",
    "threads": "a call gives the same bits beside calls of other threads",
    "rows": "a row has the same bits among any other rows",
}
"""Promises on the bits of results. An audit tests each for every implementation; only a claim makes it a fault."""


class Note(NamedTuple):
    """A fact that the claims rest on, and its source."""

    text: str
    source: str


Products = frozenset[tuple[str, str, str]]


def products(text: str) -> Products:
    """Return the products of a text such as "f32 int8->int32": an operand dtype, or that and the result's, each.

    Short names are those of :data:`gemmhub.dtypes.SHORT_DTYPES`.
    """
    found = set()
    for word in text.split():
        operand, _, result = word.partition("->")
        a, out = (SHORT_DTYPES.get(x, x) for x in (operand, result or operand))
        for name in (a, out):
            if name not in SUPPORTED:
                raise InputError("products", repr(name), ", ".join(SUPPORTED))
        found.add((a, a, out))
    return frozenset(found)


@dataclass(frozen=True)
class Claims:
    """The products that an implementation claims to compute within gemmhub's bound (:mod:`gemmhub.accuracy`).

    Parameters
    ----------
    products : dtypes of (a, b, result), as :func:`gemmhub.testing.products` returns them.
    layouts : layouts of operands, names of :func:`gemmhub.testing.memory.strides`.
    takes : operands beside a and b and their forms, as :attr:`gemmhub.Backend.takes` names them.
    features : names of features: "out", "alias", "batch", "alpha", "wide scalars", "zero alpha", "zero beta",
        "c in place", "c and bias", "addend dtypes".
    bits : promises on bits: "run", "threads", "rows".
    precision : precision of float32 products, a name of :data:`gemmhub.dtypes.PRECISIONS`; None where a call takes
        any.
    notes : facts that these claims rest on, each with its source.
    """

    products: Products
    layouts: frozenset[str] = frozenset(LAYOUTS)
    takes: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    bits: frozenset[str] = frozenset()
    precision: str | None = "ieee"
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.products, str) or not all(
            isinstance(x, tuple) and len(x) == 3 and set(x) <= set(SUPPORTED) for x in _set("products", self.products)
        ):
            raise InputError("products", repr(self.products), "a set of dtypes of (a, b, result)", 'products("f32")')
        for argument, allowed in (("layouts", LAYOUTS), ("features", FEATURES), ("bits", BITS)):
            _check_names(argument, getattr(self, argument), allowed)
        if self.precision is not None and self.precision not in PRECISIONS:
            raise InputError("precision", repr(self.precision), f"{', '.join(PRECISIONS)}, None")
        if not isinstance(self.takes, Mapping):
            raise InputError("takes", repr(self.takes), "a mapping of operands to sets of forms")
        for name, taken in self.takes.items():
            known = known_forms(name)
            if taken is not None:
                _check_names(f"takes[{name!r}]", taken, known)

    def covers(self, case: Case) -> bool:
        """Whether the product of ``case`` is claimed."""
        return (
            (case.a_dtype, case.b_dtype, case.out_dtype) in self.products
            and _spans_its_batch(case)
            and {case.a, case.b, *self._other_layouts(case)} <= self.layouts
            and set(_features(case)) <= self.features
            and not (lacking(case, self.takes) if self.precision is None else lacking(_at_ieee(case), self.takes))
        )

    def _other_layouts(self, case: Case) -> Iterator[str]:
        if case.out != "row":
            yield case.out if "out" in self.features else "row"
        if case.c is not None and case.c not in ("out", "shared", "rows0"):
            yield case.c


def known_forms(name: str) -> tuple[str, ...]:
    """The forms of an operand, or the values of an option, that :attr:`Claims.takes` may name."""
    options = {
        "activation": EPILOGUES,
        "precision": PRECISIONS,
        "reproducible": ("run", "batch"),
        "groups": (),
        "symmetric": (),
    }
    if name in options:
        return tuple(options[name])
    if name not in OPERANDS:
        raise InputError("takes", repr(name), ", ".join((*OPERANDS, *options)))
    return tuple(forms(name))


def _check_names(argument: str, names: object, allowed: Iterable[str]) -> None:
    for name in sorted(_set(argument, names), key=str):
        if name not in allowed:
            raise InputError(argument, repr(name), ", ".join(allowed))


def _set(argument: str, value: object) -> Set[Any]:
    if not isinstance(value, Set):
        remedy = f"write frozenset({{{value!r}}})" if isinstance(value, str) else ""
        raise InputError(argument, repr(value), "a set of names", remedy)
    return value


def _spans_its_batch(case: Case) -> bool:
    """Whether the operands broadcast to the batch of the case: a reduced one may not."""
    a, b = (broadcast(case.batch, form)[0] for form in (case.a_batch, case.b_batch))
    return np.broadcast_shapes(a, b) == case.batch


def _at_ieee(case: Case) -> Case:
    """``case`` with the default precision: that of a library is a fact about all its calls, not an operand."""
    return replace(case, precision="ieee")


def _features(case: Case) -> Iterable[str]:
    """Yield the features that a case needs."""
    if case.batch:
        yield "batch"
    if case.alpha != 1:
        yield "alpha"
    if not (single(case.alpha) and single(case.beta)):
        yield "wide scalars"
    if case.alpha == 0 and case.data == "nonfinite":
        yield "zero alpha"
    if case.c is not None and case.beta == 0:
        yield "zero beta"
    if case.c == "out":
        yield "c in place"
    if case.c is not None and case.bias is not None:
        yield "c and bias"
    if case.c_dtype is not None or case.bias_dtype is not None:
        yield "addend dtypes"
