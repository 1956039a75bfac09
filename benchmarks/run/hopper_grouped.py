"""gemmhub-hopper's grouped products against torch._grouped_mm on a Hopper GPU, by CUDA graphs.

    python -m benchmarks.run.hopper_grouped [--named] [--seed N] [--seconds N] [--candidates] [--dtype bfloat16]
                                            [--precision tf32] [--rounds N] [--json FILE]

It needs torch with ``_grouped_mm`` and gemmhub-hopper. Offsets on the card divide the rows of a (m, k) among groups; b
is (groups, k, n): row-major ("n") or contiguous along k ("t"). Mixtures: ``even``, groups of one size; ``skewed``,
sizes drawn by weights that fall like 1 / (i + 1). With ``--named``, or without a seed, come the products of ``NAMED``,
in both mixtures and orders; with a seed, products drawn for so many seconds: 8 to 256 groups of 1 to 8192 rows. Both
calls of a product are timed in one run (benchmarks/lib/cuda_graphs.py), on operands that rotate past the L2 cache, each
set with offsets of its own. gemmhub's candidate is that of the lowest estimate, compiled before or not. Results are
compared with the products of the groups one by one. Of float32, for which torch has no such kernel, the reference is a
loop of torch.mm over the groups, whose sizes the host knows. With ``--candidates`` a row has what the fit of a cost
model needs: each candidate's time and estimate, and the sizes of the groups of every set. torch allocates its result in
the graph's pool; gemmhub writes into an array.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from gemmhub_hopper.backend import HopperBackend

from benchmarks.lib import results
from benchmarks.lib.cuda_graphs import Call, Rig, expected
from benchmarks.lib.one_backend import offered, opened, prepared
from gemmhub.capability import Device
from gemmhub.problem import GemmProblem, Groups
from gemmhub.testing.problems import problem

NAMED = ((8, 1024, 7168, 4096), (8, 16, 7168, 4096), (128, 64, 2048, 1536))
"""(groups, rows of each on average, n, k)."""
_MOST_BYTES, _MOST_OPERATIONS = 6e9, 8e12
"""Bounds of drawn products."""
_COMPARED = 8
"""Groups whose results are compared, drawn anew for each product."""


class GroupedRig(Rig):
    """A grouped product: sets of operands with offsets of their own."""

    def __init__(self, groups: int, rows: int, n: int, k: int, order: str, dtype: torch.dtype, mixture: str, seed: int):
        self._groups, self._mixture, self._rng = groups, mixture, np.random.default_rng(seed)
        self.ends: dict[int, Any] = {}
        """Offsets by the address of a set's a."""
        self.counts: list[list[int]] = []
        """The rows of each group, of each set."""
        seconds = max(expected(groups * rows, n, k), 2 * groups * n * k / 4e12)
        super().__init__(rows, n, k, order, dtype, seconds, groups)

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:  # type: ignore[override]
        a = torch.empty(self._groups * m, k, device="cuda", dtype=dtype).normal_()
        shape = (self._groups, n, k) if order == "t" else (self._groups, k, n)
        b = torch.empty(shape, device="cuda", dtype=dtype).normal_()
        counts = np.full(self._groups, m)
        if self._mixture == "skewed":
            weights = 1 / np.arange(1, self._groups + 1)
            counts = self._rng.permutation(self._rng.multinomial(self._groups * m, weights / weights.sum()))
        self.counts.append(counts.tolist())
        self.ends[a.data_ptr()] = torch.tensor(np.cumsum(counts), dtype=torch.int32, device="cuda")
        out = torch.empty(self._groups * m, n, device="cuda", dtype=dtype)
        return a, b.transpose(1, 2) if order == "t" else b, out


def close(rig: GroupedRig, call: Call) -> bool:
    """Compare a call's result with the products of some of the groups."""
    a, b, out = rig.sets[0]
    out.fill_(float("nan"))
    call(a, b, out)
    if not bool(out.isfinite().all()):
        return False
    ends = [0, *rig.ends[a.data_ptr()].tolist()]
    for group in np.random.default_rng().permutation(len(ends) - 1)[:_COMPARED].tolist():
        rows = slice(ends[group], ends[group + 1])
        wanted, found = (a[rows] @ b[group]).float(), out[rows].float()
        if rows.stop > rows.start:
            scale = wanted.square().mean().sqrt()
            if not bool(((found - wanted).abs() <= 0.05 * (scale + 0.4 * wanted.abs())).all()):
                return False
    return True


def looped(rig: GroupedRig) -> Call:
    """Return torch.mm of each group, by sizes that are known on the host."""
    ends = {address: [0, *x.tolist()] for address, x in rig.ends.items()}

    def call(a: Any, b: Any, out: Any) -> None:
        own = ends[a.data_ptr()]
        for group, (begin, end) in enumerate(itertools.pairwise(own)):
            if end > begin:
                torch.mm(a[begin:end], b[group], out=out[begin:end])

    return call


