"""The function ``grouped_matmul``: by offsets on a device one product, otherwise the products of all groups, by the
decisions of single products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub import api
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import TorchHostArrays
from gemmhub._base import registered
from gemmhub._base.guard import memory_errors
from gemmhub._call.options import signature, stream_handle
from gemmhub._grouped import call as calls
from gemmhub._grouped import device, host_tensors, overlaps, repeated
from gemmhub._grouped import offsets as ends_of
from gemmhub._grouped.call import OPERANDS, Grouped, GroupedOptions
from gemmhub.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any


@signature(GroupedOptions)
@memory_errors
def grouped_matmul(
    a: Array, b: Array, /, offsets: Array | None = None, *, out: Array | None = None, **options: Unpack[GroupedOptions]
) -> Array:
    """Multiply groups of rows, columns, or matrices, each by a matrix of its own, in one call.

    The products of the experts of a mixture are of this kind, as are the gradients of their weights. The form follows
    from the shapes, where g is the number of groups and offsets hold the end of each in the dimension that they divide:

    - ragged m: a (m, k), b (g, k, n): rows of a by the matrix of their group; result (m, n);
    - ragged k: a (m, k), b (k, n): columns of a by the same rows of b; result (g, m, n);
    - ragged n: a (g, m, k), b (k, n): the matrix of a group by its columns of b; result (m, n);
    - dense: a (g, m, k), b (g, k, n), without offsets; result (g, m, n);
    - lists: ``grouped_matmul([a0, a1], [b0, b1])``, products of any sizes; a list of results.

    Parameters
    ----------
    a, b : arrays of these shapes, any strides; or lists of matrices.
    offsets : int32 or int64 array of shape (g,) on the host, or int32 on the operands' device: cumulative ends, without
        a leading zero, as of torch._grouped_mm. Groups may be empty. Rows or columns beyond the last end enter no
        result, and are zeros in the result.
    out : array of the result's shape, overwritten, which shares no memory with operands, but may be c; in lists, one
        for each group, which shares none with results or operands of other groups.
    out_dtype, alpha, activation, precision, reproducible, stream : as of :func:`matmul`, for each product.
    beta, c : beta times c, an array of the product's shape, is added; in lists, one for each group. Beyond the last end
        the result is zeros, whatever c is. ``c=out`` with ``beta=1`` accumulates, as gradients of weights.
    bias : array of shape (n,), or (g, n) with one for each group; in lists, one for each group.
    scale_a, scale_b : float32 factors as of :func:`matmul`: of a stack, with the group first; of an operand that the
        offsets divide, of one element, of one for each of its rows (columns of b), or (g, 1, 1) for each group.
    backend : name of the one backend to use for each product.

    Returns
    -------
    The result (``out`` where given), of the operands' own array type. Each group's part is that of its :func:`matmul`,
    within the same bound. A group without elements along k has zeros, and what is added to them.

    Raises
    ------
    ShapeError, DTypeError, OutputError, DeviceError, InputError : a bad argument. The message names the group.
    NoBackendError : a product that no backend may run, or a grouped one by offsets on a device.
    KernelError, AllocationError : as of :func:`matmul`; ``out`` may be written in part.

    See Also
    --------
    explain_grouped : the backends that run the groups, and how unequal these are.
    spot_check_grouped : whether a result is right.
    bmm : products of two stacks.

    Notes
    -----
    By offsets on a device one kernel multiplies all groups. Nothing waits for the device: such offsets are not checked,
    and an end that is below the one before it, or beyond the array, counts as that limit. By offsets on the host each
    group is multiplied by the backend that is the best for its sizes; on CPUs a backend may multiply all groups in one
    call.

    Examples
    --------
    >>> tokens, experts = np.ones((5, 2), np.float32), np.ones((3, 2, 4), np.float32)
    >>> ends = np.array([2, 2, 4], np.int32)  # two tokens, none, two; the fifth belongs to no expert
    >>> gemmhub.grouped_matmul(tokens, experts, ends)[:, 0]
    array([2., 2., 2., 2., 0.], dtype=float32)
    """
    values: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
    if a.__class__ is np.ndarray and b.__class__ is np.ndarray:
        known = repeated.product(a, b, offsets, out, values)
        if known is not None:
            return known
    elif out is None and tensors.is_tensor(a):
        known = host_tensors.product(a, b, offsets, values)
        if known is not None:
            return known
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        if out is not None:
            overlaps.check(calls.read_lists(a, b, offsets, out, values)[0])
        return each_product(a, b, offsets, out, values)
    if registered.deferring or registered.doors:
        arguments = values if out is None else {"out": out, **values}
        arrays = (a, b, offsets, out, *map(values.get, OPERANDS))
        deferred = registered.deferred("grouped_matmul", (a, b, offsets), arguments, arrays)
        if deferred is not NotImplemented:
            return deferred
    return multiply(a, b, offsets, out, values)


def multiply(a: Array, b: Array, offsets: Any, out: Array | None, options: dict[str, Any]) -> Array:
    """The product of plain memory."""
    if ends_of.on_device(offsets):
        return device.multiply(a, b, offsets, out, options)
    if out is None and tensors.is_tensor(a):  # of a product that autograd records
        known = host_tensors.product(a, b, offsets, options)
        if known is not None:
            return known
    call = calls.describe(a, b, offsets, out, options)
    arrays = call.arrays
    with arrays.on(stream_handle(options.get("stream"))):
        native = arrays.empty(call.shape, call.out_dtype) if out is None else calls.target(call, out)
        if arrays.device.type == "cpu":
            if out is not None and isinstance(arrays, TorchHostArrays):
                arrays.increment_version(out)
            if "c" in call.natives:  # which may be the result
                run(call, native)
            else:
                repeated.run(call, native, new=out is None)
            finish(call, native)
            return arrays.wrap(native, (a, b)) if out is None else out
        result = arrays.wrap(native, (a, b)) if out is None else out
        run(call, result)
        finish(call, result)
    return result


def run(call: Grouped, result: Array) -> None:
    """Write the products of all groups into ``result``, one by one."""
    matmul, options, cut = api.matmul, call.options, call.cut(result)
    left, right = call.picks["a"], call.picks["b"]
    for i, span in call.busy:
        try:
            matmul(left(i, span), right(i, span), out=cut(i, span), **options(i, span))
        except InputError as error:
            raise calls.named(error, None if call.stacked else i) from error


def finish(call: Grouped, result: Array) -> None:
    """Write zeros beyond the last end."""
    rest = call.beyond(result)
    if rest is not None:
        device.clear(rest)


def each_product(a: Any, b: Any, offsets: Any, out: Any, options: dict[str, Any]) -> list[Array]:
    """The products of lists of matrices."""
    results = []
    for i, left, right, target, own in calls.each(a, b, offsets, out, options):
        try:
            results.append(api.matmul(left, right, out=target, **own))
        except InputError as error:
            raise calls.named(error, i) from error
    return results
