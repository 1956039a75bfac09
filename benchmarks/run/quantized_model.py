"""A Llama-shaped model in bfloat16 and quantized, prefill and decode, by gemmhub, torch and torchao, in one run.

    python -m benchmarks.run.quantized_model [--device cpu|cuda] [--compile | --graph] [--json FILE]

Kinds of layers: torch's in bfloat16, gemmhub's in bfloat16 (``accelerate``), gemmhub's of each scheme (``quantize_``),
and torchao's dynamic int8 and float8 layers where torchao is installed and takes the device. All have the same random
weights. In each round every kind reads the same tokens, one kind after the other: a prefill of a new length, and one
token of a batch after a text in the cache. The table has medians over rounds, their ratio to torch's, and the relative
difference of logits from torch's. ``--compile`` compiles every model by torch.compile, for a few lengths; ``--graph``
replays CUDA graphs, as servers do, so that the host's time does not count.

On cuda the defaults are a model 4096 wide, on cpu 1024. ``--seconds`` bounds the rounds, not the first calls. On one
processor (``OMP_NUM_THREADS=1 taskset -c 1``) CPU time is taken.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import gemmhub.torch as door
from benchmarks.lib import results
from gemmhub.numpy_backend.probe import cores

Model = Any
SCHEMES = ("fp8_row", "fp8_block", "int8_row")
WIDTH = {"cpu": 1024, "cuda": 4096}
LAYERS = {"cpu": 2, "cuda": 8}
LONGEST = {"cpu": 256, "cuda": 4096}
"""Tokens of the longest prefill, by device type."""
BATCHES = {"cpu": (1, 8), "cuda": (1, 8, 64)}
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
"""The argument's name depends on the version of transformers."""
TEXT = 32
"""Tokens in the cache before the decoded one."""


def model_of(width: int, layers: int, device: str) -> Model:
    """Return the model in bfloat16, whose weights are random."""
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 7 // 2, num_hidden_layers=layers, vocab_size=8192,
        num_attention_heads=width // 128, num_key_value_heads=max(1, width // 512), max_position_embeddings=8192,
        attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)


def torchao_schemes() -> dict[str, Callable[[Model], None]]:
    """Return the schemes of torchao, by name; none where it is not installed."""
    try:
        import torchao.quantization as ao
    except ImportError:
        return {}
    configs = {
        "torchao int8 dynamic": ao.Int8DynamicActivationInt8WeightConfig(),
        "torchao fp8 per row": ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow()),
    }
    return {name: lambda model, config=config: ao.quantize_(model, config) for name, config in configs.items()}


def kinds(names: list[str] | None, packed: bool) -> dict[str, Callable[[Model], object]]:
    """Return what makes each kind of model out of torch's."""
    makers: dict[str, Callable[[Model], object]] = {
        "torch bfloat16": lambda model: None,
        "gemmhub bfloat16": lambda model: door.accelerate(model, packed=packed),
        **{f"gemmhub {x}": lambda model, x=x: door.quantize_(model, x, packed=packed) for x in SCHEMES},
        **torchao_schemes(),
    }
    return makers if names is None else {x: makers[x] for x in ("torch bfloat16", *names) if x in makers}


