"""Products of a CPU by gemmhub and by each library that is installed, by class, on one thread and on all.

    python -m benchmarks.run.cpu [--seconds 240] [--threads 1 0] [--classes TEXT] [--json FILE]

Libraries: torch, MKL and numkong, each left out with a line where it is not installed, and NumPy. The classes are those
of benchmarks/lib/cpu_products.py, and two layers of a Llama in bfloat16, plain and by ``gemmhub.torch.accelerate``
with packed weights. All libraries of a product take turns; medians are compared. A library that takes twenty times as
long as gemmhub is timed once, and one that takes ten times not with larger products of its class. Small products come
first. Each number of threads (0: all) has a process of its own, on so many processors; one thread is timed by the
process's CPU time.
The score of a class is the geometric mean of the fastest other library's time over gemmhub's. ``estimate`` compares
gemmhub's time with what it expected: the constants of gemmhub_cpu/model.py are fitted by it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gemmhub
from benchmarks.lib import cpu_libraries, results
from benchmarks.lib.cpu_clock import CpuClock
from benchmarks.lib.cpu_products import SGEMM, Product, Rows, products, scores
from gemmhub._base.timing import CLOCK, HostClock
from gemmhub.numpy_backend.probe import cores

_MOST_ROUNDS, _FEWEST_ROUNDS = 15, 3
_SLOW = 20
_LLAMA = 0.12
"""Part of the time that the model takes."""


class AfterSgemm(HostClock):
    """Seconds of calls, each of which follows a product of NumPy's BLAS."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self._a = np.ones((512, 512), np.float32)
        self._out = np.empty_like(self._a)

    def measure(self, call: Callable[[], object], repeats: int) -> float:
        total = 0.0
        for _ in range(repeats):
            np.matmul(self._a, self._a, out=self._out)
            total += self._clock.measure(call, 1)
        return total / repeats


def timed(calls: dict[str, Callable[[], object]], seconds: float, clock: HostClock) -> dict[str, float]:
    """Return the median seconds of each call, in rounds of all of them, for so many seconds. Each was called before."""
    end = time.perf_counter() + seconds
    fast = list(calls)
    once = {name: clock.measure(call, 1) for name, call in calls.items()}
    repeats = {name: max(1, int(1e-3 / once[name])) for name in fast}
    samples: dict[str, list[float]] = {name: [] for name in fast}
    for turn in range(_MOST_ROUNDS):
        for offset in range(len(fast)):
            name = fast[(turn + offset) % len(fast)]
            samples[name].append(clock.measure(calls[name], repeats[name]))
        if turn + 1 >= _FEWEST_ROUNDS and time.perf_counter() > end:
            break
    return {name: median(x) for name, x in samples.items()}


def row(product: Product, calls: dict[str, Callable[..., Any]], seconds: float, clock: HostClock) -> dict[str, Any]:
    """Return the times of one product, and what gemmhub expected. A library that is slow is called twice."""
    sets = product.operands()
    contenders, left_out, slow = {}, {}, {}
    for name, of in calls.items():
        try:
            each = [of(product, *operands) for operands in sets]
            if None in each:
                continue
            call = cpu_libraries.in_turn(each)
            first = clock.measure(call, 1)
            if "gemmhub" in contenders and first > _SLOW * clock.measure(contenders["gemmhub"], 2):
                slow[name] = min(first, clock.measure(call, 1)) if first < 1 else first
            else:
                contenders[name] = call
        except Exception as error:  # of another library: the run goes on
            if name == "gemmhub":
                raise
            left_out[name] = f"{type(error).__name__}: {error}"[:120]
    times = {**timed(contenders, seconds, AfterSgemm(clock) if product.after_sgemm else clock), **slow}
    others = {name: t for name, t in times.items() if name not in ("gemmhub", SGEMM)}
    a, b, out = sets[0]
    right = gemmhub.pack(b, m=product.m) if product.packed else b
    decision = gemmhub.explain(a, right, out=out)
    estimate = next((x.seconds for x in decision.verdicts if x.backend == decision.chosen), None)
    return {
        "class": product.name, "product": product.label, "us": {name: t * 1e6 for name, t in times.items()},
        "ratio": min(others.values()) / times["gemmhub"] if others else None,
        "estimate": times["gemmhub"] / estimate if estimate and not product.epilogue else None,
        **({"left_out": left_out} if left_out else {}),
    }  # fmt: skip


