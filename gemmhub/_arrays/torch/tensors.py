"""Tensors of torch on any device: which of them are plain memory, and how a write is recorded for autograd.

torch is never imported here: where a tensor exists, torch is loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub._base.wording import instance
from gemmhub.errors import DeviceError, InputError

LOWEST = "2.1"
"""The first version of torch with ``torch.autograd.graph.increment_version``, which every ``out=`` needs."""


def is_tensor(x: object) -> bool:
    """Whether ``x`` is a torch tensor. (A torch that is still being imported has no type of tensors yet.)"""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def check_dense(x: Any, argument: str) -> None:
    """Raise InputError for a sparse or nested tensor."""
    if x.layout is not sys.modules["torch"].strided or x.is_nested:
        layout = "nested" if x.is_nested else x.layout
        raise InputError(argument, f"a tensor of layout {layout}", "dense tensors", "make it dense (x.to_dense())")


def memory(x: Any, argument: str) -> int:
    """The address of a dense tensor; InputError, naming the type, for any other tensor."""
    torch = sys.modules["torch"]
    cls: Any = type(x)
    if cls is not torch.Tensor and not plain_subclass(cls):
        raise InputError(
            argument, f"{instance(cls)}, a subclass of torch.Tensor that computes or wraps results itself",
            "torch.Tensor and torch.nn.Parameter",
            f"pass the plain tensor: {argument}.to_local() of a DTensor, {argument}.as_subclass(torch.Tensor) of a "
            "subclass that adds only names",
        )  # fmt: skip
    check_dense(x, argument)
    try:
        pointer = int(x.data_ptr())
    except RuntimeError as error:
        raise _without_memory(argument) from error
    if not pointer and x.numel():
        raise _without_memory(argument)
    return pointer


def address(x: Any, argument: str) -> int:
    """The address of a tensor that a product may read or write; InputError, naming the type, for any other tensor."""
    pointer = memory(x, argument)
    if recording():  # reached past the door: by a plan, or by tune
        raise InputError(
            argument, "a tensor of a function that torch.jit.trace records: a result computed from its memory would "
            "become a constant of the trace", "tensors outside of such a function",
            "call gemmhub.matmul, which is recorded as an operator",
        )  # fmt: skip
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise InputError(
            argument, "a tensor that requires grad: only gemmhub.matmul records gradients", "tensors that do not",
            "pass x.detach(), or call under torch.no_grad()",
        )  # fmt: skip
    if forward_mode() and forward_ad().unpack_dual(x).tangent is not None:
        raise InputError(
            argument, "a tensor with a tangent: only gemmhub.matmul computes tangents", "tensors without",
            "call gemmhub.matmul, or pass torch.autograd.forward_ad.unpack_dual(x).primal",
        )  # fmt: skip
    if x.is_conj() or x.is_neg():
        raise lazy(argument)
    return pointer


def key(x: Any) -> tuple[Any, ...]:
    """The facts of a tensor on any device that a decision depends on. AttributeError for other objects."""
    return x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % MAX_ALIGNMENT


def plain_subclass(cls: Any) -> bool:
    """Whether torch's functions treat tensors of a subclass as plain tensors, as with torch.nn.Parameter."""
    return _plain_subclass(cls)


@lru_cache(maxsize=64)
def _plain_subclass(cls: type) -> bool:
    tensor: Any = sys.modules["torch"].Tensor
    own: Any = cls
    function, dispatch = own.__torch_function__, own.__torch_dispatch__
    # The default __torch_function__ makes results of the subclass; Parameter has the disabled one.
    return function is sys.modules["torch"].nn.Parameter.__torch_function__ and dispatch is tensor.__torch_dispatch__


def dispatched() -> bool:
    """Whether a dispatch mode (a tracer, a counter of operations) intercepts the operations of this thread."""
    return bool(dispatch_depth()())


def recording() -> bool:
    """Whether torch.jit.trace, or the export to ONNX that is built on it, records the operations of this thread."""
    return bool(recording_test()())


@cache
def recording_test() -> Callable[[], bool]:
    """torch's own test for :func:`recording`."""
    return getattr(getattr(sys.modules["torch"], "_C", None), "_is_tracing", bool)


def traced(operands: Iterable[Any]) -> bool:
    """Whether a product of tensors must be an operator of torch.

    It must under a tracer, a transform or a dispatch mode, on the device meta, and for subclasses that handle operators
    themselves.
    """
    if recording() or dispatched() or forward_mode() or transform_test()():
        return True
    tensor = sys.modules["torch"].Tensor
    for x in operands:
        if type(x) is not tensor and not plain_subclass(type(x)):
            return True
        if x.is_meta or _mapped_test()(x):
            return True
    return False


def check_one_device(operands: Mapping[str, Any]) -> None:
    """Raise DeviceError, naming the argument, unless all of these tensors are on one device.

    An operator of torch with one operand on the device meta computes a shape alone: its result on another device is
    memory that nothing has written.
    """
    first = next((name for name, x in operands.items() if not x.is_meta), None)
    if first is None:
        return
    device = operands[first].device
    for name, x in operands.items():
        if x.device != device:
            raise DeviceError(
                name, f"{name} is torch on {x.device}, {first} is torch on {device}", "operands on one device",
                "give it memory there first: on meta it has none" if x.is_meta else "move it there with .to()",
            )  # fmt: skip


