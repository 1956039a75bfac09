"""Dispatch of grouped calls with torch tensors, to the operator or to plain memory; torch's own grouped products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemmhub import api, dtypes
from gemmhub._arrays.torch import tensors
from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub._call.describe import numerics
from gemmhub._call.options import with_scalars
from gemmhub._doors.torch import calls, node
from gemmhub._grouped import forms
from gemmhub._grouped.call import OPERANDS, check_options
from gemmhub._grouped.check import spot_check_grouped
from gemmhub._grouped.device import DIVIDED
from gemmhub._grouped.explain import explain_grouped
from gemmhub._grouped.matmul import grouped_matmul
from gemmhub.capability import Device
from gemmhub.errors import InputError
from gemmhub.kit import locks
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Groups, Operand

Tensor = Any

_TERMS = ("bias", "c")
"""The operands that are added, which autocast rounds as a and b."""
CALLS: Mapping[str, Callable[..., Any]] = {
    "grouped_matmul": grouped_matmul,
    "explain_grouped": explain_grouped,
    "spot_check_grouped": spot_check_grouped,
}
"""The calls that :func:`take` takes."""


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a grouped call with tensors; NotImplemented where they are plain memory."""
    a, b, offsets = operands[:3]
    named = {"a": a, "b": b, "out": options.get("out"), **{name: options.get(name) for name in OPERANDS}}
    found = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    if any(hasattr(x, "device_mesh") for x in found.values()):
        raise InputError(
            ", ".join(found), "DTensors", "tensors: not implemented", "multiply the local tensors: x.to_local()"
        )
    for name, x in found.items():
        tensors.check_dense(x, name)
    tensors.check_one_device(found)
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in found.values())
    if call != "grouped_matmul":
        return _about(call, operands, options, recorded)
    if recorded and options.get("out") is not None:
        raise node.unrecorded_out(next(name for name, x in found.items() if x.requires_grad))
    if recorded or tensors.traced(found.values()):
        from gemmhub._doors.torch import grouped_ops

        others = {name: x for name, x in options.items() if name != "out"}
        check_options(others)
        others = with_scalars(others)  # type: ignore[arg-type]
        if offsets is not None and not isinstance(offsets, torch.Tensor):
            offsets = torch.tensor(offsets)  # a copy: the caller may write into theirs before the backward pass
        return grouped_ops.matmul(a, b, offsets, options.get("out"), others)
    return _plain(call, operands, options)


def _about(call: str, operands: tuple[Any, ...], options: Mapping[str, Any], recorded: bool) -> Any:
    """The result of a call that computes nothing that has a gradient."""
    if recorded:
        with torch.no_grad():
            return CALLS[call](*operands, **options)
    return _plain(call, operands, options)


