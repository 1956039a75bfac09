"""gemmhub-hopper on 16-bit and tf32 products of odd sizes, against the next multiples of 8, on a Hopper GPU.

    python -m benchmarks.run.hopper_odd --draw SEED [--dtype bfloat16] [--seconds 60] [--json FILE]

It needs torch and gemmhub-hopper. Sizes are drawn: all three, k alone or n alone are one less than a multiple of 8. The
plugin's first choice and torch's call are timed by CUDA graphs (benchmarks/lib/cuda_graphs.py), then both for the sizes
rounded up. A share is the time of the rounded sizes over that of the odd ones: 1 where odd sizes cost nothing. Where
the choice reads an operand through registers, the first candidate that reads copies is timed beside it, if the plugin
proposes any. Results are compared with torch's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from gemmhub_hopper.backend import HopperBackend

from benchmarks.lib import results
from benchmarks.lib.beside_torch import caller, close, problem, rig_of
from benchmarks.lib.drawn import LARGE, between
from benchmarks.lib.one_backend import offered, opened

ODD = {"m, n, k": (1, 1, 1), "k": (0, 0, 1), "n": (0, 1, 0)}
"""Differences of (m, n, k) from the next aligned sizes, by the sizes that are odd."""
_ORDERS = {"nn": 0.4, "nt": 0.4, "tn": 0.1, "tt": 0.1}
"""The share of each pair of orders."""


def drawn(seed: int) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Yield without end which sizes are odd, an order, and the multiples of 8; large and small products in turn."""
    rng = np.random.default_rng(seed)
    draws = between(LARGE, 1.5e12, 8), between(1e8, LARGE, 8)
    for i in range(2**31):
        sizes = draws[i % 2](rng)
        yield str(rng.choice(list(ODD))), str(rng.choice(list(_ORDERS), p=list(_ORDERS.values()))), sizes[1:]


def timed(backend: HopperBackend, sizes: tuple[int, int, int], order: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Return the plugin's choice, its time and torch's in microseconds, whether it is right, and a copy's time."""
    asked, rig = problem(*sizes, order, dtype), rig_of(*sizes, order, dtype)
    offer = offered(backend, asked, order)
    assert offer is not None
    names = offer.names
    copied_names = [x for x in names[1:] if not in_registers(x)]
    beside = copied_names[:1] if in_registers(names[0]) else []
    calls = [caller(backend, asked, x, offer.workspace) for x in (names[0], *beside)]
    right = all(close(call, rig, dtype) for call in calls)
    contenders = [rig.add(call) for call in calls] + [rig.add(lambda a, b, out: torch.matmul(a, b, out=out))]
    own, *copied, reference = rig.medians(contenders, rounds)
    row = {"chosen": names[0], "us": own * 1e6, "torch_us": reference * 1e6, "right": right}
    return row | ({"copied": beside[0], "copied_us": copied[0] * 1e6} if beside else {})


def in_registers(name: str) -> bool:
    """Return whether a candidate reads an operand through registers: no other part of a name has that letter."""
    return "r" in name


def measure(
    backend: HopperBackend, which: str, order: str, sizes: tuple[int, int, int], options: argparse.Namespace
) -> dict[str, Any]:
    """Time one product; print a line and return the row of a result file."""
    m, n, k = (size - less for size, less in zip(sizes, ODD[which]))
    odd, aligned = (timed(backend, x, order, options.dtype, options.rounds) for x in ((m, n, k), sizes))
    share = aligned["us"] / odd["us"]
    print(
        f"{m:6}{n:6}{k:6} {order} {odd['us']:8.1f} us {odd['chosen']:20} aligned {aligned['us']:8.1f} us "
        f"{aligned['chosen']:20} share {share:.2f} torch {odd['torch_us'] / odd['us']:.2f}"
        + ("" if odd["right"] and aligned["right"] else " WRONG"),
        flush=True,
    )
    return {"m": m, "n": n, "k": k, "order": order, "odd_sizes": which, "odd": odd, "aligned": aligned}


def large(row: dict[str, Any]) -> bool:
    """Return whether a row is of a large product."""
    return 2.0 * row["m"] * row["n"] * row["k"] >= LARGE


def shares(rows: list[dict[str, Any]]) -> list[float]:
    """Return the share of each row."""
    return [row["aligned"]["us"] / row["odd"]["us"] for row in rows]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of large and small products: shares, torch's times over gemmhub's, and the scheme."""
    lines = [f"{'':6}{'products':>9}{'share':>8}{'least':>7}{'torch/ours':>12}{'least':>7}{'in registers':>14}"]
    for words, is_large in (("large", True), ("small", False)):
        some = [x for x in rows if large(x) == is_large]
        if not some:
            continue
        beside = [x["odd"]["torch_us"] / x["odd"]["us"] for x in some]
        count = sum(in_registers(x["odd"]["chosen"]) for x in some)
        lines.append(
            f"{words:6}{len(some):9}{geometric_mean(shares(some)):8.3f}{min(shares(some)):7.2f}"
            f"{geometric_mean(beside):12.2f}{min(beside):7.2f}{count:14}"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=int, required=True, metavar="SEED")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "tf32"))
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no product after this time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    backend = HopperBackend()
    found = opened(backend)
    if found is None:
        return 1
    end = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for which, order, sizes in drawn(options.draw):
        if time.monotonic() > end:
            break
        rows.append(measure(backend, which, order, sizes, options))
    print("\n".join(table(rows)), flush=True)
    if options.json:
        results.save(options.json, dtype=options.dtype, versions=dict(found.versions), rows=rows)
    return int(not all(x[kind]["right"] for x in rows for kind in ("odd", "aligned")))


if __name__ == "__main__":
    raise SystemExit(main())
