"""Contractions of two operands as one product: the roles of an equation's letters."""

from __future__ import annotations

from functools import lru_cache
from string import ascii_letters
from typing import Any, NamedTuple


class Contraction(NamedTuple):
    """The letters of both operands and of the result, and those of the product of matrices."""

    a: str
    b: str
    out: str
    batch: str
    rows: str
    inner: str
    columns: str

    def sizes(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> dict[str, Any] | None:
        """The size of each letter; None for operands that do not fit the equation."""
        if len(a) != len(self.a) or len(b) != len(self.b):
            return None
        sizes = dict(zip(self.a, a))
        if any(sizes.setdefault(letter, size) != size for letter, size in zip(self.b, b)):
            return None
        return sizes

    def left(self) -> list[int]:
        """The order of a's axes as matrices: batch, rows, inner."""
        return [self.a.index(x) for x in self.batch + self.rows + self.inner]

    def right(self) -> list[int]:
        """The order of b's axes as matrices: batch, inner, columns."""
        return [self.b.index(x) for x in self.batch + self.inner + self.columns]

    def shape(self, sizes: dict[str, Any], *groups: str) -> tuple[Any, ...]:
        """Sizes of the batch letters, and of each group of letters as one axis."""
        extents = [sizes[x] for x in self.batch]
        for group in groups:
            size = 1  # math.prod of a generator is more than torch's compiler traces
            for x in group:
                size = size * sizes[x]
            extents.append(size)
        return tuple(extents)

    def result(self) -> list[int]:
        """The order of the product's axes in the result, once they are separate."""
        letters = self.batch + self.rows + self.columns
        return [letters.index(x) for x in self.out]


@lru_cache(maxsize=256)
def contraction(equation: str) -> Contraction | None:
    """Parse an equation; None for other than products: diagonals, sums of one operand, outer products, an ellipsis."""
    inputs, arrow, out = equation.partition("->")
    a, comma, b = inputs.partition(",")
    if not comma or not (a + b).isalpha():
        return None
    if not arrow:
        out = "".join(sorted(x for x in set(a + b) if (a + b).count(x) == 1))
    repeated = any(len(set(x)) != len(x) for x in (a, b, out))
    alone = (set(a) ^ set(b)) - set(out)
    if repeated or alone or not set(out) <= set(a + b):
        return None
    inner = "".join(x for x in a if x in b and x not in out)
    if not inner:
        return None
    batch = "".join(x for x in a if x in b and x in out)
    rows, columns = "".join(x for x in a if x not in b), "".join(x for x in b if x not in a)
    return Contraction(a, b, out, batch, rows, inner, columns)


def without_ellipsis(equation: str, *dimensions: int) -> str:
    """An equation of operands of so many dimensions with letters for the ellipsis; itself where that is impossible."""
    if "..." not in equation:
        return equation
    inputs, arrow, out = equation.partition("->")
    operands = inputs.split(",")
    free = [x for x in ascii_letters if x not in equation]
    counts = [n - len(x.replace("...", "")) if "..." in x else 0 for x, n in zip(operands, dimensions)]
    widest = max(counts)
    if (
        len(operands) != len(dimensions)
        or min(counts) < 0
        or widest > len(free)
        or (arrow and widest and "..." not in out)
    ):
        return equation
    letters = "".join(free[:widest])
    spelled = [x.replace("...", letters[widest - count :], 1) for x, count in zip(operands, counts)]
    if not arrow:  # the dimensions of the ellipsis come first, then the letters that occur once
        joined = inputs.replace("...", "").replace(",", "")
        out = "..." + "".join(sorted(x for x in set(joined) if joined.count(x) == 1))
    return f"{','.join(spelled)}->{out.replace('...', letters, 1)}"