def measure(
    backend: HopperBackend, sizes: tuple[int, int, int, int], order: str, mixture: str, options: argparse.Namespace
) -> dict[str, Any] | None:
    """Time one product; print a line, and return the row of a result file."""
    groups, rows, n, k = sizes
    asked: GemmProblem = problem(
        groups * rows, n, k, options.dtype, b="col" if order == "t" else "row", groups=Groups(groups, "m"),
        device=Device("cuda"),
    )  # fmt: skip
    asked = replace(asked, precision=options.precision or asked.precision)
    offer = offered(backend, asked, order)
    if offer is None:
        return None
    rig = GroupedRig(groups, rows, n, k, order, getattr(torch, options.dtype), mixture, options.seed or 0)

    def caller(name: str) -> Call:
        run = prepared(backend, asked, name, offer.workspace).run

        def call(a: Any, b: Any, out: Any) -> None:
            stream, offsets = torch.cuda.current_stream().cuda_stream, rig.ends[a.data_ptr()].data_ptr()
            run(a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream, offsets=offsets)

        return call

    fastest = min(offer.candidates, key=lambda x: x.seconds or math.inf).name
    calls = {name: caller(name) for name in (offer.names if options.candidates else (fastest,))}
    wrong = [name for name, call in calls.items() if not close(rig, call)]
    if options.dtype == "float32":
        contenders = {"torch": rig.add(looped(rig))}
    else:
        contenders = {"torch": rig.add(lambda a, b, out: torch._grouped_mm(a, b, offs=rig.ends[a.data_ptr()]))}
    contenders |= {name: rig.add(call) for name, call in calls.items()}
    times = dict(zip(contenders, rig.medians(list(contenders.values()), options.rounds)))
    reference = times.pop("torch")
    chosen, best = fastest, min(times, key=lambda name: times[name])
    operations = 2e-12 * groups * rows * n * k
    row = {
        "groups": groups, "rows": rows, "n": n, "k": k, "order": order, "mixture": mixture,
        "torch_us": reference * 1e6, "chosen": chosen, "best": best, "us": {name: t * 1e6 for name, t in times.items()},
        "tflops": operations / times[chosen], "torch_tflops": operations / reference,
        "ratio": reference / times[chosen], "best_ratio": reference / times[best], "wrong": wrong,
    }  # fmt: skip
    if options.candidates:
        row["estimates_us"] = {x.name: (x.seconds or math.nan) * 1e6 for x in offer.candidates}
        row["counts"] = rig.counts
    tail = f"  best {best} {row['best_ratio']:.3f}" if best != chosen else ""
    print(
        f"{groups:4} groups x {rows:5} rows {n:6}{k:6} {order} {mixture:7} torch {row['torch_tflops']:6.1f}  hopper "
        f"{row['tflops']:6.1f} TFLOP/s  ratio {row['ratio']:.3f}  {chosen}{tail}{'  WRONG: ' * bool(wrong)}"
        f"{', '.join(wrong)}",
        flush=True,
    )
    return row


def drawn(seed: int) -> Iterator[tuple[tuple[int, int, int, int], str, str]]:
    """Yield sizes, orders and mixtures without end."""
    rng = np.random.default_rng(seed)
    while True:
        groups = int(2 ** rng.integers(3, 9))
        rows = int(2 ** rng.uniform(0, 13))
        n, k = (int(2 ** rng.uniform(8, 13)) // 64 * 64 for _ in range(2))
        order, mixture = str(rng.choice(("n", "t"))), str(rng.choice(("even", "skewed")))
        nbytes = 2 * groups * (rows * k + k * n + rows * n)
        if nbytes < _MOST_BYTES and 2 * groups * rows * n * k < _MOST_OPERATIONS:
            yield (groups, rows, n, k), order, mixture


def print_summaries(rows: list[dict[str, Any]]) -> None:
    """Print the geometric means and the worst of the ratios, by mixture and by the rows of a group."""
    for mixture in ("even", "skewed"):
        for least, most in ((1, 32), (32, 256), (256, 2**20)):
            some = [x["ratio"] for x in rows if x["mixture"] == mixture and least <= x["rows"] < most]
            if some:
                print(
                    f"{mixture}, {least} to {most - 1} rows a group: geometric mean {geometric_mean(some):.3f} over "
                    f"{len(some)}, worst {min(some):.3f}"
                )
    ratios = [x["ratio"] for x in rows]
    print(f"all: geometric mean {geometric_mean(ratios):.3f} over {len(ratios)}, worst {min(ratios):.3f}")
    print(f"wrong: {sum(bool(x['wrong']) for x in rows)}")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--named", action="store_true", help="the products of NAMED, before drawn ones")
    parser.add_argument("--seed", type=int, help="products of random sizes, for --seconds")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--candidates", action="store_true", help="time all offered candidates")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--precision", choices=("ieee", "tf32"), help="of float32; also of the loop of torch.mm")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    backend = HopperBackend()
    ready = opened(backend)
    if ready is None:
        return 1
    rows: list[dict[str, Any] | None] = []
    if options.named or options.seed is None:
        rows += [
            measure(backend, sizes, order, mixture, options)
            for sizes in NAMED for order in "nt" for mixture in ("even", "skewed")
        ]  # fmt: skip
    end = time.monotonic() + options.seconds
    for sizes, order, mixture in drawn(options.seed) if options.seed is not None else ():
        if time.monotonic() > end:
            break
        rows.append(measure(backend, sizes, order, mixture, options))
        torch.cuda.empty_cache()
    found = [row for row in rows if row is not None]
    if found:
        print_summaries(found)
    if options.json is not None:
        results.save(options.json, dtype=options.dtype, versions=dict(ready.versions), rows=found)
    return int(any(row["wrong"] for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
