"""Products whose sizes are new at every call, as a server's token counts are: ``python -m benchmarks.run.ragged``.

    python -m benchmarks.run.ragged [--calls 2000] [--json FILE]                 NumPy's arrays on the CPU
    python -m benchmarks.run.ragged --device cuda [--calls 400] [--json FILE]    torch's tensors

On the CPU m is drawn, and for float32 and float64 also n and k; on a device m, by a weight of 4096 x 4096. Each size is
multiplied once by the other library and once by gemmhub, in turn; then all of them again, in the same order (the
columns "again"). Times are of the clock, of single calls; on a device until it has finished, and "host" until the call
returns. Sizes come in random order; the rows "cyclic" go through more sizes than any cache keeps, three times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import gemmhub
from benchmarks.lib import results

Call = Callable[[], object]
_MAX_ENTRIES = 32
"""The largest size of a small product on the CPU."""
_WEIGHT = 4096


class Row(NamedTuple):
    """Seconds of single calls: the other library's, gemmhub's first of a size, and of sizes that come again."""

    name: str
    other: list[float]
    new: list[float]
    again: list[float]
    host_new: list[float]
    host_again: list[float]


def timed(call: Call, finish: Call) -> tuple[float, float]:
    """Return the seconds until ``call`` returns, and until the device has finished."""
    start = time.perf_counter()
    call()
    back = time.perf_counter()
    finish()
    return back - start, time.perf_counter() - start


def measure(name: str, pairs: Iterator[tuple[Call, Call]], finish: Call, rounds: int = 2) -> Row:
    """Time pairs of (other, gemmhub), then the same pairs again: what a call finds in caches is alike."""
    row = Row(name, [], [], [], [], [])
    kept = list(pairs)
    for other, ours in kept:
        row.other.append(timed(other, finish)[1])
        host, whole = timed(ours, finish)
        row.host_new.append(host)
        row.new.append(whole)
    for _ in range(rounds - 1):
        for other, ours in kept:
            timed(other, finish)
            host, whole = timed(ours, finish)
            row.host_again.append(host)
            row.again.append(whole)
    return row


def on_cpu(calls: int, rng: np.random.Generator) -> Iterator[Row]:
    """Small products by NumPy and by gemmhub."""
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "float32": (np.float32, {}),
        "float64": (np.float64, {}),
        "float32, bias and relu": (np.float32, {"bias": "n", "activation": "relu"}),
        "int8": (np.int8, {}),
        "bfloat16": (ml_dtypes.bfloat16, {}),
    }
    for name, (dtype, options) in kinds.items():
        many = {"random": calls} if options or dtype != np.float32 else {"random": calls, "cyclic": 12 * calls}
        for order, count in many.items():
            # Of what several backends compute, n and k repeat, as weights do.
            weights = [
                tuple(int(x) for x in rng.integers(1, _MAX_ENTRIES, 2))
                for _ in range(1 if np.dtype(dtype).itemsize < 4 else 50)
            ]
            sizes = [(int(rng.integers(1, 8 * _MAX_ENTRIES)), *weights[i % len(weights)]) for i in range(count)]
            most = max(m * max(n, k) for m, n, k in sizes)
            x, y = (rng.integers(-8, 8, size).astype(dtype) for size in (most, _MAX_ENTRIES * _MAX_ENTRIES))

            def pair(m: int, n: int, k: int, x: Any = x, y: Any = y, options: Any = options) -> tuple[Call, Call]:
                a, b = x[: m * k].reshape(m, k), y[: k * n].reshape(k, n)
                given = {**options, "bias": y[:n]} if "bias" in options else options
                if given:
                    return lambda: np.maximum(a @ b + y[:n], 0), lambda: gemmhub.matmul(a, b, **given)
                return lambda: np.matmul(a, b), lambda: gemmhub.matmul(a, b)

            pair(7, *weights[0])[1]()  # a family that was met
            rounds = 2 if order == "random" else 3
            yield measure(f"{name}, {order}", (pair(*size) for size in sizes), lambda: None, rounds)


def on_device(kind: str, calls: int, rng: np.random.Generator) -> Iterator[Row]:
    """New m by a weight, by torch and by gemmhub."""
    import torch

    finish = getattr(torch, kind).synchronize
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weight = torch.randn(_WEIGHT, _WEIGHT, device=kind, dtype=dtype)
        tokens = torch.randn(_WEIGHT, _WEIGHT, device=kind, dtype=dtype)
        for start in (_WEIGHT, 7):
            torch.matmul(tokens[:start], weight)
            gemmhub.matmul(tokens[:start], weight)

        def pair(m: int, tokens: Any = tokens, weight: Any = weight) -> tuple[Call, Call]:
            return lambda: torch.matmul(tokens[:m], weight), lambda: gemmhub.matmul(tokens[:m], weight)

        sizes = [int(m) for m in rng.permutation(np.arange(1, _WEIGHT))[:calls]]
        yield measure(str(dtype).rpartition(".")[2], (pair(m) for m in sizes), finish)


def table(rows: list[Row]) -> str:
    """Microseconds: medians and means."""
    lines = [f"{'us of a call':28}{'other':>9}{'new':>9}{'again':>9}{'mean new':>10}{'worst':>10}{'host new':>10}"]
    lines[0] += f"{'again':>8}"
    for row in rows:
        median = [statistics.median(x) * 1e6 for x in row[1:]]
        mean, worst = statistics.fmean(row.new) * 1e6, max(row.new) * 1e6
        lines.append(
            f"{row.name:28}{median[0]:9.2f}{median[1]:9.2f}{median[2]:9.2f}{mean:10.2f}{worst:10.1f}"
            f"{median[3]:10.2f}{median[4]:8.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda", "musa"), default="cpu")
    parser.add_argument("--calls", type=int, default=0, help="sizes of each row; 2000 on the CPU, 400 on a device")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng()
    if arguments.device == "cpu":
        rows = list(on_cpu(arguments.calls or 2000, rng))
    else:
        rows = list(on_device(arguments.device, arguments.calls or 400, rng))
    print(table(rows))
    if arguments.json is not None:
        summary = {
            row.name: {
                name: {"median": statistics.median(x), "mean": statistics.fmean(x), "worst": max(x)}
                for name, x in row._asdict().items()
                if name != "name"
            }
            for row in rows
        }
        results.save(arguments.json, seconds=summary)


if __name__ == "__main__":
    main()
