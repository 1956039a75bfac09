"""Random experts of transformers, tokens for them, and their results in float64."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import MixtralExperts


def experts_of(rng, dtype, activation="silu", kind=MixtralExperts, spread=1.0, intermediate=17):
    """Random experts of transformers, computed by its loop."""
    config = transformers.MixtralConfig(
        hidden_size=24,
        intermediate_size=intermediate,
        num_local_experts=5,
        num_experts_per_tok=2,
        hidden_act=activation,
    )
    config._experts_implementation = "eager"
    made = kind(config)
    for weight in made.parameters():
        weight.data = torch.from_numpy(rng.standard_normal(weight.shape) * spread).to(dtype)
    return made


def routed(rng, dtype, tokens=11, count=2, experts=5):
    """Hidden states, the experts of each token and their weights; one expert has no token."""
    chosen = [rng.permutation(experts - 1)[:count] for _ in range(tokens)]
    index = torch.from_numpy(np.array(chosen).reshape(tokens, count))
    return torch.from_numpy(rng.standard_normal((tokens, 24))).to(dtype), index, torch.rand(tokens, count).to(dtype)


def reference(layer, hidden, index, weights, unit):
    """The result in float64, and a bound of its error, where each step rounds to a dtype of this unit roundoff."""
    x, up, down = (z.detach().double() for z in (hidden, layer.gate_up_proj, layer.down_proj))
    result, bound = torch.zeros_like(x), torch.zeros_like(x)
    for token, (chosen, shares) in enumerate(zip(index.tolist(), weights.detach().double())):
        for expert, share in zip(chosen, shares):
            gate, value = (up[expert] @ x[token]).chunk(2)
            magnitude = (up[expert].abs() @ x[token].abs()) * (x.shape[1] + 2) * 2.0**-24
            of_gate, of_value = (magnitude + unit * (up[expert] @ x[token]).abs()).chunk(2)
            active = torch.nn.functional.silu(gate)
            of_active = 1.1 * of_gate + unit * (active.abs() + 1.1 * of_gate)
            rows = active * value
            error = of_active * value.abs() + (active.abs() + of_active) * of_value + 2 * unit * rows.abs()
            product = down[expert] @ rows
            accumulated = (rows.shape[0] + 2) * 2.0**-24 * (down[expert].abs() @ (rows.abs() + error))
            of_product = down[expert].abs() @ error + accumulated
            of_product += unit * (product.abs() + of_product)
            result[token] += share * product
            bound[token] += share * (of_product + 3 * unit * (product.abs() + of_product))
    return result, bound + unit * (result.abs() + bound)
