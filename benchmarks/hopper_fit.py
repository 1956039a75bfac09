"""Fits the constants of gemmhub-hopper's cost model to what hopper_torch.py --every and hub_torch.py have measured.

Needs no card.

    python benchmarks/hopper_fit.py [--write] FILE...

Needs gemmhub-hopper and scipy. Files are of any inputs of the tensor cores, each of which gets constants of its own.
Candidates count the more, the nearer they are to the fastest of their product, as those are what must be told apart.
Constants are drawn towards what they were before, so that those about which the data say nothing stay. ``--write``
writes fitted.py.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gemmhub_hopper import cost_model, fitted
from gemmhub_hopper.cost_model import Card, Work
from gemmhub_hopper.fitted import Constants
from gemmhub_hopper.forms import lowered

from gemmhub.capability import Device
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand

H200 = Card(sms=132, clock=1.98e9, bandwidth=4.8e12)
WORKSPACE = 143771 * 2**20 // 256
INPUTS = {"bfloat16": "bfloat16", "float16": "bfloat16", "tf32": "tf32", "float32": "split"}
"""The constants that a dtype of hopper_torch.py tells of."""
_NEAR = 5.0
"""How fast a candidate's weight falls with its distance from the fastest."""
_FEW = 8.0
"""Weight of what was measured with few others: dozens of contenders in turn heat the card, and it lowers its clock."""
_DRAWN = 0.2
"""How strongly constants are drawn towards what they were before."""


class Timed(NamedTuple):
    """One candidate."""

    product: int
    name: str
    seconds: float
    work: Work


def problem(m: int, n: int, k: int, order: str, dtype: str) -> GemmProblem:
    kind = as_dtype("float32" if dtype == "tf32" else dtype)
    b = MatrixLayout.contiguous(k, n, order="col" if order == "nt" else "row")
    operands = [Operand(kind, x, 256) for x in (MatrixLayout.contiguous(m, k), b, MatrixLayout.contiguous(m, n))]
    precision = "tf32" if dtype == "tf32" else "ieee"
    return GemmProblem(
        m, n, k, *operands, compute_dtype=as_dtype("float32"), device=Device("cuda", 0), precision=precision
    )


def candidates(row: dict[str, Any], dtype: str, product: int) -> list[Timed]:
    """Those of a product that there still are."""
    ways = lowered(problem(row["m"], row["n"], row["k"], row["order"], dtype))
    assert isinstance(ways, tuple)
    # hub_torch.py has timed one only.
    own = row.get("ratios", {}).get("hopper")
    times = row["us"] if "us" in row else {row["chosen"]["hopper"].split()[1]: row["torch_us"] / own} if own else {}
    found = []
    for name, us in times.items():
        if name in row["wrong"] or "hopper" in row["wrong"]:
            continue
        try:
            choice = cost_model.named(ways, name)
        except ValueError:  # a shape that was given up
            continue
        cut = choice.cut(WORKSPACE)
        if not isinstance(cut, str):
            found.append(Timed(product, name, us * 1e-6, cost_model.work(choice, cut, H200.sms)))
    return found


class Data:
    """All candidates of one input."""

    def __init__(self, timed: list[Timed]) -> None:
        self.works = [x.work for x in timed]
        self.seconds = np.array([x.seconds for x in timed])
        self.product = np.unique([x.product for x in timed], return_inverse=True)[1]
        best = np.full(self.product.max() + 1, np.inf)
        np.minimum.at(best, self.product, self.seconds)
        self.lost = self.seconds / best[self.product] - 1
        few = np.bincount(self.product)[self.product] == 1
        self.weight = np.where(few, _FEW, np.exp(-_NEAR * self.lost) + 0.01)

    def logs(self, constants: Constants) -> Any:
        """Of estimate over measured."""
        estimates = [cost_model.seconds_of(work, H200, constants) for work in self.works]
        return np.log(np.array(estimates) / self.seconds)

    def error(self, constants: Constants) -> float:
        """Of estimates, relative."""
        return math.sqrt((self.weight * self.logs(constants) ** 2).sum() / self.weight.sum())

    def chosen(self, constants: Constants) -> Any:
        """For each product, what the candidate with the lowest estimate loses to the fastest."""
        order = np.lexsort((np.exp(self.logs(constants)) * self.seconds, self.product))
        return self.lost[order[np.concatenate([[0], np.flatnonzero(np.diff(self.product[order])) + 1])]]

    def report(self, constants: Constants) -> str:
        lost, error = self.chosen(constants), self.error(constants)
        return (
            f"{len(lost)} products, {len(self.works)} candidates: estimates off by {error:.1%}; chosen ones lose "
            f"{lost.mean():.1%} to the fastest, 95 of 100 at most {np.quantile(lost, 0.95):.1%}, all {lost.max():.1%}"
        )


def fit(data: Data, before: Constants) -> Constants:
    from scipy.optimize import least_squares

    def constants(v: Any) -> Constants:
        return Constants(*(x * math.exp(y) for x, y in zip(before, v)))

    def residuals(v: Any) -> Any:
        return np.concatenate([data.logs(constants(v)) * np.sqrt(data.weight), _DRAWN * v])

    found = least_squares(residuals, np.zeros(len(before)), loss="soft_l1", f_scale=0.1, max_nfev=25)
    return Constants(*(float(f"{x:.4g}") for x in constants(found.x)))


def text(found: dict[str, Constants]) -> str:
    """fitted.py with other numbers."""
    old = Path(fitted.__file__).read_text()
    lines = []
    for name, constants in found.items():
        words = [f"{key}={value!r}" for key, value in constants._asdict().items()]
        rows = "".join(f"        {', '.join(words[i : i + 6])},\n" for i in range(0, len(words), 6))
        lines.append(f'    "{name}": Constants(\n{rows}    ),\n')
    table = "CONSTANTS = {\n" + "".join(lines) + "}  # fmt: skip\n"
    return old[: old.index("_PLAIN = ") if "_PLAIN = " in old else old.index("CONSTANTS = ")] + table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="into gemmhub_hopper/fitted.py")
    options = parser.parse_args()
    timed: dict[str, list[Timed]] = {}
    for file in options.files:
        record = json.loads(file.read_text())
        kept = timed.setdefault(INPUTS[record["dtype"]], [])
        for row in record["rows"]:
            kept += candidates(row, record["dtype"], kept[-1].product + 1 if kept else 0)
    found = dict(fitted.CONSTANTS)
    for kind, each in timed.items():
        data = Data(each)
        # The first input's constants are the others' start, as there are more measurements of it.
        before = found["bfloat16"]._replace(loading=found[kind].loading) if kind != "bfloat16" else found[kind]
        print(f"{kind}, before: {data.report(fitted.CONSTANTS[kind])}")
        found[kind] = fit(data, before)
        print(f"{kind}, after:  {data.report(found[kind])}", flush=True)
        for key, value in found[kind]._asdict().items():
            print(f"    {key:14} {value:.4g}")
    found["float16"] = found["bfloat16"]
    if options.write:
        Path(fitted.__file__).write_text(text(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
