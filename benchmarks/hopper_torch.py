"""gemmhub-hopper against torch.matmul on a Hopper GPU: 16-bit products, tf32 and float32, by CUDA graphs.

    python benchmarks/hopper_torch.py [--quick | --draw SEED [--few [N]] [--most 1e10]] [--dtype bfloat16]
                                      [--candidates | --every] [--having TEXT] [--packed] [--json FILE]
    python benchmarks/hopper_torch.py --host

Needs torch and gemmhub-hopper. Each product is timed as benchmarks/cuda_graphs.py says, in one run with torch's: the
plugin's first choice, the first eight candidates with ``--candidates``, or with ``--every`` all that the cost model
knows of, both ways around. With ``--packed`` also the plugin's first choice for a b packed beforehand; making copies of
operands, or splitting them, is part of all other times. The results of all are compared with torch's. ``--host``
times the host's side of a call.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda_graphs import Call, Rig, expected, launching
from drawn import Product, Sizes
from drawn import problem as problem_of
from gemmhub_hopper import ranking
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.launch import Launch

from gemmhub.backend import Backend
from gemmhub.capability import Absent, Device
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
PRODUCTS = QUICK + (
    (8192, 8192, 8192), (16384, 8192, 8192), (4096, 4096, 7168), (4096, 7168, 16384), (4096, 24576, 1536),
    (4096, 7168, 2048), (4096, 2112, 7168), (4096, 576, 7168), (4096, 14336, 4096), (4096, 4096, 14336),
    (2048, 10240, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (1024, 8192, 2048), (512, 37888, 3584),
    (256, 8192, 4096), (256, 4608, 3584), (128, 2112, 7168), (128, 7168, 16384), (128, 576, 7168), (128, 8192, 8192),
    (96, 2112, 7168), (64, 28672, 8192), (64, 7168, 2048), (32, 4096, 7168), (16, 28672, 4096), (8, 4096, 14336),
    (1, 4096, 14336), (1, 6144, 4096), (64, 64, 16384), (256, 256, 8192), (512, 512, 16384),
)  # fmt: skip
"""(m, n, k)."""
RATES = {"tf32": 3e14, "float32": 5e13}
"""Operations a second that torch may reach; 6e14 of others."""
_DEVICE = Device("cuda", 0)
_MOST = 36
"""Candidates of a product that ``--every`` times for sure, and every third of the others."""
_PACKED = "packed"
_FAR_SLOWER = 3
"""Of ``--every``: how much slower estimates may be than the least."""


def drawn(seed: int, few: int = 0) -> Iterator[tuple[int, int, int]]:
    """(m, n, k) without end: sizes of all magnitudes, most of them multiples of 8; with ``few`` up to so many rows, or
    columns.
    """
    rng = np.random.default_rng(seed)
    while True:
        sides = 2 ** rng.uniform((0, 7, 7), (14, 15, 15))
        units = rng.choice((1, 8, 16, 64, 128), 3, p=(0.05, 0.25, 0.15, 0.3, 0.25))
        units[1:] = np.maximum(units[1:], 8)  # TMA takes rows of multiples of 16 bytes
        m, n, k = (int(max(1 if side < unit else unit, side // unit * unit)) for side, unit in zip(sides, units))
        if few:
            m = min(few, int(rng.choice((1, 1, 1, 2, 3, 4, 5, 6, 8))))
            m, n = (n, m) if rng.random() < 0.2 else (m, n)
        if (1e5 if few else 1e7) < 2 * m * n * k < 2e12:
            yield m, n, k


def kind_of(dtype: str) -> torch.dtype:
    """The elements of a ``--dtype``."""
    kind: torch.dtype = torch.float32 if dtype in RATES else getattr(torch, dtype)
    return kind


def problem(m: int, n: int, k: int, order: str, dtype: str) -> GemmProblem:
    """``order``: for a and for b whether it is stored by rows ("n") or by columns ("t")."""
    return problem_of(Product("", dtype, order, Sizes(1, m, n, k)))


def rig_of(m: int, n: int, k: int, order: str, dtype: str) -> Rig:
    return Rig(m, n, k, order, kind_of(dtype), expected(m, n, k, RATES.get(dtype, 6e14)))


def caller(backend: Backend, asked: GemmProblem, candidate: str) -> Call:
    return launching(backend.prepare(asked, candidate, backend.default_workspace(_DEVICE)).run)


def packed_caller(backend: HopperBackend, asked: GemmProblem, rig: Rig) -> Call:
    """With every b of ``rig`` packed."""
    made = {b.data_ptr(): backend.pack(b.data_ptr(), asked) for _, b, _ in rig.sets}
    dense = MatrixLayout.contiguous(asked.k, asked.n)
    asked = replace(asked, packed_by=backend.name, b=replace(asked.b, layout=dense))
    run = backend.prepare(asked, backend.candidates(asked)[0], backend.default_workspace(_DEVICE)).run

    def call(a: Any, b: Any, out: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        run(a.data_ptr(), made[b.data_ptr()], out.data_ptr(), None, None, 1, 0, stream)

    return call


def names(backend: HopperBackend, asked: GemmProblem, options: argparse.Namespace) -> list[str]:
    """Candidates to time, the plugin's choice first."""
    proposed = list(backend.candidates(asked))
    if not options.every:
        return proposed if options.candidates else proposed[:1]
    ranked = _ranked(backend, asked, _FAR_SLOWER)
    return list(dict.fromkeys([*proposed[:1], *ranked[:_MOST], *ranked[_MOST::3]]))


