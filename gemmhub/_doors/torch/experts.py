"""Experts of a mixture (MoE) in models of transformers, as two grouped products.

transformers keeps all experts of a layer in two parameters of three dimensions, and lets other code compute them, by
flags that state what a class computes. Classes with other flags than those here are left to transformers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from gemmhub._arrays.torch import tensors
from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub._base.wording import instance
from gemmhub._call.options import pins_rows
from gemmhub._doors.torch import calls, experts_backends, override
from gemmhub._grouped.matmul import grouped_matmul

Tensor = Any

_WEIGHTS = ("gate_up_proj", "down_proj")
_MODULE = "transformers.integrations.moe"
"""The module of transformers whose function dispatches the forward pass of experts."""
_APART = ("cpu",)
"""Types of devices where no kernel computes the gate: there torch's operations are faster than a fused activation."""
_HOSTS = ("cpu", "meta")
"""Types of devices where gemmhub computes every grouped product, one after the other."""
_SLOWER = (torch.float32, torch.float64)
"""Dtypes of weights for which gemmhub is not known to be faster than transformers."""
_ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes that torch.autocast rounds, unless they are its own."""
_FLAGS = {
    "has_gate": (True, "without a gate"),
    "has_bias": (False, "with a bias"),
    "has_post_expert_norm": (False, "with a norm after each expert"),
    "is_transposed": (False, "with transposed weights"),
    "is_concatenated": (True, "with interleaved gates"),
    "_is_expert_parallel": (False, "that are divided between processes"),
}
"""The flags of transformers: the value that is computed here, and words for another one."""
_LATER = ("has_post_expert_norm", "_is_expert_parallel")
"""Flags that transformers has since 5.18 or later; what they state was not there before."""


class Experts(torch.nn.Module):
    """The forward pass of experts, as the first base of a class whose second one is the class of the module."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of the results of each token's experts, of the shape (tokens, hidden size).

        Tokens are sorted by expert, on their device: no number is read on the host. Rows of experts that are not here,
        of negative numbers too, are beyond the last end, and have zeros. Options of ``gemmhub.torch.override`` and of
        blocks of ``use`` hold where the acceleration has none of its own. Where no backend takes the products,
        transformers computes them.
        """
        module: Any = self
        parallel = getattr(module, "_is_expert_parallel", False)
        if parallel or calls.multiplies_itself(module.gate_up_proj, module.down_proj):  # since then
            return super().forward(hidden_states, top_k_index, top_k_weights)
        options = {**override.in_force(), **module._options}
        fused = _fused(module, hidden_states, options)
        if not fused and not _taken(module, hidden_states, None, options):
            return super().forward(hidden_states, top_k_index, top_k_weights)
        indices = top_k_index.reshape(-1)
        experts, order = torch.sort(indices.masked_fill(indices < 0, module.num_experts), stable=True)
        every = torch.arange(module.num_experts, dtype=experts.dtype, device=experts.device)
        ends = torch.searchsorted(experts, every, right=True, out_int32=True)
        count = top_k_index.shape[-1]
        tokens = hidden_states.index_select(0, torch.div(order, count, rounding_mode="floor"))
        weights = module.gate_up_proj.transpose(-2, -1)
        if fused:
            hidden = grouped_matmul(tokens, weights, ends, activation="swiglu", **options)
        else:
            hidden = module._apply_gate(grouped_matmul(tokens, weights, ends, **options))
        rows = grouped_matmul(hidden, module.down_proj.transpose(-2, -1), ends, **options)
        rows = rows * top_k_weights.reshape(-1, 1).index_select(0, order)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
        sums = rows.index_select(0, back).view(*top_k_index.shape, rows.shape[-1]).sum(1)
        return sums.to(hidden_states.dtype)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(self)
        if "_original" not in vars(kind):  # a class that something put before it
            return super().__reduce_ex__(protocol)
        return _new, (kind._original,), self.__dict__


def _fused(module: Any, tokens: Tensor, options: dict[str, Any]) -> bool:
    """Whether one kernel computes the first product and the gate. Of these, autograd would keep nothing."""
    recorded = torch.is_grad_enabled() and (tokens.requires_grad or module.gate_up_proj.requires_grad)
    if not module._fuses or recorded or tokens.device.type in _APART:
        return False
    return _taken(module, tokens, "swiglu", options)


def _taken(module: Any, tokens: Tensor, activation: str | None, options: dict[str, Any]) -> bool:
    """Whether backends take the products of these tokens by experts, the first with this activation.

    Without an activation it is true where bits of rows are pinned, too: transformers pins none, so that an error is
    due.
    """
    up, down = module.gate_up_proj, module.down_proj
    recorded = torch.is_grad_enabled() and (tokens.requires_grad or up.requires_grad or down.requires_grad)
    if activation is None and pins_rows(options.get("reproducible")):
        return True
    return _takes(tokens, up, down, activation, recorded, options)


def _takes(
    tokens: Tensor, up: Tensor, down: Tensor, activation: str | None, recorded: bool, options: dict[str, Any]
) -> bool:  # fmt: skip
    """Whether backends take the products of tokens, of which only dtype and device count, by these weights."""
    device_type, index = _located(tokens)
    if device_type in _HOSTS:
        return True
    return experts_backends.taken(
        device_type, index, _dtype(tokens), _dtype(up), _described(up), _described(down), activation, recorded, options
    )


def _located(x: Tensor) -> tuple[str, int]:
    """The type and the number of the device of a tensor."""
    return x.device.type, x.device.index or 0


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a tensor enters a product: torch.autocast may round it."""
    device_type = x.device.type
    rounded = torch.is_autocast_enabled(device_type) and x.dtype in _ROUNDED
    return torch.get_autocast_dtype(device_type) if rounded else x.dtype


