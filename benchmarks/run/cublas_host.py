"""Host time of warm calls and of new sizes on an NVIDIA card, in one run: torch.matmul, cupy.matmul and gemmhub.

    python -m benchmarks.run.cublas_host [--size 256] [--json FILE]

It needs torch, cupy and gemmhub-cublas. Calls are timed as benchmarks/lib/host_time.py describes. The median over
batches is compared (operands alternate between two sets, so that no call has the addresses of the previous one).
"a new m" takes another number of rows in each call: the preparation of its kernel alone, its derivation from the kernel
of the first number (Kernel.with_rows), and the whole call.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import torch
from gemmhub_cublas.backend import CublasBackend

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.host_time import samples
from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Device
from gemmhub.testing.problems import problem

LIMITS = {"gemmhub out= (torch)": ("torch out=", 0.75), "gemmhub out= (cupy)": ("cupy out=", 0.5)}
"""Limits: contender -> (baseline, upper limit of the ratio of their times)."""
PLANNED = 7.0
"""Upper limit of a planned call in microseconds."""
NEW = range(4097, 4097 + 8192)
"""The new numbers of rows, more than there are calls."""


def contenders(size: int) -> dict[str, Callable[[], object]]:
    """Return names and calls. Each call takes the next of two sets of operands."""
    tensors = [[torch.randn(size, size, device="cuda").bfloat16() for _ in range(3)] for _ in range(2)]
    arrays = [[cupy.random.standard_normal((size, size)).astype(cupy.float16) for _ in range(3)] for _ in range(2)]
    torch_plan = gemmhub.plan(*tensors[0][:2], out=tensors[0][2])
    cupy_plan = gemmhub.plan(*arrays[0][:2], out=arrays[0][2])

    stream = torch.cuda.current_stream().cuda_stream
    addresses = [[*(x.data_ptr() for x in tensors[i]), 1, 0, stream] for i in range(2)]

    def rotating(sets: list[list[Any]], call: Callable[..., object]) -> Callable[[], object]:
        turn = [sets[0], sets[1]]

        def run() -> object:
            turn.reverse()
            return call(*turn[0])

        return run

    backend = CublasBackend()
    backend.probe()
    problems = [problem(m, size, size, "bfloat16", device=Device("cuda", torch.cuda.current_device())) for m in NEW]
    offer = backend.offer(problems[0])
    assert isinstance(offer, Offer), offer
    candidate, to_prepare = offer.first.name, iter(problems)
    kernel, numbers = backend.prepare(problems[0], candidate, offer.workspace), iter(NEW)
    assert isinstance(kernel, Kernel), kernel
    tall, right, rows = torch.randn(NEW.stop, size, device="cuda").bfloat16(), tensors[0][1], iter(NEW)

    return {
        "a new m, prepared": lambda: backend.prepare(next(to_prepare), candidate, offer.workspace),
        "a new m, by with_rows": lambda: kernel.with_rows(next(numbers)),
        "a new m (torch)": lambda: gemmhub.matmul(tall[: next(rows)], right, backend="cublas"),
        "torch out=": rotating(tensors, lambda a, b, out: torch.matmul(a, b, out=out)),
        "gemmhub out= (torch)": rotating(tensors, lambda a, b, out: gemmhub.matmul(a, b, out=out)),
        "plan (torch)": rotating(tensors, torch_plan),
        "the kernel alone": rotating(addresses, torch_plan.kernel.run),
        "torch new": rotating(tensors, lambda a, b, out: torch.matmul(a, b)),
        "gemmhub new (torch)": rotating(tensors, lambda a, b, out: gemmhub.matmul(a, b)),
        "cupy out=": rotating(arrays, lambda a, b, out: cupy.matmul(a, b, out=out)),
        "gemmhub out= (cupy)": rotating(arrays, lambda a, b, out: gemmhub.matmul(a, b, out=out)),
        "plan (cupy)": rotating(arrays, cupy_plan),
        "cupy new": rotating(arrays, lambda a, b, out: cupy.matmul(a, b)),
        "gemmhub new (cupy)": rotating(arrays, lambda a, b, out: gemmhub.matmul(a, b)),
        "an empty call": rotating(tensors, lambda a, b, out: None),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    times = {name: statistics.median(found) for name, found in samples(contenders(options.size)).items()}
    empty = times.pop("an empty call")
    times = {name: value - empty for name, value in times.items()}
    ratios = {name: times[name] / times[baseline] for name, (baseline, _) in LIMITS.items()}
    kept = all(ratios[name] <= limit for name, (_, limit) in LIMITS.items())
    kept &= all(times[name] <= PLANNED for name in ("plan (torch)", "plan (cupy)"))
    for name, value in times.items():
        print(f"{name:24} {value:7.2f} us" + (f"  {ratios[name]:.2f} of the baseline" if name in ratios else ""))
    if options.json:
        results.save(
            options.json, cupy=cupy.__version__, size=options.size, loop_us=empty, microseconds=times, ratios=ratios,
            within_limits=kept,
        )  # fmt: skip
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