def measured(seconds: float, classes: str) -> dict[str, Any]:
    """Return all rows of this process."""
    calls, notes = cpu_libraries.libraries()
    if "torch" in calls:
        import torch

        torch.set_num_threads(cores())
    clock = CpuClock(time.process_time) if cores() == 1 else CLOCK
    end = time.perf_counter() + seconds
    drawn = sorted((x for x in products() if classes in x.name), key=lambda x: x.flops)
    llama = classes in "llama" and "torch" in calls
    rows: Rows = []
    slow: set[tuple[str, str]] = set()  # by class: larger products are not tried
    for index, product in enumerate(drawn):
        left = end - time.perf_counter() - llama * _LLAMA * seconds
        if left <= 0:
            print(f"the time is over: {len(drawn) - index} products left out", flush=True)
            break
        share = left / (len(drawn) - index)
        here = {name: call for name, call in calls.items() if (product.name, name) not in slow}
        rows.append(row(product, here, share / 2, clock))  # the other half goes to operands, packing and first calls
        times = rows[-1]["us"]
        slow |= {(product.name, name) for name, t in times.items() if t > _SLOW / 2 * times["gemmhub"]}
        text = "  ".join(f"{name} {t:.0f}" for name, t in times.items())
        ratio = rows[-1]["ratio"]
        print(
            f"{product.name:32} {product.label:44} {'-' if ratio is None else f'{ratio:5.2f}'}  {text} us", flush=True
        )
    return {"threads": cores(), "libraries": notes, "rows": rows, "llama": _model(seconds, clock) if llama else []}


def _model(seconds: float, clock: HostClock) -> Rows:
    from benchmarks.lib import cpu_llama

    rows = []
    for name in cpu_llama.CALLS:
        calls = cpu_llama.calls(name)
        for call in calls.values():
            call()
        times = timed(calls, _LLAMA * seconds / len(cpu_llama.CALLS) / 2, clock)
        rows.append({
            "class": "Llama, two layers", "product": name, "us": {x: t * 1e6 for x, t in times.items()},
            "ratio": times["torch"] / times["gemmhub"],
        })  # fmt: skip
        text = "  ".join(f"{x} {t:.0f}" for x, t in rows[-1]["us"].items())
        print(f"{rows[-1]['class']:32} {name:44} {rows[-1]['ratio']:5.2f}  {text} us", flush=True)
    return rows


def _in_a_process(threads: int, seconds: float, classes: str) -> dict[str, Any]:
    """The rows of a process that has so many processors."""
    before = os.sched_getaffinity(0)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        command = [sys.executable, "-m", "benchmarks.run.cpu", "--rows", str(file), "--seconds", str(seconds)]
        os.sched_setaffinity(0, sorted(before)[:threads])
        try:
            subprocess.run(
                [*command, "--classes", classes],
                check=True,
                env={**os.environ, **limits, "OPENBLAS_THREAD_TIMEOUT": "4"},
            )
        finally:
            os.sched_setaffinity(0, before)
        rows: dict[str, Any] = json.loads(file.read_text())
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240, help="of all processes together")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 0], help="0: one for each processor")
    parser.add_argument("--classes", default="", help="measure only classes whose name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rows:
        arguments.rows.write_text(json.dumps(measured(arguments.seconds, arguments.classes)))
        return 0
    counts = list(dict.fromkeys(count or cores() for count in arguments.threads))
    runs = [_in_a_process(count, 0.92 * arguments.seconds / len(counts), arguments.classes) for count in counts]
    for run in runs:
        rows = [*run["rows"], *run["llama"]]
        print(f"\n{run['threads']} threads: fastest other library over gemmhub, lowest, highest, products")
        for name, (mean, low, high, count) in scores(rows).items():
            print(f"{name:32} {mean:6.2f} {low:6.2f} {high:6.2f} {count:4}")
        print("measured over estimated")
        for name, (mean, low, high, count) in scores(rows, "estimate").items():
            print(f"{name:32} {mean:6.2f} {low:6.2f} {high:6.2f} {count:4}")
    for name, note in runs[0]["libraries"].items():
        print(f"{name}: {note}")
    if arguments.json:
        units = gemmhub.backends()["cpu"].features
        results.save(arguments.json, units=list(units), runs=runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
