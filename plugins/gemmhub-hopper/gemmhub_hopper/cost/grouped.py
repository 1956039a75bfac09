"""Estimates of grouped products, whose groups are not of one size.

The cost model estimates groups of one size, which may fill their tiles. Others do not: the last tile of a group is
filled by half on average. The host does not know the sizes. So an estimate is the mean of three: for groups of one
size, for sizes that are distributed exponentially, as those of experts nearly are, and for sizes that fall like
1 / (i + 1), of which most groups are much smaller than the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.cost.choose import Timed
from gemmhub_hopper.cost.model import Card

LOW_TILES = 1.12
"""Factor on estimates of tiles of 64 rows beside those of more, for groups of :data:`_ROWS` rows or more on average: as
much longer than their estimates took those that were timed, of 150 products on an H100.
"""
_ROWS = 32


def of_unequal_groups(timed: Sequence[Timed], card: Card) -> list[Timed]:
    """Return estimates and choices for groups of unequal sizes, the fastest first, from those for equal ones.

    More tiles do not take longer to move the operands, which a group's tiles share.
    """
    estimates: list[Timed] = []
    for seconds, choice in timed:
        assert isinstance(choice, Choice)
        moving = min(seconds, choice.lowering.nbytes / card.bandwidth)
        low = choice.shape.m == 64 and _size(choice) >= _ROWS
        estimates.append(((moving + (seconds - moving) * more_tiles(choice)) * (LOW_TILES if low else 1.0), choice))
    return sorted(estimates, key=lambda x: x[0])


def _size(choice: Choice) -> int:
    """Return the mean size of groups; ``choice`` is for equal ones."""
    lowering = choice.lowering
    return {"m": lowering.m, "n": lowering.n, "k": lowering.k}[lowering.form.divided or ""]


def more_tiles(choice: Choice) -> float:
    """Return the tiles of unequal groups as a multiple of those of equal ones; ``choice`` is for equal ones."""
    lowering, shape = choice.lowering, choice.shape
    size = _size(choice)
    tile = {"m": shape.m * shape.cluster_m, "n": shape.n * shape.cluster_n, "k": lowering.form.block_k}[
        lowering.form.divided or ""
    ]
    equal = -(-size // tile)
    unequal = -1 / math.expm1(-tile / size)  # the mean of ceil(x / tile) for an exponential x whose mean is size
    return (1 + (unequal + _skewed(lowering.groups, size, tile)) / equal) / 3


@lru_cache(maxsize=1024)
def _skewed(groups: int, size: int, tile: int) -> float:
    """Return the mean number of tiles of groups whose sizes, on average ``size``, fall like 1 / (i + 1)."""
    weights = 1 / np.arange(1, groups + 1)
    return float(np.ceil(groups * size / weights.sum() * weights / tile).mean())
