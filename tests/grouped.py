"""Helpers of the tests of grouped products: operands of a form, and the check of a result group by group."""

from __future__ import annotations

import numpy as np
from products import draw, ratio

FORMS = ("ragged m", "ragged k", "ragged n", "dense")
ACTIVATED = [
    (form, name)
    for form in FORMS
    for name in (None, "relu", "gelu", "silu", "swiglu")
    if (form, name) != ("ragged n", "swiglu")  # which pairs the columns that this form divides
]
"""Forms with activations."""


def sizes_of(rng, groups, most=9):
    """Random sizes of groups, some of them 0."""
    return [0 if rng.random() < 0.3 else int(rng.integers(1, most)) for _ in range(groups)]


def operands(rng, form, dtype, sizes, m=5, n=6, k=7, beyond=3):
    """(a, b, offsets) of a form, with ``beyond`` rows or columns that belong to no group."""
    groups, extent = len(sizes), sum(sizes) + beyond
    shapes = {
        "ragged m": ((extent, k), (groups, k, n)), "ragged k": ((m, extent), (extent, n)),
        "ragged n": ((groups, m, k), (k, extent)), "dense": ((groups, m, k), (groups, k, n)),
    }[form]  # fmt: skip
    ends = None if form == "dense" else np.cumsum(sizes).astype(np.int32)
    return draw(rng, shapes[0], dtype), draw(rng, shapes[1], dtype), ends


def cut(form, a, b, result, ends):
    """The operands and the results of the groups, and what is beyond the last end (written independently)."""
    if form == "dense":
        return [(a[i], b[i], result[i]) for i in range(len(a))], result[:0]
    groups = []
    for i, end in enumerate(ends):
        start = 0 if i == 0 else ends[i - 1]
        if form == "ragged m":
            groups.append((a[start:end], b[i], result[start:end]))
        elif form == "ragged n":
            groups.append((a[i], b[:, start:end], result[:, start:end]))
        else:
            groups.append((a[:, start:end], b[start:end], result[i]))
    last = 0 if len(ends) == 0 else ends[-1]
    rest = {"ragged m": result[last:], "ragged n": result[:, last:], "ragged k": result[:0]}[form]
    return groups, rest


def worst(form, a, b, ends, result, *, bias=None, c=None, **options):
    """The largest error over its bound in all groups; infinite where something beyond the last end is not zero."""
    groups, rest = cut(form, a, b, result, ends)
    largest = 0.0 if not np.any(rest != 0) else np.inf
    for i, (x, y, got) in enumerate(groups):
        own = bias if bias is None or bias.ndim == 1 else bias[i]
        if bias is not None and form == "ragged n":
            start = 0 if i == 0 else ends[i - 1]
            own = bias[start : ends[i]]
        part = None if c is None else cut(form, a, b, c, ends)[0][i][2]
        largest = max(largest, ratio(got, x, y, bias=own, c=part, **options))
    return largest
