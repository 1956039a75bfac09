"""A greedy selection of the kernels that a wheel carries, by the candidates of random products."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator
from typing import Any

import numpy as np

Kernels = tuple[Hashable, ...]
"""The kernels that a candidate launches."""
Product = list[tuple[float, Kernels]]
"""The candidates of a product: the estimate in units of the fastest one's, and its kernels."""
_LARGEST = 14
"""log2 of the longest side."""
_MISSING = np.log(4.0)
"""The cost of a product that no selected kernel runs."""


def sides(rng: random.Random) -> Iterator[int]:
    """Yield random sides without end: log-uniform to 16384, half of them multiples of 8 or 64."""
    while True:
        side, unit = int(2 ** rng.uniform(0, _LARGEST)), rng.choice([1, 1, 8, 64])
        yield max(unit, side // unit * unit)


class Selection:
    """The kernels selected so far, and for each product the best that they run."""

    def __init__(self, products: list[Product], kernels: Collection[Hashable]) -> None:
        self.chosen = set(kernels)
        self.costs = np.full(len(products), _MISSING)
        """Logarithm of the estimate of each product, in units of the fastest one's."""
        self._by_set: dict[Kernels, tuple[Any, Any]] = {}
        """The products that a set of kernels runs, and their costs."""
        self._by_kernel: dict[Hashable, list[Kernels]] = defaultdict(list)
        found: dict[Kernels, dict[int, float]] = defaultdict(dict)
        for i, candidates in enumerate(products):
            for ratio, needed in candidates:
                found[needed].setdefault(i, ratio)
        for needed, ratios in found.items():
            self._by_set[needed] = np.array(list(ratios)), np.log(np.array(list(ratios.values())))
            for kernel in needed:
                self._by_kernel[kernel].append(needed)
            if self.chosen.issuperset(needed):
                self._use(needed)

    def _use(self, needed: Kernels) -> None:
        where, costs = self._by_set[needed]
        self.costs[where] = np.minimum(self.costs[where], costs)

    def _gain(self, needed: Kernels, least: float) -> float:
        """Return what a set lowers, for each kernel that it adds; of products that cost more than ``least``."""
        where, costs = self._by_set[needed]
        old = self.costs[where]
        gains = np.where(old > least, np.maximum(0.0, old - costs), 0.0)
        return float(gains.sum()) / max(1, len(set(needed) - self.chosen))

    def add(self, number: int, least: float = 0.0) -> None:
        """Select up to ``number`` kernels more, until no product costs more than ``least``."""
        end = len(self.chosen) + number
        serial = {needed: i for i, needed in enumerate(self._by_set)}
        heap = [(-self._gain(x, least), i, x) for x, i in serial.items() if not self.chosen.issuperset(x)]
        heapq.heapify(heap)
        while heap and len(self.chosen) < end:
            _, i, needed = heapq.heappop(heap)
            if self.chosen.issuperset(needed):
                continue
            gain = self._gain(needed, least)
            if gain <= 0:
                continue
            if heap and -gain > heap[0][0]:  # others gained more since
                heapq.heappush(heap, (-gain, i, needed))
                continue
            new = set(needed) - self.chosen
            self.chosen |= new
            for other in {x for kernel in new for x in self._by_kernel[kernel]}:
                if self.chosen.issuperset(other):
                    self._use(other)
                else:
                    heapq.heappush(heap, (-self._gain(other, least), serial[other], other))


def figures(products: list[Product], kernels: Collection[Hashable], limit: float) -> dict[str, float]:
    """Return the shares of products that the kernels run, within ``limit`` of the fastest candidate's estimate too, and
    the geometric mean and the largest of what they cost.
    """
    ratios = np.exp(Selection(products, kernels).costs)
    return {
        "products": len(products),
        "within_limit": float((ratios <= limit).mean()),
        "within_1.15": float((ratios <= 1.15).mean()),
        "fastest": float((ratios == 1).mean()),
        "mean": float(np.exp(np.log(ratios).mean())),
        "worst": float(ratios.max()),
    }
