"""C expressions of a float ``x``, as epilogues have them: checked, and computed by NumPy in float32.

The language is the part of C that every compiler of kernels reads alike: ``x``, float literals, the operators below,
and calls of :data:`FUNCTIONS`. Literals of other types are refused: without its suffix 0.5 is a double, and 1 / 2 is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmhub.epilogues import EPILOGUES, NUMPY

Array = Any

_LONGEST = 2000
"""Characters of an expression."""
_SPACES = " \t\n\r\f\v"
"""The white space of C. Python's strip() takes more characters, which no compiler of C does."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?f|\d+[eE][+-]?\d+f)(?!\w)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign><=|>=|==|!=|&&|\|\||-(?!-)|\+(?!\+)|[*/<>!?:(),]))",
    re.ASCII,
)


def _gated(x: Array, t: Array) -> Array:
    return np.where(x == -np.inf, np.float32(0), x / (1 + np.exp(-t)))


def _normal_weighted(x: Array) -> Array:
    return EPILOGUES["gelu"].formula(x, NUMPY)


FUNCTIONS: Mapping[str, tuple[int, Callable[..., Array]]] = {
    "gated": (2, _gated), "normal_weighted": (1, _normal_weighted), "expf": (1, np.exp), "logf": (1, np.log),
    "log1pf": (1, np.log1p), "tanhf": (1, np.tanh), "erff": (1, NUMPY.erf), "sqrtf": (1, np.sqrt), "fabsf": (1, np.abs),
    "fminf": (2, np.fmin), "fmaxf": (2, np.fmax),
}  # fmt: skip
"""The number of arguments of each function that an expression may call, and the function by NumPy."""

_Operator = Callable[[Array, Array], Array]
_SUMS: Mapping[str, _Operator] = {"+": np.add, "-": np.subtract}
_PRODUCTS: Mapping[str, _Operator] = {"*": np.multiply, "/": np.divide}
_COMPARISONS: Mapping[str, _Operator] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


class ExpressionError(ValueError):
    """A text that is no expression of the language."""


def evaluate(text: str, x: Array) -> Array:
    """Return the expression's value for each element of ``x``, a float32 array, with C's precedence of operators.

    Raises ExpressionError for a text that is no such expression.
    """
    if len(text) > _LONGEST:
        raise ExpressionError(f"it has {len(text)} characters, more than {_LONGEST}")
    if not text.isascii():
        other = next(character for character in text if not character.isascii())
        raise ExpressionError(f"{other!a} cannot be read: it is not ASCII")
    reader = _Reader(text, x)
    try:
        with np.errstate(all="ignore"):
            value = reader.number(reader.conditional())
    except RecursionError:
        raise ExpressionError("its parentheses are nested too deeply") from None
    if reader.next is not None:
        raise ExpressionError(f"{reader.next!r} follows a complete expression")
    return np.broadcast_to(value, x.shape)


class _Reader:
    """Reads an expression from left to right, and computes each part when it is read."""

    def __init__(self, text: str, x: Array) -> None:
        self._x, self._tokens, at = x, [], 0
        text = text.rstrip(_SPACES)
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                hint = "; literals are floats such as 0.5f or 1.0f" if re.match(r"\s*[\d.]", text[at:]) else ""
                raise ExpressionError(f"{text[at:].strip(_SPACES)[:20]!r} cannot be read{hint}")
            self._tokens.append(match[0].strip())
            at = match.end()
        self._at = 0

    @property
    def next(self) -> str | None:
        """The token that is read next; None at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *allowed: str) -> str | None:
        """Read the next token where it is one of ``allowed``; else return None."""
        token = self.next
        if token is None or token not in allowed:
            return None
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take(token) is None:
            raise ExpressionError(
                f"{token!r} is missing {'at its end' if self.next is None else f'before {self.next!r}'}"
            )

    def number(self, value: Array) -> Array:
        """Return ``value``, which must be no condition."""
        if value.dtype == np.bool_:
            raise ExpressionError("a comparison stands where a number is needed")
        return value

    def _truth(self, value: Array) -> Array:
        """Return ``value``, which must be a condition."""
        if value.dtype != np.bool_:
            raise ExpressionError("a number stands where a comparison is needed")
        return value

    def conditional(self) -> Array:
        """Read ``condition ? value : other``, or what binds more closely."""
        condition = self._either()
        if self._take("?") is None:
            return condition
        first = self.conditional()
        self._expect(":")
        return np.where(self._truth(condition), self.number(first), self.number(self.conditional()))

    def _either(self) -> Array:
        value = self._both()
        while self._take("||"):
            value = self._truth(value) | self._truth(self._both())
        return value

    def _both(self) -> Array:
        value = self._compared()
        while self._take("&&"):
            value = self._truth(value) & self._truth(self._compared())
        return value

    def _compared(self) -> Array:
        value = self._chained(_SUMS, lambda: self._chained(_PRODUCTS, self._unary))
        sign = self._take(*_COMPARISONS)
        if sign is None:
            return value
        right = self._chained(_SUMS, lambda: self._chained(_PRODUCTS, self._unary))
        return _COMPARISONS[sign](self.number(value), self.number(right))

    def _chained(self, operators: Mapping[str, _Operator], part: Callable[[], Array]) -> Array:
        value = part()
        while sign := self._take(*operators):
            value = operators[sign](self.number(value), self.number(part()))
        return value

    def _unary(self) -> Array:
        sign = self._take("-", "+", "!")
        if sign is None:
            return self._primary()
        value = self._unary()
        if sign == "!":
            return ~self._truth(value)
        return -self.number(value) if sign == "-" else self.number(value)

    def _primary(self) -> Array:
        token = self.next
        if token is None:
            raise ExpressionError("it ends where a value is needed")
        self._at += 1
        if token == "(":
            value = self.conditional()
            self._expect(")")
            return value
        if token == "x":
            return self._x
        if token in FUNCTIONS:
            return self._call(token)
        if token[0].isdigit() or token[0] == ".":
            value = np.float32(token[:-1])
            if not np.isfinite(value):
                raise ExpressionError(f"{token} is beyond the range of a float")
            return value
        names = ", ".join(FUNCTIONS)
        what = "is no function of the language" if token[0].isalpha() else "stands where a value is needed"
        raise ExpressionError(f"{token!r} {what}: x, float literals, or {names}")

    def _call(self, name: str) -> Array:
        count, function = FUNCTIONS[name]
        self._expect("(")
        arguments = [self.number(self.conditional())]
        while self._take(","):
            arguments.append(self.number(self.conditional()))
        self._expect(")")
        if len(arguments) != count:
            raise ExpressionError(f"{name} takes {count} argument{'s' * (count > 1)}, not {len(arguments)}")
        return function(*arguments)
