"""Dispatch of calls with torch tensors: to operators, autograd, DTensors, or plain memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from gemmhub import api
from gemmhub._arrays.torch import tensors
from gemmhub._base.registered import Replay
from gemmhub._base.wording import instance
from gemmhub._call.options import ARRAYS, NUMBERS, check
from gemmhub._doors.torch import node
from gemmhub.capability import Copy
from gemmhub.errors import GemmhubError, InputError
from gemmhub.operands import OPERANDS, WRITTEN
from gemmhub.packed import PackedB

_TENSORS = ("out", *ARRAYS)
"""Options that may be tensors."""

_WRITTEN = ("out", *WRITTEN)

_POSITIONAL = ("a", "b", "result")
"""The positional arguments of calls; spot_check alone has a result."""

_EVERY_OPERATOR = (
    ("torch._subclasses.fake_tensor", "FakeTensor"), ("torch._subclasses.functional_tensor", "FunctionalTensor"),
    ("torch.distributed.tensor", "DTensor"), ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"),
)  # fmt: skip
"""Subclasses of torch's tracers and of its distributed tensors, which handle any operator, gemmhub's included."""


def multiplies_itself(*found: Any) -> bool:
    """Whether one of these tensors is of a subclass that defines itself what torch's products of it are.

    Quantized weights, packed sparse weights and quantities with units are such tensors: their elements are not in their
    memory, or are not all that counts. Only their own code can multiply them.
    """
    for x in found:
        kind = type(x)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter and isinstance(x, torch.Tensor) and _own(kind):
            return True
    return False


def _own(kind: Any) -> bool:
    default = torch.Tensor.__torch_function__.__func__
    function = kind.__torch_function__
    if function is not torch._C._disabled_torch_function_impl and getattr(function, "__func__", None) is not default:
        return True
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return False
    known = [getattr(sys.modules.get(module), name, None) for module, name in _EVERY_OPERATOR]
    return not any(x is not None and issubclass(kind, x) for x in known)


def kept(precision: str | None, reproducible: str | None, backend: str | None) -> dict[str, Any]:
    """The options that a layer, or a block, gives to each of its products; InputError where no product takes them."""
    given: dict[str, Any] = {"precision": precision, "reproducible": reproducible, "backend": backend}
    options = {name: x for name, x in given.items() if x is not None}
    check(options)
    return options


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a call with tensors; NotImplemented where they are plain memory."""
    named = {**dict(zip(_POSITIONAL, operands)), **{name: options[name] for name in _TENSORS if name in options}}
    found = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in found.values())
    if _sharded(found.values()):
        from gemmhub._doors.torch import sharded

        return sharded.take(call, operands, options)
    tensors.check_one_device(found)
    if call == "plan":
        return NotImplemented  # it refuses what it would lose: gradients, pending conjugations; and rounds no operand
    if call == "matmul" and tensors.traced(found.values()):
        return through_operator(operands, options)
    pending = {name: x for name, x in found.items() if name not in _WRITTEN and _pending(x)}
    if pending:
        return _resolved(call, operands, options, pending)
    if call == "pack":
        return NotImplemented
    rounded = [x for name, x in found.items() if _converts(name) and name != "result"]
    cast = autocast(rounded, options)
    if call != "matmul":
        return _about(call, operands, options, recorded, cast)
    if recorded:
        return _recorded(operands, options, found, cast)
    if cast is None:
        return NotImplemented
    return api.matmul(*map(cast, operands), **_cast(options, cast))


def _pending(x: Any) -> bool:
    """Whether torch has conjugated or negated a plain tensor lazily: its memory does not hold its elements."""
    plain = type(x) is torch.Tensor or tensors.plain_subclass(type(x))
    return plain and (x.is_conj() or x.is_neg())


def _resolved(
    call: str, operands: tuple[Any, ...], options: Mapping[str, Any], pending: Mapping[str, torch.Tensor]
) -> Any:  # fmt: skip
    """The result of a call whose ``pending`` operands are copied first, as torch's own products copy them.

    The copies are recorded for autograd. No backend here conjugates an operand while it reads it.
    """

    def plain(x: Any) -> Any:
        return x.resolve_conj().resolve_neg() if isinstance(x, torch.Tensor) else x

    changed = {name: plain(x) if name in pending else x for name, x in options.items()}
    result = _function(call)(*map(plain, operands), **changed)
    if call != "explain":
        return result
    copies = tuple(
        Copy(name, x.numel() * x.element_size(), f"torch has {'conjugated' if x.is_conj() else 'negated'} it lazily")
        for name, x in pending.items()
    )
    return replace(result, copies=(*copies, *result.copies))


