"""A decided problem on a device bound to a kernel: what a call does that no fast path knows.

Nothing here waits for the device, and with ``out`` nothing is allocated beside the temporary of an overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from gemmhub._arrays.torch.operands import TorchArrays
from gemmhub._base.geometry import DeviceView, expand, meet, same_memory
from gemmhub._call.describe import Call, refuse_shared, view
from gemmhub.errors import GemmhubError
from gemmhub.operands import OPERANDS, WRITTEN
from gemmhub.packed import PackedB

Array = Any
Execute = Callable[..., Array]


def bind(call: Call, run: Callable[..., None], translated: Callable[[BaseException], GemmhubError]) -> Execute:
    """See :func:`gemmhub._call.bind.bind`, of which this is the part for devices."""
    arrays: Any = call.arrays
    problem, out_shape = call.problem, call.out_shape
    out_dtype, packed = problem.out.dtype, problem.packed_by
    a_ndim, b_ndim = call.a.ndim, 2 if packed else call.b.ndim
    written = arrays.increment_version if isinstance(arrays, TorchArrays) else None

    product = call.product

    def execute(
        a: Any, b: Any, out: Any = None, operands: Mapping[str, Any] = MappingProxyType({}), alpha: Any = 1,
        beta: Any = 0, stream: Any = None,
    ) -> Array:  # fmt: skip
        with arrays.on(stream):
            result = arrays.empty(out_shape, out_dtype) if out is None else out
            target = arrays.target(result, out_shape)
            if not problem.empty:
                left = arrays.view(a, "a")
                right: Any = b.payload if isinstance(b, PackedB) else arrays.view(b, "b")
                named = {
                    name: OPERANDS[name].native(view(arrays, x, name, product), product)
                    for name, x in operands.items()
                    if name != "c" or beta != 0
                }
                refuse_shared(meet, {"a": left, "b": right, **named}, None if out is None else target)
                destination, spare = target, None
                if out is not None and overlapping(target, (left, right), named, a_ndim, b_ndim):
                    spare = arrays.empty_strided_like(target)
                    destination = arrays.view(spare, "out")
                if written is not None:
                    for x in (out, *map(operands.get, WRITTEN)):
                        if x is not None:
                            written(x)
                try:
                    run(
                        left.address, right if packed else right.address, destination.address,
                        alpha, beta, arrays.current_stream() if stream is None else stream,
                        **{name: x.address for name, x in named.items()},
                    )  # fmt: skip
                except BaseException as error:
                    raise translated(error) from error
                if spare is not None:
                    arrays.copy(target.owner, spare)
            return out if out is not None else arrays.wrap(result, (a, b, *operands.values()))

    return execute


def overlapping(
    out: DeviceView, read: Iterable[object], named: Mapping[str, DeviceView], a_ndim: int, b_ndim: int
) -> bool:
    """Whether ``out`` shares memory with an operand, other than by being ``c``. ``read``: a and b, where they are
    arrays.
    """
    expanded = expand(out, a_ndim, b_ndim)
    others = [x for name, x in named.items() if not (name == "c" and same_memory(x, expanded))]
    return any(isinstance(x, DeviceView) and meet(out, x) for x in (*read, *others))
