"""Experts of a mixture (MoE) in models of transformers, as two grouped products.

transformers keeps all experts of a layer in two parameters of three dimensions, and lets other code compute them, by
flags that state what a class computes. Classes with other flags than those here are left to transformers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from gemmhub._base.wording import instance
from gemmhub._doors.torch import calls
from gemmhub._grouped.matmul import grouped_matmul

Tensor = Any

_WEIGHTS = ("gate_up_proj", "down_proj")
_MODULE = "transformers.integrations.moe"
"""The module of transformers whose function dispatches the forward pass of experts."""
_APART = ("cpu",)
"""Types of devices where no kernel computes the gate: there torch's operations are faster than a fused activation."""
_FLAGS = {
    "has_gate": (True, "without a gate"),
    "has_bias": (False, "with a bias"),
    "has_post_expert_norm": (False, "with a norm after each expert"),
    "is_transposed": (False, "with transposed weights"),
    "is_concatenated": (True, "with interleaved gates"),
    "_is_expert_parallel": (False, "that are divided between processes"),
}
"""The flags of transformers: the value that is computed here, and words for another one."""


class Experts(torch.nn.Module):
    """The forward pass of experts, as the first base of a class whose second one is the class of the module."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of the results of each token's experts, of the shape (tokens, hidden size).

        Tokens are sorted by expert, on their device: no number is read on the host. Rows of experts that are not here
        are beyond the last end, and have zeros.
        """
        module: Any = self
        if module._is_expert_parallel or calls.multiplies_itself(module.gate_up_proj, module.down_proj):  # since then
            return super().forward(hidden_states, top_k_index, top_k_weights)
        experts, order = torch.sort(top_k_index.reshape(-1), stable=True)
        every = torch.arange(module.num_experts, dtype=experts.dtype, device=experts.device)
        ends = torch.searchsorted(experts, every, right=True, out_int32=True)
        count = top_k_index.shape[-1]
        tokens = hidden_states.index_select(0, torch.div(order, count, rounding_mode="floor"))
        hidden = _gated(module, tokens, ends)
        rows = grouped_matmul(hidden, module.down_proj.transpose(-2, -1), ends, **module._options)
        rows = rows * top_k_weights.reshape(-1, 1).index_select(0, order)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
        sums = rows.index_select(0, back).view(*top_k_index.shape, rows.shape[-1]).sum(1)
        return sums.to(hidden_states.dtype)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (type(self).__bases__[1],), self.__dict__


def _gated(module: Any, tokens: Tensor, ends: Tensor) -> Tensor:
    """The gated rows of each expert: by one kernel where there may be one, and autograd keeps nothing of the gate."""
    weights = module.gate_up_proj.transpose(-2, -1)
    recorded = torch.is_grad_enabled() and (tokens.requires_grad or weights.requires_grad)
    if module._fuses and not recorded and tokens.device.type not in _APART:
        return grouped_matmul(tokens, weights, ends, activation="swiglu", **module._options)
    return module._apply_gate(grouped_matmul(tokens, weights, ends, **module._options))


def fuses(module: Any) -> bool:
    """Whether the gate of experts is "swiglu"."""
    gate = type(module)._apply_gate
    standard = (gate.__globals__["__name__"], gate.__name__) == (_MODULE, "_default_apply_gate")
    return standard and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation")


def is_experts(module: Any) -> bool:
    """Whether a module has the weights of experts."""
    return all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in _WEIGHTS)


def reason_to_leave(module: Any) -> str:
    """The reason why gemmhub does not compute a module as experts; empty where it does, or may."""
    kind = type(module)
    named = instance(kind)
    if issubclass(kind, Experts):
        kind = kind.__bases__[1]
    if getattr(kind.forward, "__globals__", {}).get("__name__") != _MODULE or not callable(
        getattr(kind, "_apply_gate", None)
    ):
        return f"{named}: its forward pass is not one of {_MODULE}"
    if "forward" in vars(module):
        return f"{named} whose forward was replaced"
    for name, (value, words) in _FLAGS.items():
        if getattr(module, name, None) is not value:
            return f"{named}: experts {words}"
    for name in _WEIGHTS:
        x = getattr(module, name)
        if calls.multiplies_itself(x):
            return f"{named} whose {name} is of type {type(x).__qualname__}, which overrides products"
        if not x.is_floating_point() or x.element_size() < 2:
            return f"{named} with weights of {x.dtype}"
    return ""


def convert(module: Any, options: dict[str, Any]) -> None:
    """Let gemmhub compute experts, in place."""
    module._fuses, module._options = fuses(module), options
    kind: Any = type(module)
    module.__class__ = _replaced(kind)


def revert(module: Any) -> None:
    """Let transformers compute experts that :func:`convert` changed, in place."""
    if isinstance(module, Experts):
        module.__class__ = type(module).__bases__[1]
        del module._fuses, module._options


@lru_cache(maxsize=64)
def _replaced(kind: Any) -> Any:
    return type(kind.__name__, (Experts, kind), {"__module__": kind.__module__})


def _new(kind: Any) -> Any:
    """An instance of the class that replaces ``kind``, without its state: for copies and pickles."""
    replaced = _replaced(kind)
    return replaced.__new__(replaced)
