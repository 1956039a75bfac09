"""The forms of a grouped product: the axis of each array that the offsets divide among the groups.

A form is a row of :data:`FORMS`. Shapes, cuts, errors, gradients and the table of the documentation follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from gemmhub.errors import InputError, ShapeError
from gemmhub.operands import BLOCK

Array = Any
Pick = Callable[[int, slice], Array]
"""``(group, span) -> the group's part``; ``span`` is its slice of the divided dimension."""


class Form(NamedTuple):
    """One form. An axis is 0 for rows, 1 for columns, and None for an array with one matrix for each group."""

    name: str
    a: int | None
    """Axis of a that the offsets divide."""
    b: int | None
    """Axis of b that the offsets divide."""
    out: int | None
    """Axis of the result that the offsets divide."""
    noun: str
    """The noun for what the offsets count, in errors."""
    shapes: str
    """Shapes of a and b."""

    @property
    def divided(self) -> bool:
        """Whether the form has offsets."""
        return (self.a, self.b) != (None, None)


RAGGED_M = Form("ragged m", 0, None, 0, "rows of a", "(m, k) and (g, k, n)")
RAGGED_K = Form("ragged k", 1, 0, None, "columns of a", "(m, k) and (k, n)")
RAGGED_N = Form("ragged n", None, 1, 1, "columns of b", "(g, m, k) and (k, n)")
DENSE = Form("dense", None, None, None, "", "(g, m, k) and (g, k, n)")
FORMS = {(2, 3): RAGGED_M, (2, 2): RAGGED_K, (3, 2): RAGGED_N, (3, 3): DENSE}
"""The forms by the numbers of dimensions of a and b."""


def form_of(a: tuple[Any, ...], b: tuple[Any, ...], with_offsets: bool) -> Form:
    """The form of a product of these shapes; ShapeError or InputError where there is none."""
    form = FORMS.get((len(a), len(b)))
    if form is None:
        allowed = "; ".join(f"{x.shapes} ({x.name})" for x in FORMS.values())
        raise ShapeError("a, b", f"shapes {a} and {b}", allowed, "pass lists for products of unequal sizes")
    if form.divided and not with_offsets:
        remedy = "pass offsets=, or one array for each group in lists" if form is RAGGED_K else "pass offsets="
        raise InputError(
            "offsets", f"None with shapes {a} and {b}", f"the ends of the groups in the {form.noun}", remedy
        )
    if not form.divided and with_offsets:
        raise InputError(
            "offsets", f"given with shapes {a} and {b}", "None for one matrix of a and of b for each group",
            "drop offsets=, or pass a of shape (m, k)",
        )  # fmt: skip
    return form


def sizes(form: Form, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, Any, Any, Any]:
    """(groups, m, n, k) of a product of these shapes, the divided one in all, and groups None where only the offsets
    tell them; ShapeError where they do not fit.
    """
    if a[-1] != b[-2]:
        raise ShapeError(
            "a, b", f"shapes {a} and {b}: inner dimensions {a[-1]} and {b[-2]} differ", f"shapes {form.shapes}"
        )
    if form is DENSE and a[0] != b[0]:
        raise ShapeError(
            "a, b", f"{a[0]} matrices of a and {b[0]} of b", "as many of each: one for each group",
            "gemmhub.matmul broadcasts stacks",
        )  # fmt: skip
    groups = a[0] if form.a is None else b[0] if form.b is None else None
    return groups, a[-2], b[-1], a[-1]


def result_shape(form: Form, groups: Any, m: Any, n: Any) -> tuple[Any, ...]:
    """The shape of a result of n columns."""
    return (groups, m, n) if form.out is None else (m, n)


def along(x: Array, axis: int | None) -> Pick:
    """The function that cuts an array of matrices along ``axis``; None for one matrix for each group."""
    if axis is None:
        return lambda i, span: x[i]
    if axis == 0:
        return lambda i, span: x[span]
    return lambda i, span: x[:, span]


