"""What is known of one of the library's algorithms before it runs: how its tiles cover a product, in how many rounds.

The enumerations of a configuration mean sizes of tiles and of clusters of thread blocks, which the library's header
says; benchmarks/cublas_fit.py took those that were measured from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from math import ceil, gcd, log
from typing import Any, TypeVar

import numpy as np

from gemmhub.native.cuda_clusters import estimated
from gemmhub_cublas.heuristics import HOPPER, parse

DATA = "tiles132.npz"

_ID, _TILE, _SPLIT, _REDUCTION, _SWIZZLE, _CUSTOM, _STAGES, _INNER, _CLUSTER = range(9)
_CUSTOMS = 8
"""Custom options that were seen."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Size:
    """One product as the library sees it: D (m x n, column-major) of A (m x k) and B (k x n)."""

    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    itemsize: int = 2
    count: int = 1


@dataclass(frozen=True)
class Tables:
    """What the enumerations in a configuration mean: sizes of tiles and of clusters of thread blocks."""

    tiles: dict[int, tuple[int, int]]
    clusters: dict[int, tuple[int, int]]
    sms: int

    def knows(self, config: str) -> bool:
        """Whether it is an algorithm for Hopper, as all were that were measured, of a tile and cluster among those."""
        numbers = parse(config)
        return numbers[_ID] == HOPPER and numbers[_TILE] in self.tiles and numbers[_CLUSTER] in self.clusters


def facts(size: Size, config: str, tables: Tables) -> dict[str, float]:
    """What is known of a product by one algorithm; of times and bytes, and of what grows like them, the logarithms."""
    numbers = parse(config)
    rows, cols = tables.tiles[numbers[_TILE]]
    across, down = tables.clusters[numbers[_CLUSTER]]
    split = max(1, numbers[_SPLIT])
    k = size.k / split
    tiles_m, tiles_n = ceil(size.m / rows), ceil(size.n / cols)
    clusters = ceil(tiles_m / across) * ceil(tiles_n / down) * split * size.count
    rounds = clusters / estimated(tables.sms, across * down)  # as when the estimates were fitted
    whole = max(1, ceil(rounds - 1e-9))
    return {
        "work": log(whole * rows * cols * k),
        "traffic": log(tiles_m * tiles_n * size.k * (rows / down + cols / across) * size.itemsize * size.count),
        "rounds": rounds,
        "filled": rounds / whole,
        "edges": size.m * size.n / (tiles_m * rows * tiles_n * cols),
        "rows": rows,
        "cols": cols,
        "across": across,
        "down": down,
        "split": split,
        "swizzle": numbers[_SWIZZLE],
        "id": numbers[_ID],
        "reduction": numbers[_REDUCTION],
        "stages": numbers[_STAGES],
        "k": log(k),
        # What options mean is not said anywhere: each is a fact of its own.
        **{f"custom{i}": float(numbers[_CUSTOM] == i) for i in range(_CUSTOMS)},
        "tiles_m": log(tiles_m),
        "tiles_n": log(tiles_n),
        "last_m": size.m / rows - tiles_m,
        "last_n": size.n / cols - tiles_n,
        "blocks": log(clusters * across * down),
        "whole": log(whole),
        "share": 1 / whole,
        "idle": whole - rounds,
        "one_round": float(whole == 1),
        "two_rounds": float(whole == 2),
        "area": log(rows * cols),
        "parts": log(split),
        "cluster": log(across * down),
        # How wide the pieces may be in which a tile is stored.
        "even_rows": log(gcd(rows, 64)),
        "even_cols": log(gcd(cols, 64)),
    }


@cache
def tables() -> Tables | None:
    """Those that the plugin ships, of the tiles and clusters that were measured."""
    return shipped(DATA, lambda data: Tables(_table(data["tiles"]), _table(data["clusters"]), int(data["sms"])))


def shipped(name: str, read: Callable[[Any], _T | None]) -> _T | None:
    """What ``read`` makes of the arrays of a file that comes with the plugin; None where it does not."""
    found = files("gemmhub_cublas") / "data" / name
    if not found.is_file():
        return None
    with as_file(found) as path, np.load(path, allow_pickle=False) as data:
        return read(data)


def _table(rows: Any) -> dict[int, tuple[int, int]]:
    return {int(key): (int(x), int(y)) for key, x, y in rows}
