"""gemmhub.quantize on an NVIDIA GPU by kernels, against torch's operations, compiled or not, and a copy of its bytes.

    python -m benchmarks.run.quantize_device [--seed N] [--arrays 36] [--seconds 240] [--rounds 5] [--compiled 12]
                                             [--json FILE]

Needs torch, gemmhub-cuda and a card. Rows and columns are drawn log-uniformly, anew in every run: an array has 2^20 to
2^28 elements. Granularities, dtypes of arrays (bfloat16, float32, float16) and of codes follow in turn. Timed in one
run, by CUDA graphs whose arrays rotate past the cache and whose results are kept: gemmhub's kernels; torch's chain of
operations, which gemmhub.quantize runs without a backend; the chain by torch.compile, for the first ``--compiled``
arrays; and a copy that reads and writes as many bytes together as the array and its codes have. Codes and scales are
compared with the chain's. The table that is printed last has geometric means and the least of ratios: "of bandwidth" is
the copy's time over gemmhub's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cuda_graphs import Call, Rig
from benchmarks.lib.drawn import power

GRANULARITIES = ("tensor", "row", "column", "1x128", "128x1", "128x128")
INPUTS = ("bfloat16", "float32", "bfloat16", "float16")
TARGETS = ("float8_e4m3fn", "int8", "float8_e4m3fn", "float8_e5m2")
OURS, CHAIN, COMPILED, COPY = "gemmhub", "torch", "torch.compile", "copy"
_BANDWIDTH = 2.5e12


class Drawn(NamedTuple):
    granularity: str
    dtype: str
    target: str
    rows: int
    columns: int

    @property
    def words(self) -> dict[str, Any]:
        """The granularity in the words of gemmhub.quantize."""
        if "x" not in self.granularity:
            return {"granularity": self.granularity}
        rows, columns = map(int, self.granularity.split("x"))
        return {"granularity": "block", "block": (rows, columns)}


def drawn(seed: int, count: int) -> Iterator[Drawn]:
    """Yield ``count`` arrays, the granularities in turn."""
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        kind = i // len(GRANULARITIES) % len(INPUTS)
        rows, columns = power(rng, 10, 15), power(rng, 10, 14, 16)
        while rows * columns > 2**28:
            rows //= 2
        yield Drawn(GRANULARITIES[i % len(GRANULARITIES)], INPUTS[kind], TARGETS[kind], rows, columns)


class Setup(Rig):
    """A rig of one array: x, and the memory of a copy."""

    def __init__(self, array: Drawn) -> None:
        self.array = array
        nbytes = array.rows * array.columns * (getattr(torch, array.dtype).itemsize + 1)
        self.kept: list[Any] = []
        super().__init__(array.rows, array.columns, 0, "nn", getattr(torch, array.dtype), nbytes / _BANDWIDTH)

    @staticmethod
    def _operands(m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        x = torch.randn(m, n, device="cuda").to(dtype)
        half = m * n * (dtype.itemsize + 1) // 2
        source, copy = (torch.zeros(half, device="cuda", dtype=torch.uint8) for _ in range(2))
        return x, source, copy

    def keeping(self, quantize: Callable[[Any], Any]) -> Call:
        """Return a call that keeps the results, so that each has memory of its own."""

        def call(x: Any, source: Any, copy: Any) -> None:
            self.kept.append(quantize(x))

        return call


def differing(ours: Any, chain: Any) -> float:
    """Return the fraction of codes that differ; infinite where scales differ by more than a rounding."""
    (q, scale), (p, of_p) = ours, chain
    if not torch.allclose(scale, of_p, rtol=3e-7, atol=0):
        return float("inf")
    return float((q.view(torch.uint8) != p.view(torch.uint8)).float().mean())


def measure(array: Drawn, rounds: int, compiled: bool) -> dict[str, Any]:
    """Time one array, print a line, and return the row of the result file."""
    rig = Setup(array)

    def ours(x: Any) -> Any:
        return gemmhub.quantize(x, array.target, **array.words)

    def chain(x: Any) -> Any:
        with gemmhub.use(backend="numpy"):  # which quantizes no tensors of a card
            return gemmhub.quantize(x, array.target, **array.words)

    calls: dict[str, Call] = {OURS: rig.keeping(ours), CHAIN: rig.keeping(chain)}
    calls[COPY] = lambda x, source, copy: copy.copy_(source)
    if compiled:
        torch._dynamo.reset()
        calls[COMPILED] = rig.keeping(torch.compile(ours, dynamic=False))
    x = rig.sets[0][0]
    wrong = differing(ours(x), chain(x))
    numbers, refused = {}, ""
    for name, call in calls.items():
        try:
            numbers[name] = rig.add(call)
        except Exception as error:  # of a compiler, whichever it is
            if name != COMPILED:
                raise
            refused = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    times = dict(zip(numbers, rig.medians(list(numbers.values()), rounds)))
    words = "  ".join(f"{name} {t * 1e6:.1f}" for name, t in times.items())
    rate = array.rows * array.columns * (x.element_size() + 1) / times[OURS] / 1e12
    print(
        f"{array.granularity:8}{array.dtype:9}{array.target:14}{array.rows:6} x {array.columns:5}  {words} us"
        f"  {rate:.2f} TB/s  {times[COPY] / times[OURS]:.2f} of bandwidth  {wrong:.2g} differ  {refused}",
        flush=True,
    )
    return {**array._asdict(), "us": {name: t * 1e6 for name, t in times.items()}, "differ": wrong, "refused": refused}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines: geometric means of ratios to gemmhub's time, and the least, by granularity and size."""
    columns = {"of bandwidth": COPY, "torch / gemmhub": CHAIN, "torch.compile / gemmhub": COMPILED}
    lines = [f"{'class':34}{'n':>4}" + "".join(f"{name:>26}" for name in columns)]
    large = [row for row in rows if row["rows"] * row["columns"] >= 2**25]
    small = [row for row in rows if row not in large]
    for words, some in (("2^25 elements and more", large), ("fewer", small)):
        for granularity in (*GRANULARITIES, ""):
            mine = [row["us"] for row in some if granularity in ("", row["granularity"])]
            cells = ""
            for contender in columns.values():
                ratios = [us[contender] / us[OURS] for us in mine if contender in us]
                cells += f"{f'{geometric_mean(ratios):.2f} ({min(ratios):.2f})' if ratios else '-':>26}"
            name = f"{granularity or 'all'}, {words}"
            lines.append(f"{name:34}{len(mine):4}{cells}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--arrays", type=int, default=36)
    parser.add_argument("--compiled", type=int, default=12, help="arrays that torch.compile quantizes, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no array after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    rows: list[dict[str, Any]] = []
    for array in drawn(options.seed, options.arrays):
        if time.monotonic() < begin + options.seconds:
            rows.append(measure(array, options.rounds, len(rows) < options.compiled))
            torch.cuda.empty_cache()
    if options.json:
        ready = {name: s.versions for name, s in gemmhub.backends().items() if s.state == "ready"}
        results.save(options.json, seed=options.seed, backends=ready, rows=rows)
    print("\n".join(table(rows)))
    # Scales differ by a rounding where torch multiplies by a reciprocal: few codes may differ then.
    return int(any(row["differ"] > 1e-3 for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