def _described(weights: Tensor) -> experts_backends.Weights:
    """The facts about weights that a decision needs. Where torch traces, they have no address."""
    traced = torch.compiler.is_compiling() or tensors.traced((weights,))
    address = 0 if traced else weights.data_ptr() % MAX_ALIGNMENT
    return tuple(weights.shape), tuple(weights.stride()), address


def fuses(module: Any) -> bool:
    """Whether the gate of experts is "swiglu"."""
    gate = type(module)._apply_gate
    standard = (gate.__globals__["__name__"], gate.__name__) == (_MODULE, "_default_apply_gate")
    return standard and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation")


def is_experts(module: Any) -> bool:
    """Whether a module has the weights of experts."""
    return all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in _WEIGHTS)


def reason_to_leave(module: Any, options: dict[str, Any]) -> str:
    """The reason why gemmhub does not compute a module as experts with these options; empty where it does, or may."""
    kind = _original(type(module))
    named = instance(kind)
    if torch.nn.utils.parametrize.is_parametrized(module) and not isinstance(module, Experts):
        return f"{named}: its weights are recomputed in each call (parametrizations)"
    if getattr(kind.forward, "__globals__", {}).get("__name__") != _MODULE or not callable(
        getattr(kind, "_apply_gate", None)
    ):
        return f"{named}: its forward pass is not one of {_MODULE}"
    if "forward" in vars(module):
        return f"{named} whose forward was replaced"
    for name, (value, words) in _FLAGS.items():
        if getattr(module, name, value if name in _LATER else None) is not value:
            return f"{named}: experts {words}"
    for name in _WEIGHTS:
        x = getattr(module, name)
        if calls.multiplies_itself(x):
            return f"{named} whose {name} is of type {type(x).__qualname__}, which overrides products"
        if not x.is_floating_point() or x.element_size() < 2:
            return f"{named} with weights of {x.dtype}"
    return "" if isinstance(module, Experts) else _reason_by_device(module, named, options)


def _reason_by_device(module: Any, named: str, options: dict[str, Any]) -> str:
    """The reason to leave experts where they are now; empty where gemmhub computes them there, and is not slower."""
    up, down, dtype = module.gate_up_proj, module.down_proj, _dtype(module.gate_up_proj)
    if up.device.type != "meta" and dtype in _SLOWER and not pins_rows(options.get("reproducible")):
        where = "a CPU" if up.device.type == "cpu" else up.device
        return f"{named} with products of {dtype} on {where}, where gemmhub is not known to be faster than transformers"
    if not _takes(up, up, down, None, False, options):
        return f"{named} with products of {dtype} on {up.device}: no backend multiplies these groups there"
    return ""


def convert(module: Any, options: dict[str, Any]) -> None:
    """Let gemmhub compute experts, in place."""
    module._fuses, module._options = fuses(module), options
    kind: Any = type(module)
    module.__class__ = _replaced(kind)


def revert(module: Any) -> None:
    """Let transformers compute experts that :func:`convert` changed, in place; parametrizations stay."""
    kind: Any = type(module)
    base: Any = kind.__bases__[0]
    if "_original" in vars(kind):
        module.__class__ = kind._original
    elif "_original" in vars(base) and torch.nn.utils.parametrize.is_parametrized(module):
        own = {name: x for name, x in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        module.__class__ = type(kind.__name__, (base._original,), own)
    else:
        return  # something else has changed its class since
    for name in ("_fuses", "_options"):
        module.__dict__.pop(name, None)


def _original(kind: Any) -> Any:
    """The class of experts before :func:`convert`; ``kind`` itself where that did not change it."""
    return getattr(kind, "_original", kind)


@lru_cache(maxsize=64)
def _replaced(kind: Any) -> Any:
    return type(kind.__name__, (Experts, kind), {"__module__": kind.__module__, "_original": kind})


def _new(kind: Any) -> Any:
    """An instance of the class that replaces ``kind``, without its state: for copies and pickles."""
    replaced = _replaced(kind)
    return replaced.__new__(replaced)
