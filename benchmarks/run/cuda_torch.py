"""gemmhub-cuda against torch.matmul (cuBLAS) on an NVIDIA card: float32, bfloat16 and float16, by CUDA graphs.

    python -m benchmarks.run.cuda_torch [--dtype float32] [--quick | --draw SEED] [--order nn] [--candidates | --every]
                                    [--triton] [--json FILE] [--rounds 7] [--seconds 500]
    python -m benchmarks.run.cuda_torch --host

It needs torch and gemmhub-cuda. Each product is timed by CUDA graphs (benchmarks/lib/cuda_graphs.py), in one run with
torch's call: the plugin's first choice, the first eight candidates with ``--candidates``, or every tile with every
split-K with ``--every`` (the input of benchmarks/fit/cuda_model.py). With ``--triton`` the same run has a Triton kernel
on mma.sync, the fastest of several configurations. With ``--draw`` the products are of random sizes.
All results are compared with torch's. ``--host`` times the host's side of a call.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.cost import model
from gemmhub_cuda.lower import Lowering, lowered

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.beside_torch import caller, close, compared, print_summaries, problem, rig_of, summary
from benchmarks.lib.cuda_graphs import Rig
from benchmarks.lib.host_time import print_least
from benchmarks.lib.one_backend import offered, opened, prepared
from gemmhub.backend import WORKSPACE, Offer
from gemmhub.problem import GemmProblem

QUICK = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (1024, 1024, 1024),
    (512, 4096, 4096),
    (128, 2112, 7168),
    (256, 256, 8192),
    (16, 8192, 8192),
    (8192, 8192, 8192),
    (64, 4096, 4096),
    (512, 512, 16384),
)
"""Sizes (m, n, k) of ``--quick``."""
PRODUCTS = QUICK + (
    (8192, 6144, 4096), (4096, 14336, 4096), (4096, 4096, 14336), (4096, 32768, 512),
    (4096, 2112, 7168), (4096, 576, 7168), (3072, 3072, 3072), (1536, 1536, 1536), (768, 768, 768), (512, 512, 512),
    (256, 256, 256), (2047, 2047, 2047), (4097, 4095, 4093), (1000, 1000, 1000), (1024, 8192, 2048), (256, 8192, 4096),
    (128, 8192, 8192), (64, 28672, 8192), (8192, 64, 4096), (8192, 16, 8192), (32, 4096, 7168),
    (8, 4096, 14336), (1, 4096, 14336), (64, 64, 16384), (100000, 64, 64), (64, 100000, 64),
)  # fmt: skip
"""Sizes (m, n, k)."""
_DRAWN = 100


def drawn(seed: int) -> list[tuple[int, int, int]]:
    """Draw sizes: half of them multiples of 64, the others arbitrary."""
    rng = random.Random(seed)
    found: list[tuple[int, int, int]] = []
    while len(found) < _DRAWN:
        m, n, k = (int(2 ** rng.uniform(4, 13.5)) for _ in range(3))
        if rng.random() < 0.5:
            m, n, k = (-(-x // 64) * 64 for x in (m, n, k))
        if 1e7 < 2 * m * n * k < 1.2e12:
            found.append((m, n, k))
    return found


def names(backend: CudaBackend, asked: GemmProblem, offer: Offer, options: argparse.Namespace) -> Sequence[str]:
    """Return the candidates to time, the plugin's choice first."""
    if not options.every:
        return offer.names if options.candidates else offer.names[:1]
    card = backend.machine.cards[0]
    lowering = lowered(asked, card.capability)
    assert isinstance(lowering, Lowering)
    timed = model.all_choices(lowering, card, WORKSPACE)
    fastest = timed[0][0]
    return [choice.name for seconds, choice in timed if seconds < 3 * fastest]


