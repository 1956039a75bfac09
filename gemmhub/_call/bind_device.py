"""A decided problem on a device bound to a kernel: what a call does that no fast path knows.

Nothing here waits for the device, and with ``out`` nothing is allocated beside the temporary of an overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gemmhub._arrays.torch.operands import TorchArrays
from gemmhub._base.geometry import DeviceView, broadcast, expand, meet, same_memory
from gemmhub._call.describe import Call, flat
from gemmhub.errors import GemmhubError
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

    def execute(
        a: Any, b: Any, out: Any = None, c: Any = None, bias: Any = None, alpha: Any = 1, beta: Any = 0,
        stream: Any = None, extra: Any = (),
    ) -> Array:  # fmt: skip
        with arrays.on(stream):
            result = arrays.empty(out_shape, out_dtype) if out is None else out
            target = arrays.target(result, out_shape)
            if not problem.empty:
                left = arrays.view(a, "a")
                right: Any = b.payload if isinstance(b, PackedB) else arrays.view(b, "b")
                addend = None if c is None or beta == 0 else arrays.view(c, "c")
                vector = None if bias is None else flat(arrays.view(bias, "bias"))
                compute = run
                more: Iterable[object] = ()
                if extra:
                    named = {name: flat(arrays.view(x, name), name) for name, x in extra.items()}
                    compute, more = partial(run, **{name: x.address for name, x in named.items()}), named.values()
                place, spare = target, None
                if out is not None and overlapping(target, (left, right, vector, *more), addend, a_ndim, b_ndim):
                    spare = arrays.twin(target)
                    place = arrays.view(spare, "out")
                if out is not None and written is not None:
                    written(out)
                try:
                    compute(
                        left.address, right if packed else right.address, place.address,
                        None if addend is None else addend.address,
                        None if vector is None else vector.address,
                        alpha, beta, arrays.current_stream() if stream is None else stream,
                    )  # fmt: skip
                except BaseException as error:
                    raise translated(error) from error
                if spare is not None:
                    arrays.copy(target.owner, spare)
            return out if out is not None else arrays.wrap(result, (a, b, c, bias))

    return execute


def overlapping(out: DeviceView, read: Iterable[object], c: DeviceView | None, a_ndim: int, b_ndim: int) -> bool:
    """Whether ``out`` shares memory with an operand, other than by being ``c``. ``read``: the others."""
    operands = [x for x in read if isinstance(x, DeviceView)]
    if c is not None and not same_memory(expand(broadcast(c, out.shape), a_ndim, b_ndim), expand(out, a_ndim, b_ndim)):
        operands.append(c)
    return any(meet(out, x) for x in operands)
