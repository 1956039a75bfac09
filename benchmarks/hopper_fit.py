"""Fits gemmhub-hopper's cost model to what candidates.py, hopper_torch.py and hub_torch.py have measured.

Needs no card.

    python benchmarks/hopper_fit.py [--keep] [--write] FILE...

Needs gemmhub-hopper, scipy and scikit-learn. First the constants are fitted, then the trees that correct what the model
makes of them; operands of 16 bits get no trees, as net_fit.py is for them. Files are of any inputs of the tensor cores,
each of which gets constants and trees of its own. Candidates count the more, the nearer they are to the fastest of
their product, as those are what must be told apart. Constants are drawn towards what they were before, so that those
about which the data say nothing stay; with ``--keep`` all do. What trees are worth is cross-validated by size.
``--write`` writes fitted.py, and data/trees.npz, which then has trees for the inputs of these files only.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fitted_trees import FOLDS, flattened, folds
from gemmhub_hopper import corrections, cost_model, early, fitted
from gemmhub_hopper.choice import Choice, named, runnable
from gemmhub_hopper.cost_model import Card, Work
from gemmhub_hopper.early import Next
from gemmhub_hopper.fitted import CONSTANTS, Constants
from gemmhub_hopper.forms import lowered
from gemmhub_hopper.ranking import Ranked
from gemmhub_hopper.slabs import Slabs

from gemmhub.capability import Device
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub.trees import Trees

H200 = Card(sms=132, clock=1.98e9, bandwidth=4.8e12)
WORKSPACE = 143771 * 2**20 // 256
KINDS = ("bfloat16", "tf32", "split")
GROWN = ("tf32", "split")
"""Those with trees."""
INPUTS = {"bfloat16": "bfloat16", "float16": "bfloat16", "tf32": "tf32", "float32": "split"}
"""The constants that a dtype of hopper_torch.py tells of."""
NEXT_EARLY, _WIDE_CHUNKS, _FACTORS, _SLICES = "next_early", "wide_chunks", "walked_by_factors", "parts_in_slices"
KERNELS = {NEXT_EARLY: True, _WIDE_CHUNKS: True, _FACTORS: True, _SLICES: True}
"""What records of measurements say of the kernels: that they let the next one begin before they end, that they store
a tile's results in chunks that need not divide it, that they find pieces without dividing and have two threads ask for
stores, and that many parts of k each add a slice of the tile. Times of before are made what they would be now.
"""
_SAVED = {Next.ENDED: 0.0, Next.LOADED: 4e-7, Next.SUMMED: 3.3e-7}
"""Seconds that the one saves a product (benchmarks/results/h200/hopper_early_*.json.xz)."""
_FIRST_ROUND, _LATER_ROUND = 4.2e-7, 2e-7
"""Seconds that the last of these saves of one round of pieces, and of each one more: those to 3.5 % of a product's
time, 7 % in ping-pong (medians of benchmarks/results/h200/hopper_ab_pieces.txt).
"""
_NEAR = 5.0
"""How fast a candidate's weight falls with its distance from the fastest."""
_FEW = 16
"""Contenders. When there are more, in turn they heat the card, and it lowers its clock: what is chosen runs alone."""
_MANY = 0.3
"""Weight of what was measured with more."""
_DRAWN = 0.2
"""How strongly constants are drawn towards what they were before."""
_MOST_ROWS = 8000
"""That constants are fitted to: there are 32 of them."""
_TREES = {
    "max_iter": 400, "learning_rate": 0.1, "max_leaf_nodes": 63, "min_samples_leaf": 15, "max_features": 0.6,
    "random_state": 0,
}  # fmt: skip
"""Of scikit-learn."""


class Timed(NamedTuple):
    """One candidate."""

    product: int
    name: str
    seconds: float
    few: bool
    """It was measured with few others."""
    choice: Choice
    work: Work
    older: bool
    """The kernel was not that of today."""


def problem(m: int, n: int, k: int, order: str, dtype: str) -> GemmProblem:
    """``order``: for a and for b whether it is stored by rows ("n") or by columns ("t")."""
    kind = as_dtype("float32" if dtype == "tf32" else dtype)
    a, b = (
        MatrixLayout.contiguous(*shape, order="col" if letter == "t" else "row")
        for shape, letter in zip(((m, k), (k, n)), order)
    )
    operands = [Operand(kind, x, 256) for x in (a, b, MatrixLayout.contiguous(m, n))]
    precision = "tf32" if dtype == "tf32" else "ieee"
    return GemmProblem(
        m, n, k, *operands, compute_dtype=as_dtype("float32"), device=Device("cuda", 0), precision=precision
    )


def of_today(record: dict[str, Any], work: Work) -> bool:
    """Whether the kernel that was measured is the one that there is."""
    return all(record.get(word) for word in KERNELS if word != _SLICES or work.in_slices)


