"""Grouped products of a CPU, of even and skewed mixtures, beside single calls and torch._grouped_mm, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.run.grouped [--rounds 15] [--json FILE]

It needs torch; gemmhub-cpu is measured where it is installed. Operands are random tensors. Each call takes the next of
several sets of operands, so that weights come from beyond the L2 cache. Mixtures: ``even``, groups of one size;
``skewed``, sizes drawn by weights that fall like 1 / (i + 1), so that groups may be empty; ``new``, as skewed, with
sizes that no call had before. Contenders:

- ``grouped``: gemmhub.grouped_matmul;
- ``single``: gemmhub.matmul of each group that has rows, into its part of a new result;
- ``torch``: torch._grouped_mm, of 16-byte strides.

All contenders of a product take turns; medians are compared. One thread is timed by its CPU time, several by wall time,
which other work on the machine disturbs.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cpu_clock import CpuClock
from gemmhub._base.timing import HostClock, interleave

Tensor = Any
GRID = ((8, 512, 512, 1024), (8, 64, 512, 1024), (64, 64, 256, 512), (64, 1024, 64, 64))
"""(groups, rows, n, k): rows are those of all groups."""
DTYPES = ("bfloat16", "float32")
_SETS = 4
_NEW = 4096
"""Mixtures that are drawn for calls of new sizes."""


def mixtures(mixture: str, groups: int, rows: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield offsets without end: the same ones, or for ``new`` sizes that differ from call to call."""
    weights = 1 / np.arange(1, groups + 1)

    def drawn() -> Tensor:
        sizes = rng.multinomial(rows, rng.permutation(weights) / weights.sum())
        return torch.from_numpy(np.cumsum(sizes).astype(np.int32))

    if mixture == "even":
        return itertools.repeat(torch.arange(1, groups + 1, dtype=torch.int32) * (rows // groups))
    return itertools.cycle([drawn() for _ in range(_NEW)]) if mixture == "new" else itertools.repeat(drawn())


def single(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """The groups by calls of gemmhub.matmul."""
    out = a.new_empty((a.shape[0], b.shape[2]))
    start = 0
    for i, end in enumerate(offsets.tolist()):
        if end > start:
            gemmhub.matmul(a[start:end], b[i], out=out[start:end])
        start = end
    return out


def contenders() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """The functions that are compared."""
    found: dict[str, Any] = {"grouped": gemmhub.grouped_matmul, "single": single}
    if hasattr(torch, "_grouped_mm"):
        found["torch"] = lambda a, b, offsets: torch._grouped_mm(a, b, offs=offsets)
    return found


def row(dtype: str, mixture: str, sizes: tuple[int, int, int, int], rounds: int, clock: HostClock) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    groups, rows, n, k = sizes
    kind = getattr(torch, dtype)
    operands = [(torch.randn(rows, k, dtype=kind), torch.randn(groups, k, n, dtype=kind)) for _ in range(_SETS)]
    rng = np.random.default_rng()
    calls = {}
    for name, function in contenders().items():
        sets, offsets = itertools.cycle(operands), mixtures(mixture, groups, rows, np.random.default_rng(rows + groups))
        calls[name] = lambda f=function, s=sets, o=offsets: f(*next(s), next(o))
    (a, b), ends = operands[0], next(mixtures(mixture, groups, rows, rng))
    right = bool(gemmhub.spot_check_grouped(a, b, ends, gemmhub.grouped_matmul(a, b, ends)))
    decision = gemmhub.explain_grouped(a, b, ends)
    times = dict(zip(calls, interleave(list(calls.values()), clock=clock, rounds=rounds)))
    us = {name: x.median * 1e6 for name, x in times.items()}
    ratios = {name: us[name] / us["grouped"] for name in us if name != "grouped"}
    words = ", ".join(f"{name} / grouped {x:.2f}" for name, x in ratios.items())
    label = f"{groups} groups, {rows} rows, {n} x {k}"
    print(f"{dtype:9}{mixture:7}{label:32}{us['grouped']:10.1f} us  {words}{'' if right else '  WRONG'}", flush=True)
    return {
        "dtype": dtype, "mixture": mixture, "groups": groups, "rows": rows, "n": n, "k": k, "us": us, "ratios": ratios,
        "imbalance": decision.imbalance, "chosen": list(decision.chosen), "right": right,
    }  # fmt: skip


def main() -> None:
    """Print a line for each product, and the geometric means of the mixtures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    threads = int(os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())))
    torch.set_num_threads(threads)
    clock = CpuClock() if threads == 1 else HostClock()
    grid = itertools.product(DTYPES, ("even", "skewed", "new"), GRID)
    rows = [row(dtype, mixture, sizes, given.rounds, clock) for dtype, mixture, sizes in grid]
    for dtype, mixture in itertools.product(DTYPES, ("even", "skewed", "new")):
        own = [x["ratios"] for x in rows if (x["dtype"], x["mixture"]) == (dtype, mixture)]
        means = ", ".join(f"{name} / grouped {geometric_mean(x[name] for x in own):.2f}" for name in own[0])
        print(f"{dtype} {mixture}: geometric means {means}")
    if given.json:
        results.save(given.json, rows=rows, threads=threads, torch=torch.__version__)


if __name__ == "__main__":
    main()
