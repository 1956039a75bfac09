"""Groups of a few rows, and the experts of a mixture, on a CPU: gemmhub's beside loops and torch's own, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.run.experts [--rounds 30] [--json FILE]
    python -m benchmarks.run.experts --device cuda [--rounds 9] [--json FILE]

It needs torch and transformers; gemmhub-cpu is measured where it is installed. With ``--device cuda`` the experts of a
layer of Mixtral 8x7B and of one with many small experts are timed on a card, in bfloat16, with the card's clock; a
backend for grouped products, such as gemmhub-hopper, is needed there. Operands are random. Each call takes the
next of 16 sets, in turn, which were drawn with sizes of groups of their own: sizes repeat, and each was met before it
is timed. Contenders:

- groups: gemmhub.grouped_matmul of arrays and of tensors; a loop of numpy.matmul (float32) and of torch.mm over the
  groups, into parts of a new result; torch._grouped_mm;
- experts of a Mixtral layer, their forward pass and a step of training: accelerated by gemmhub; transformers' loop
  ("eager") and its grouped products ("grouped_mm").

All contenders of a line take turns; medians are compared. A contender that the installed transformers does not have is
named and left out. One thread is timed by its CPU time, several by wall time, which other work on the machine disturbs.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

import gemmhub
import gemmhub.torch
from benchmarks.lib import results
from benchmarks.lib.cpu_clock import CpuClock
from gemmhub._arrays.find import arrays_of
from gemmhub._base.timing import HostClock, interleave
from gemmhub._doors.torch import experts as experts_of_gemmhub

Tensor = Any
GROUPS = ((8, 4, 64, 64), (64, 4, 64, 64), (64, 4, 256, 256), (64, 16, 64, 64), (8, 64, 512, 1024))
"""(groups, mean rows of a group, n, k)."""
LAYERS = ((8, 2, 256, 512, 1), (8, 2, 256, 512, 16), (8, 2, 256, 512, 128), (64, 8, 256, 128, 16))
"""(experts, experts of a token, hidden size, intermediate size, tokens)."""
CUDA_LAYERS = (
    (8, 2, 4096, 14336, 16), (8, 2, 4096, 14336, 256), (8, 2, 4096, 14336, 4096),
    (64, 8, 2048, 1024, 16), (64, 8, 2048, 1024, 256), (64, 8, 2048, 1024, 4096),
)  # fmt: skip
"""The same on a card: Mixtral 8x7B's, whose weights take 2.8 GB for each contender, and one with many small experts."""
DTYPES = (torch.bfloat16, torch.float32)
_SETS = 16
_COMPARED = 256
"""Tokens whose results are compared with those of float64."""


def looped(a: Any, b: Any, offsets: Any, new: Callable[[int, int], Any], product: Callable[..., Any]) -> Any:
    """The groups one by one."""
    out, start = new(a.shape[0], b.shape[2]), 0
    for i, end in enumerate(offsets.tolist()):
        if end > start:
            product(a[start:end], b[i], out=out[start:end])
        start = end
    return out


def groups_row(
    dtype: torch.dtype, sizes: tuple[int, int, int, int], rounds: int, clock: HostClock
) -> dict[str, Any]:  # fmt: skip
    """Time one product by all contenders."""
    groups, mean, n, k = sizes
    rng, sets = np.random.default_rng(), []
    for _ in range(_SETS):
        ends = torch.from_numpy(np.cumsum(rng.integers(0, 2 * mean + 1, groups)).astype(np.int32))
        sets.append((torch.randn(int(ends[-1]), k).to(dtype), torch.randn(groups, k, n).to(dtype), ends))
    calls: dict[str, Callable[..., Any]] = {
        "grouped": gemmhub.grouped_matmul,
        "torch.mm": lambda a, b, ends: looped(a, b, ends, lambda m, n: a.new_empty(m, n), torch.mm),
        "torch._grouped_mm": lambda a, b, ends: torch._grouped_mm(a, b, offs=ends),
    }
    arrays = [(a.numpy(), b.numpy(), ends.numpy()) for a, b, ends in sets] if dtype is torch.float32 else []
    if arrays:
        calls["grouped of arrays"] = gemmhub.grouped_matmul
        calls["numpy.matmul"] = lambda a, b, ends: looped(
            a, b, ends, lambda m, n: np.empty((m, n), np.float32), np.matmul
        )
    for a, b, ends in sets:
        assert gemmhub.spot_check_grouped(a, b, ends, gemmhub.grouped_matmul(a, b, ends))
    us = timed({
        name: (function, arrays if name in ("grouped of arrays", "numpy.matmul") else sets)
        for name, function in calls.items()
    }, rounds, clock)  # fmt: skip
    return {"what": "groups", "dtype": str(dtype)[6:], "sizes": sizes, "us": us}


