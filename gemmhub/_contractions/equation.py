"""Equations of einsum: their letters, checked against the operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_letters
from typing import Any, NamedTuple

from gemmhub._base.wording import counted, instance
from gemmhub.errors import InputError, ShapeError

BROADCAST = 0xE000
"""The first code point of the letters that stand for the dimensions of an ellipsis: Unicode's private use area."""


class Equation(NamedTuple):
    """An equation without an ellipsis: one letter for each dimension."""

    terms: tuple[str, ...]
    """The letters of each operand. A letter that occurs twice in one of them is a diagonal."""
    out: str
    """The letters of the result, each once."""

    def sizes(self, shapes: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
        """The size of each letter, a size of 1 broadcast; None where two sizes differ."""
        sizes: dict[str, Any] = {}
        for letters, shape in zip(self.terms, shapes):
            for letter, size in zip(letters, shape):
                known = sizes.get(letter, 1)
                if known != size and known != 1 and size != 1:
                    return None
                if known == 1:
                    sizes[letter] = size
        for letters, shape in zip(self.terms, shapes):
            for i, letter in enumerate(letters):  # a diagonal of a matrix of 1 row and 3 columns is none
                if letters.index(letter) != i and shape[i] != shape[letters.index(letter)]:
                    return None
        return sizes

    def agree(self, shapes: Sequence[Sequence[Any]]) -> bool:
        """Whether the sizes of each letter are equal."""
        sizes: dict[str, Any] = {}
        for letters, shape in zip(self.terms, shapes):
            for letter, size in zip(letters, shape):
                if sizes.setdefault(letter, size) != size:
                    return False
        return True

    @property
    def product(self) -> bool:
        """Whether this is one product of two operands: a sum over common letters, without diagonals and other sums."""
        if len(self.terms) != 2:
            return False
        a, b = self.terms
        common = set(a) & set(b)
        alone = (set(a) | set(b)) - common - set(self.out)
        return not alone and bool(common - set(self.out)) and len(set(a)) == len(a) and len(set(b)) == len(b)


def parse(equation: Any, dimensions: tuple[int, ...]) -> Equation:
    """Parse an equation for operands of so many dimensions. InputError or ShapeError names the operand or letter."""
    check_text(equation)
    return _parse(equation, dimensions)


def check_text(equation: Any) -> None:
    """InputError where an equation is no string, such as an operand before it."""
    if not isinstance(equation, str):
        remedy = "the equation comes first, as a string; then the operands"
        raise InputError("equation", instance(type(equation)), "a string like 'ij,jk->ik'", remedy)


# What torch.compiler.assume_constant_result does; torch's compiler cannot trace the cache.
parse._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _parse(equation: str, dimensions: tuple[int, ...]) -> Equation:
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    for text in (*terms, out):
        _check_letters(equation, text)
    if len(terms) != len(dimensions):
        passed = f"{len(dimensions)} {'was' if len(dimensions) == 1 else 'were'} passed"
        raise InputError(
            "equation", f"{equation!r} has {counted(len(terms), 'operand')}; {passed}",
            "letters for each operand, separated by commas",
        )  # fmt: skip
    widest = 0
    for i, (text, rank) in enumerate(zip(terms, dimensions)):
        letters = len(text.replace("...", ""))
        if letters > rank or (letters < rank and "..." not in text):
            raise ShapeError(
                f"operands[{i}]", f"{counted(rank, 'dimension')}, but {text!r} of {equation!r} names {letters}",
                counted(letters, "dimension") + " or more" * ("..." in text), "use ... for further dimensions",
            )  # fmt: skip
        widest = max(widest, rank - letters if "..." in text else 0)
    if not arrow:  # the dimensions of the ellipsis, then the letters that occur once
        joined = inputs.replace("...", "")
        out = "..." * (widest > 0) + "".join(x for x in sorted({*joined} - {","}) if joined.count(x) == 1)
    named = out.replace("...", "")
    for x in named:
        if x not in inputs:
            raise InputError("equation", f"{x!r} of the result is in no operand of {equation!r}", "letters of operands")
        if named.count(x) > 1:
            raise InputError("equation", f"{x!r} occurs twice in the result of {equation!r}", "each letter once")
    if widest and "..." not in out:
        raise InputError("equation", f"the result of {equation!r} has no ellipsis", "... in the result, too")
    free = "".join(chr(BROADCAST + i) for i in range(widest))
    ranks = [rank - len(text.replace("...", "")) for text, rank in zip(terms, dimensions)]
    spelled = [text.replace("...", free[widest - rank :]) for text, rank in zip(terms, ranks)]
    return Equation(tuple(spelled), out.replace("...", free))


def _check_letters(equation: str, text: str) -> None:
    if text.count("...") > 1:
        raise InputError("equation", f"{text!r} of {equation!r} has two ellipses", "one ... for each operand")
    for x in text.replace("...", ""):
        if x not in ascii_letters:
            raise InputError(
                "equation", f"{x!r} in {equation!r}", "letters a to z and A to Z, commas, one -> and ... for the rest"
            )


def differing(equation: Equation, shapes: Sequence[Sequence[Any]]) -> ShapeError:
    """The error for operands whose sizes differ: it names the letter and the operands."""
    seen: dict[str, tuple[int, Any]] = {}
    for i, (letters, shape) in enumerate(zip(equation.terms, shapes)):
        for letter, size in zip(letters, shape):
            other, known = seen.setdefault(letter, (i, size))
            if known != size and (other == i or 1 not in (known, size)):
                names = f"operands[{i}]" if other == i else f"operands[{other}], operands[{i}]"
                allowed = "equal sizes on a diagonal" if other == i else "equal sizes, or 1"
                return ShapeError(names, f"sizes {known} and {size} of {shown(letter)}", allowed)
            if known == 1:
                seen[letter] = i, size
    raise AssertionError("the sizes of these operands agree")


def shown(letter: str) -> str:
    """A letter for readers."""
    return (
        f"the letter {letter!r}" if letter in ascii_letters else f"dimension {ord(letter) - BROADCAST} of the ellipsis"
    )