def ways_of(backend: HopperBackend, asked: GemmProblem) -> Any:
    analysis = backend._analyse(asked)
    assert analysis is not None
    assert not hasattr(analysis, "reason")
    return analysis.ways


def _ranked(backend: HopperBackend, asked: GemmProblem, slower: float) -> list[str]:
    """Those whose estimates are at most so many times the least."""
    ways, workspace = ways_of(backend, asked), backend.default_workspace(_DEVICE)
    found = ranking.ranked(ways, backend._card(asked), workspace)
    return [x.choice.name for x in found if x.seconds < slower * found[0].seconds]


def close(call: Call, rig: Rig, dtype: str) -> bool:
    """Whether it computes what torch does, as far as rounding goes, or what float64 does: torch.matmul itself was seen
    to leave out the last of k (docs/cublas.md).
    """
    tolerance = 1e-4 if dtype == "float32" else 0.05
    a, b, out = rig.sets[0]
    out.fill_(float("nan"))
    call(a, b, out)
    result = out.float()

    def near(reference: Any) -> bool:
        scale = reference.square().mean().sqrt()
        return bool(((result - reference).abs() <= tolerance * (scale + 0.4 * reference.abs())).all())

    return near(torch.matmul(a, b).float()) or near((a.double() @ b.double()).float())


