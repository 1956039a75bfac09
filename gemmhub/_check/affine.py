"""The linear part of an epilogue, which random sums go through: factors of rows and columns, and addends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub._base.inner_products import spans, widen
from gemmhub._check.product import Product
from gemmhub.accuracy import ErrorModel, gamma
from gemmhub.operands import OPERANDS

Array = Any

OPERATIONS = 8
"""At least the number of operations of such an epilogue on one element, as :func:`gemmhub.accuracy.reference` counts
them: two scales, a rounded alpha and its product, c with a rounded beta, and a bias."""


@dataclass(frozen=True)
class Affine:
    """One matrix ``rows_i columns_j (A B)_ij + addend_ij``, with alpha among the factors of the rows."""

    alpha: Any
    scale_a: Array
    """(m,) in double precision, as is ``scale_b``."""
    scale_b: Array
    scaled: bool
    """Whether there are scales besides alpha."""
    terms: tuple[tuple[Any, Array], ...]
    """The addends: each a factor and a matrix (m, n), a view."""
    finite: tuple[Array, Array]
    """Masks of the rows and the columns whose row or column addend is finite."""

    @staticmethod
    def sums_inform(product: Product) -> bool:
        """Whether the result is such a matrix, so that sums of its elements carry information."""
        if product.activation is not None or not all(
            _enters(name, axes) for name, (_, axes) in product.operands.items()
        ):
            return False
        return all(np.isfinite(complex(x)) for x in (product.alpha, product.beta))

    @classmethod
    def of(cls, product: Product, batch: tuple[int, ...]) -> Affine:
        """The affine form of one matrix of ``product``: the argument of its activation where it has one."""
        m, n = product.a.shape[-2], product.b.shape[-1]
        factors = {"scale_a": np.ones(m), "scale_b": np.ones(n)}
        terms, finite = [], {"m": np.ones(m, bool), "n": np.ones(n, bool)}
        for name, (x, axes) in product.operands.items():
            if not _enters(name, axes):
                continue
            if name not in factors:
                matrix = {"mn": lambda x: x[batch], "m": lambda x: x[:, np.newaxis], "n": lambda x: x}[axes](x)
                terms.append((product.beta if name == "c" else 1, np.broadcast_to(matrix, (m, n))))
                if axes in finite:
                    finite[axes] &= np.isfinite(widen(x))
            elif product.alpha != 0:
                factors[name] = np.broadcast_to(widen(x), factors[name].shape)
        scaled = not product.operands.keys().isdisjoint(factors)
        return cls(
            product.alpha, factors["scale_a"], factors["scale_b"], scaled, tuple(terms), (finite["m"], finite["n"])
        )  # fmt: skip

    @classmethod
    def plain_product(cls, m: int, n: int) -> Affine:
        """The affine form of ``a @ b`` itself."""
        return cls(1, np.ones(m), np.ones(n), False, (), (np.ones(m, bool), np.ones(n, bool)))

    @property
    def rows(self) -> Array:
        """The factors of the rows."""
        with np.errstate(all="ignore"):
            return _double(self.alpha) * self.scale_a

    @property
    def lines(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The factors of the rows and which of them are finite, and the same of the columns."""
        return (self.rows, self.finite[0]), (self.scale_b, self.finite[1])

    @property
    def plain(self) -> bool:
        return self.alpha == 1 and not self.scaled and not self.terms

    def relative(self, model: ErrorModel, k: int) -> float:
        """The factor in front of S."""
        if not model.exact:
            return model.relative(k, 0 if self.plain else OPERATIONS)
        # A plain sum is rounded once, twice by way of float32.
        operations = int(model.output > model.epilogue) if self.plain else OPERATIONS
        return gamma(operations, model.epilogue)

    def absolute(self, model: ErrorModel, k: int) -> float:
        """The absolute error of underflow, before it is multiplied."""
        return model.absolute(k, 0 if self.plain else OPERATIONS)

    @property
    def reach(self) -> tuple[Array, Array]:
        """Upper bound of the factor of an error of underflow, for rows and columns."""
        rows, columns = (np.where(np.abs(x) < np.inf, np.maximum(np.abs(x), 1.0), 1.0) for x in self._scales)
        return max(1.0, abs(self.alpha)) * rows, columns

    def addend(self, rows: slice, cols: slice | Array) -> tuple[Array, Array]:
        """A tile of the addends' sum in double precision, and the sum of their finite absolute values."""
        value: Array = 0.0
        size: Array = 0.0
        for factor, matrix in self.terms:
            term = _double(factor) * widen(matrix[rows, cols])
            value, size = value + term, size + np.where(np.isfinite(term), np.abs(term), 0.0)
        return value, size

    def integral(self, rows: slice, cols: slice, dtype: Any) -> Array:
        """A tile of the addends' sum in ``dtype``, modulo 2**64."""
        return sum(dtype.type(_whole(factor)) * matrix[rows, cols].astype(dtype) for factor, matrix in self.terms)

    @property
    def _scales(self) -> tuple[Array, Array]:
        return self.scale_a, self.scale_b

    @property
    def factor(self) -> int:
        """alpha of a product of integers."""
        return _whole(self.alpha)

    @property
    def largest(self) -> float:
        """The largest sum of the addends' absolute values."""
        return max((float(np.max(self.addend(*here)[1], initial=0.0)) for here in self._spans()), default=0.0)

    def sizes(self) -> tuple[Array, Array]:
        """The mean absolute value of the addends in each row, and in each column."""
        m, n = len(self.scale_a), len(self.scale_b)
        along, down = np.zeros(m), np.zeros(n)
        for rows, cols in self._spans():
            _, size = self.addend(rows, cols)
            along[rows] += (size / n).sum(1)
            down[cols] += (size / m).sum(0)
        return along, down

    def _spans(self) -> Iterator[tuple[slice, slice]]:
        return spans(len(self.scale_a), len(self.scale_b)) if self.terms else iter(())


def _enters(name: str, axes: str) -> bool:
    """Whether an operand enters the sums: what is added, and scales of rows and columns, but not those along k."""
    return OPERANDS[name].role in ("term", "factor") and axes not in ("mk", "kn")


def _double(value: Any) -> Any:
    return value if isinstance(value, complex) else float(value)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else int(complex(value).real)
