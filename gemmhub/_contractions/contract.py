"""Contractions as products: diagonals, sums of one operand, then one product of matrices for each pair of operands.

Each product is :func:`gemmhub.matmul` of views: letters of both operands that the result has are batch dimensions,
letters that it has not are the inner dimension, and the others are rows and columns. Products that sum nothing are the
library's own, element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gemmhub import api
from gemmhub._call.options import check, pins_rows
from gemmhub._contractions import arrays
from gemmhub._contractions.arrays import Array, Native
from gemmhub._contractions.equation import Equation, differing
from gemmhub._contractions.path import Sizes, from_left, path
from gemmhub.errors import InputError

Options = Mapping[str, Any]
"""Options of each product; ``out_dtype`` is that of the contraction."""


class Term(NamedTuple):
    """An operand, or a product of some."""

    letters: str
    array: Array
    wide: bool = False
    """Whether it is a sum in the accumulator's dtype."""

    def axes(self, letters: Sequence[str]) -> list[int]:
        return [self.letters.index(x) for x in letters]


def contract(equation: Equation, operands: Sequence[Array], options: Options) -> Array:
    """The contraction of ``operands``, arrays with as many dimensions as the equation has letters.

    Raises ShapeError where the sizes of a letter differ, and the errors of :func:`gemmhub.matmul`.
    """
    shapes = [x.shape for x in operands]
    if equation.product and equation.agree(shapes):
        return one_product(equation, operands, options)
    sizes = equation.sizes(shapes)
    if sizes is None:
        raise differing(equation, shapes)
    check(options)  # not every step is a product of gemmhub
    pinned = pins_rows(options.get("reproducible"))
    dtype = _dtype(equation, operands, options)
    options = {name: x for name, x in options.items() if name != "out_dtype"}
    terms = [_without_ones(_diagonal(Term(*x)), sizes) for x in zip(equation.terms, operands)]
    if len(terms) == 1:
        return arrays.cast(_ordered(_summed(terms[0], equation.out, dtype, pinned), equation.out), dtype)
    for step in from_left(equation) if pinned else path(equation, sizes):
        chosen = [terms.pop(i) for i in sorted(step, reverse=True)]
        result = chosen.pop()
        while chosen:
            other = chosen.pop()
            left = [x.letters for x in (*terms, *chosen)]
            others = "".join(left) if left else None
            result = _multiplied(result, other, equation.out, others, sizes, dtype, options, pinned)
        terms.append(result)
    return _ordered(terms[0], equation.out)


def one_product(equation: Equation, operands: Sequence[Array], options: Options) -> Array:
    """The contraction that is one product, of operands whose sizes were compared and are not broadcast.

    Nothing here compares sizes, which are tensors in a function that torch.jit traces.
    """
    a, b = (Term(*x) for x in zip(equation.terms, operands))
    sizes = {**dict(zip(b.letters, b.array.shape)), **dict(zip(a.letters, a.array.shape))}
    return _ordered(_product(a, b, equation.out, sizes, options), equation.out)


def _dtype(equation: Equation, operands: Sequence[Array], options: Options) -> Native:
    """The dtype of the result: that of a view is its operand's."""
    wanted = options.get("out_dtype")
    if len(operands) == 1 and wanted is None and {*equation.terms[0]} == {*equation.out}:
        return operands[0].dtype
    return arrays.result_dtype(tuple(x.dtype for x in operands), wanted)


def _diagonal(term: Term) -> Term:
    """``term`` with each letter once."""
    letters, x = term.letters, term.array
    while len({*letters}) < len(letters):
        repeated = next(x for x in letters if letters.count(x) > 1)
        first = letters.index(repeated)
        second = letters.index(repeated, first + 1)
        x = arrays.diagonal(x, first, second)
        letters = letters[:first] + letters[first + 1 : second] + letters[second + 1 :] + repeated
    return term if x is term.array else Term(letters, x)


def _without_ones(term: Term, sizes: Sizes) -> Term:
    """``term`` without the dimensions that are broadcast."""
    shape = tuple(term.array.shape)
    own = [i for i, x in enumerate(term.letters) if shape[i] == sizes[x]]
    if len(own) == len(shape):
        return term
    letters = "".join(term.letters[i] for i in own)
    return Term(letters, term.array.reshape(tuple([shape[i] for i in own])))


def _ordered(term: Term, out: str) -> Array:
    """The array of a term that has the letters of the result."""
    return arrays.transposed(term.array, term.axes(out))