def _function(call: str) -> Callable[..., Any]:
    """The public function of this name."""
    from gemmhub._check.spot_check import spot_check
    from gemmhub._measure.compare import compare

    functions: Mapping[str, Callable[..., Any]] = {
        "matmul": api.matmul, "explain": api.explain, "pack": api.pack, "tune": api.tune, "compare": compare,
        "spot_check": spot_check,
    }  # fmt: skip
    return functions[call]


def _converts(name: str) -> bool:
    """Whether autocast converts an operand: scales and what is written keep the dtype that they must have."""
    return name not in OPERANDS or OPERANDS[name].role == "term"


def repeated_linear(a: Any, weight: Any, options: Mapping[str, Any]) -> Any:
    """``gemmhub.matmul(a, weight.t(), **options)`` where the fast path knows the call; None elsewhere.

    No view is made of the weight: what autograd records of a view costs as much as a look-up.
    """
    path = None if torch.compiler.is_compiling() else api.fast_path(a.__class__)
    if path is None or path.linear is None:
        return None
    try:
        result = path.linear(a, weight, None, options)
    except Exception:
        return None  # the call itself finds the reason, and reports it
    if result.__class__ is Replay:
        return node.record(node.Product, node.LINEAR, a, weight, options, result)
    return result


def _sharded(found: Iterable[torch.Tensor]) -> bool:
    """Whether one of these tensors is a DTensor, whose module is then loaded."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and any(isinstance(x, kind) for x in found)


def through_operator(operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The product by torch's operator ``gemmhub::matmul``, which tracers and transforms handle."""
    from gemmhub._doors.torch import ops

    if tensors.recording():
        _refuse_constants(options)
    try:
        return ops.matmul(*operands, **options)
    except (NotImplementedError, TypeError) as error:
        named = {**dict(zip(_POSITIONAL, operands)), **options}
        name = next((name for name, x in named.items() if multiplies_itself(x)), None)
        if name is None or isinstance(error, GemmhubError):
            raise
        raise InputError(
            name, f"{instance(type(named[name]))}, which does not implement torch.ops.gemmhub.matmul",
            "tensors, and subclasses that implement it",
            f"multiply by torch, or pass a plain tensor ({name}.dequantize())",
        ) from error  # fmt: skip


def _refuse_constants(options: Mapping[str, Any]) -> None:
    """Raise InputError for what a trace of torch.jit, or the export to ONNX that is built on it, cannot hold."""
    if torch.onnx.is_in_onnx_export():
        raise InputError(
            "a", "a tensor in an export to ONNX, whose files are run without gemmhub", "tensors outside of an export",
            "export the model before accelerate() and without use(): torch's own products have ONNX operators",
        )  # fmt: skip
    for name in NUMBERS:
        if isinstance(options.get(name), torch.Tensor):
            raise InputError(
                name, "a tensor of a function that torch.jit.trace records, where it would become a constant",
                "numbers", "multiply by it outside of the product",
            )  # fmt: skip


def autocast(found: Any, options: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """The conversion that torch.autocast applies to each operand of this product; None where it applies none.

    As for torch.matmul, products into ``out`` and tensors of float64 are not converted.
    """
    found = [*found]
    if not found or found[0].is_meta or "out" in options:
        return None
    kind = found[0].device.type
    if not tensors.rounded(kind, tuple(x.dtype for x in found)):
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
        raise node.unrecorded_out(name)
    if cast is not None:
        operands, options = tuple(map(cast, operands)), _cast(options, cast)
    return node.product(*operands, **options)


def _cast(options: Mapping[str, Any], cast: Callable[[Any], Any]) -> dict[str, Any]:
    """``options`` under autocast, which leaves scales in the dtype that they must have."""
    return {name: cast(x) if _converts(name) else x for name, x in options.items()}


def _about(
    call: str, operands: tuple[Any, ...], options: Mapping[str, Any], recorded: bool,
    cast: Callable[[Any], Any] | None,
) -> Any:  # fmt: skip
    """The result of a call that describes, checks or measures the product that ``matmul`` would run.

    NotImplemented where that is the product of the operands as they are.
    """
    if cast is None and not (recorded and call in ("explain", "spot_check")):
        return NotImplemented
    function = _function(call)
    if recorded and call in ("explain", "spot_check"):  # they compute nothing that has a gradient
        with torch.no_grad():
            return function(*operands, **options)
    assert cast is not None
    if call != "spot_check":
        return function(*map(cast, operands), **_cast(options, cast))
    a, b, result = operands
    checked = function(cast(a), cast(b), result, **_cast(options, cast))
    kind = next(x for x in operands if isinstance(x, torch.Tensor)).device.type
    if checked or getattr(result, "dtype", None) is torch.get_autocast_dtype(kind):
        return checked
    with torch.autocast(kind, enabled=False):  # it may be an out=, whose product is not rounded
        return function(*operands, **options)
