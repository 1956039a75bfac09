"""Prefills whose lengths are new at every step: ``python -m benchmarks.run.ragged_model [--json FILE]``.

A Llama-shaped model of transformers, 4096 wide, with random weights, reads texts of 100 lengths from 1 to 4096, each
once: with torch's linear layers and with gemmhub's, in turn, on the same weights. Times are of the clock until the
device has finished. A ratio is gemmhub's time over torch's: of all lengths, and of those after the first ten.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib import results

_LONGEST = 4096
_FIRST = 10
"""Lengths that are left out of the second ratio: a server's first seconds."""


def model_of(layers: int, width: int, dtype: Any) -> Any:
    """Return the model, whose linear layers are gemmhub's."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import gemmhub.torch

    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 7 // 2, num_hidden_layers=layers,
        num_attention_heads=width // 128, num_key_value_heads=max(1, width // 512), vocab_size=32000,
        attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(dtype)
    gemmhub.torch.accelerate(model)
    return model


def measure(model: Any, lengths: list[int]) -> dict[str, list[float]]:
    """Return the seconds of a prefill of each length, by either kind of layer."""
    import torch

    import gemmhub.torch

    kinds = {"torch": torch.nn.Linear, "gemmhub": gemmhub.torch.Linear}
    layers = [x for x in model.modules() if isinstance(x, torch.nn.Linear)]
    seconds: dict[str, list[float]] = {name: [] for name in kinds}

    def prefill(kind: type, length: int) -> float:
        for layer in layers:
            layer.__class__ = kind
        ids = torch.randint(0, 1000, (1, length), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(ids, use_cache=False)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    with torch.no_grad():
        for length in (_LONGEST, 7):  # memory, and what torch itself loads
            prefill(torch.nn.Linear, length)
        for length in lengths:
            for name, kind in kinds.items():
                seconds[name].append(prefill(kind, length))
    return seconds


def main() -> None:
    """Print the ratios of each dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--lengths", type=int, default=100)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import torch

    rng = np.random.default_rng()
    found = {}
    for name in asked.dtypes:
        model = model_of(asked.layers, asked.width, getattr(torch, name))
        lengths = [int(x) for x in rng.permutation(np.arange(1, _LONGEST + 1))[: asked.lengths]]
        seconds = measure(model, lengths)
        all_of, rest = (sum(seconds["gemmhub"][n:]) / sum(seconds["torch"][n:]) for n in (0, _FIRST))
        worst = max(seconds["gemmhub"])
        print(f"{name:10} all {all_of:.3f}  after the first {_FIRST} {rest:.3f}  longest call {worst * 1e3:.0f} ms")
        found[name] = {"lengths": lengths, "all": all_of, "rest": rest, **seconds}
        del model
        torch.cuda.empty_cache()
    if asked.json is not None:
        results.save(asked.json, models=found)


if __name__ == "__main__":
    main()
