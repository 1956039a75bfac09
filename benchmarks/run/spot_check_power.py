"""The rates at which spot_check finds a wrong element, and at which it calls a correct product wrong.

    python -m benchmarks.run.spot_check_power [--positions 1024] [--runs 10000] [--size 2048] [--seed 0]

Detection: in a product of size x size x size, at each of ``--positions`` random positions in turn, one element is made
wrong by 1, 3, 10, 30 and 100 times its bound. Rows have separate sums, so the errors of different rows can be
planted together without effect on each other's verdict; an error counts as found where its own sum exceeds
the threshold, or is among the 64 largest relative to it if it were planted alone. Every tenth error of 100 bounds is
also planted alone and checked by spot_check itself.

False alarms: correct products of random shapes, dtypes (float16, bfloat16, float32) and kinds of data, always checked
by sums (small products would otherwise be recomputed whole).
"""

from __future__ import annotations

import argparse
import time

import ml_dtypes
import numpy as np

from gemmhub import accuracy
from gemmhub._check import freivalds, spot_check

DTYPES = [np.dtype(x) for x in (np.float32, np.float16, ml_dtypes.bfloat16)]
TIMES = (1.5, 3, 10, 30, 100)


def detection(dtype: np.dtype, size: int, positions: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((size, size)).astype(dtype) for _ in range(2))
    c = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    model = accuracy.error_model(dtype, dtype, dtype, np.dtype(np.float32))
    found = dict.fromkeys(TIMES, 0)
    above = dict.fromkeys(TIMES, 0)
    done = alone = found_alone = 0
    while done < positions:
        count = min(size, positions - done)
        rows, cols = rng.permutation(size)[:count], rng.integers(size, size=count)
        bound = accuracy.reference(a[rows][:, None, :], b[:, cols].T[:, :, None], model=model).bound[:, 0, 0]
        signs = rng.choice([-1, 1], count)
        for times in TIMES:
            wrong = c.copy()
            wrong[rows, cols] = (accuracy.widen(c[rows, cols]) + times * signs * bound).astype(dtype)
            sketch = freivalds.sketch(a, b, wrong, model, 1, rng)
            here = sketch.ratio[rows, sketch.groups.member[cols]]
            others = np.ones(sketch.ratio.shape, bool)
            others[rows, sketch.groups.member[cols]] = False
            last = np.partition(sketch.ratio[others], -spot_check._PAIRS)[-spot_check._PAIRS]
            above[times] += int(np.count_nonzero(here > 1))
            found[times] += int(np.count_nonzero((here > 1) | (here > last)))
            if times == TIMES[-1]:
                for i in range(0, count, 10 * max(1, positions // 200)):
                    single = c.copy()
                    single[rows[i], cols[i]] = wrong[rows[i], cols[i]]
                    alone += 1
                    found_alone += spot_check.spot_check(a, b, single).where == (rows[i], cols[i])
        done += count
    rates = ", ".join(
        f"{times:g}: {found[times] / done:.2%} ({above[times] / done:.2%} by threshold)" for times in TIMES
    )
    print(f"{dtype.name:9} {done} positions, errors in bounds: {rates}; alone {found_alone} of {alone}")


def right_product(dtype: np.dtype, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, k, n = (int(x) for x in np.exp2(rng.uniform(0, 7.5, 3)))
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    kind = rng.integers(5)
    if kind == 1:
        reach = 4 if dtype == np.float16 else 30
        a, b = (x * np.exp2(rng.integers(-reach, reach, x.shape)) for x in (a, b))
    elif kind == 2:
        a, b = np.abs(a), np.abs(b)
    elif kind == 3:
        a, b = np.concatenate([a, -a], axis=1), np.concatenate([b, b])
    elif kind == 4:
        scale = 2.0**-11 if dtype == np.float16 else 2.0**-70
        a, b = a * scale, b * scale
    a, b = a.astype(dtype), b.astype(dtype)
    return a, b, (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)


def false_alarms(runs: int, rng: np.random.Generator) -> None:
    spot_check._RECOMPUTE = 0
    alarms = 0
    for run in range(runs):
        a, b, c = right_product(DTYPES[run % len(DTYPES)], rng)
        verdict = spot_check.spot_check(a, b, c, seed=run)
        if not verdict:
            alarms += 1
            print(f"run {run}: {a.dtype} {a.shape} {b.shape}: {verdict}")
    print(f"{alarms} false alarms in {runs} right products")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=1024, help="planted errors for each dtype and size of error")
    parser.add_argument("--runs", type=int, default=10_000, help="right products")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    start = time.perf_counter()
    for dtype in DTYPES:
        detection(dtype, given.size, given.positions, rng)
    false_alarms(given.runs, rng)
    print(f"{time.perf_counter() - start:.0f} s, seed {given.seed}")


if __name__ == "__main__":
    main()