def experts_row(
    dtype: torch.dtype, sizes: tuple[int, int, int, int, int], training: bool, rounds: int, clock: Any,
    device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """Time the experts of one layer by all contenders."""
    experts, count, hidden, intermediate, tokens = sizes
    config = transformers.MixtralConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_local_experts=experts, num_experts_per_tok=count
    )
    with torch.device(device):
        layer = MixtralExperts(config).to(device, dtype)
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.05)
        sets = []
        for _ in range(_SETS):
            scores, chosen = torch.rand(tokens, experts).topk(count)
            sets.append((torch.randn(tokens, hidden).to(dtype), chosen, scores.to(dtype)))
    layers = {"gemmhub": copy.deepcopy(layer)}
    experts_of_gemmhub.convert(layers["gemmhub"], {})  # of float32, too, which accelerate leaves to transformers
    for name in ("eager", "grouped_mm"):
        layers[name] = copy.deepcopy(layer)
        layers[name].config._experts_implementation = name

    def step(module: Any) -> Callable[..., Any]:
        def forward(*operands: Tensor) -> Tensor:
            with torch.no_grad():
                return module(*operands)

        def train(*operands: Tensor) -> None:
            module.zero_grad()
            module(*operands).sum().backward()

        return train if training else forward

    exact = copy.deepcopy(layer).double()
    exact.config._experts_implementation = "eager"
    x, chosen, scores = (x[:_COMPARED] for x in sets[0])
    with torch.no_grad():
        wanted = exact(x.double(), chosen, scores.double())
    del exact, layer
    scale = float(wanted.abs().max())
    errors, missing = {}, {}
    for name, module in [*layers.items()]:
        try:
            with torch.no_grad():
                errors[name] = float((module(*sets[0])[:_COMPARED] - wanted).abs().max()) / scale
        except Exception as error:  # of another version of transformers, or of torch
            missing[name] = f"{type(error).__name__}: {error}"[:200]
            del layers[name]
    us = timed({name: (step(module), sets) for name, module in layers.items()}, rounds, clock)
    what = "experts, training" if training else "experts"
    row = {"what": what, "dtype": str(dtype)[6:], "sizes": sizes, "us": us, "errors": errors}
    return {**row, "missing": missing} if missing else row


def timed(
    calls: dict[str, tuple[Callable[..., Any], list[Any]]], rounds: int, clock: Any
) -> dict[str, float]:  # fmt: skip
    """Median microseconds of each contender; calls take the sets in turn, and each set was met before it is timed."""
    bound = {}
    for name, (function, sets) in calls.items():
        for operands in sets:
            function(*operands)
        cycle = itertools.cycle(sets)
        bound[name] = lambda f=function, s=cycle: f(*next(s))
    times = interleave(list(bound.values()), clock=clock, rounds=rounds)
    return {name: x.median * 1e6 for name, x in zip(bound, times)}


def on_card(given: argparse.Namespace) -> None:
    """Print a line for each layer of ``CUDA_LAYERS``, forward and with a step of training."""
    begun, rows = time.monotonic(), []
    clock = arrays_of(torch.zeros(1, device="cuda"), "a").clock()
    for sizes, training in itertools.product(CUDA_LAYERS, (False, True)):
        if time.monotonic() - begun > given.seconds:
            print(f"left out for want of time: {sizes}{', training' * training}", flush=True)
            continue
        rows.append(experts_row(torch.bfloat16, sizes, training, given.rounds, clock, "cuda"))
        print_row(rows[-1])
        torch.cuda.empty_cache()
    if given.json:
        results.save(
            given.json, rows=rows, device=torch.cuda.get_device_name(), torch=torch.__version__,
            transformers=transformers.__version__,
        )  # fmt: skip


def print_row(row: dict[str, Any]) -> None:
    """Print the line of a row, with the largest error and the contenders that are missing."""
    words = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    print(f"{row['what']:18}{row['dtype']:9}{row['sizes']!s:28} us: {words}", flush=True)
    for name, reason in row.get("missing", {}).items():
        print(f"  without {name}: {reason}", flush=True)


def main() -> None:
    """Print a line for each product and layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, help="30, or 9 on a card, unless given")
    parser.add_argument("--seconds", type=float, default=55.0, help="on a card: no layer is begun after so many")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.rounds = given.rounds or (30 if given.device == "cpu" else 9)
    if given.device == "cuda":
        on_card(given)
        return
    threads = int(os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())))
    torch.set_num_threads(threads)
    clock = CpuClock() if threads == 1 else HostClock()
    rows = []
    for dtype in DTYPES:
        lines = [lambda s=sizes, t=dtype: groups_row(t, s, given.rounds, clock) for sizes in GROUPS]
        for training, sizes in itertools.product((False, True), LAYERS):
            lines.append(lambda s=sizes, t=dtype, w=training: experts_row(t, s, w, given.rounds, clock))
        for line in lines:
            rows.append(line())
            print_row(rows[-1])
    if given.json:
        results.save(
            given.json, rows=rows, threads=threads, torch=torch.__version__, transformers=transformers.__version__
        )


if __name__ == "__main__":
    main()
