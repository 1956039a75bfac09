"""Host time of recorded, compiled and Linear calls of torch: ``python -m benchmarks.run.overhead_torch``.

The products are small, on a GPU, so that host time dominates: torch's calls and gemmhub's, in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import gemmhub
import gemmhub.torch as door

N = 64


def microseconds(call: Callable[[], Any], calls: int = 500) -> float:
    """Return the host time of a call, with room in the device's queue."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / calls * 1e6


def main() -> None:
    """Print a table of medians."""
    argparse.ArgumentParser(description=__doc__.partition(":")[0]).parse_args()
    dtype = torch.bfloat16
    x, w = (torch.randn(N, N, device="cuda", dtype=dtype) for _ in range(2))
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    plain, ours = (kind(N, N, device="cuda", dtype=dtype) for kind in (torch.nn.Linear, door.Linear))
    compiled = [torch.compile(layer, fullgraph=True) for layer in (plain, ours)]

    def step(layer: Any) -> Callable[[], Any]:
        return lambda: layer(xg).sum().backward()

    def inference(layer: Any) -> Callable[[], Any]:
        def call() -> None:
            with torch.no_grad():
                layer(x)

        return call

    rows = {
        "matmul": (lambda: torch.matmul(x, w), lambda: gemmhub.matmul(x, w)),
        "matmul, recorded": (lambda: torch.matmul(xg, wg), lambda: gemmhub.matmul(xg, wg)),
        "operator": (lambda: torch.ops.aten.mm(x, w), lambda: torch.ops.gemmhub.matmul(x, w)),
        "Linear, no grad": (inference(plain), inference(ours)),
        "Linear, recorded": (lambda: plain(xg), lambda: ours(xg)),
        "Linear, forward and backward": (step(plain), step(ours)),
        "Linear, compiled, no grad": (inference(compiled[0]), inference(compiled[1])),
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {N} x {N} x {N} {dtype}, us on the host")
    print(f"{'':32} {'torch':>8} {'gemmhub':>8}")
    for name, calls in rows.items():
        times: tuple[list[float], list[float]] = ([], [])
        for call in calls:
            microseconds(call, 20)
        for _ in range(9):
            for kept, call in zip(times, calls):
                kept.append(microseconds(call))
        print(f"{name:32} {sorted(times[0])[4]:8.2f} {sorted(times[1])[4]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