def of_now(record: dict[str, Any], seconds: float, choice: Choice, cut: Slabs, work: Work) -> float:
    """What was measured, as it would be with the kernels of today."""
    if not record.get(NEXT_EARLY):
        seconds -= _SAVED[early.gemm(choice, cut.blocks, H200)]
    constants = CONSTANTS[choice.way.form.input]

    def over(before: Work) -> float:
        return float(cost_model.seconds_of(work, H200, constants) / cost_model.seconds_of(before, H200, constants))

    if not record.get(_WIDE_CHUNKS):
        seconds *= over(with_dividing_chunks(choice, work))
    if not record.get(_SLICES) and work.in_slices:
        seconds *= over(work._replace(in_slices=False))
    if not record.get(_FACTORS):
        rounds = work.full + (work.rest > 0)
        seconds -= _FIRST_ROUND + min(_LATER_ROUND * (rounds - 1), (0.07 if work.turns else 0.035) * seconds)
    return seconds


def with_dividing_chunks(choice: Choice, work: Work) -> Work:
    """As a tile was stored before."""
    shape, form = choice.shape, choice.way.form
    width = next(x for x in (64, 32, 16) if x * form.output_bytes <= 128 and shape.columns % x == 0)
    chunks = shape.m / 64 * shape.columns / width / shape.sharers
    return work._replace(chunks=chunks, stored=shape.m * shape.columns * form.output_bytes)


def microseconds(row: dict[str, Any]) -> dict[str, float]:
    """Of gemmhub-hopper's candidates that were right, as hopper_torch.py or candidates.py timed them."""
    times = row.get("us") or row.get("hopper", {})
    return {name: us for name, us in times.items() if name not in row["wrong"]}


def candidates(record: dict[str, Any], row: dict[str, Any], product: int) -> list[Timed]:
    """Those of a product that there still are."""
    ways = lowered(problem(row["m"], row["n"], row["k"], row["order"], record["dtype"]))
    assert isinstance(ways, tuple)
    # hub_torch.py has timed what was chosen only.
    chosen = {key: words.split() for key, words in row["chosen"].items()} if "ratios" in row else {}
    own = {words[1]: row["torch_us"] / row["ratios"][key] for key, words in chosen.items()
           if words[0] == "hopper" and key not in row["wrong"]}  # fmt: skip
    times = microseconds(row) or own
    found = []
    for name, us in times.items():
        try:
            choice = named(ways, name)
        except ValueError:  # a shape that was given up
            continue
        cut = runnable(choice, WORKSPACE)
        if not isinstance(cut, str):
            work = cost_model.work(choice, cut, H200)
            seconds = of_now(record, us * 1e-6, choice, cut, work)
            found.append(Timed(product, name, seconds, len(times) <= _FEW, choice, work, not of_today(record, work)))
    return found


class Data:
    """All candidates of one input."""

    def __init__(self, timed: list[Timed]) -> None:
        self.timed = timed
        self.seconds = np.array([x.seconds for x in timed])
        self.work = cost_model.together([x.work for x in timed])
        self.product = np.unique([x.product for x in timed], return_inverse=True)[1]
        best = np.full(self.product.max() + 1, np.inf)
        np.minimum.at(best, self.product, self.seconds)
        self.lost = self.seconds / best[self.product] - 1
        self.weight = (np.exp(-_NEAR * self.lost) + 0.01) * np.where([x.few for x in timed], 1.0, _MANY)

    def some(self, which: Any) -> Data:
        """Only the candidates of these numbers, or where this is true."""
        return Data([self.timed[i] for i in np.arange(len(self.timed))[which]])

    def analytic(self, constants: Constants) -> Any:
        """Estimates in seconds."""
        return cost_model.seconds_of(self.work, H200, constants)

    def corrected(self, estimates: Any, trees: Trees) -> Any:
        """Estimates as the plugin corrects them."""
        found = np.empty(len(estimates))
        order = np.lexsort((estimates, self.product))
        for group in np.split(order, np.flatnonzero(np.diff(self.product[order])) + 1):
            ranking = [Ranked(estimates[i], self.timed[i].choice, self.timed[i].work) for i in group]
            place = {id(self.timed[i].choice): i for i in group}
            for x in corrections.corrected(ranking, trees):
                found[place[id(x.choice)]] = x.seconds
        return found

    def error(self, estimates: Any) -> float:
        """Of estimates, relative."""
        return math.sqrt((self.weight * np.log(estimates / self.seconds) ** 2).sum() / self.weight.sum())

    def chosen(self, estimates: Any) -> Any:
        """For each product with several candidates, what the one with the lowest estimate loses to the fastest."""
        order = np.lexsort((estimates, self.product))
        first = order[np.concatenate([[0], np.flatnonzero(np.diff(self.product[order])) + 1])]
        return self.lost[first[np.bincount(self.product) > 1]]

    def report(self, estimates: Any) -> str:
        lost = self.chosen(estimates)
        words = f"{len(estimates)} candidates: estimates off by {self.error(estimates):.1%}"
        if len(lost):
            words += (
                f"; of {len(lost)} products the chosen ones lose {lost.mean():.2%} to the fastest, 95 of 100 at most "
                f"{np.quantile(lost, 0.95):.1%}, all {lost.max():.1%}"
            )
        return words


