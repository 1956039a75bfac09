"""Times candidates of cuBLASLt and of gemmhub-hopper for random products of 16 bits, all of a product in one run.

    python benchmarks/candidates.py FILE.json [--dtype bfloat16] [--seed 1] [--seconds 240] [--few] [--new SHAPE...]

What cost models are fitted to (net_fit.py and the other *_fit.py): as all of a product meet the same card in the same
second, what they have in common is not taken for a difference. Needs an NVIDIA card, torch, gemmhub-cublas and
gemmhub-hopper. Sizes are drawn in turn as cublas_grid.py and hopper_torch.py draw them, every third one a long one;
with ``--few`` all as hopper_read.py does, a few vectors by a large matrix. Of cuBLASLt's algorithms the library's first
choice is timed, those that are expected to be the fastest, and a few of the others; of gemmhub-hopper's likewise, and
with ``--new`` the likeliest of some shapes that little is known of. Each is timed in three rounds by CUDA graphs
(cuda_graphs.py), those near the fastest in some more, with torch.matmul. Times are in microseconds. With several cards,
run it once for each, with seeds of their own and CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import cublas_grid
import torch
from cuda_graphs import Rig, expected
from gemmhub_cublas import choice, model
from gemmhub_cublas.backend import CublasBackend
from gemmhub_hopper import ranking
from gemmhub_hopper.backend import HopperBackend
from hopper_fit import KERNELS, problem
from hopper_torch import caller, close, drawn, explored, few_vectors, ways_of

from gemmhub.capability import Absent, Refusal
from gemmhub.problem import GemmProblem

_LIKELY, _OTHERS = 8, 2
"""Of cuBLASLt's algorithms: those expected to be the fastest, and drawn from the others."""
_FIRST, _DRAWN = 5, 3
"""Likewise of gemmhub-hopper's."""
_NEW, _SLOWER = 4, 1.4
"""Of new shapes, and how much slower than the fastest by the model alone: nothing corrects it yet."""
_LOOKS, _NEAR, _MOST, _ROUNDS = 3, 1.1, 14, 5
"""First looks at all; how near to the fastest, how many at most, and in how many rounds are timed again."""
_ORDERS = ("nn", "nt", "nn", "nt", "tn", "tt")
"""Most a are stored by rows."""
_BITS = 16
_LARGEST = 1e12
"""Operations. Larger products take long, and are like these."""
_LONG = 16384
"""Of a side: of such sizes there are few in either draw, and estimates were the worst."""


def products(seed: int) -> Iterator[tuple[int, int, int, str]]:
    """(m, n, k, how a and b are stored), without end."""
    rng, others, more = random.Random(seed), drawn(seed), drawn(seed + _LONG)
    while True:
        for m, n, k in (cublas_grid.draw(rng)[:3], next(others), next(x for x in more if max(x) > _LONG)):
            order = rng.choice(_ORDERS)
            rows = (m if order[0] == "t" else k, k if order[1] == "t" else n)
            taken_by_tma = not any(x * _BITS % 128 for x in (*rows, n))
            if taken_by_tma and cublas_grid.fits(m, n, k) and 2 * m * n * k <= _LARGEST:
                yield m, n, k, order


def decoding(seed: int) -> Iterator[tuple[int, int, int, str]]:
    """Likewise, of a few vectors and large matrices. One vector alone has kernels of its own."""
    rng = random.Random(seed)
    while True:
        size = few_vectors(rng)
        if size[0] > 1:
            yield size


def algorithms(backend: CublasBackend, asked: GemmProblem, rng: random.Random) -> list[str]:
    """Names of cuBLASLt's, the library's first choice first."""
    analysis = backend._analyse(asked)
    if analysis is None or isinstance(analysis, Refusal):
        return []
    first, *others = [algorithm.config for algorithm in analysis.algorithms[analysis.form]]
    estimates = model.estimates(asked, backend.machine.gpus[0], choice.size_of(analysis.form), others)
    others.sort(key=lambda config: estimates.get(config, 0.0))  # those about which nothing is known first
    likely, rest = others[:_LIKELY], others[_LIKELY:]
    return list(dict.fromkeys([first, *analysis.candidates[:1], *likely, *rng.sample(rest, min(_OTHERS, len(rest)))]))


