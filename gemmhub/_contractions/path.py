"""The order in which the operands of a contraction are multiplied, two at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmhub._contractions.equation import Equation

Sizes = Mapping[str, Any]


def path(equation: Equation, sizes: Sizes) -> list[tuple[int, ...]]:
    """The order of products: positions of operands, which leave the list; their product is appended to it.

    opt_einsum finds it where it is installed. Otherwise each product is that of the two operands whose result has the
    fewest elements beside them, of equal ones the leftmost.
    """
    if len(equation.terms) == 2:
        return [(0, 1)]
    try:
        from opt_einsum.paths import auto
    except ImportError:
        return greedy(equation, sizes)
    chosen: list[tuple[int, ...]] = auto([frozenset(x) for x in equation.terms], frozenset(equation.out), {**sizes})
    return chosen


def from_left(equation: Equation) -> list[tuple[int, ...]]:
    """The order from left to right, which depends on no size: the product so far is the last of the list."""
    count = len(equation.terms)
    return [(0, 1), *((0, rest - 1) for rest in range(count - 1, 1, -1))]


def greedy(equation: Equation, sizes: Sizes) -> list[tuple[int, ...]]:
    """The order without opt_einsum, and in what torch's compiler traces: it cannot trace that."""
    terms = [frozenset(x) for x in equation.terms]
    steps: list[tuple[int, ...]] = []

    def elements(letters: frozenset[str]) -> int:
        product = 1
        for x in letters:
            product *= sizes[x]
        return product

    def result(i: int, j: int) -> frozenset[str]:
        others = [term for x, term in enumerate(terms) if x not in (i, j)]
        return (terms[i] | terms[j]) & frozenset(equation.out).union(*others)

    while len(terms) > 1:
        pairs = [(i, j) for j in range(len(terms)) for i in range(j)]
        costs = [elements(result(i, j)) - elements(terms[i]) - elements(terms[j]) for i, j in pairs]
        i, j = pairs[costs.index(min(costs))]
        combined = result(i, j)
        del terms[j], terms[i]
        terms.append(combined)
        steps.append((i, j))
    return steps


path._torchdynamo_inline = greedy  # type: ignore[attr-defined]
