"""Which algorithm is how much faster than the library's own first choice: a model of the machine, fitted to records.

A card at work for seconds lowers its clocks to stay within its power, and then other algorithms win than on one that
was idle before. Records say which it was, and an algorithm must be expected to gain in both cases.

Facts of the machine and of each algorithm (how many rounds of tiles the multiprocessors work through, how full the
last round and the tiles at the edges are, bytes that go through the L2 cache) are turned into numbers by
:func:`features`; regression trees, fitted to measurements on the card by benchmarks/cublas_fit.py, turn the numbers
of a pair of algorithms into the logarithm of the ratio of their times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Any

import numpy as np

from gemmhub.trees import Trees
from gemmhub_cublas.heuristics import parse

Array = np.ndarray[Any, Any]

LOADS = (0.0, 1.0)
"""The last number of a row for the trees: whether the card had been idle before, or at work."""

_ID, _TILE, _SPLIT, _REDUCTION, _SWIZZLE, _CUSTOM, _STAGES, _INNER, _CLUSTER = range(9)


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
        numbers = parse(config)
        return numbers[_TILE] in self.tiles and numbers[_CLUSTER] in self.clusters


def facts(size: Size, config: str, tables: Tables) -> dict[str, float]:
    """What is known of a product by one algorithm; of work, traffic and k the logarithms."""
    numbers = parse(config)
    rows, cols = tables.tiles[numbers[_TILE]]
    across, down = tables.clusters[numbers[_CLUSTER]]
    split = max(1, numbers[_SPLIT])
    k = size.k / split
    tiles_m, tiles_n = ceil(size.m / rows), ceil(size.n / cols)
    blocks = ceil(tiles_m / across) * across * ceil(tiles_n / down) * down * split * size.count
    rounds = blocks / tables.sms
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
        "custom": numbers[_CUSTOM],
        "id": numbers[_ID],
        "reduction": numbers[_REDUCTION],
        "stages": numbers[_STAGES],
        "k": log(k),
    }


def features(size: Size, first: str, other: str, tables: Tables) -> list[float]:
    """The numbers that describe replacing algorithm ``first`` by ``other`` in this product."""
    a, b = facts(size, first, tables), facts(size, other, tables)
    m, n, k = size.m, size.n, size.k
    flops = m * n * k
    return [
        b["work"] - a["work"], b["traffic"] - a["traffic"],
        *(x[name] for name in ("rounds", "filled", "edges", "rows", "cols", "across", "down") for x in (a, b)),
        *(x[name] for name in ("split", "swizzle", "custom", "k") for x in (a, b)),
        log(m), log(n), log(k), log(flops * size.count), log(flops) - log(m * k + n * k + m * n),
        float(size.trans_a), float(size.trans_b),
    ]  # fmt: skip


@dataclass(frozen=True)
class CostModel:
    """What one card's records taught."""

    trees: Trees
    tables: Tables

    def gains(self, size: Size, first: str, others: list[str]) -> Array:
        """Predicted log(time of ``first`` / time of each of ``others``), the lower of those on an idle card and on one
        at work: above 0 is faster than the first.
        """
        if not others:
            return np.empty(0)
        rows = [features(size, first, other, self.tables) for other in others]
        predicted = self.trees.predict(np.array([[*row, load] for load in LOADS for row in rows]))
        lower: Array = predicted.reshape(len(LOADS), -1).min(axis=0)
        return lower


def load(path: Any) -> CostModel:
    """A model as benchmarks/cublas_fit.py wrote it."""
    with np.load(path, allow_pickle=False) as data:
        tables = Tables(_table(data["tiles"]), _table(data["clusters"]), int(data["sms"]))
        return CostModel(Trees.of(data), tables)


def _table(rows: Array) -> dict[int, tuple[int, int]]:
    return {int(key): (int(x), int(y)) for key, x, y in rows}