def _plain(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The call with operands whose memory holds what they mean: resolved, and rounded by autocast; NotImplemented where
    these are the operands themselves.
    """
    a, b, *rest = operands
    terms = {"a": a, "b": b, **{name: options.get(name) for name in _TERMS}}
    named = {name: x for name, x in terms.items() if isinstance(x, torch.Tensor)}
    cast = None if options.get("out") is not None else calls.autocast(named.values(), {})
    changed = {name: x.resolve_conj().resolve_neg() for name, x in named.items()}
    changed = changed if cast is None else {name: cast(x) for name, x in changed.items()}
    if all(changed[name] is x for name, x in named.items()):
        return NotImplemented
    terms |= changed
    others = {**options, **{name: terms[name] for name in _TERMS if name in named}}
    return CALLS[call](terms["a"], terms["b"], *rest, **others)


FUNCTIONS = tuple(
    getattr(module, name)
    for module, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
    if hasattr(module, name)
)
"""torch's own grouped products. :class:`gemmhub.torch.use` takes them on CPUs, and on CUDA devices where a backend
takes them."""

_TORCHS = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of the operands that torch takes."""


def equivalent(
    a: Any, b: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> tuple[tuple[Any, Any, Any], dict[str, Any]] | None:  # fmt: skip
    """gemmhub's operands and options for a call of torch's; None for one that torch must run, or refuse.

    The caller knows that a and b are dense and of one dtype.
    """
    device = a.device.type
    if bias is not None or device not in ("cpu", "cuda") or a.dtype not in _TORCHS or out_dtype not in (None, a.dtype):
        return None
    if torch.is_autocast_enabled(device):
        return None  # torch.autocast does not round the operands of grouped products
    form = forms.FORMS.get((a.dim(), b.dim()))
    if form is None or form.divided is (offs is None) or a.shape[-1] != b.shape[-2]:
        return None
    if form is forms.DENSE and a.shape[0] != b.shape[0]:
        return None
    if offs is not None:
        if not (isinstance(offs, torch.Tensor) and offs.device == a.device and offs.dim() == 1):
            return None
        if offs.dtype is not torch.int32:
            return None
        groups = a if form.a is None else b if form.b is None else offs
        if offs.shape[0] != groups.shape[0]:
            return None
    orders = _order(a), _order(b)
    if None in orders:
        return None
    if offs is not None and device != "cpu":
        if not (offs.is_contiguous() and _whole(a) and _whole(b)):
            return None
        if not taken(device, a.device.index, (a.dim(), b.dim()), a.dtype, orders):
            return None
    return (a, b, offs), {}


def _order(x: Tensor) -> str | None:
    """The storage order of matrices that torch takes, with contiguous rows or columns, each at a multiple of 16 bytes;
    None for others.
    """
    (rows, columns), (row, column) = x.shape[-2:], x.stride()[-2:]
    if column == 1 and row >= max(1, columns):
        order, step = "row", row
    elif row == 1 and column >= max(1, rows):
        order, step = "col", column
    else:
        return None
    return order if step * x.element_size() % 16 == 0 else None


def _whole(x: Tensor) -> bool:
    """Whether the first element and each matrix begin at multiples of 16 bytes of the memory."""
    begins = (x.storage_offset(), *x.stride()[:-2])
    return all(step * x.element_size() % 16 == 0 for step in begins)


_SIDE = 256
"""Size of each dimension of the products for which backends are asked."""


def taken(
    device: str, index: int, dimensions: tuple[int, int], dtype: torch.dtype, orders: tuple[str | None, ...]
) -> bool:  # fmt: skip
    """Whether a backend runs grouped products by offsets on this device, with the settings in force: of a and b of so
    many dimensions, of one dtype, in these storage orders. It is decided once for each of them, for one size: what
    backends refuse of groups, they refuse for all sizes.
    """
    request = check_options({})
    key = taken, device, index, dimensions, dtype, orders, request.settings
    cache = api._cache  # before the decision: it is replaced where settings and backends change
    known = cache.find(key)
    if known is not None:
        return bool(known)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True  # backends may prove kernels on the device, which no capture allows: the call itself is refused
    form = forms.FORMS[dimensions]
    groups = Groups(2, DIVIDED[form.out])
    name = dtypes.as_dtype(str(dtype).removeprefix("torch."))

    def operand(side: str, order: str | None) -> Operand:
        steps = (1, _SIDE) if order == "col" else (_SIDE, 1)
        batch = groups.batch(side)
        return Operand(name, MatrixLayout(_SIDE, _SIDE, *steps, batch, (_SIDE * _SIDE,) * len(batch)), MAX_ALIGNMENT)

    where = Device(device, index)
    _, compute, precision = numerics(request, name, name, name, where)
    problem = GemmProblem(
        m=_SIDE, n=_SIDE, k=_SIDE, a=operand("a", orders[0]), b=operand("b", orders[1]), out=operand("out", "row"),
        compute_dtype=compute, precision=precision, reproducible=request.settings.reproducible, device=where,
        groups=groups,
    )  # fmt: skip
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide

        decision = decide.decide(problem, request.settings)
    if decision.cacheable:
        cache.put(key, decision.chosen is not None)
    return decision.chosen is not None


taken._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's compiler does not trace it
