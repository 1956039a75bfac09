"""The functions ``linear`` and ``bmm``: products of other frameworks, by their conventions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from gemmhub import api
from gemmhub._base.registered import Replay
from gemmhub._call.options import LinearOptions, Options, signature
from gemmhub._contractions import arrays
from gemmhub.errors import InputError, ShapeError
from gemmhub.packed import PackedB

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any
A = TypeVar("A")
"""The type of the first operand, which a result has."""


@overload
def linear(
    x: complex | Sequence[Any], weight: Array, bias: Array | None = None, *, out: Array | None = None,
    **options: Unpack[LinearOptions],
) -> Array: ...  # fmt: skip
@overload
def linear(
    x: A, weight: Array, bias: Array | None = None, *, out: Array | None = None, **options: Unpack[LinearOptions]
) -> A: ...
@signature(LinearOptions)
def linear(
    x: Array, weight: Array, bias: Array | None = None, *, out: Array | None = None, **options: Unpack[LinearOptions]
) -> Array:
    """Compute ``activation(x @ weight.T + bias)`` in one product, as of :func:`torch.nn.functional.linear`.

    Parameters
    ----------
    x : array of shape (..., in_features).
    weight : array of shape (out_features, in_features); its transpose is a view.
    bias : array of shape (out_features,), or None.
    out, options : as of :func:`matmul`.

    Returns
    -------
    An array of shape (..., out_features), with half as many columns after a gated activation.

    Raises
    ------
    ShapeError : a weight that is no matrix, or shapes that do not fit it.
    InputError : a packed weight.
    The other errors of :func:`matmul`.

    See Also
    --------
    matmul : the product without a transposed weight.
    bmm : products of stacks of matrices.

    Examples
    --------
    >>> x, weight = np.ones((2, 5, 3), np.float32), np.ones((4, 3), np.float32)
    >>> gemmhub.linear(x, weight, np.zeros(4, np.float32), activation="relu").shape
    (2, 5, 4)
    """
    named: Any = options if bias is None else {**options, "bias": bias}
    fast = api.fast_path(x.__class__)
    if fast is not None and fast.linear is not None and (bias is None or getattr(bias, "ndim", None) == 1):
        try:
            result = fast.linear(x, weight, out, named)
        except Exception:
            result = None  # the checks below find the reason
        if result is not None and result.__class__ is not Replay:
            return result
    return _linear(x, weight, bias, out=out, **options)


def _linear(x: Any, weight: Any, bias: Any = None, *, out: Any = None, **options: Unpack[LinearOptions]) -> Array:
    """The layer, checked, as a product by a view of the weight."""
    if isinstance(weight, PackedB):
        raise InputError(
            "weight", "a packed operand", "an array of shape (out_features, in_features)",
            "a PackedB of weight.T goes to gemmhub.matmul(x, packed, bias=bias)",
        )  # fmt: skip
    x, weight = arrays.as_array(x, "x"), arrays.as_array(weight, "weight")
    if len(weight.shape) != 2:
        actual = f"shape {tuple(weight.shape)}"
        raise ShapeError("weight", actual, "shape (out_features, in_features)")
    if not len(x.shape) or x.shape[-1] != weight.shape[1]:
        actual = f"shapes {tuple(x.shape)} and {tuple(weight.shape)}"
        raise ShapeError("x, weight", actual, "(..., in_features) and (out_features, in_features)")
    named: Any = {**options}
    if bias is not None:
        bias = arrays.as_array(bias, "bias")
        if tuple(bias.shape) != (weight.shape[0],):
            raise ShapeError("bias", f"shape {tuple(bias.shape)}", f"shape ({weight.shape[0]},)")
        named["bias"] = bias
    arrays.check_alike((x, weight) if bias is None else (x, weight, bias), ("x", "weight", "bias"))
    if out is not None:
        named["out"] = out
    return api.matmul(x, arrays.transposed(weight, (1, 0)), **named)


linear._torchdynamo_inline = _linear  # type: ignore[attr-defined]  # torch's compiler traces it instead


@overload
def bmm(a: complex | Sequence[Any], b: Array, /, *, out: Array | None = None, **options: Unpack[Options]) -> Array: ...
@overload
def bmm(a: A, b: Array, /, *, out: Array | None = None, **options: Unpack[Options]) -> A: ...
@signature()
def bmm(a: Array, b: Array, /, *, out: Array | None = None, **options: Unpack[Options]) -> Array:
    """Compute the products of two stacks of matrices, as of :func:`torch.bmm`: :func:`matmul` that broadcasts nothing.

    Parameters
    ----------
    a, b : arrays of shapes (batch, m, k) and (batch, k, n).
    out, options : as of :func:`matmul`.

    Returns
    -------
    An array of shape (batch, m, n).

    Raises
    ------
    ShapeError : other numbers of dimensions, or batch sizes that differ.
    The other errors of :func:`matmul`.

    See Also
    --------
    matmul : the same, with broadcasting.
    einsum : products that an equation names.

    Examples
    --------
    >>> gemmhub.bmm(np.ones((2, 3, 4)), np.ones((2, 4, 5))).shape
    (2, 3, 5)
    """
    a, b = arrays.as_array(a, "a"), arrays.as_array(b, "b")
    for name, x in (("a", a), ("b", b)):
        if len(x.shape) != 3:
            raise ShapeError(name, f"{len(x.shape)} dimensions", "3 dimensions", "gemmhub.matmul takes any number")
    if a.shape[0] != b.shape[0]:
        raise ShapeError(
            "a, b", f"batch sizes {a.shape[0]} and {b.shape[0]}", "equal ones", "gemmhub.matmul broadcasts them"
        )
    named: Any = options if out is None else {**options, "out": out}
    return api.matmul(a, b, **named)
