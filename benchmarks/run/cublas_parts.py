"""The split-K algorithms of cuBLASLt that omit the K remainder, and whether gemmhub-cublas rejects them.

    python -m benchmarks.run.cublas_parts [--dtype bfloat16] [--seed 1] [--seconds 30] [--json FILE]

It needs an NVIDIA card, torch and gemmhub-cublas. Products are random, with long k; for each, all split-K algorithms
run, some of them also with other numbers of splits, mostly divisors of the number of k passes. The last 64 elements of
a's rows are 1 and all others 0, b is all ones: so every element of the result is 64, or less where a part of k is
omitted. The plugin's own check (choose.py) is off while algorithms are listed, and is then applied to each.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gemmhub_cublas import choose, lower
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.choose import parse, text

from benchmarks.lib import results
from benchmarks.lib.beside_torch import caller, problem
from benchmarks.lib.cuda_graphs import matrix
from benchmarks.lib.one_backend import opened
from benchmarks.lib.torch_calls import call_key
from gemmhub.backend import WORKSPACE
from gemmhub.capability import Refusal

_LAST = 64
_FOUND = (1, 776, 21128, "nt")
"""The first product with this fault."""
_MOST_PARTS, _LISTED, _VARIED = 20, 4, 4
_check = choose._covers_k


def drawn(rng: random.Random) -> tuple[int, int, int, str]:
    m = rng.choice((1, 8, 16, 24, 64, 128, 200, 256, 512))
    n, k = 8 * rng.randrange(2, 200), 8 * rng.randrange(40, rng.choice((400, 1200, 3500)))
    return m, n, k, rng.choice(("nn", "nt", "tn", "tt") if m % 8 == 0 else ("nn", "nt"))


def several(listed: list[str], k: int, step: int, rng: random.Random) -> list[str]:
    """Return split-K algorithms: the listed ones, and some of them with other numbers of splits."""
    cutting = [config for config in listed if parse(config)[2] > 1]
    found = dict.fromkeys(cutting)
    for config in rng.sample(cutting, min(_LISTED, len(cutting))):
        dividing = [parts for parts in range(2, _MOST_PARTS) if k // step % parts == 0]
        for parts in rng.sample(range(2, _MOST_PARTS), _VARIED) + dividing[-_VARIED:]:
            numbers = list(parse(config))
            numbers[2] = parts
            found[text(tuple(numbers))] = None
    return list(found)


def counted(backend: CublasBackend, asked: Any, config: str, operands: tuple[Any, Any, Any]) -> float | None:
    """Return the least element of the result; None where the library does not run the algorithm."""
    try:
        call = caller(backend, asked, config, WORKSPACE)
    except ValueError:
        return None
    a, b, out = operands
    out.fill_(float("nan"))
    call(a, b, out)
    return float(out.min())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "tf32", "float32"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    backend = CublasBackend()
    found = opened(backend)
    if found is None:
        return 1
    kind = call_key(options.dtype)
    rng, end, size = random.Random(options.seed), time.monotonic() + options.seconds, _FOUND
    counts: Counter[str] = Counter()
    wrong = []
    torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    choose._covers_k = lambda numbers, form: True
    while time.monotonic() < end:
        m, n, k, order = size
        asked, size = problem(m, n, k, order, options.dtype), drawn(rng)
        offer, lowered = backend.offer(asked), lower.lowered(asked)
        if isinstance(offer, Refusal) or isinstance(lowered, Refusal):
            continue
        counts["products"] += 1
        a, b = matrix(m, k, order[0], kind).fill_(0), matrix(k, n, order[1], kind).fill_(1)
        a[:, -_LAST:] = 1
        out = matrix(m, n, "n", kind)
        if float(torch.matmul(a, b).min()) != _LAST:
            counts["torch.matmul wrong"] += 1
        for config in several(list(offer.names), k, 128 // a.element_size(), rng):
            sums = counted(backend, asked, config, (a, b, out))
            if sums is not None:
                right, taken = sums == _LAST, _check(parse(config), lowered.forms[0])
                counts[f"{'right' if right else 'wrong'}, {'taken' if taken else 'not taken'}"] += 1
                if not right or not taken:
                    wrong.append([m, n, k, order, config, sums])
    print(", ".join(f"{key}: {count}" for key, count in counts.items()))
    if options.json:
        more = {"counts": counts, "wrong or not taken": wrong}
        results.save(options.json, dtype=options.dtype, versions=dict(found.versions), **more)
    return int("wrong, taken" in counts)


if __name__ == "__main__":
    raise SystemExit(main())