def likeliest(hopper: HopperBackend, asked: GemmProblem, shapes: list[str]) -> list[str]:
    """Candidates of these shapes."""
    if not shapes:
        return []
    found = ranking.ranked(ways_of(hopper, asked), hopper._card(asked), hopper.default_workspace(asked.device))
    near = [x.choice for x in found if x.seconds < _SLOWER * found[0].seconds]
    return [x.name for x in near if x.shape.name in shapes][:_NEW]


def measure(
    cublas: CublasBackend, hopper: HopperBackend, rng: random.Random, dtype: str, new: list[str], size: Any
) -> dict[str, Any]:
    m, n, k, order = size
    asked = problem(m, n, k, order, dtype)
    rig = Rig(m, n, k, order, getattr(torch, dtype), expected(m, n, k))
    numbers = {("torch", ""): rig.add(lambda a, b, out: torch.matmul(a, b, out=out))}
    for name in algorithms(cublas, asked, rng):
        numbers["cublas", name] = rig.add(caller(cublas, asked, name))
    wrong = []
    if hopper.supports(asked) is None:
        for name in dict.fromkeys([*explored(hopper, asked, _FIRST, _DRAWN), *likeliest(hopper, asked, new)]):
            call = caller(hopper, asked, name)
            if close(call, rig, dtype):
                numbers["hopper", name] = rig.add(call)
            else:
                wrong.append(name)
    times = dict(zip(numbers, rig.medians(list(numbers.values()), _LOOKS)))
    best = min(times.values())
    near = sorted((x for x in times if times[x] < _NEAR * best), key=lambda x: times[x])[:_MOST]
    kept = list(dict.fromkeys([("torch", ""), *near]))
    again = dict(zip(kept, rig.medians([numbers[x] for x in kept], _ROUNDS)))
    slower = geometric_mean(again.values()) / geometric_mean(times[x] for x in kept)  # by then the card was hotter
    times = {x: again.get(x, t * slower) for x, t in times.items()}
    us: dict[str, dict[str, float]] = {"torch": {}, "cublas": {}, "hopper": {}}
    for (backend, name), seconds in times.items():
        us[backend][name] = float(f"{seconds * 1e6:.4g}")
    return {
        "m": m, "n": n, "k": k, "order": order, "torch_us": us.pop("torch")[""], **us, "wrong": wrong,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no product after this time")
    parser.add_argument("--few", action="store_true", help="products of a few vectors only")
    parser.add_argument("--new", nargs="+", default=[], metavar="SHAPE", help="such as 128x160x5c4x2")
    options = parser.parse_args()
    cublas, hopper = CublasBackend(), HopperBackend()
    for found in (cublas.probe(), hopper.probe()):
        if isinstance(found, Absent):
            print(f"{found.reason}; {found.remedy}")
            return 1
    rng, end, rows = random.Random(options.seed), time.monotonic() + options.seconds, []
    for size in (decoding if options.few else products)(options.seed):
        if time.monotonic() > end:
            break
        rows.append(measure(cublas, hopper, rng, options.dtype, options.new, size))
    result = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": options.dtype,
        "command": " ".join(["python", *sys.argv]), **KERNELS, "rows": rows,
    }  # fmt: skip
    options.file.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    print(f"{len(rows)} products, {sum(len(x['cublas']) + len(x['hopper']) for x in rows)} candidates")
    for backend in ("cublas", "hopper"):
        timed = [x for x in rows if x[backend]]
        first, best = ([x["torch_us"] / f(x[backend]) for x in timed] for f in (_first, lambda us: min(us.values())))
        if timed:
            means = f"first {geometric_mean(first):.4f}, fastest {geometric_mean(best):.4f}"
            print(f"{backend} over torch.matmul, geometric means: {means}")
    alarms = [x for x in rows if x["wrong"]]
    for x in alarms:
        print(f"WRONG: {x['m']} {x['n']} {x['k']} {x['order']}: {', '.join(x['wrong'])}")
    return int(bool(alarms))


def _first(us: dict[str, float]) -> float:
    return next(iter(us.values()))


if __name__ == "__main__":
    raise SystemExit(main())
