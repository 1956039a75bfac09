"""The forms that each operand of the table may have, and the shape of an array of each.

They are read from :data:`gemmhub.operands.OPERANDS`: an array of every shape that a product's sizes make is described,
and the description names its form. A new row of the table is thus drawn without a line here.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product as combinations

import numpy as np

from gemmhub.errors import InputError
from gemmhub.operands import OPERANDS, Product, Row, blocks, described

Shape = tuple[str, ...]
"""Names of sizes: see :func:`_sizes`. "batch" stands for all dimensions of the batch."""

_FLOAT32 = np.dtype(np.float32)
_TYPICAL = Product(600, 300, 900, (2,), 3, 3, (2, 600, 300), _FLOAT32, _FLOAT32)
"""A product whose sizes, and numbers of blocks, are all different."""


def forms(name: str) -> dict[str, Shape]:
    """Return the forms of an operand, as :attr:`gemmhub.backend.Backend.takes` names them, with a shape of each."""
    return _forms(OPERANDS[name])


def shape(name: str, form: str, m: int, n: int, k: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an operand of this form for a product of these sizes.

    Where a size is 1, or no more than a block, the array may be of a simpler form, too.
    """
    sizes = _sizes(m, n, k)
    parts = ((*batch,) if part == "batch" else (sizes[part],) for part in forms(name)[form])
    return tuple(size for part in parts for size in part)


def _sizes(m: int, n: int, k: int) -> dict[str, int]:
    counts = {f"blocks of {name}": blocks(size) or 1 for name, size in (("m", m), ("n", n), ("k", k))}
    return {"1": 1, "m": m, "n": n, "k": k, **counts}


@lru_cache(maxsize=64)
def _forms(row: Row) -> dict[str, Shape]:
    sizes = {**_sizes(_TYPICAL.m, _TYPICAL.n, _TYPICAL.k), "batch": _TYPICAL.batch[0]}
    names = [name for name in sizes if name != "batch"]
    pairs = [*combinations(names, names)]
    # Of the shapes of one form the last is kept: that of most dimensions.
    shapes = [(), *((name,) for name in names), *pairs, *(("batch", *pair) for pair in pairs)]
    by_form: dict[str, Shape] = {}
    for shape in shapes:
        array = np.empty([sizes[name] for name in shape], row.dtypes(_TYPICAL)[0])
        try:
            by_form[described(row.name, array, _TYPICAL)[1].form] = shape
        except InputError:
            continue
    return by_form
