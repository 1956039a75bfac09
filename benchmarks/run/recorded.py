"""Host time of recorded, compiled and Linear calls of torch, over torch's own, in one run.

    python -m benchmarks.run.recorded [--device cuda] [--size N] [--json FILE]

The products are so small that host time is all there is. torch's call and gemmhub's are timed in interleaved batches,
on a GPU in batches that fit into its queue; the minimum over batches is compared, as a call this short is either
undisturbed or not a measurement. "Function around mm" is a torch.autograd.Function whose products are torch's: on the
CPU it is the least that any node in Python costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gemmhub
import gemmhub.torch as door
from benchmarks.lib import results

Call = Callable[[], Any]
LIMIT = 1.3
"""The ratio that recorded products are to stay below."""


class AroundMm(torch.autograd.Function):
    """A node in Python around torch's products."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        ctx.save_for_backward(a, b)
        return torch.mm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, Any]:
        a, b = ctx.saved_tensors
        return torch.mm(grad, b.t()), torch.mm(a.t(), grad)


class Empty(torch.overrides.TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        return function(*given, **(named or {}))


def cases(device: str, n: int, dtype: torch.dtype, compiled: bool) -> dict[str, tuple[Call, Call]]:
    """Return torch's call and gemmhub's, by name."""
    x, w, bias, grad = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((n, n), (n, n), (n,), (n, n)))
    xg, wg, vector = (t.clone().requires_grad_() for t in (x, w, bias))
    plain, ours = (kind(n, n, device=device, dtype=dtype) for kind in (torch.nn.Linear, door.Linear))
    linear, block, empty = torch.nn.functional.linear, door.use(), Empty()

    def used() -> Any:
        with block:
            return linear(xg, wg, vector)

    def untouched() -> Any:
        with empty:
            return linear(xg, wg, vector)

    def step(call: Call) -> Call:
        return lambda: call().backward(grad)

    def inference(call: Call) -> Call:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    found: dict[str, tuple[Call, Call]] = {
        "matmul": (lambda: torch.matmul(x, w), lambda: gemmhub.matmul(x, w)),
        "matmul, recorded": (lambda: torch.matmul(xg, wg), lambda: gemmhub.matmul(xg, wg)),
        "matmul with bias, recorded": (
            lambda: torch.addmm(vector, xg, wg), lambda: gemmhub.matmul(xg, wg, bias=vector),
        ),
        "Linear, no grad": (inference(lambda: plain(x)), inference(lambda: ours(x))),
        "Linear, recorded": (lambda: plain(xg), lambda: ours(xg)),
        "F.linear in use(), recorded": (lambda: linear(xg, wg, vector), used),
        "the same, in an empty mode": (untouched, used),
        "matmul, forward and backward": (
            step(lambda: torch.matmul(xg, wg)), step(lambda: gemmhub.matmul(xg, wg)),
        ),
        "Linear, forward and backward": (step(lambda: plain(xg)), step(lambda: ours(xg))),
        "operator": (lambda: torch.ops.aten.mm(x, w), lambda: torch.ops.gemmhub.matmul(x, w)),
        "Function around mm, recorded": (lambda: torch.matmul(xg, wg), lambda: AroundMm.apply(xg, wg)),
        "Function around mm, both": (step(lambda: torch.matmul(xg, wg)), step(lambda: AroundMm.apply(xg, wg))),
    }  # fmt: skip
    if compiled:
        theirs, mine = (torch.compile(layer, fullgraph=True) for layer in (plain, ours))
        found["Linear, compiled, no grad"] = inference(lambda: theirs(x)), inference(lambda: mine(x))
    return found


def microseconds(call: Call, calls: int, device: str) -> float:
    """Return the host time of a call, with room in the device's queue."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    """Print a table of minima and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, help="rows and columns of each matrix; 64 on a GPU, else 16")
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled layer")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device, n = given.device, given.size or (16 if given.device == "cpu" else 64)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.set_num_threads(1)  # what these products need
    name = "CPU" if device == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}: {n} x {n} x {n} {dtype}, us on the host")
    print(f"{'':32} {'torch':>8} {'gemmhub':>8} {'ratio':>6}")
    found = {}
    for label, calls in cases(device, n, dtype, not given.no_compile).items():
        for call in calls:
            microseconds(call, 20, device)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(given.batches):
            for kept, call in zip(times, calls):
                kept.append(microseconds(call, 20, device))
        theirs, ours = map(min, times)
        found[label] = {"torch": theirs, "gemmhub": ours}
        mark = "" if ours <= LIMIT * theirs else f"  over {LIMIT}"
        print(f"{label:32} {theirs:8.2f} {ours:8.2f} {ours / theirs:6.2f}{mark}", flush=True)
    if given.json:
        results.save(given.json, size=n, device=name, microseconds=found)


if __name__ == "__main__":
    main()
