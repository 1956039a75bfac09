"""Time a Llama-shaped model of transformers with torch's linear layers and with gemmhub's: python examples/llama.py

4096 wide, 8 layers, random weights, one GPU. Both run in turns on the same weights; a ratio is torch's time over ours.
"""

import argparse
import statistics
import time
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import gemmhub.torch


def seconds(run):
    """Wall time of a call, the device's included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(name, model, make, rounds=12):
    """Print the medians of a call with either kind of layer. ``make`` returns the call to be timed."""
    layers = [x for x in model.modules() if isinstance(x, torch.nn.Linear)]
    times, calls = {}, {}
    for kind in (torch.nn.Linear, gemmhub.torch.Linear):
        for layer in layers:
            layer.__class__ = kind
        calls[kind] = make()
        times[kind] = []
        for _ in range(3):
            calls[kind]()
    for _ in range(rounds):
        for kind, call in calls.items():
            for layer in layers:
                layer.__class__ = kind
            times[kind].append(seconds(call))
    theirs, ours = (statistics.median(times[kind]) * 1e3 for kind in times)
    print(f"{name:40} {theirs:9.3f} ms {ours:9.3f} ms {theirs / ours:7.3f}", flush=True)


def decode(model, batch, graph):
    """One token after 512 others, in a cache of fixed size; as a CUDA graph or not."""
    cache = StaticCache(config=model.config, max_cache_len=1024)
    ids = torch.randint(0, 1000, (batch, 512), device="cuda")
    model(ids, past_key_values=cache)
    token, place = ids[:, :1].contiguous(), torch.tensor([[512]], device="cuda")

    def step():  # the cache counts its tokens itself
        return model(token, past_key_values=cache, position_ids=place).logits

    def steps():
        for _ in range(8):
            step()

    if not graph:
        return steps
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        step()

    def replay(kept=(step, token, place, cache)):  # whose memory the graph reads
        for _ in range(8):
            captured.replay()

    return replay


def train(model, ids):
    def step():
        model(ids, labels=ids).loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    asked = parser.parse_args()
    config = LlamaConfig(
        hidden_size=asked.width, intermediate_size=asked.width * 7 // 2, num_hidden_layers=asked.layers,
        num_attention_heads=asked.width // 128, num_key_value_heads=max(1, asked.width // 512), vocab_size=32000,
        attn_implementation="sdpa",
    )  # fmt: skip
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':40} {'torch':>12} {'gemmhub':>12} {'ratio':>7}")
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        name = str(dtype).removeprefix("torch.")
        with torch.device("cuda"):
            model = LlamaForCausalLM(config).to(dtype)
        gemmhub.torch.accelerate(model)
        with torch.no_grad():
            for tokens in (513, 2048):
                ids = torch.randint(0, 1000, (1, tokens), device="cuda")
                compare(f"{name} prefill, {tokens} tokens", model, partial(partial, model, ids, use_cache=False))
            for batch in (1, 8):
                for graph in (False, True):
                    kind = "graph" if graph else "eager"
                    compare(
                        f"{name} decode, batch {batch}, {kind}, 8 tokens", model, partial(decode, model, batch, graph)
                    )
        ids = torch.randint(0, 1000, (1, 2048), device="cuda")
        compare(f"{name} training step, 2048 tokens", model, partial(train, model, ids), rounds=8)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
