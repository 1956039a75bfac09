"""The functions ``tensordot`` and ``vecdot``: sums over axes of two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar, overload

from gemmhub._base.wording import counted
from gemmhub._call.options import ContractionOptions, signature
from gemmhub._contractions import arrays
from gemmhub._contractions.contract import contract
from gemmhub._contractions.einsum import passed
from gemmhub._contractions.equation import BROADCAST, Equation
from gemmhub.errors import InputError, ShapeError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any
A = TypeVar("A")
"""The type of the first operand, which a result has."""


@overload
def tensordot(
    a: complex | Sequence[Any], b: Array, /, axes: Any = 2, **options: Unpack[ContractionOptions]
) -> Array: ...
@overload
def tensordot(a: A, b: Array, /, axes: Any = 2, **options: Unpack[ContractionOptions]) -> A: ...
@signature(ContractionOptions)
def tensordot(a: Array, b: Array, /, axes: Any = 2, **options: Unpack[ContractionOptions]) -> Array:
    """Compute the sum of products over axes of two arrays, as of :func:`numpy.tensordot`, by :func:`matmul`.

    Parameters
    ----------
    a, b : arrays of one library, of any strides.
    axes : the number of axes, the last of a and the first of b; or a pair: the axes of a, and the axes of b that they
        are multiplied with, each an int or a sequence of ints.
    out_dtype, precision, reproducible, backend : as of :func:`matmul`.

    Returns
    -------
    An array with the other axes of a, then those of b.

    Raises
    ------
    InputError : ``axes`` that are neither a number nor a pair.
    ShapeError : axes that a or b has not, that occur twice, or whose sizes differ.
    DTypeError, DeviceError, NoBackendError, KernelError, AllocationError : as of :func:`matmul`.

    See Also
    --------
    einsum : products that an equation names.
    vecdot : scalar products along an axis.

    Examples
    --------
    >>> gemmhub.tensordot(np.ones((2, 3, 4)), np.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
    (2, 5)
    """
    a, b = arrays.as_array(a, "a"), arrays.as_array(b, "b")
    arrays.check_alike((a, b), ("a", "b"))
    left, right = _axes(axes, len(a.shape), len(b.shape))
    for i, j in zip(left, right):
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                "axes", f"sizes {a.shape[i]} and {b.shape[j]} of axes {i} of a and {j} of b", "equal sizes"
            )
    letters = _letters(len(a.shape) + len(b.shape))
    first, second = letters[: len(a.shape)], letters[len(a.shape) :]
    for i, j in zip(left, right):
        second[j] = first[i]
    out = [x for x in first if x not in second] + [x for x in second if x not in first]
    return contract(Equation(("".join(first), "".join(second)), "".join(out)), (a, b), passed(options))


def _letters(count: int) -> list[str]:
    return [chr(BROADCAST + i) for i in range(count)]


def _axes(axes: Any, a_rank: int, b_rank: int) -> tuple[list[int], list[int]]:
    """The axes of a and of b to sum over, none negative."""
    try:
        if hasattr(axes, "__iter__"):
            left, right = ([*map(_axis, x)] if hasattr(x, "__iter__") else [_axis(x)] for x in axes)
        else:
            count = _axis(axes)
            left, right = [*range(-count, 0)], [*range(count)]
            if count < 0:
                raise ValueError
    except (TypeError, ValueError):
        allowed = "a number of axes, or a pair of ints or of sequences of ints"
        raise InputError("axes", f"{axes!r:.80}", allowed) from None
    most = min(a_rank, b_rank)
    if not hasattr(axes, "__iter__") and len(left) > most:
        actual = f"{axes!r}, of a with {counted(a_rank, 'dimension')} and b with {counted(b_rank, 'dimension')}"
        raise ShapeError("axes", actual, f"a number of axes from 0 to {most}, or a pair")
    if len(left) != len(right):
        raise ShapeError("axes", f"{len(left)} axes of a and {len(right)} of b", "as many of each")
    return _normal("a", left, a_rank), _normal("b", right, b_rank)


def _axis(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    return index(x)


def _normal(name: str, axes: list[int], rank: int) -> list[int]:
    """Axes of an operand, none negative."""
    if not all(-rank <= x < rank for x in axes):
        raise ShapeError("axes", f"{axes} of {name}, which has {rank} dimensions", f"axes of {name}")
    positions = [x % rank for x in axes]
    if len({*positions}) < len(axes):
        raise ShapeError("axes", f"{axes} of {name}: one axis twice", "each axis once")
    return positions


@overload
def vecdot(
    a: complex | Sequence[Any], b: Array, /, *, axis: int = -1, **options: Unpack[ContractionOptions]
) -> Array: ...
@overload
def vecdot(a: A, b: Array, /, *, axis: int = -1, **options: Unpack[ContractionOptions]) -> A: ...
@signature(ContractionOptions)
def vecdot(a: Array, b: Array, /, *, axis: int = -1, **options: Unpack[ContractionOptions]) -> Array:
    """Compute the scalar products ``sum(conj(a) * b)`` along an axis, as of :func:`numpy.vecdot`, by :func:`matmul`.

    Parameters
    ----------
    a, b : arrays of one library. ``a`` is conjugated where it is complex, which copies it.
    axis : the axis of both that is summed over, of equal size in both; the other dimensions broadcast.
    out_dtype, precision, reproducible, backend : as of :func:`matmul`.

    Returns
    -------
    An array of the broadcast dimensions without ``axis``.

    Raises
    ------
    ShapeError : an axis that a or b has not, sizes that differ along it, dimensions that do not broadcast.
    DTypeError, DeviceError, NoBackendError, KernelError, AllocationError : as of :func:`matmul`.

    See Also
    --------
    einsum : products that an equation names.
    tensordot : the sum of products over axes.

    Examples
    --------
    >>> gemmhub.vecdot(np.array([[1j, 2], [0, 1]]), np.array([1j, 1]))
    array([3.+0.j, 1.+0.j])
    """
    a, b = arrays.as_array(a, "a"), arrays.as_array(b, "b")
    arrays.check_alike((a, b), ("a", "b"))
    shapes = tuple(a.shape), tuple(b.shape)
    try:
        position = _axis(axis)
    except TypeError:
        raise InputError("axis", f"{axis!r:.80}", "an int") from None
    for name, shape in zip("ab", shapes):
        if not -len(shape) <= position < len(shape):
            raise ShapeError("axis", f"{axis} of {name}, which has {len(shape)} dimensions", f"an axis of {name}")
    sizes = shapes[0][position], shapes[1][position]
    if sizes[0] != sizes[1]:
        raise ShapeError("a, b", f"sizes {sizes[0]} and {sizes[1]} of axis {axis}", "equal sizes")
    out = _letters(max([len(x) for x in shapes]) - 1)
    terms = []
    for shape in shapes:
        letters = out[len(out) - len(shape) + 1 :]
        letters.insert(position % len(shape), "k")
        terms.append("".join(letters))
    equation = Equation(tuple(terms), "".join(out))
    if equation.sizes(shapes) is None:
        raise ShapeError(
            "a, b", f"shapes {shapes[0]} and {shapes[1]} do not broadcast beside axis {axis}", "equal sizes, or 1"
        )
    return contract(equation, (arrays.conjugate(a), b), passed(options))