def triton_calls(rig: Rig, dtype: str) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return Triton's configurations that compile, use mma.sync and are correct, by name: their numbers in the rig, and
    their instructions. Print the reasons for omitting others."""
    try:
        from benchmarks.lib.triton_mma import callers
    except ImportError as error:
        print(f"without Triton: {error}")
        return {}, {}
    numbers, counts = {}, {}
    for name, (call, instructions) in callers().items():
        try:
            if not close(call, rig, dtype):
                print(f"    {name} is omitted: its result is not torch's")
                continue
            numbers[name], counts[name] = rig.add(call), instructions
        except Exception as error:  # compilers and drivers have their own exceptions
            print(f"    {name} is omitted: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return numbers, counts


def measure(
    backend: CudaBackend, m: int, n: int, k: int, order: str, options: argparse.Namespace
) -> dict[str, Any] | None:
    dtype = options.dtype
    asked = problem(m, n, k, order, dtype)
    offer = offered(backend, asked, order)
    if offer is None:
        return None
    rig = rig_of(m, n, k, order, dtype)
    triton, instructions = triton_calls(rig, dtype) if options.triton else ({}, {})
    calls = {name: caller(backend, asked, name, offer.workspace) for name in names(backend, asked, offer, options)}
    row, triton_times = compared(backend, asked, offer, order, rig, calls, dtype, options.rounds, triton)
    if triton_times:
        fastest = min(triton_times, key=lambda name: triton_times[name])
        times = {name: us * 1e-6 for name, us in row["us"].items()}
        row["triton"] = {
            "best": fastest, "ratio": triton_times[fastest] / times[row["chosen"]],
            "instructions": instructions[fastest], "best_ratio": triton_times[fastest] / times[row["best"]],
            "us": {x: t * 1e6 for x, t in triton_times.items()},
        }  # fmt: skip
        print(
            f"{'':20}  of {fastest} {row['triton']['ratio']:.3f}, best {row['triton']['best_ratio']:.3f}; "
            f"its instructions: {instructions[fastest]}",
            flush=True,
        )
    return row


def host(backend: CudaBackend, n: int = 256) -> None:
    """Print the microseconds of host time a call: the least over batches, each launched on an idle card."""
    asked = problem(n, n, n, "nn", "float32")
    a, b, out = (torch.randn(n, n, device="cuda") for _ in range(3))
    offer = offered(backend, asked, "nn")
    if offer is None:
        return
    chosen = offer.first.name
    run = prepared(backend, asked, chosen, offer.workspace).run
    stream = torch.cuda.current_stream().cuda_stream
    places = [x.data_ptr() for x in (a, b, out)]
    contenders = {
        f"kernel.run ({chosen})": lambda: run(*places, 1, 0, stream),
        "gemmhub.matmul(out=)": lambda: gemmhub.matmul(a, b, out=out, backend="cuda"),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=out),
    }
    print_least(contenders)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", type=int, metavar="SEED", help="products of random sizes")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--order", choices=("nn", "nt"), help="b stored as (k, n) or (n, k) only; else both")
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--triton", action="store_true", help="a Triton kernel, too; for 16-bit operands")
    parser.add_argument("--host", action="store_true", help="host time of a call, and nothing else")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no product after this time")
    options = parser.parse_args()
    if options.triton and options.dtype == "float32":
        parser.error("--triton goes with --dtype bfloat16 or float16")
    torch.backends.cuda.matmul.allow_tf32 = False
    backend = CudaBackend()
    found = opened(backend)
    if found is None:
        return 1
    if options.host:
        host(backend)
        return 0
    products = drawn(options.draw) if options.draw is not None else QUICK if options.quick else PRODUCTS
    end = time.monotonic() + options.seconds
    rows, left_out = [], 0
    for m, n, k in products:
        for order in ("nn", "nt") if options.order is None else (options.order,):
            if time.monotonic() > end:
                left_out += 1
                continue
            row = measure(backend, m, n, k, order, options)
            if row is not None:
                rows.append(row)
    if left_out:
        print(f"out of time: {left_out} products are omitted")
    compared_to = [row["triton"] for row in rows if "triton" in row]
    for key in ("ratio", "best_ratio") if compared_to else ():
        print(f"{key} to Triton on mma.sync: {summary(compared_to, key)}")
    print_summaries(rows)
    if options.json:
        results.save(
            options.json, dtype=options.dtype, triton=importlib.metadata.version("triton") if compared_to else None,
            versions=dict(found.versions), left_out=left_out, rows=rows,
        )  # fmt: skip
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