def models(base: Model, makers: dict[str, Callable[[Model], object]], tokens: Any) -> dict[str, Model]:
    """Return the models that can run here; the others are reported."""
    made = {}
    for name, make in makers.items():
        try:
            model = copy.deepcopy(base)
            make(model)
            model(tokens, use_cache=False)
        except Exception as error:  # of a library, device or missing kernel
            print(f"{name}: left out: {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
            continue
        made[name] = model
    return made


def seconds(run: Callable[[], object], device: str) -> float:
    """Return the seconds until the device has finished; on one processor those of this process alone."""
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.process_time if device == "cpu" and cores() == 1 else time.perf_counter
    wait()
    start = clock()
    run()
    wait()
    return clock() - start


def prefill(model: Model, tokens: Any) -> Callable[[], object]:
    """Return the call of one prefill."""
    return lambda: model(tokens, use_cache=False)


def decode(model: Model, tokens: Any) -> Callable[[], object]:
    """Return the call for the last token of each text, the others being in the cache."""
    cache = DynamicCache()
    given = {CACHE: cache, "use_cache": True}
    model(tokens[:, :-1], **given)
    text = [(layer.keys, layer.values) for layer in cache.layers]

    def call() -> object:
        for layer, (keys, values) in zip(cache.layers, text):
            layer.keys, layer.values = keys, values
        return model(tokens[:, -1:], **given)

    return call


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a call, captured on a stream of its own after a first call there."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()

    def replay(kept: object = call) -> None:  # what the graph reads
        graph.replay()

    return replay


def measure(made: dict[str, Model], given: argparse.Namespace, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return a row for each kind of call and model."""
    device, found = given.device, []
    lengths = [LONGEST[device] // 4, LONGEST[device]]
    calls = [("prefill", n, prefill, (1, n)) for n in lengths]
    calls += [("decode", n, decode, (n, TEXT)) for n in BATCHES[device]]
    for name, size, run, (batch, longest) in calls:
        times: dict[str, list[float]] = {kind: [] for kind in made}
        replays: dict[str, Callable[[], object]] = {}
        end = time.monotonic() + given.seconds / len(calls)
        for index in range(given.rounds + 1):
            fixed = given.compile or given.graph or name == "decode"
            length = longest if fixed else int(rng.integers(longest * 3 // 4, longest + 1))
            tokens = torch.from_numpy(rng.integers(0, 8192, (batch, length))).to(device)
            order = [*made]
            rng.shuffle(order)
            for kind in order:
                if given.graph and not index:
                    replays[kind] = graphed(run(made[kind], tokens))
                elapsed = seconds(replays[kind] if given.graph else run(made[kind], tokens), device)
                times[kind] += [elapsed] if index else []  # the first call compiles and decides
            if index > 2 and time.monotonic() > end:
                break
        for kind, model in made.items():
            median = statistics.median(times[kind])
            ratio = median / statistics.median(times["torch bfloat16"])
            error = difference(model, made["torch bfloat16"], device)
            print(f"{name:8} {size:5}  {kind:22} {median * 1e3:10.2f} ms  {ratio:6.2f}  {error:8.4f}", flush=True)
            found.append({"call": name, "size": size, "kind": kind, "ms": median * 1e3, "of_torch": ratio,
                          "rounds": len(times[kind]), "difference": error})  # fmt: skip
    return found


def difference(model: Model, other: Model, device: str) -> float:
    """Return the relative difference of the logits of two models, for fixed random tokens."""
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 8192, (1, 64))).to(device)
    x, y = (m(tokens, use_cache=False).logits.double() for m in (model, other))
    return float((x - y).norm() / y.norm())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--width", type=int, help="hidden size, a multiple of 512")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=240, help="for all rounds")
    parser.add_argument("--kinds", nargs="+", help="beside torch's, by their names in the table")
    parser.add_argument("--packed", action="store_true", help="keep weights packed, where each new length costs a plan")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--compile", action="store_true")
    how.add_argument("--graph", action="store_true", help="on cuda")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    width, layers = given.width or WIDTH[given.device], given.layers or LAYERS[given.device]
    rng = np.random.default_rng()
    print(f"torch {torch.__version__}, {given.device}, {torch.get_num_threads()} threads: {layers} layers {width} wide")
    with torch.no_grad():
        base = model_of(width, layers, given.device)
        tokens = torch.from_numpy(rng.integers(0, 8192, (1, 16))).to(given.device)
        made = models(base, kinds(given.kinds, given.packed), tokens)
        del base
        if given.compile:
            made = {name: torch.compile(model, dynamic=False) for name, model in made.items()}
        print("call      size  kind                       median   of torch  difference of logits")
        found = measure(made, given, rng)
    if given.json:
        results.save(given.json, width=width, layers=layers, threads=torch.get_num_threads(), rows=found)


if __name__ == "__main__":
    main()
