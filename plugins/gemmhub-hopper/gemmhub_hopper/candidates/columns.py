"""Many candidates of one scheme at once: every number is an array, with one for each candidate."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub._base.evicting import keep
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.lowering import k_passes
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.variants import shapes
from gemmhub_hopper.variants.config import Form, Variant
from gemmhub_hopper.variants.shapes import ShapeList, Shapes

Numbers = Any
"""A number, or an array with one for each candidate."""
_KEPT = 256


class Table:
    """A table of what forms and their shapes decide: a row for each form and each of its shapes."""

    def __init__(self, forms: Sequence[Form], lists: Sequence[ShapeList]) -> None:
        self.forms, self.lists = forms, lists
        self.which: Numbers = np.repeat(np.arange(len(lists)), [len(some) for some in lists])
        """The index of the form of a row."""
        self.shape = Shapes.of([shape for some in lists for shape in some])
        variants = [Variant(some.arrays, form) for form, some in zip(forms, lists)]  # their sizes in bytes are arrays
        self.a_bytes: Numbers = np.concatenate([x.a_bytes for x in variants])
        self.b_bytes: Numbers = np.concatenate([x.b_bytes for x in variants])
        self._runnable: dict[tuple[bool, int], Numbers] = {}

    def runnable(self, split_k: bool, count: int) -> Numbers:
        """Return for which rows there are kernels for ``count`` K passes; three stand for more."""
        runs = self._runnable.get((split_k, count))
        if runs is None:
            runs = self._runnable[split_k, count] = np.array([
                not any(x.refusal for x in k_passes.variants(shape, form, split_k, count))
                for form, some in zip(self.forms, self.lists)
                for shape in some
            ], bool)  # fmt: skip
        return runs


_tables: OrderedDict[tuple[Any, ...], Table] = OrderedDict()


def table(lowerings: Sequence[Lowering]) -> Table:
    """Return the table of the forms of ``lowerings``, which is built once."""
    forms = tuple(lowering.form for lowering in lowerings)
    lists = [shapes.shapes(form) for form in forms]
    key = forms, tuple(map(id, lists))  # the table holds the lists
    known = _tables.get(key)
    if known is None:
        known = Table(forms, lists)
        keep(_tables, key, known, _KEPT)
    return known


class Columns:
    """Facts of the lowerings of one scheme, for each candidate that of its lowering."""

    def __init__(self, lowerings: Sequence[Lowering], which: Numbers) -> None:
        """``which``: the index of the lowering of each candidate."""
        self.lowerings, self.which = lowerings, which
        self.form = lowerings[0].form
        """A form of the scheme."""
        self.m, self.n, self.batch = self.of(lambda x: x.m), self.of(lambda x: x.n), self.of(lambda x: x.batch)

    def of(self, fact: Callable[[Lowering], Any]) -> Numbers:
        """Return ``fact`` of the lowering of each candidate."""
        return np.array([fact(lowering) for lowering in self.lowerings])[self.which]


@dataclass(frozen=True)
class Choices(Choice):
    """Many choices: numbers are arrays, and so are ``tiles``, ``work_tiles``, ``counters``, ``partial_bytes`` and
    ``reduces_by_slices``.
    """

    lowering: Any
    """:class:`Columns`."""
    shape: Any
    """:class:`gemmhub_hopper.variants.shapes.Shapes`."""
    splits: Any
    a_bytes: Any
    """Bytes of a in a stage."""
    b_bytes: Any

    @classmethod
    def of(cls, choice: Choice) -> Choices:
        """Return one choice as arrays."""
        shape = Shapes.of([choice.shape])
        variant = Variant(shape, choice.lowering.form)
        columns = Columns([choice.lowering], np.zeros(1, int))
        return cls(columns, shape, np.array([choice.splits]), variant.a_bytes, variant.b_bytes)

    @classmethod
    def some(cls, lowerings: Sequence[Lowering], rows: Table, numbers: Numbers, splits: Numbers) -> Choices:
        """Return the choices of these rows of the table of ``lowerings``."""
        columns = Columns(lowerings, rows.which[numbers])
        return cls(columns, rows.shape.some(numbers), splits, rows.a_bytes[numbers], rows.b_bytes[numbers])
