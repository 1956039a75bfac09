"""Dispatch of grouped calls with torch tensors, to the operator or to plain memory; torch's own grouped products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemmhub._arrays.torch import tensors
from gemmhub._call.options import with_scalars
from gemmhub._doors.torch import calls, node
from gemmhub._grouped import forms
from gemmhub._grouped.call import OPERANDS, check_options
from gemmhub._grouped.check import spot_check_grouped
from gemmhub._grouped.device import taken
from gemmhub._grouped.explain import explain_grouped
from gemmhub._grouped.matmul import grouped_matmul
from gemmhub.errors import InputError

Tensor = Any

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
    terms = {"a": a, "b": b, "bias": options.get("bias")}
    named = {name: x for name, x in terms.items() if isinstance(x, torch.Tensor)}
    cast = None if options.get("out") is not None else calls.autocast(named.values(), {})
    changed = {name: x.resolve_conj().resolve_neg() for name, x in named.items()}
    changed = changed if cast is None else {name: cast(x) for name, x in changed.items()}
    if all(changed[name] is x for name, x in named.items()):
        return NotImplemented
    terms |= changed
    others = {**options, "bias": terms["bias"]} if "bias" in named else options
    return CALLS[call](terms["a"], terms["b"], *rest, **others)


FUNCTIONS = tuple(
    getattr(module, name)
    for module, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
    if hasattr(module, name)
)
"""torch's own grouped products. :class:`gemmhub.torch.use` takes them on CPUs, and on CUDA devices where a backend
takes groups."""

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
        if device != "cpu" and not (offs.is_contiguous() and taken(device, form.out)):
            return None
        groups = a if form.a is None else b if form.b is None else offs
        if offs.shape[0] != groups.shape[0]:
            return None
    return ((a, b, offs), {}) if _aligned(a) and _aligned(b) else None


def _aligned(x: Tensor) -> bool:
    """Whether torch takes matrices of these strides: contiguous rows or columns, each at a multiple of 16 bytes."""
    (rows, columns), (row, column) = x.shape[-2:], x.stride()[-2:]
    if column == 1 and row >= max(1, columns):
        step = row
    elif row == 1 and column >= max(1, rows):
        step = column
    else:
        return False
    return bool(step * x.element_size() % 16 == 0)
