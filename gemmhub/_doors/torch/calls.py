"""Dispatch of calls with torch tensors: to operators, autograd, DTensors, or plain memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from gemmhub import api
from gemmhub._arrays.torch import tensors
from gemmhub._call.options import ARRAYS, EXTRA, refuse_extra
from gemmhub._doors.torch import gradients
from gemmhub.errors import InputError, OutputError
from gemmhub.packed import PackedB

_TENSORS = ("out", *ARRAYS)
"""Options that may be tensors."""


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a call with tensors; NotImplemented where they are plain memory."""
    named = {**dict(zip("abc", operands)), **{name: options[name] for name in _TENSORS if name in options}}
    found = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in found.values())
    if _sharded(found.values()):
        refuse_extra(options, "with a DTensor")
        from gemmhub._doors.torch import sharded

        return sharded.take(call, operands, options)
    if call in ("explain", "spot_check") and recorded:  # they compute nothing that has a gradient
        return _without_gradients(call, operands, options)
    if call != "matmul":
        return NotImplemented  # plan and pack refuse tensors that require grad: they would lose it
    if traced(found.values()):
        return through_operator(operands, options)
    cast = autocast([x for name, x in found.items() if name not in EXTRA], options)
    if recorded:
        return _recorded(operands, options, found, cast)
    if cast is None:
        return NotImplemented
    return api.matmul(*map(cast, operands), **_cast(options, cast))


def _sharded(found: Iterable[torch.Tensor]) -> bool:
    """Whether one of these tensors is a DTensor, whose module is then loaded."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and any(isinstance(x, kind) for x in found)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def record(a: Any, b: Any, options: Mapping[str, Any]) -> Any:
    """The product of plain tensors, of which one requires grad, recorded by autograd, for a device's fast path.

    None where the call needs further analysis.
    """
    if type(a) not in _PLAIN or type(b) not in _PLAIN or torch._C._are_functorch_transforms_active() or _mapped(a):
        return None
    if tensors.casting(a.device.type) or _mapped(b):
        return None
    return gradients.product(a, b, **options)


def traced(found: Iterable[torch.Tensor]) -> bool:
    """Whether a product of tensors must be an operator of torch.

    It must under a tracer, a transform or a dispatch mode, on the device meta, and for subclasses that handle operators
    themselves.
    """
    if tensors.dispatched() or tensors.forward_mode() or torch._C._are_functorch_transforms_active():
        return True
    for x in found:
        if type(x) is not torch.Tensor and not tensors.plain_subclass(type(x)):
            return True
        if x.is_meta or _mapped(x):
            return True
    return False


_mapped = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)
"""Test whether a tensor has a dimension that torch.autograd maps over (``is_grads_batched``); since torch 2.2."""


def through_operator(operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The product by torch's operator ``gemmhub::matmul``, which tracers and transforms handle."""
    from gemmhub._doors.torch import ops

    return ops.matmul(*operands, **options)


def autocast(found: Any, options: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """The conversion that torch.autocast applies to each operand of this product; None where it applies none.

    As for torch.matmul, products into ``out`` and tensors of float64 are not converted.
    """
    kind = next(iter(found)).device.type
    if "out" in options or not tensors.rounded(kind, tuple(x.dtype for x in found)):
        return None
    wanted = torch.get_autocast_dtype(kind)

    def cast(x: Any) -> Any:
        return x.to(wanted) if isinstance(x, torch.Tensor) and tensors.rounded(kind, (x.dtype,)) else x

    return cast


def _recorded(
    operands: tuple[Any, ...], options: Mapping[str, Any], found: Mapping[str, torch.Tensor],
    cast: Callable[[Any], Any] | None,
) -> Any:  # fmt: skip
    """The product as a node of autograd's graph."""
    if isinstance(operands[1], PackedB):
        raise InputError(
            "a", "a tensor that requires grad, with a packed b", "an unpacked b, whose rows its gradient needs",
            "pass b itself, or call under torch.no_grad()",
        )  # fmt: skip
    if "out" in options:
        name = next(name for name, x in found.items() if x.requires_grad)
        raise OutputError(
            "out", f"given where {name} requires grad: autograd cannot record a write into a tensor",
            "no out with tensors that require grad", "drop out=, or call under torch.no_grad()",
        )  # fmt: skip
    if cast is not None:
        operands, options = tuple(map(cast, operands)), _cast(options, cast)
    return gradients.product(*operands, **options)


def _cast(options: Mapping[str, Any], cast: Callable[[Any], Any]) -> dict[str, Any]:
    """``options`` under autocast, which leaves scales in the dtype that they must have."""
    return {name: x if name in EXTRA else cast(x) for name, x in options.items()}


def _without_gradients(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    from gemmhub._check.spot_check import spot_check

    function: Callable[..., Any] = api.explain if call == "explain" else spot_check
    with torch.no_grad():
        return function(*operands, **options)
