"""Fits gemmhub-hopper's model of a few vectors times a matrix to what candidates.py and hopper_torch.py measured.

Needs no card.

    python benchmarks/gemv_fit.py [--write] FILE...

Needs gemmhub-hopper, scipy and scikit-learn. As in hopper_fit.py first constants are fitted, then the trees that
correct what the model makes of them, which are cross-validated by size. ``--write`` writes data/gemv.npz.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fitted_trees import FOLDS, flattened, folds
from gemmhub_hopper import early, gemv, gemv_model
from gemmhub_hopper.early import Next
from gemmhub_hopper.forms import lowered
from gemmhub_hopper.gemv import GemvChoice
from gemmhub_hopper.gemv_model import Constants
from hopper_fit import H200, NEXT_EARLY, contents, microseconds, problem

_START = Constants(
    launch=1.4e-6, block=6e-7, step=7e-7, cluster=5e-7, result=2e-9, share=0.9, k_major=1.0, n_major=1.0, strided=2.0,
    resident=3.0,
)  # fmt: skip
_NEAR = 3.0
"""How fast a candidate's weight falls with its distance from the fastest of its product."""
_DRAWN = 0.3
"""How strongly constants are drawn towards those."""
_TREES = {
    "max_iter": 800, "learning_rate": 0.06, "max_leaf_nodes": 31, "min_samples_leaf": 10, "max_features": 0.6,
    "random_state": 0,
}  # fmt: skip
"""Of scikit-learn."""


class Timed(NamedTuple):
    """One candidate."""

    product: tuple[Any, ...]
    choice: GemvChoice
    seconds: float


def read(files: list[Path]) -> list[Timed]:
    found = []
    for file in files:
        record = json.loads(contents(file))
        for row in record["rows"]:
            product = row["m"], row["n"], row["k"], row["order"], record["dtype"]
            ways = lowered(problem(*product))
            assert isinstance(ways, tuple)
            choices = {x.name: x for x in gemv.choices(ways)}
            times = {name: us for name, us in microseconds(row).items() if name in choices}
            if not record.get(NEXT_EARLY):  # all let the next one begin when they had started, good or not
                times = {x: us for x, us in times.items() if early.gemv(choices[x], H200.sms) is not Next.SUMMED}
            found += [Timed((file, *product), choices[name], us * 1e-6) for name, us in times.items()]
    return found


def fastest(timed: list[Timed]) -> dict[tuple[Any, ...], float]:
    """Seconds of each product's."""
    found: dict[tuple[Any, ...], float] = {}
    for x in timed:
        found[x.product] = min(x.seconds, found.get(x.product, math.inf))
    return found


def lost(timed: list[Timed], estimates: Any) -> Any:
    """For each product, what the candidate with the lowest estimate loses to the fastest."""
    chosen: dict[tuple[Any, ...], tuple[float, float]] = {}
    for x, estimate in zip(timed, estimates):
        chosen[x.product] = min((estimate, x.seconds), chosen.get(x.product, (math.inf, 0.0)))
    return np.array([chosen[product][1] / seconds - 1 for product, seconds in fastest(timed).items()])


def weights(timed: list[Timed]) -> Any:
    """Candidates count the more, the nearer they are to the fastest of their product."""
    best = fastest(timed)
    return np.array([math.exp(-_NEAR * (x.seconds / best[x.product] - 1)) + 0.02 for x in timed])


def error(timed: list[Timed], estimates: Any) -> float:
    """Of estimates, relative."""
    weight, logs = weights(timed), np.log(estimates / [x.seconds for x in timed])
    return math.sqrt((weight * logs**2).sum() / weight.sum())


def report(timed: list[Timed], estimates: Any) -> str:
    losses = lost(timed, estimates)
    return (
        f"{len(timed)} candidates: estimates off by {error(timed, estimates):.1%}; of {len(losses)} products the "
        f"chosen ones lose {losses.mean():.2%} to the fastest, 95 of 100 at most {np.quantile(losses, 0.95):.1%}"
    )


def fit(timed: list[Timed], weight: Any) -> Constants:
    from scipy.optimize import least_squares

    measured = np.array([x.seconds for x in timed])

    def constants(v: Any) -> Constants:
        return Constants(*(x * math.exp(y) for x, y in zip(_START, v)))

    def residuals(v: Any) -> Any:
        found = constants(v)
        estimates = np.array([gemv_model.seconds(x.choice, H200, found) for x in timed])
        return np.concatenate([np.log(estimates / measured) * np.sqrt(weight), _DRAWN * v])

    solved = least_squares(residuals, np.zeros(len(_START)), loss="soft_l1", f_scale=0.1, max_nfev=30)
    return Constants(*(float(f"{x:.4g}") for x in constants(solved.x)))


def main() -> int:
    from sklearn.ensemble import HistGradientBoostingRegressor

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="into gemmhub_hopper/data/gemv.npz")
    options = parser.parse_args()
    timed = read(options.files)
    measured = np.array([x.seconds for x in timed])
    weight = weights(timed)
    constants = fit(timed, weight)
    for name, value in constants._asdict().items():
        print(f"    {name:10} {value:.4g}")
    estimates = np.array([gemv_model.seconds(x.choice, H200, constants) for x in timed])
    print(f"the model alone: {report(timed, estimates)}")
    rows = np.array([gemv_model.features(x.choice, t) for x, t in zip(timed, estimates)], np.float64)
    logs = np.clip(np.log(measured / estimates), -gemv_model.MOST, gemv_model.MOST)
    fold, unseen = folds([x.product[1:4] for x in timed]), np.empty(len(timed))
    for i in range(FOLDS):
        other = fold != i
        trees = HistGradientBoostingRegressor(**_TREES).fit(rows[other], logs[other], weight[other])
        unseen[~other] = trees.predict(rows[~other])
    print(f"trees, cross-validated: {report(timed, estimates * np.exp(unseen))}")
    if options.write:
        trees = flattened(HistGradientBoostingRegressor(**_TREES).fit(rows, logs, weight))
        target = Path(gemv_model.__file__).with_name("data") / "gemv.npz"
        np.savez_compressed(target, constants=np.array(constants), **trees)
        print(f"{target.name}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
