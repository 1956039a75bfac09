"""Tensors of torch, on any device: which of them are plain memory, and how torch learns that one was written.

torch is never imported here: a caller who has a tensor has torch in the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from gemmhub.errors import InputError

LOWEST = "2.1"
"""The first version of torch with ``torch.autograd.graph.increment_version``, which every ``out=`` needs."""


def is_tensor(x: object) -> bool:
    """Whether ``x`` is a torch tensor. (A torch that is still being imported has no type of tensors yet.)"""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def memory(x: Any, argument: str) -> int:
    """The address of a dense tensor; InputError that names what any other tensor is."""
    torch = sys.modules["torch"]
    kind: Any = type(x)
    if kind is not torch.Tensor and not _without_meaning(kind):
        raise InputError(
            argument, f"a {kind.__qualname__}, a subclass of torch.Tensor that computes or wraps results itself",
            "torch.Tensor and torch.nn.Parameter",
            f"pass the plain tensor: {argument}.to_local() of a DTensor, {argument}.as_subclass(torch.Tensor) of a "
            "subclass that adds only names",
        )  # fmt: skip
    if x.layout is not torch.strided or x.is_nested:
        layout = "nested" if x.is_nested else x.layout
        raise InputError(argument, f"a tensor of layout {layout}", "dense tensors", "make it dense (x.to_dense())")
    try:
        found = int(x.data_ptr())
    except RuntimeError as error:
        raise _without_memory(argument) from error
    if not found and x.numel():
        raise _without_memory(argument)
    return found


def address(x: Any, argument: str) -> int:
    """The address of a tensor that a product may read or write; InputError that names what any other tensor is."""
    found = memory(x, argument)
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise InputError(
            argument, "a tensor that requires grad: gemmhub records no gradients", "tensors that do not",
            "pass x.detach(), or call under torch.no_grad()",
        )  # fmt: skip
    if x.is_conj() or x.is_neg():
        raise lazy(argument)
    return found


@lru_cache(maxsize=64)
def _without_meaning(kind: type) -> bool:
    """Whether torch's own functions treat tensors of a subclass as plain ones, as they do torch.nn.Parameter."""
    tensor: Any = sys.modules["torch"].Tensor
    own: Any = kind
    function, dispatch = own.__torch_function__, own.__torch_dispatch__
    # The default __torch_function__ makes results of the subclass; Parameter has the one that does nothing.
    return function is sys.modules["torch"].nn.Parameter.__torch_function__ and dispatch is tensor.__torch_dispatch__


def _without_memory(argument: str) -> InputError:
    return InputError(
        argument, "a tensor without memory: one on the device meta, or one that torch.func (vmap, grad) or a compiler "
        "passes to a function", "tensors with memory", "call gemmhub outside of the transformed or traced function",
    )  # fmt: skip


def lazy(argument: str) -> InputError:
    """The error for a tensor whose memory holds other numbers than its elements."""
    return InputError(
        argument, "a lazily conjugated or negated tensor", "plain memory", "x.resolve_conj().resolve_neg()"
    )


def require_version(argument: str) -> None:
    """InputError for tensors of a torch that gemmhub cannot tell what it wrote."""
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
    so that a kernel which fails half-way is recorded, too. Inference tensors have no counter; the earlier versions
    of torch raise for them.
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