def _summed(term: Term, kept: str, dtype: Native, pinned: bool) -> Term:
    """``term`` summed over the letters that are not ``kept``, on the way to a result of ``dtype``."""
    axes = tuple(i for i, x in enumerate(term.letters) if x not in kept)
    if not axes:
        return term
    if pinned:
        letters = ", ".join(term.letters[i] for i in axes)
        raise InputError(
            "reproducible", f"which pins the bits of rows, with letters of one operand that are summed ({letters})",
            "sums of products: an array library promises no bits of its own sums",
            "multiply by an operand of ones that has these letters",
        )  # fmt: skip
    own = term.array.dtype
    letters = "".join(x for x in term.letters if x in kept)
    return Term(letters, arrays.summed(term.array, axes, arrays.accumulator(own, own, dtype)), True)


def _multiplied(
    a: Term, b: Term, out: str, others: str | None, sizes: Sizes, dtype: Native, options: Options, pinned: bool
) -> Term:  # fmt: skip
    """The product of two terms on the way to a result ``out`` of ``dtype``.

    ``others`` are the letters of the terms that are still to be multiplied, None after the last.
    """
    needed = out + (others or "")
    a, b = _summed(a, b.letters + needed, dtype, pinned), _summed(b, a.letters + needed, dtype, pinned)
    total = arrays.accumulator(a.array.dtype, b.array.dtype, dtype)
    if a.wide or b.wide:
        a, b = (Term(x.letters, arrays.cast(x.array, total), True) for x in (a, b))
    wanted = dtype if others is None else total
    if all(x in needed for x in a.letters if x in b.letters):
        return _elementwise(a, b, out if others is None else "", sizes, total, wanted)
    return _product(a, b, needed, sizes, {**options, "out_dtype": wanted})._replace(wide=True)


def _elementwise(a: Term, b: Term, order: str, sizes: Sizes, total: Native, dtype: Native) -> Term:
    """The product of two terms that sums nothing, of the letters ``order`` where that is not empty."""
    letters = order or a.letters + "".join(x for x in b.letters if x not in a.letters)
    if not a.array.dtype == b.array.dtype == dtype:
        a, b = (Term(x.letters, arrays.cast(x.array, total)) for x in (a, b))
    factors = []
    for term in (a, b):
        x = arrays.transposed(term.array, term.axes([x for x in letters if x in term.letters]))
        factors.append(x.reshape(tuple([sizes[x] if x in term.letters else 1 for x in letters])))
    return Term(letters, arrays.cast(arrays.multiplied(*factors), dtype), True)


def _product(a: Term, b: Term, needed: str, sizes: Sizes, options: Options) -> Term:
    """One product of matrices, or of stacks of them."""
    inner = [x for x in a.letters if x in b.letters and x not in needed]
    batch = [x for x in a.letters if x in b.letters and x in needed]
    rows, columns = ([x for x in y.letters if x not in z.letters] for y, z in ((a, b), (b, a)))
    if columns and needed[-1] in rows:  # the result's last dimension is contiguous
        a, b, rows, columns = b, a, columns, rows
    if len(inner) > 1 and not pins_rows(options.get("reproducible")):  # without a copy of the larger operand
        larger = a if len(a.letters) >= len(b.letters) else b
        inner = _by_stride(larger, inner)
    rows, columns = _by_stride(a, rows), _by_stride(b, columns)
    left, right = _matrix(a, batch, rows, inner, sizes), _matrix(b, batch, inner, columns, sizes)
    result = api.matmul(left, right, **options)
    letters = [*batch, *rows, *columns]
    if _regroups(batch, rows, columns):
        result = result.reshape(tuple([sizes[x] for x in letters]))
    return Term("".join(letters), result)


def _regroups(batch: list[str], *groups: list[str]) -> bool:
    """Whether matrices of these groups of letters have other dimensions than the letters."""
    return any(len(group) > 1 or (not group and bool(batch)) for group in groups)


def _by_stride(term: Term, letters: list[str]) -> list[str]:
    return [term.letters[i] for i in arrays.by_stride(term.array, term.axes(letters))]


def _matrix(term: Term, batch: list[str], first: list[str], second: list[str], sizes: Sizes) -> Array:
    """``term`` as matrices of two groups of letters; as a vector where one group and the batch are empty."""
    x = arrays.transposed(term.array, term.axes([*batch, *first, *second]))
    if not _regroups(batch, first, second):
        return x
    shape = [sizes[x] for x in batch]
    for group in (first, second):
        if group or batch:
            size = 1
            for letter in group:
                size = size * sizes[letter]
            shape.append(size)
    return x.reshape(tuple(shape))
