"""Fits gemmhub-cublas's estimates to times of torch.matmul and of the library's algorithms by other benchmarks.

    python benchmarks/cublas_model_fit.py [--constants] [--write] FILE...

Needs gemmhub-cublas, gemmhub-hopper and scikit-learn (with ``--constants`` scipy), no card. FILEs are what
candidates.py, hopper_torch.py and hub_torch.py wrote on an H200, of any dtypes, also compressed by xz; others are
passed over. Prints, for 16 bits, tf32 and float32, how far estimates are off without and with corrections of products
that the trees did not see (cross-validation by size). ``--write`` writes the trees beside the plugin. ``--constants``
fits those of gemmhub_cublas/model.py first and prints them, to be entered there before trees are written. (What knows
the algorithm that will run is fitted by net_fit.py.)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from fitted_trees import FOLDS, flattened, folds
from gemmhub_cublas import corrections, model
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
_TREES = {
    "max_iter": 400, "learning_rate": 0.07, "max_leaf_nodes": 31, "min_samples_leaf": 5, "max_features": 0.3,
    "l2_regularization": 3, "early_stopping": False, "random_state": 0,
}  # fmt: skip
"""Of scikit-learn."""


class Timed(NamedTuple):
    """One product."""

    problem: GemmProblem
    torch: float
    """Seconds."""
    own: float | None
    """How many times as fast as torch the plugin was, where that was measured."""

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
            found.append(Timed(asked, row["torch_us"] * 1e-6, row.get("ratios", {}).get("cublas")))
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


def fit(rows: Any, targets: Any) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(**_TREES).fit(rows, np.clip(targets, -_FAR, _FAR))


def validated(timed: list[Timed], rows: Any, targets: Any) -> Any:
    """Corrections by trees that saw no product of the same size."""
    fold = folds([(x.problem.m, x.problem.n, x.problem.k) for x in timed])
    found = np.zeros(len(timed))
    for i in range(FOLDS):
        out = fold == i
        found[out] = fit(rows[~out], targets[~out]).predict(rows[out])
    return np.clip(found, -corrections.LIMIT, corrections.LIMIT)


def told(errors: Any) -> str:
    return f"rms {np.sqrt((errors**2).mean()):.1%}, median {np.median(np.abs(errors)):.1%}"


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
    if options.write:
        np.savez(DATA, **arrays)  # compressed they take twice as long to load
        print(f"{DATA.name}: {DATA.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
