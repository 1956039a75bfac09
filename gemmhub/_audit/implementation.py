"""An implementation of matrix multiplication under audit: its name, its claims, and how it multiplies.

It multiplies by source text, which is evaluated with NumPy arrays named a, b, out, c and bias: the same text stands in
the script that repeats a fault without gemmhub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from gemmhub._audit.claims import Claims
from gemmhub._audit.judge import Wrong
from gemmhub._audit.source import identifier, source
from gemmhub.errors import InputError
from gemmhub.testing.case import Case
from gemmhub.testing.memory import HOST, Memory
from gemmhub.testing.operands import Operands

Array = Any


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The implementation has no code for a product, and reports that."""


class Run(NamedTuple):
    """One way in which an implementation computes a product: its label, and the call.

    The call returns the result as a NumPy array, or None where it wrote the result into the operands' memory.
    """

    label: str
    call: Callable[[], Array | None]


def _nothing() -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Implementation:
    """An implementation under audit.

    Parameters
    ----------
    name : name in reports.
    claims : the products that it claims.
    call : function of a case that returns an expression of Python: the product of the NumPy arrays ``a`` and ``b``,
        with ``c`` and ``bias`` where the case has them; scalars are numbers in its text. Where :meth:`writes` holds it
        writes into ``out``; else its value is the result.
    setup : Python statements, imports for example, that the expression needs.
    versions : function that returns the versions of its parts.
    limit : number of trials at most; None for no limit.
    memory : memory of the operands, as the conformance kit has it.
    namespace : names that the expression may use, beside those of ``setup``.
    alone : whether the setup defines all that the expression needs in another process, so that scripts can run.
    short : function of a case, and of whether its operands lie densely in memory, that returns a setup and an
        expression for scripts that compare values, shorter than the audit's own; or None where there are none.
    """

    name: str
    claims: Claims
    call: Callable[[Case], str]
    setup: str = ""
    versions: Callable[[], Mapping[str, str]] = _nothing
    limit: int | None = None
    memory: Memory = HOST
    namespace: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    alone: bool = field(default=True, kw_only=True)
    short: Callable[[Case, bool], tuple[str, str] | None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.claims, Claims):
            raise InputError("claims", _short(self.claims), "Claims", 'state the products: Claims(products("f32"))')
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise InputError("limit", repr(self.limit), "None, or a positive int")

    def runs(self, operands: Operands) -> Iterator[Run]:
        """Yield the calls that compute the product of these operands; none where it has no code for it."""
        case, names = operands.case, self._names()
        arguments: dict[str, Any] = {"a": operands.a.array, "b": operands.b.array}
        arguments |= {name: placed.array for name, placed in operands.others.items()}
        written = self.writes(case)
        if written:
            arguments["out"] = operands.out.array
        if case.c == "out":
            arguments["c"] = operands.out.array
        code = _compiled(self.call(case))

        def call() -> Array | None:
            result = eval(code, names, arguments)
            return None if written else _array(result)

        yield Run("", call)

    def product(self, a: Array, b: Array) -> Array:
        """The product of two dense NumPy arrays, as this implementation returns it."""
        case = Case(m=a.shape[0], n=b.shape[1], k=a.shape[1], a_dtype=a.dtype.name, b_dtype=b.dtype.name)
        return eval(_compiled(self.call(case)), self._names(), {"a": a, "b": b})

    def writes(self, case: Case) -> bool:
        """Whether the call for ``case`` writes into ``out``: for half of the cases, and where a result is not dense."""
        needed = case.out != "row" or case.c == "out" or bool(case.operands)
        return "out" in self.claims.features and (needed or case.seed % 2 == 1)

    def script(self, case: Case, dense: bool, values: bool) -> tuple[str, str] | None:
        """The statements, and the expression of a script for ``case``; None where there is no such text.

        ``dense``: whether the operands lie densely in memory. ``values``: whether values alone are compared, neither
        dtypes nor memory.
        """
        short = self.short(case, dense) if values and self.short is not None else None
        return short or (self.setup, self.call(case))

    def set_up(self) -> None:
        """Execute the setup, which imports the library, and look up its versions: what can fail fails here."""
        self._names()
        self.versions()

    def _names(self) -> dict[str, Any]:
        """The names that the expression may use; the setup is executed once."""
        if "np" not in self.namespace:
            exec(self.setup, self.namespace)
            self.namespace["np"] = np
        return self.namespace

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        claims: Claims,
        *,
        name: str | None = None,
        versions: Callable[[], Mapping[str, str]] = _nothing,
        limit: int | None = None,
    ) -> Implementation:
        """Make an implementation of a Python function.

        Parameters
        ----------
        function : function of ``(a, b)`` that returns the product, an array that ``numpy.asarray`` takes. Where the
            claims have it, it takes ``out`` (and writes there), ``c``, ``bias``, ``alpha`` and ``beta`` by name. It
            receives NumPy arrays.
        claims : the products that it claims.
        name : name in reports; by default the function's.
        versions : function that returns the versions of its parts.
        limit : number of trials at most.

        Returns
        -------
        Implementation

        Raises
        ------
        InputError
            ``function`` cannot be called, or the claims have operands that are not passed to functions.

        See Also
        --------
        audit : test it.

        Examples
        --------
        >>> import numpy as np
        >>> from gemmhub.testing import Claims, Implementation, products
        >>> Implementation.of(np.matmul, Claims(products("f32"))).name
        'matmul'
        """
        if not callable(function):
            raise InputError("function", repr(type(function)), "a function of a and b that returns their product")
        word, text = identifier(function), source(function)
        label = name or str(getattr(function, "__name__", type(function).__name__))

        def call(case: Case) -> str:
            return f"{word}({', '.join(named_arguments(case, made.writes(case)))})"

        setup = f"# Define {word} here: its source does not stand alone." if text is None else text
        names = {word: function, "np": np}
        made = cls(label, claims, call, setup, versions, limit, namespace=names, alone=text is not None)
        for operand in made.claims.takes:
            if operand not in _PASSED:
                remedy = "audit a backend for the others, or make an Implementation whose call passes them"
                raise InputError("claims.takes", repr(operand), f"of a function {' and '.join(_PASSED)}", remedy)
        return made


_PASSED = ("c", "bias")
"""Operands beside a and b that a function of a user is passed."""


def named_arguments(case: Case, writes: bool) -> Iterator[str]:
    """Yield the arguments of a call by name, with the operands and scalars that the case has."""
    yield from ("a", "b")
    for name in case.parts:
        if name in ("c", "bias"):
            yield f"{name}={name}"
    if case.c is not None:
        yield f"beta={plain_scalar(case.beta)!r}"
    if case.alpha != 1:
        yield f"alpha={plain_scalar(case.alpha)!r}"
    if case.activation is not None:
        yield f"activation={case.activation!r}"
    if writes:
        yield "out=out"


def plain_scalar(value: complex) -> complex | float | int:
    """The scalar as an int or a float where it is one."""
    if isinstance(value, complex):
        return value if value.imag else value.real
    return value


def _array(result: Any) -> Array:
    """The result of a call as an array; :class:`Wrong` for what is no stack of matrices."""
    array = np.asarray(result)
    if array.ndim < 2 or array.dtype == object:
        allowed = "a matrix or a stack of them; return the product, or claim the feature 'out' and write into out="
        raise Wrong("shape", f"the call returned {_short(result)}; allowed: {allowed}")
    return array


def _short(value: Any) -> str:
    return f"{value!r:.60}" if value is None or isinstance(value, (str, int, float)) else type(value).__name__


@lru_cache(maxsize=256)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<audited call>", "eval")
