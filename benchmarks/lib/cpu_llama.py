"""A model of two Llama layers, 1024 wide, in bfloat16, plain and accelerated by gemmhub with packed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import gemmhub.torch as door

_WIDTH, _HIDDEN, _HEADS, _CONTEXT = 1024, 2816, 16, 128
CALLS = {"prefill 128": (1, 128), "decode 1": (1, 1), "decode 8": (8, 1)}
"""Sequences, and tokens of each, by name. Decodes attend to 128 tokens."""


class Layer(torch.nn.Module):
    """A decoder layer without rotary embedding, which has no product."""

    def __init__(self) -> None:
        super().__init__()

        def linear(k: int, n: int) -> torch.nn.Linear:
            return torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)

        self.query, self.key, self.value, self.output = (linear(_WIDTH, _WIDTH) for _ in range(4))
        self.gate, self.up, self.down = linear(_WIDTH, _HIDDEN), linear(_WIDTH, _HIDDEN), linear(_HIDDEN, _WIDTH)
        self.before, self.between = (torch.nn.RMSNorm(_WIDTH, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: Any, past: Any) -> Any:
        """Return the layer's output for tokens that attend to ``past`` and to one another."""
        normed = self.before(x)
        batch, tokens, _ = x.shape
        query, key, value = (
            layer(normed).view(batch, tokens, _HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if past is not None:
            key, value = torch.cat((past, key), 2), torch.cat((past, value), 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, tokens, _WIDTH))
        normed = self.between(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def calls(name: str) -> dict[str, Callable[[], object]]:
    """Return the calls of one of :data:`CALLS`, by torch and by gemmhub."""
    batch, tokens = CALLS[name]
    torch.manual_seed(0)
    plain = [Layer().eval() for _ in range(2)]
    ours = [Layer().eval() for _ in range(2)]
    for layer in ours:
        door.accelerate(layer, packed=True)
    x = torch.randn(batch, tokens, _WIDTH, dtype=torch.bfloat16)
    past = None
    if tokens == 1:
        past = torch.randn(batch, _HEADS, _CONTEXT, _WIDTH // _HEADS, dtype=torch.bfloat16)

    def through(layers: list[Layer]) -> object:
        y = x
        with torch.inference_mode():
            for layer in layers:
                y = layer(y, past)
        return y

    return {"gemmhub": lambda: through(ours), "torch": lambda: through(plain)}