def shared(x: Array) -> Pick:
    """The function that returns an array whole, for every group."""
    return lambda i, span: x


def bias(form: Form, x: Array, shape: tuple[int, ...], groups: int, n: int) -> Pick:
    """The function that cuts a bias of this ``shape``: (n,), or (groups, n)."""
    if shape == (n,):
        return along(x, 0) if form.out == 1 else shared(x)
    if form.out != 1 and shape == (groups, n):
        return along(x, None)
    allowed = f"shape ({n},)" + f", or ({groups}, {n}) with one for each group" * (form.out != 1)
    raise ShapeError("bias", f"shape {shape}", allowed)


def check_addend(form: Form, shape: tuple[int, ...], groups: int, m: int, n: int) -> None:
    """ShapeError for a c that has another shape than the product, with all its columns."""
    wanted = result_shape(form, groups, m, n)
    if shape != wanted:
        raise ShapeError("c", f"shape {shape}", f"shape {wanted}, that of the product", "broadcast it")


def addend(form: Form, x: Array, shape: tuple[int, ...], groups: int, m: int, n: int) -> Pick:
    """The function that cuts a c of this ``shape``."""
    check_addend(form, shape, groups, m, n)
    return along(x, form.out)


def scale(form: Form, name: str, x: Array, shape: tuple[int, ...], groups: int, operand: tuple[int, ...]) -> Pick:
    """The function that cuts a scale of this ``shape``, of a or b of the shape ``operand``.

    One of three dimensions has the group first, as a stack has. Otherwise it is that of the operand as a whole, and is
    divided as the operand is.
    """
    of_b = name == "scale_b"
    axis = form.b if of_b else form.a
    if len(shape) == 3 and shape[0] in (1, groups) and (axis is None or shape[1 + axis] == 1):
        return along(x, None) if shape[0] == groups else lambda i, span: x[0]
    if prod(shape) == 1 or (axis is None and len(shape) < 3):
        return shared(x)
    own = 1 if of_b else 0
    if axis is not None and len(shape) < 3:
        size = shape[axis] if len(shape) == 2 else shape[0] if axis == own else 1
        if size == 1 or (len(shape) == 1 and axis != own):
            return shared(x)
        if axis == own and size == operand[axis]:
            return along(x, 0 if len(shape) == 1 else axis)
    raise ShapeError(
        name, f"shape {shape} of an operand of shape {operand}", _scale_shapes(form, of_b, groups, operand)
    )


def check_rows(form: Form, name: str, shape: tuple[int, ...], groups: int, operand: tuple[int, ...]) -> None:
    """ShapeError for a scale with a row for each group, where it needs a matrix for each.

    Two dimensions are those of one matrix, whose factors all groups share.
    """
    of_b = name == "scale_b"
    m, n = operand[-2:]
    if (form.b if of_b else form.a) is not None or shape != (groups, n if of_b else m):
        return
    blocks = -(-(m if of_b else n) // BLOCK)
    if groups in (1, blocks) if of_b else groups in (1, m) and m in (1, blocks):
        return  # the factors of one matrix
    each = (groups, 1, n) if of_b else (groups, m, 1)
    index = "[:, None, :]" if of_b else "[:, :, None]"
    raise ShapeError(name, f"shape {shape}", f"shape {each}, with a matrix for each group", f"pass {name}{index}")


def _scale_shapes(form: Form, of_b: bool, groups: int, operand: tuple[int, ...]) -> str:
    rows, columns = operand[-2:]
    whole = f"(1, {columns})" if of_b else f"({rows}, 1)"
    if (form.b if of_b else form.a) is None:
        return f"one element, {whole}, or stacks of {groups} with the shapes that gemmhub.matmul takes"
    blocks = "" if form is RAGGED_K else ", blocks along k"
    return f"one element, {whole}{blocks}, or ({groups}, 1, 1) with one for each group"
