"""Fit gemmhub-cublas's cost model to records, and write the data that the plugin ships.

    python benchmarks/cublas_fit.py benchmarks/results/h200/cublas_grid.jsonl.xz [RECORDS.jsonl ...] --header cublasLt.h

Records are those of benchmarks/cublas_grid.py (xz-compressed ones too); the header, any CUDA 12 or 13's, says what
tiles and clusters the numbers in a configuration mean. Needs scikit-learn. Prints what the choice would have gained
on products that the model did not see (cross-validation by product), and writes hopper132.npz and hopper132.jsonl
beside the plugin.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from fitted_trees import flattened
from gemmhub_cublas.choice import CHAMPIONS, MARGIN
from gemmhub_cublas.cost_model import LOADS, Size, Tables, features
from gemmhub_cublas.heuristics import parse
from sklearn.ensemble import HistGradientBoostingRegressor

DATA = Path(__file__).parents[1] / "plugins" / "gemmhub-cublas" / "gemmhub_cublas" / "data"
SMS = 132
_FOLDS = 5
_FAR = 0.3
"""Log ratios beyond this all count the same: how slow a bad algorithm is does not matter."""
_CLOSE = 0.15
"""Pairs whose log ratio is small weigh more: the choice is among the fastest."""


def lines(file: Path) -> list[str]:
    with lzma.open(file, "rt") if file.suffix == ".xz" else file.open() as text:
        return list(text)


def tables(header: str, used: set[int]) -> Tables:
    """Sizes of the tiles in ``used``, and of all clusters, from the text of cublasLt.h."""
    tiles = {int(n): (int(x), int(y)) for x, y, n in re.findall(r"_MATMUL_TILE_(\d+)x(\d+) += (\d+)", header)}
    clusters = {int(n): (int(x), int(y)) for x, y, n in re.findall(r"_CLUSTER_SHAPE_(\d+)x(\d+)x1 = (\d+)", header)}
    return Tables({n: size for n, size in tiles.items() if n in used}, clusters, SMS)


def size(record: dict[str, Any]) -> Size:
    return Size(record["m"], record["n"], record["k"], record["trans_a"], record["trans_b"])


def best_known(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines to ship: one a product, with the algorithm that gained most over the first, in the worst of the runs
    in which both were measured.
    """
    found: dict[Size, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(size(record), []).append(record["times"])
    lines = []
    for key, runs in found.items():
        first = next(iter(runs[0]))
        common = [config for config in runs[0] if all(config in run and first in run for run in runs)] or [first]
        best = max(common, key=lambda config: min(run[first] / run[config] for run in runs if config in run))
        gain = min(run[first] / run[best] for run in runs if first in run and best in run)
        line = {"m": key.m, "n": key.n, "k": key.k, "trans_a": key.trans_a, "trans_b": key.trans_b}
        lines.append({**line, "config": best, "first": first, "gain": float(f"{gain:.4g}")})
    return lines


def samples(records: list[dict[str, Any]], known: Tables) -> tuple[Any, Any, Any]:
    """(features, log ratios of times, number of the record) for each algorithm beside the first of each record."""
    rows, targets, groups = [], [], []
    for number, record in enumerate(records):
        (first, base), *others = record["times"].items()
        if not known.knows(first):
            continue
        for config, seconds in others:
            if known.knows(config):
                rows.append([*features(size(record), first, config, known), LOADS[record.get("sustained", True)]])
                targets.append(np.log(base / seconds))
                groups.append(number)
    return np.array(rows), np.array(targets), np.array(groups)


def fit(rows: Any, targets: Any) -> HistGradientBoostingRegressor:
    weights = np.exp(-np.abs(targets) / _CLOSE) + 0.02
    unfitted = HistGradientBoostingRegressor(
        max_iter=700, learning_rate=0.06, max_leaf_nodes=63, min_samples_leaf=15, max_features=0.6,
        early_stopping=False, random_state=0,
    )  # fmt: skip
    return unfitted.fit(rows, np.clip(targets, -_FAR, _FAR), weights)


def validate(records: list[dict[str, Any]], rows: Any, targets: Any, groups: Any) -> None:
    """What the choice would have gained on products left out, in each of the two loads."""
    products = {key: number for number, key in enumerate(dict.fromkeys(map(size, records)))}
    owners = np.array([products[size(record)] for record in records])
    folds = np.random.default_rng(0).integers(0, _FOLDS, len(products))[owners]
    predicted = np.zeros(len(targets))
    for fold in range(_FOLDS):
        out = folds[groups] == fold
        fitted = fit(rows[~out], targets[~out])
        both = [fitted.predict(np.column_stack([rows[out][:, :-1], np.full(out.sum(), load)])) for load in LOADS]
        predicted[out] = np.minimum(*both)
    loads = np.array([LOADS[record.get("sustained", True)] for record in records])
    for margin in sorted({0.0, 0.01, 0.02, 0.03, MARGIN}):
        gains = np.zeros(len(records))
        for number in range(len(records)):
            (mine,) = np.nonzero(groups == number)
            if len(mine):
                best = mine[predicted[mine].argmax()]
                gains[number] = targets[best] if predicted[best] > margin else 0.0
        for load, name in zip(LOADS, ("idle before", "at work")):
            here = gains[loads == load]
            if len(here):
                print(
                    f"margin {margin}, {name}: {np.exp(here.mean()):.4f} over the library's first choice, worst "
                    f"{np.exp(here.min()):.3f}, {int((here < np.log(0.97)).sum())} of {len(here)} below 0.97, "
                    f"{int((here != 0).sum())} changed"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--header", type=Path, required=True)
    options = parser.parse_args()
    records = [json.loads(line) for file in options.records for line in lines(file)]
    counted = Counter(config for record in records for config in record["times"])
    used = {parse(config)[1] for config in counted}
    known = tables(options.header.read_text(), used)
    rows, targets, groups = samples(records, known)
    print(f"{len(records)} products, {len(rows)} pairs of algorithms, {len(CHAMPIONS)} champions")
    validate(records, rows, targets, groups)
    fitted = fit(rows, targets)
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(
        DATA / f"hopper{SMS}.npz", **flattened(fitted), sms=SMS,
        tiles=np.array([(n, *x) for n, x in known.tiles.items()], np.int32),
        clusters=np.array([(n, *x) for n, x in known.clusters.items()], np.int32),
    )  # fmt: skip
    with (DATA / f"hopper{SMS}.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in best_known(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