def fit(data: Data, before: Constants) -> Constants:
    from scipy.optimize import least_squares

    near = np.flatnonzero(data.lost < 0.5)
    if len(near) > _MOST_ROWS:
        near = np.random.default_rng(0).choice(near, _MOST_ROWS, replace=False)
    data = data.some(near)

    def constants(v: Any) -> Constants:
        return Constants(*(x * math.exp(y) for x, y in zip(before, v)))

    def residuals(v: Any) -> Any:
        logs = np.log(data.analytic(constants(v)) / data.seconds)
        return np.concatenate([logs * np.sqrt(data.weight), _DRAWN * v])

    found = least_squares(residuals, np.zeros(len(before)), loss="soft_l1", f_scale=0.1, max_nfev=15)
    return Constants(*(float(f"{x:.4g}") for x in constants(found.x)))


def grown(data: Data, estimates: Any, which: Any) -> dict[str, Any]:
    """Trees, as plain arrays, that correct estimates as these candidates say."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    timed = [data.timed[i] for i in which]
    rows = np.array([corrections.features(x.choice, x.work, s) for x, s in zip(timed, estimates[which])], np.float64)
    logs = np.log(data.seconds[which] / estimates[which])
    kept = np.clip(logs, -corrections.MOST, corrections.MOST)
    with threadpool_limits(1):  # of so few rows several threads are slower
        return flattened(HistGradientBoostingRegressor(**_TREES).fit(rows, kept, data.weight[which]))


def cross_validated(data: Data, estimates: Any) -> Any:
    """Estimates, each corrected by trees that have not seen a product of that m, n and k."""
    ways = [x.choice.way for x in data.timed]
    sizes = [(way.n, way.m, way.k) if way.swapped else (way.m, way.n, way.k) for way in ways]
    fold = folds(sizes)
    found = np.empty(len(estimates))
    for i in range(FOLDS):
        seen, unseen = np.flatnonzero(fold != i), np.flatnonzero(fold == i)
        trees = Trees.of(grown(data, estimates, seen))
        found[unseen] = data.some(unseen).corrected(estimates[unseen], trees)
    return found


def text(found: dict[str, Constants]) -> str:
    """fitted.py with other numbers."""
    old = Path(fitted.__file__).read_text()
    lines = []
    for name in KINDS:
        words = [f"{key}={value!r}" for key, value in found[name]._asdict().items()]
        rows = "".join(f"        {', '.join(words[i : i + 6])},\n" for i in range(0, len(words), 6))
        lines.append(f'    "{name}": Constants(\n{rows}    ),\n')
    table = "CONSTANTS = {\n" + "".join(lines) + "}  # fmt: skip\n"
    table += 'CONSTANTS["float16"] = CONSTANTS["bfloat16"]\n'
    return old[: old.index("CONSTANTS = ")] + table


def contents(file: Path) -> str:
    """The text of a file of benchmarks/results, compressed by xz or not."""
    return (lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()).decode()


def read(files: list[Path]) -> dict[str, list[Timed]]:
    """The candidates of all files, by input; of files that end with .xz too."""
    timed: dict[str, list[Timed]] = {}
    for file in files:
        record = json.loads(contents(file))
        kept = timed.setdefault(INPUTS[record["dtype"]], [])
        for row in record["rows"]:
            kept += candidates(record, row, kept[-1].product + 1 if kept else 0)
    return {kind: kept for kind, kept in timed.items() if kept}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--keep", action="store_true", help="the constants; only the trees are fitted")
    parser.add_argument("--write", action="store_true", help="into gemmhub_hopper/fitted.py and data/trees.npz")
    options = parser.parse_args()
    found, arrays = dict(fitted.CONSTANTS), {}
    timed = read(options.files)
    for kind in [x for x in KINDS if x in timed]:
        data = Data(timed[kind])
        # The first input's constants are the others' start, as there are more measurements of it.
        before = found["bfloat16"]._replace(loading=found[kind].loading) if kind != "bfloat16" else found[kind]
        estimates = data.analytic(found[kind])
        print(f"{kind}, before: {data.report(estimates)}")
        if not options.keep:
            found[kind] = fit(data, before)
            estimates = data.analytic(found[kind])
            print(f"{kind}, after:  {data.report(estimates)}")
            for key, value in found[kind]._asdict().items():
                print(f"    {key:14} {value:.4g}")
        if kind not in GROWN:
            continue
        checked = cross_validated(data, estimates)
        print(f"{kind}, trees, cross-validated: {data.report(checked)}")
        few = np.flatnonzero([x.few for x in data.timed])
        if len(few):
            print(f"    measured with few others, before: {data.some(few).report(estimates[few])}")
            print(f"    measured with few others, trees:  {data.some(few).report(checked[few])}", flush=True)
        trees = grown(data, estimates, np.arange(len(estimates)))
        arrays.update({f"{kind}.{name}": value for name, value in trees.items()})
    if options.write:
        Path(fitted.__file__).write_text(text(found))
        target = Path(corrections.__file__).with_name("data") / corrections.TREES
        target.parent.mkdir(exist_ok=True)
        np.savez(target, **arrays)  # compressed it takes twice as long to load
        print(f"{target.name}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
