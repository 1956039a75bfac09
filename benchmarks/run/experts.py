"""Groups of a few rows, and the experts of a mixture, on a CPU: gemmhub's beside loops and torch's own, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.run.experts [--rounds 30] [--json FILE]

It needs torch and transformers; gemmhub-cpu is measured where it is installed. Operands are random. Each call takes the
next of 16 sets, in turn, which were drawn with sizes of groups of their own: sizes repeat, and each was met before it
is timed. Contenders:

- groups: gemmhub.grouped_matmul of arrays and of tensors; a loop of numpy.matmul (float32) and of torch.mm over the
  groups, into parts of a new result; torch._grouped_mm;
- experts of a Mixtral layer, their forward pass and a step of training: accelerated by gemmhub; transformers' loop
  ("eager") and its grouped products ("grouped_mm").

All contenders of a line take turns; medians are compared. One thread is timed by its CPU time, several by wall time,
which other work on the machine disturbs.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
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
from gemmhub._base.timing import HostClock, interleave
from gemmhub._doors.torch import experts as experts_of_gemmhub

Tensor = Any
GROUPS = ((8, 4, 64, 64), (64, 4, 64, 64), (64, 4, 256, 256), (64, 16, 64, 64), (8, 64, 512, 1024))
"""(groups, mean rows of a group, n, k)."""
LAYERS = ((8, 2, 256, 512, 1), (8, 2, 256, 512, 16), (8, 2, 256, 512, 128), (64, 8, 256, 128, 16))
"""(experts, experts of a token, hidden size, intermediate size, tokens)."""
DTYPES = (torch.bfloat16, torch.float32)
_SETS = 16


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
    dtype: torch.dtype, sizes: tuple[int, int, int, int, int], training: bool, rounds: int, clock: HostClock
) -> dict[str, Any]:  # fmt: skip
    """Time the experts of one layer by all contenders."""
    experts, count, hidden, intermediate, tokens = sizes
    config = transformers.MixtralConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_local_experts=experts, num_experts_per_tok=count
    )
    layer = MixtralExperts(config).to(dtype)
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

    exact = copy.deepcopy(layers["eager"]).double()
    x, chosen, scores = sets[0]
    wanted = exact(x.double(), chosen, scores.double()).detach()
    scale = float(wanted.abs().max())
    errors = {name: float((module(*sets[0]).detach() - wanted).abs().max()) / scale for name, module in layers.items()}
    us = timed({name: (step(module), sets) for name, module in layers.items()}, rounds, clock)
    what = "experts, training" if training else "experts"
    return {"what": what, "dtype": str(dtype)[6:], "sizes": sizes, "us": us, "errors": errors}


def timed(
    calls: dict[str, tuple[Callable[..., Any], list[Any]]], rounds: int, clock: HostClock
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


def main() -> None:
    """Print a line for each product and layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
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
            x = rows[-1]
            words = ", ".join(f"{name} {us:.1f}" for name, us in x["us"].items())
            print(f"{x['what']:18}{x['dtype']:9}{x['sizes']!s:28} us: {words}", flush=True)
    if given.json:
        results.save(
            given.json, rows=rows, threads=threads, torch=torch.__version__, transformers=transformers.__version__
        )


if __name__ == "__main__":
    main()
