"""Fits gemmhub-cublas's estimates to times of torch.matmul and of the library's algorithms by other benchmarks.

    python benchmarks/cublas_model_fit.py [--constants] [--write] FILE...

Needs gemmhub-cublas, gemmhub-hopper and scikit-learn (with ``--constants`` scipy), no card. FILEs are what
candidates.py, hopper_torch.py and hub_torch.py wrote on an H200, of any dtypes, also compressed by xz; others are
passed over. Prints, for 16 bits, tf32 and float32, how far estimates are off without and with corrections of products
that the trees did not see (cross-validation by size); likewise for trees that know the algorithm, which are of 16 bits
and what candidates.py timed, and what their choice gains. ``--write`` writes the trees beside the plugin.
``--constants`` fits those of gemmhub_cublas/model.py first and prints them, to be entered there before trees are
written.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from fitted_trees import FOLDS, flattened, folds
from gemmhub_cublas import choice, corrections, facts, forms, model
from gemmhub_cublas.corrections import Chosen
from gemmhub_cublas.model import Constants
from hopper_fit import H200, contents, problem
from sklearn.ensemble import HistGradientBoostingRegressor

from gemmhub.problem import GemmProblem

GPU: Any = SimpleNamespace(**H200.__dict__, capability=corrections.CAPABILITY)
DATA = Path(corrections.__file__).parent / "data" / corrections.DATA
_GAIN = {"half": 1.017, "tf32": 1.0, "single": 1.0}
"""How much faster than torch.matmul the plugin is on the whole, for products where only torch was timed."""
_FAR = 0.5
"""Logarithms of measured over modelled time beyond this count as this."""
_DRAWN = 0.3
"""How strongly constants are drawn towards what they were before."""
_NEAR, _LEAST = 5.0, 0.02
"""How fast an algorithm's weight falls with its distance from the fastest of its product, and what it is at least."""
_TREES = {
    "max_iter": 400, "learning_rate": 0.07, "max_leaf_nodes": 31, "min_samples_leaf": 5, "max_features": 0.3,
    "l2_regularization": 3, "early_stopping": False, "random_state": 0,
}  # fmt: skip
_TREES_OF_ALGORITHMS = {
    "max_iter": 400, "learning_rate": 0.1, "max_leaf_nodes": 63, "min_samples_leaf": 10, "max_features": 0.3,
    "l2_regularization": 1, "early_stopping": False, "random_state": 0,
}  # fmt: skip
"""Of scikit-learn."""


class Timed(NamedTuple):
    """One product."""

    problem: GemmProblem
    torch: float
    """Seconds."""
    own: float | None
    """How many times as fast as torch the plugin was, where that was measured."""
    algorithms: dict[str, float]
    """Seconds, by configuration; the library's first choice first."""

    @property
    def seconds(self) -> float:
        """Of the plugin, about."""
        return self.torch / (self.own or _GAIN[model.kind(self.problem)])


def read(file: Path) -> list[Timed]:
    try:
        record = json.loads(contents(file))
    except json.JSONDecodeError:  # a record a line
        return []
    found = []
    for row in record.get("rows", []):
        if "torch_us" in row:
            asked = problem(row["m"], row["n"], row["k"], row["order"], record["dtype"])
            algorithms = {config: us * 1e-6 for config, us in row.get("cublas", {}).items()}
            found.append(Timed(asked, row["torch_us"] * 1e-6, row.get("ratios", {}).get("cublas"), algorithms))
    return found


def fit_constants(name: str, timed: list[Timed]) -> None:
    from scipy.optimize import least_squares

    before = getattr(model, name)

    def residuals(v: Any) -> Any:
        setattr(model, name, Constants(*(before * np.exp(v))))
        return np.concatenate([-logs(timed), _DRAWN * v])

    found = least_squares(residuals, np.zeros(len(before)), loss="soft_l1", f_scale=0.1)
    setattr(model, name, Constants(*(before * np.exp(found.x))))
    print(name, ", ".join(f"{key}={value:.4g}" for key, value in getattr(model, name)._asdict().items()))


def logs(timed: list[Timed]) -> Any:
    """Of measured over modelled time."""
    return np.log([x.seconds / model.modelled(x.problem, GPU) for x in timed])


def fit(rows: Any, targets: Any, weights: Any = None, trees: dict[str, Any] = _TREES) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(**trees).fit(rows, np.clip(targets, -_FAR, _FAR), weights)


