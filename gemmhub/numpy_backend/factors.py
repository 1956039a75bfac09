"""Quantization scales as factors of a part of the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmhub.operands import BLOCK

Array = Any

Factor = Callable[[slice, slice, int], Array]
"""``(rows, columns, block) -> factors``: what multiplies these rows and columns of the products of a block of k. It
broadcasts to them."""


def of_rows(scales: Array) -> Factor:
    """The factors of a's rows: ``scales`` (..., m or 1, blocks of k or 1)."""

    def factors(rows: slice, columns: slice, block: int) -> Array:
        here = scales[..., block : block + 1] if scales.shape[-1] > 1 else scales
        return here[..., rows, :] if here.shape[-2] > 1 else here

    return factors


def of_columns(scales: Array, n: int) -> Factor:
    """The factors of b's ``n`` columns: ``scales`` (..., blocks of k or 1, n or its blocks or 1)."""

    def factors(rows: slice, columns: slice, block: int) -> Array:
        here = scales[..., block : block + 1, :] if scales.shape[-2] > 1 else scales
        if here.shape[-1] in (1, n):
            return here[..., columns] if n > 1 and here.shape[-1] == n else here
        first = columns.start // BLOCK
        repeated = np.repeat(here[..., first : -(-columns.stop // BLOCK)], BLOCK, axis=-1)
        return repeated[..., columns.start - first * BLOCK : columns.stop - first * BLOCK]

    return factors


class Scales:
    """The factors of a product: those that differ by block of k multiply each block's sum, the others the total."""

    def __init__(self, scale_a: Array | None, scale_b: Array | None, n: int) -> None:
        self.of_blocks: list[Factor] = []
        """Factors of the products of each block of k, before they are added."""
        self.of_sum: list[Factor] = []
        """Factors of the sum over all of k."""
        if scale_a is not None:
            (self.of_blocks if scale_a.shape[-1] > 1 else self.of_sum).append(of_rows(scale_a))
        if scale_b is not None:
            (self.of_blocks if scale_b.shape[-2] > 1 else self.of_sum).append(of_columns(scale_b, n))


NO_SCALES = Scales(None, None, 0)
"""The factors of a product without scales."""
