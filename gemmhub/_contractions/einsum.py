"""The function ``einsum``: an equation of any number of operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from gemmhub._call.options import ContractionOptions, signature, unknown
from gemmhub._contractions import arrays
from gemmhub._contractions.contract import contract
from gemmhub._contractions.equation import check_text, parse

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any
A = TypeVar("A")
"""The type of the first operand, which a result has."""


@overload
def einsum(
    equation: str, operand: complex | Sequence[Any], /, *operands: Array, **options: Unpack[ContractionOptions]
) -> Array: ...
@overload
def einsum(equation: str, operand: A, /, *operands: Array, **options: Unpack[ContractionOptions]) -> A: ...
@signature(ContractionOptions)
def einsum(equation: str, /, *operands: Array, **options: Unpack[ContractionOptions]) -> Array:
    """Compute the sum of products that an equation names, as of :func:`numpy.einsum`, by products of :func:`matmul`.

    Each pair of operands is one product of views: common letters that the result has are its batch dimensions, common
    letters that it has not are its inner dimension. An operand is copied only where its strides do not let a group of
    letters merge. A letter that occurs twice in an operand is a diagonal; letters of one operand alone are summed
    before the product. Pairs that sum nothing are multiplied element by element by the operands' own library.

    Parameters
    ----------
    equation : letters a to z and A to Z for the dimensions of each operand, separated by commas, then ``->`` and those
        of the result. ``...`` stands for dimensions that broadcast. Without ``->`` the result has the dimensions of the
        ellipsis and the letters that occur once, in alphabetical order.
    operands : arrays of one library, one for each group of letters, of any strides. A size of 1 broadcasts.
    out_dtype : dtype of the result; by default that of products from left to right, by the table in
        :mod:`gemmhub.dtypes`. Sums and products on the way have the accumulator's dtype: the result is rounded once.
    precision, reproducible, backend : as of :func:`matmul`, for each product.

    Returns
    -------
    An array of the operands' type and device. Of one operand without a sum it is a view where the library has views.

    Raises
    ------
    InputError : an equation with an unknown letter, or for another number of operands.
    ShapeError : dimensions or sizes that do not fit the equation. The message names the letter and the operands.
    DTypeError, DeviceError, NoBackendError, KernelError, AllocationError : as of :func:`matmul`.

    See Also
    --------
    tensordot : one product over axes of two arrays.
    matmul : the product, with every option.

    Notes
    -----
    The order of more than two operands is that of opt_einsum where it is installed (the extra ``gemmhub[einsum]``);
    otherwise each product is the one whose result has the fewest elements beside its operands.

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> gemmhub.einsum("ij,kj->ik", x, x)
    array([[ 5., 14.],
           [14., 50.]])
    >>> gemmhub.einsum("bij,bjk,bkl->bil", *np.ones((3, 2, 4, 4), np.float16)).shape
    (2, 4, 4)
    """
    check_text(equation)
    names = [f"operands[{i}]" for i in range(len(operands))]
    checked = [arrays.as_array(x, name) for x, name in zip(operands, names)]
    parsed = parse(equation, tuple([len(x.shape) for x in checked]))
    arrays.check_alike(checked, names)
    return contract(parsed, checked, passed(options))


def passed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not their defaults. TypeError for one that a contraction has not."""
    for name in options:
        if name not in ContractionOptions.__annotations__:
            raise unknown(name, ContractionOptions.__annotations__)
    return {name: x for name, x in options.items() if x is not None and x is not False}