def validated(timed: list[Timed], rows: Any, targets: Any, weights: Any = None, trees: dict[str, Any] = _TREES) -> Any:
    """Corrections by trees that saw no product of the same size."""
    fold = folds([(x.problem.m, x.problem.n, x.problem.k) for x in timed])
    found = np.zeros(len(timed))
    for i in range(FOLDS):
        out = fold == i
        seen = None if weights is None else weights[~out]
        found[out] = fit(rows[~out], targets[~out], seen, trees).predict(rows[out])
    return np.clip(found, -corrections.LIMIT, corrections.LIMIT)


def told(errors: Any) -> str:
    return f"rms {np.sqrt((errors**2).mean()):.1%}, median {np.median(np.abs(errors)):.1%}"


def fit_knowing(timed: list[Timed]) -> HistGradientBoostingRegressor:
    """Trees that know the algorithm; prints how far estimates are off, and what the choice by them gains."""
    tables = facts.tables()
    assert tables is not None
    rows, targets, weights, owners, names = [], [], [], [], []
    for x in timed:
        row, modelled = model.features(x.problem, GPU), model.modelled(x.problem, GPU)
        lowered = forms.lowered(x.problem)
        assert row is not None
        assert isinstance(lowered, forms.Lowered)
        size, fastest = choice.size_of(lowered.forms[0]), min(x.algorithms.values())
        for config, seconds in x.algorithms.items():
            if tables.knows(config):
                rows.append(row + corrections.of_chosen(Chosen(size, config), tables, modelled))
                targets.append(np.log(seconds / modelled))
                weights.append(np.exp(-_NEAR * (seconds / fastest - 1)) + _LEAST)
                owners.append(x)
                names.append(config)
    told_all, logs, weight = np.array(rows), np.array(targets), np.array(weights)
    corrected = validated(owners, told_all, logs, weight, _TREES_OF_ALGORITHMS)
    near = weight > np.exp(-_NEAR / 10)
    print(f"half, {len(rows)} algorithms of {len(timed)} products: those within 10 % of the fastest corrected "
          f"{told((logs - corrected)[near])}")  # fmt: skip
    gains(owners, names, corrected)
    return fit(told_all, logs, weight, _TREES_OF_ALGORITHMS)


def gains(owners: list[Timed], names: list[str], corrected: Any) -> None:
    """Prints how much faster than torch.matmul the algorithms are that corrected estimates choose."""
    chosen: dict[int, tuple[float, float, Timed]] = {}
    for x, config, correction in zip(owners, names, corrected):
        first = config == next(iter(x.algorithms))
        estimate = correction + (math.log(1 - choice.MARGIN) if first else 0.0)  # of one product: modelled alike
        known = chosen.get(id(x))
        if known is None or (estimate, x.algorithms[config]) < known[:2]:
            chosen[id(x)] = estimate, x.algorithms[config], x
    ratios = np.array([x.torch / seconds for _, seconds, x in chosen.values()])
    best = np.array([x.torch / min(x.algorithms.values()) for _, _, x in chosen.values()])
    means = [np.exp(np.log(x).mean()) for x in (ratios, best)]
    print(f"    chosen by it: {means[0]:.4f} times torch.matmul's speed (the fastest of each {means[1]:.4f}), "
          f"{(ratios < 0.97).sum()} below 0.97", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--constants", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"gemmhub_cublas/data/{corrections.DATA}")
    options = parser.parse_args()
    every = [x for file in options.files for x in read(file)]
    arrays: dict[str, Any] = {}
    for kind in corrections.KINDS:
        timed = [x for x in every if model.kind(x.problem) == kind]
        if not timed:
            continue
        if options.constants:
            fit_constants(kind.upper(), timed)
        rows, targets = np.array([model.features(x.problem, GPU) for x in timed]), logs(timed)
        left, own = targets - validated(timed, rows, targets), np.array([x.own is not None for x in timed])
        for words, these in (("all", np.full(len(timed), True)), ("timed themselves", own)):
            if these.any():
                print(
                    f"{kind}, {words}: {these.sum()} products; model {told(targets[these])}; "
                    f"corrected {told(left[these])}",
                    flush=True,
                )
        arrays |= flattened(fit(rows, targets), f"{kind}.")
        known = [x for x in timed if x.algorithms]
        if known:
            arrays |= flattened(fit_knowing(known), f"{corrections.CHOSEN}.")
    if options.write:
        np.savez(DATA, **arrays)  # compressed they take twice as long to load
        print(f"{DATA.name}: {DATA.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