def measure(
    backend: HopperBackend, m: int, n: int, k: int, order: str, options: argparse.Namespace
) -> dict[str, Any] | None:
    asked = problem(m, n, k, order, options.dtype)
    refusal = backend.supports(asked)
    if refusal is not None:
        print(f"{m:6}{n:6}{k:6} {order}  refused: {refusal.reason}")
        return None
    proposed = names(backend, asked, options)
    if not any(options.having in name for name in proposed):
        return None
    rig = rig_of(m, n, k, order, options.dtype)
    contenders = {"torch": rig.add(lambda a, b, out: torch.matmul(a, b, out=out))}
    wrong = []
    for name in proposed:
        call = caller(backend, asked, name)
        if not close(call, rig, options.dtype):
            wrong.append(name)
        contenders[name] = rig.add(call)
    if options.packed:
        call = packed_caller(backend, asked, rig)
        if not close(call, rig, options.dtype):
            wrong.append(_PACKED)
        contenders[_PACKED] = rig.add(call)
    times = dict(zip(contenders, rig.medians(list(contenders.values()), options.rounds)))
    reference = times.pop("torch")
    chosen, best = next(iter(times)), min(times, key=lambda name: times[name])
    row = {
        "m": m, "n": n, "k": k, "order": order, "torch_us": reference * 1e6, "chosen": chosen, "best": best,
        "estimate_us": backend.estimate(asked) * 1e6, "us": {name: t * 1e6 for name, t in times.items()},
        "ratio": reference / times[chosen], "best_ratio": reference / times[best], "wrong": wrong,
    }  # fmt: skip
    tflops = [2e-12 * m * n * k / t for t in (reference, times[chosen])]
    tail = f"  best {best} {row['best_ratio']:.3f}" if best != chosen else ""
    alarm = f"  WRONG: {', '.join(wrong)}" if wrong else ""
    print(
        f"{m:6}{n:6}{k:6} {order}  torch {tflops[0]:5.0f}  hopper {tflops[1]:5.0f} TFLOP/s  ratio {row['ratio']:.3f}  "
        f"{chosen}{tail}{alarm}",
        flush=True,
    )
    return row


def host(backend: HopperBackend, n: int = 256, calls: int = 200, turns: int = 20) -> None:
    """Microseconds of host time a call: the least over batches, each put on an idle card."""
    asked = problem(n, n, n, "nn", "bfloat16")
    choice = next(choice for choice in backend._analyse(asked).choices if choice.splits == 1)
    a, b, out = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(3))  # and so there is a context
    launch = backend.launch(0, choice, backend.default_workspace(_DEVICE))
    assert isinstance(launch, Launch)
    gemm = launch.gemm
    stream = torch.cuda.current_stream().cuda_stream
    run, slot = launch.run, gemm.slot()
    places = [x.data_ptr() for x in (a, b, out)]
    gemm.place(slot, *places)
    slot.launch[4] = stream
    contenders = {
        "bare cuLaunchKernelEx": lambda: gemm.launch(slot.config, gemm.function, slot.places, None),
        "kernel.run": lambda: run(*places, None, None, 1, 0, stream),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=out),
    }
    for name, call in contenders.items():
        times = []
        for _ in range(turns):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start) / calls)
        print(f"{name:24} {min(times) * 1e6:6.2f} us")


def geomean(rows: list[dict[str, Any]], key: str) -> str:
    if not rows:
        return "-"
    mean = math.exp(sum(math.log(row[key]) for row in rows) / len(rows))
    return f"{mean:.3f} over {len(rows)}, worst {min(row[key] for row in rows):.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", type=int, metavar="SEED", help="products of random sizes, for --seconds")
    few = "with --draw: of up to N rows or columns, at most eight"
    parser.add_argument("--few", type=int, nargs="?", const=8, default=0, metavar="N", help=few)
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
    found = backend.probe()
    if isinstance(found, Absent):
        print(f"{found.reason}; {found.remedy}")
        return 1
    if options.host:
        host(backend)
        return 0
    end = time.monotonic() + options.seconds
    rows = []
    for m, n, k in QUICK if options.quick else PRODUCTS if options.draw is None else drawn(options.draw, options.few):
        if time.monotonic() > end:
            print("out of time: the rest is left out")
            break
        if 2 * m * n * k > options.most:
            continue
        for order in ("nn", "nt"):
            row = measure(backend, m, n, k, order, options)
            if row is not None:
                rows.append(row)
    for key in ("ratio", "best_ratio"):
        large = [row for row in rows if 2 * row["m"] * row["n"] * row["k"] >= 1e10]
        small = [row for row in rows if row not in large]
        print(f"{key}: from 1e10 operations on {geomean(large, key)}; below {geomean(small, key)}")
    if options.json:
        result = {
            "device": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": options.dtype,
            "command": " ".join(["python", *sys.argv]), "versions": dict(found.versions),
            "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
