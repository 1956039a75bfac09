"""The cluster tiles of symmetric products: those with elements at or below the diagonal (tile_scheduler.cuh)."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np


def tiles(rows: Any, columns: Any, height: Any, width: Any) -> Any:
    """Return how many of ``rows`` by ``columns`` tiles of ``height`` by ``width`` elements have elements of the lower
    triangle; of arrays, as many for each of their elements.
    """
    ends = np.arange(1, 1 + np.max(rows, initial=0))[:, None]  # of rows of tiles
    reached = np.minimum(-(-ends * np.atleast_1d(height) // width), columns)
    count = np.where(ends <= rows, reached, 0).sum(axis=0)
    return count if isinstance(rows, np.ndarray) else int(count[0])


def band(group: int, height: int, width: int) -> int:
    """Return the rows of tiles of a band near ``group``: those of whole squares of tiles."""
    unit = width // gcd(height, width)
    return max(1, round(group / unit)) * unit
