"""Fits gemmhub-cublas's estimate to times of torch.matmul, and of the plugin itself, that other benchmarks recorded.

    python benchmarks/cublas_model_fit.py [--constants] [--write] FILE...

Needs gemmhub-cublas, gemmhub-hopper and scikit-learn (with ``--constants`` scipy), no card. FILEs are what
hopper_torch.py and hub_torch.py wrote on an H200, of any dtypes, and cublas_grid.py, also compressed by xz; others are
passed over. Prints, for 16 bits, tf32 and float32, how far estimates are off without and with corrections of products
that the trees did not see (cross-validation by size); for 16 bits also those of trees that know the algorithm, which
see those of the grid, too. ``--write`` writes the trees beside the plugin. ``--constants`` fits those of
gemmhub_cublas/model.py first and prints them, to be entered there before trees are written.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from fitted_trees import flattened
from gemmhub_cublas import choice, corrections, forms, model
from gemmhub_cublas.corrections import Chosen
from gemmhub_cublas.model import Constants
from hopper_fit import H200, contents, problem
from sklearn.ensemble import HistGradientBoostingRegressor

from gemmhub.problem import GemmProblem

GPU: Any = SimpleNamespace(**H200.__dict__, capability=corrections.CAPABILITY)
DATA = Path(corrections.__file__).parent / "data" / corrections.DATA
_GAIN = {"half": 1.017, "tf32": 1.0, "single": 1.0}
"""How much faster than torch.matmul the plugin is on the whole, for products where only torch was timed."""
_FOLDS = 5
_FAR = 0.5
"""Logarithms of measured over modelled time beyond this count as this."""
_DRAWN = 0.3
"""How strongly constants are drawn towards what they were before."""
_REPEATED = 4
"""Times that what hub_torch.py recorded counts beside the grid, for trees that know the algorithm."""


class Timed(NamedTuple):
    """One product."""

    problem: GemmProblem
    seconds: float
    own: bool
    """The plugin itself was timed."""
    config: str = ""
    """Its algorithm, where that is known."""


def read(file: Path) -> tuple[list[Timed], list[Timed]]:
    """Of torch and the plugin, and of the library's algorithms."""
    text = contents(file)
    try:
        record = json.loads(text)
    except json.JSONDecodeError:  # a record a line
        return [], of_grid(text)
    found = []
    for row in record.get("rows", []):
        if "torch_us" in row:
            asked = problem(row["m"], row["n"], row["k"], row["order"], record["dtype"])
            own = row.get("ratios", {}).get("cublas")
            gain = own or _GAIN[model.kind(asked)]
            config = row.get("chosen", {}).get("cublas", "").removeprefix("cublas ") if own else ""
            found.append(Timed(asked, row["torch_us"] * 1e-6 / gain, own is not None, config))
    return found, []


def of_grid(text: str) -> list[Timed]:
    """The library's first choice and the fastest algorithm for each product of cublas_grid.py."""
    found = []
    for line in text.splitlines():
        record = json.loads(line) if line.startswith("{") else {}
        # The library's words are those of the transposes; trees are for a by rows.
        if "times" not in record or record["trans_b"]:
            continue
        times = record["times"]
        first, best = next(iter(times)), min(times, key=times.get)
        asked = problem(record["n"], record["m"], record["k"], "nt" if record["trans_a"] else "nn", "bfloat16")
        found += [Timed(asked, times[config], False, config) for config in dict.fromkeys([first, best])]
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


def knows(x: Timed) -> bool:
    """Whether the algorithm is known, and can be described."""
    tables = choice.tables()
    return tables is not None and bool(x.config) and tables.knows(x.config)


def told_all(timed: list[Timed]) -> Any:
    """Features of products and their algorithms."""
    tables, before, rows = choice.tables(), None, []
    assert tables is not None
    for x in timed:
        if x.problem is not before:  # the grid has several algorithms of a product
            row, modelled = model.features(x.problem, GPU), model.modelled(x.problem, GPU)
            lowered = forms.lowered(x.problem)
            assert row is not None
            assert isinstance(lowered, forms.Lowered)
            size, before = choice.size_of(lowered.forms[0]), x.problem
        rows.append(row + corrections.of_chosen(Chosen(size, x.config), tables, modelled))
    return np.array(rows)


def fit(rows: Any, targets: Any) -> HistGradientBoostingRegressor:
    unfitted = HistGradientBoostingRegressor(
        max_iter=200, learning_rate=0.07, max_leaf_nodes=15, min_samples_leaf=5, max_features=0.3, l2_regularization=3,
        early_stopping=False, random_state=0,
    )  # fmt: skip
    return unfitted.fit(rows, np.clip(targets, -_FAR, _FAR))


def validated(timed: list[Timed], rows: Any, targets: Any) -> Any:
    """Corrections by trees that saw no product of the same size."""
    sizes = [(x.problem.m, x.problem.n, x.problem.k) for x in timed]
    numbers = {size: number for number, size in enumerate(dict.fromkeys(sizes))}
    folds = np.random.default_rng(0).integers(0, _FOLDS, len(numbers))[[numbers[size] for size in sizes]]
    found = np.zeros(len(timed))
    for fold in range(_FOLDS):
        out = folds == fold
        found[out] = fit(rows[~out], targets[~out]).predict(rows[out])
    return np.clip(found, -corrections.LIMIT, corrections.LIMIT)


def told(errors: Any) -> str:
    return f"rms {np.sqrt((errors**2).mean()):.1%}, median {np.median(np.abs(errors)):.1%}"


def fit_knowing(own: list[Timed], grid: list[Timed]) -> HistGradientBoostingRegressor:
    """Trees that know the algorithm; prints how far estimates of ``own`` are off."""
    # Sample weights would do the same, but take five times as long.
    timed = own * _REPEATED + grid
    rows, targets = told_all(timed), logs(timed)
    left = (targets - validated(timed, rows, targets))[: len(own)]
    print(f"with it {told(left)} (the grid adds {len(grid)})", flush=True)
    return fit(rows, targets)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--constants", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"gemmhub_cublas/data/{corrections.DATA}")
    options = parser.parse_args()
    every: list[Timed] = []
    grid: list[Timed] = []
    for file in options.files:
        of_products, of_algorithms = read(file)
        every += of_products
        grid += of_algorithms
    arrays: dict[str, Any] = {}
    for kind in corrections.KINDS:
        timed = [x for x in every if model.kind(x.problem) == kind]
        if not timed:
            continue
        if options.constants:
            fit_constants(kind.upper(), timed)
        rows, targets = np.array([model.features(x.problem, GPU) for x in timed]), logs(timed)
        left, own = targets - validated(timed, rows, targets), np.array([x.own for x in timed])
        for words, these in (("all", np.full(len(timed), True)), ("timed themselves", own)):
            if these.any():
                print(
                    f"{kind}, {words}: {these.sum()} products; model {told(targets[these])}; "
                    f"corrected {told(left[these])}",
                    flush=True,
                )
        arrays |= flattened(fit(rows, targets), f"{kind}.")
        known = np.array([knows(x) for x in timed])
        if kind == "half" and known.any():
            print(f"half, algorithm known: {known.sum()} products; corrected without it {told(left[known])}; ", end="")
            fitted = fit_knowing([x for x in timed if knows(x)], [x for x in grid if knows(x)])
            arrays |= flattened(fitted, f"{corrections.CHOSEN}.")
    if options.write:
        np.savez_compressed(DATA, **arrays)
        print(f"{DATA.name}: {DATA.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
