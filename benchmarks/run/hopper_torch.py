"""gemmhub-hopper against torch.matmul on a Hopper GPU: 16-bit products, tf32 and float32, by CUDA graphs.

    python -m benchmarks.run.hopper_torch [--quick | --draw SEED [--few [N]] [--least 1e10] [--most 1e10]]
                                      [--dtype bfloat16] [--candidates | --every] [--having TEXT] [--packed]
                                      [--json FILE]
    python -m benchmarks.run.hopper_torch --host

It needs torch and gemmhub-hopper. Each product is timed by CUDA graphs (benchmarks/lib/cuda_graphs.py), in one run with
torch's call: the plugin's first choice, the first eight candidates with ``--candidates``, or with ``--every`` all that
the cost model ranks, swap-AB included. With ``--packed`` also the plugin's first choice for a b packed beforehand;
copying operands, or splitting them, is part of all other times. All results are compared with torch's. ``--host`` times
the host's side of a call.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.cost import choose
from gemmhub_hopper.launches.launch import Launch
from gemmhub_hopper.lowering import lower

from benchmarks.lib import results
from benchmarks.lib.beside_torch import caller, compared, drawn, print_summaries, problem, rig_of
from benchmarks.lib.cuda_graphs import Call, Rig
from benchmarks.lib.host_time import print_least
from benchmarks.lib.one_backend import offered, opened, prepared
from gemmhub.backend import Offer
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem

QUICK = (
    (4096, 4096, 4096),
    (8192, 6144, 4096),
    (4096, 32768, 512),
    (512, 4096, 4096),
    (64, 4096, 4096),
    (16, 8192, 8192),
)
"""Sizes (m, n, k) of ``--quick``."""
PRODUCTS = QUICK + (
    (8192, 8192, 8192), (16384, 8192, 8192), (4096, 4096, 7168), (4096, 7168, 16384), (4096, 24576, 1536),
    (4096, 7168, 2048), (4096, 2112, 7168), (4096, 576, 7168), (4096, 14336, 4096), (4096, 4096, 14336),
    (2048, 10240, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (1024, 8192, 2048), (512, 37888, 3584),
    (256, 8192, 4096), (256, 4608, 3584), (128, 2112, 7168), (128, 7168, 16384), (128, 576, 7168), (128, 8192, 8192),
    (96, 2112, 7168), (64, 28672, 8192), (64, 7168, 2048), (32, 4096, 7168), (16, 28672, 4096), (8, 4096, 14336),
    (1, 4096, 14336), (1, 6144, 4096), (64, 64, 16384), (256, 256, 8192), (512, 512, 16384),
)  # fmt: skip
"""Sizes (m, n, k)."""
_MAX_ENTRIES = 36
"""Number of candidates of a product that ``--every`` always times; of the others, every third."""
_PACKED = "packed"
_FAR_SLOWER = 3
"""Largest ratio of an estimate to the least one with which ``--every`` times a candidate."""


def packed_caller(backend: HopperBackend, asked: GemmProblem, rig: Rig) -> Call:
    """Return the plugin's first choice as a call for which every b of ``rig`` is packed."""
    made = {b.data_ptr(): backend.pack(b.data_ptr(), asked) for _, b, _ in rig.sets}
    dense = MatrixLayout.contiguous(asked.k, asked.n)
    asked = replace(asked, packed_by=backend.name, b=replace(asked.b, layout=dense))
    offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    run = prepared(backend, asked, offer.first.name, offer.workspace).run

    def call(a: Any, b: Any, out: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        run(a.data_ptr(), made[b.data_ptr()], out.data_ptr(), 1, 0, stream)

    return call


def names(backend: HopperBackend, asked: GemmProblem, offer: Offer, options: argparse.Namespace) -> Sequence[str]:
    """Return the candidates to time, the plugin's choice first."""
    if not options.every:
        return offer.names if options.candidates else offer.names[:1]
    ranked = _ranked(backend, asked, offer.workspace, _FAR_SLOWER)
    return list(dict.fromkeys([offer.first.name, *ranked[:_MAX_ENTRIES], *ranked[_MAX_ENTRIES::3]]))


def _ranked(backend: HopperBackend, asked: GemmProblem, workspace: int, slower: float) -> list[str]:
    """Return the candidates whose estimates are at most ``slower`` times the least."""
    lowerings = lower.lowerings(asked)
    assert isinstance(lowerings, tuple)
    found = choose.ranked(lowerings, backend._card_of(0), workspace)
    return [x.choice.name for x in found if x.seconds < slower * found[0].seconds]


def measure(
    backend: HopperBackend, m: int, n: int, k: int, order: str, options: argparse.Namespace
) -> dict[str, Any] | None:
    asked = problem(m, n, k, order, options.dtype)
    offer = offered(backend, asked, order)
    if offer is None:
        return None
    proposed = names(backend, asked, offer, options)
    if not any(options.having in name for name in proposed):
        return None
    rig = rig_of(m, n, k, order, options.dtype)
    calls = {name: caller(backend, asked, name, offer.workspace) for name in proposed}
    if options.packed:
        calls[_PACKED] = packed_caller(backend, asked, rig)
    return compared(backend, asked, offer, order, rig, calls, options.dtype, options.rounds)[0]


def host(backend: HopperBackend, n: int = 256) -> None:
    """Print the microseconds of host time a call: the least over batches, each launched on an idle card."""
    asked = problem(n, n, n, "nn", "bfloat16")
    lowerings, workspace = lower.lowerings(asked), backend.machine.gpus[0].default_workspace
    assert isinstance(lowerings, tuple)
    choice = next(x.choice for x in choose.corrected(lowerings, backend._card_of(0), workspace) if x.choice.splits == 1)
    a, b, out = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(3))  # this creates a context
    launch = backend.launch(0, choice, workspace)
    assert isinstance(launch, Launch)
    gemm = launch.gemm
    stream = torch.cuda.current_stream().cuda_stream
    run, slot = launch.run, gemm.slot()
    places = [x.data_ptr() for x in (a, b, out)]
    gemm.place(slot, *places)
    slot.launch[4] = stream
    contenders = {
        "bare cuLaunchKernelEx": lambda: gemm.launch(slot.config, gemm.function, slot.places, None),
        "kernel.run": lambda: run(*places, 1, 0, stream),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=out),
    }
    print_least(contenders)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", type=int, metavar="SEED", help="products of random sizes, for --seconds")
    few = "with --draw: of up to N rows or columns, at most sixteen"
    parser.add_argument("--few", type=int, nargs="?", const=8, default=0, metavar="N", help=few)
    parser.add_argument(
        "--least", type=float, default=0.0, metavar="OPERATIONS", help="with --draw: of no fewer operations"
    )
    most = "with --draw: products of no more operations"
    parser.add_argument("--most", type=float, default=math.inf, metavar="OPERATIONS", help=most)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "tf32", "float32"))
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--every", action="store_true")
    having = "products only that have a candidate to time with this in its name"
    parser.add_argument("--having", default="", metavar="TEXT", help=having)
    parser.add_argument("--packed", action="store_true", help="also with b packed beforehand")
    parser.add_argument("--host", action="store_true", help="host time of a call, and nothing else")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no product after this time")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    backend = HopperBackend()
    found = opened(backend)
    if found is None:
        return 1
    if options.host:
        host(backend)
        return 0
    end = time.monotonic() + options.seconds
    rows = []
    for m, n, k in QUICK if options.quick else PRODUCTS if options.draw is None else drawn(options.draw, options.few):
        if time.monotonic() > end:
            print("out of time: the remaining products are omitted")
            break
        if not options.least <= 2 * m * n * k <= options.most:
            continue
        for order in ("nn", "nt"):
            row = measure(backend, m, n, k, order, options)
            if row is not None:
                rows.append(row)
    print_summaries(rows)
    if options.json:
        results.save(options.json, dtype=options.dtype, versions=dict(found.versions), rows=rows)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