@cache
def _mapped_test() -> Callable[[Any], bool]:
    """A test whether a tensor has a dimension that torch.autograd maps over (``is_grads_batched``); since torch 2.2."""
    functorch = getattr(getattr(sys.modules["torch"], "_C", None), "_functorch", None)
    return getattr(functorch, "is_legacy_batchedtensor", lambda x: False)


@cache
def transform_test() -> Callable[[], bool]:
    """A test whether a transform of torch.func is active in this thread."""
    return getattr(getattr(sys.modules["torch"], "_C", None), "_are_functorch_transforms_active", bool)


def forward_mode() -> bool:
    """Whether tensors of this thread may carry tangents (torch.func.jvp, torch.autograd.forward_ad)."""
    return forward_ad()._current_level >= 0 and bool(sys.modules["torch"]._C._is_fwd_grad_enabled())


@cache
def forward_ad() -> Any:
    """torch's module of forward mode, whose level is 0 or more while forward mode is on."""
    module = getattr(getattr(sys.modules["torch"], "autograd", None), "forward_ad", None)
    return module if hasattr(module, "_current_level") else SimpleNamespace(_current_level=-1)


def casting(device_type: str) -> bool:
    """Whether torch.autocast is on for devices of this type."""
    test = autocast_test()
    return test is not None and test(device_type)


def rounded(device_type: str, operand_dtypes: tuple[Any, ...]) -> bool:
    """Whether torch.autocast rounds a tensor of one of these dtypes, on a device of this type, to another dtype."""
    if not casting(device_type):
        return False
    torch: Any = sys.modules["torch"]
    wanted, narrow = torch.get_autocast_dtype(device_type), (torch.float32, torch.float16, torch.bfloat16)
    return any(x is not wanted and x in narrow for x in operand_dtypes)


class Modified(Exception):  # noqa: N818  (never leaves gemmhub)
    """A mode of torch may change what a product means."""


def unmodified(run: Callable[..., Any], operand_dtypes: tuple[Any, ...]) -> Callable[..., Any]:
    """Guard ``run``, a repeated call with CPU tensors of these dtypes, against modes of torch that change its meaning.

    Where one may, it raises :class:`Modified`, and gemmhub analyses the call anew.
    """
    modes, forward = dispatch_depth(), forward_ad()

    def checked(a: Any, b: Any, out: Any = None, *rest: Any) -> Any:
        if modes() or forward._current_level >= 0 or (out is None and rounded("cpu", operand_dtypes)):
            raise Modified
        return run(a, b, out, *rest)

    return checked


@cache
def dispatch_modes() -> Any:
    """torch's module whose ``_is_in_torch_dispatch_mode`` is True while any thread has a dispatch mode. Reading that
    costs less than a query for this thread's mode.
    """
    module = sys.modules.get("torch.utils._python_dispatch")
    return (
        module if hasattr(module, "_is_in_torch_dispatch_mode") else SimpleNamespace(_is_in_torch_dispatch_mode=False)
    )


@cache
def dispatch_depth() -> Callable[[], int]:
    return getattr(getattr(sys.modules["torch"], "_C", None), "_len_torch_dispatch_stack", int)


@cache
def any_autocast() -> Callable[[], bool]:
    """A test whether autocast is on in this thread for any device; one that is always true where torch has none."""
    return getattr(getattr(sys.modules["torch"], "_C", None), "_is_any_autocast_enabled", lambda: True)


@cache
def autocast_test() -> Callable[[str], bool] | None:
    """A test whether autocast is on for a device type; None before torch 2.4, whose autocast is not followed."""
    torch: Any = sys.modules["torch"]
    return torch.is_autocast_enabled if hasattr(torch, "get_autocast_dtype") else None


def _without_memory(argument: str) -> InputError:
    return InputError(
        argument, "a tensor without memory: one on the device meta, or one that torch.func (vmap, grad) or a compiler "
        "passes to a function", "tensors with memory", "call gemmhub outside of the transformed or traced function",
    )  # fmt: skip


def lazy(argument: str) -> InputError:
    """The error for a tensor whose memory does not hold its elements, because an operation on them is pending."""
    return InputError(
        argument, "a lazily conjugated or negated tensor", "plain memory", "x.resolve_conj().resolve_neg()"
    )


def require_version(argument: str) -> None:
    """Raise InputError where this torch has no public function to record a write."""
    torch = sys.modules["torch"]
    if _public_increment(torch) is None:
        raise InputError(
            argument, f"a tensor of torch {torch.__version__}", f"torch {LOWEST} or later",
            f"upgrade torch, or pass {argument}.numpy()",
        )  # fmt: skip


def _public_increment(torch: Any) -> Callable[[Any], None] | None:
    graph = getattr(getattr(torch, "autograd", None), "graph", None)
    return getattr(graph, "increment_version", None)


@cache
def increment_version() -> Callable[[Any], None]:
    """A function that records in a tensor's version counter that its memory is written, as torch's own operations do.

    Autograd then refuses a backward pass through values that were saved before. It is called before a kernel runs,
    so that a kernel which fails midway is recorded, too. Inference tensors have no counter; earlier versions of torch
    raise for them.
    """
    torch = sys.modules["torch"]
    increment: Any = _public_increment(torch)
    with torch.inference_mode():
        uncounted = torch.empty(1, dtype=torch.float32, device=torch.device("cpu"))
    try:
        with torch.inference_mode(False):
            increment(uncounted)
    except RuntimeError:

        def counted(x: Any) -> None:
            if not x.is_inference():
                increment(x)

        return counted
    return increment  # type: ignore[no-any-return]
