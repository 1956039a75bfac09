"""How good estimates are: their errors, and what the choices by them lose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fit import sample
from benchmarks.fit.data import Array, Data, Key, Part, weights
from gemmhub.kit import corrections
from gemmhub.kit.corrections import UNMEASURED
from gemmhub.kit.net import Net


class Judged:
    """The estimates of all products, by the model alone and corrected."""

    def __init__(self, data: Data, nets: Mapping[Key, Net], margins: dict[str, float] | None = None) -> None:
        """Compute the estimates; ``margins`` are those of :func:`margins`, 1 for missing plugins."""
        self.data, self.margins = data, margins or {}
        self.estimates: list[dict[bool, Array]] = []
        for part in data.parts:
            modelled = np.array(part.modelled)
            net = nets.get(part.key)
            margin = self.margins.get(part.key[0], 1.0)
            unmeasured = UNMEASURED if part.key[0] != "cublas" else 1.0
            alone = modelled * unmeasured
            if net is not None:
                corrected = modelled * _factors(net, part, unmeasured)
            self.estimates.append({
                False: alone * margin, True: (alone if net is None else corrected) * margin,
            })  # fmt: skip

    def take(self, other: Judged, some: Array) -> None:
        """Take over the corrected estimates of the products of ``some``."""
        for part, own, theirs in zip(self.data.parts, self.estimates, other.estimates):
            which = some[np.array(part.product)]
            own[True][which] = theirs[True][which]

    def chosen(self, corrected: bool) -> Array:
        """Return the measured seconds of each product's candidate with the least estimate; NaN where there is none."""
        least = np.full(len(self.data.rows), np.inf)
        found = np.full(len(self.data.rows), np.nan)
        for part, estimates in zip(self.data.parts, self.estimates):
            for i, seconds, measured in zip(part.product, estimates[corrected], part.measured):
                if seconds < least[i]:
                    least[i], found[i] = seconds, measured
        return found

    def error(self, index: int, corrected: bool, some: Array) -> float:
        """Return the error of the logarithms of one network's estimates, weighted to those near the fastest."""
        part = self.data.parts[index]
        which = some[np.array(part.product)]
        measured = np.array(part.measured)[which]
        logs = np.log(self.estimates[index][corrected][which] / self.margins.get(part.key[0], 1.0) / measured)
        near = weights(measured, self.data.fastest[np.array(part.product)[which]])
        return math.sqrt((near * logs**2).sum() / near.sum()) if len(logs) else math.nan


def _factors(net: Net, part: Part, unmeasured: float) -> Array:
    """Return the factors of a network on the estimates of the candidates of its part."""
    rows, products, found = np.array(part.rows), np.array(part.product), np.ones(len(part.rows))
    for handled in set(part.handled):  # those of a product's candidates are equal
        which = np.array([x == handled for x in part.handled])
        found[which] = corrections.factors(net, rows[which], products[which].tolist(), handled, unmeasured)
    return found


def report(judged: Judged, nets: Mapping[Key, Net], some: Array) -> list[str]:
    """Return two tables of the products of ``some``: errors by network, and choices by class and size."""
    data = judged.data
    lines = [f"{'estimates':20}{'candidates':>12}{'model off':>11}{'net off':>9}"]
    for i, part in enumerate(data.parts):
        count = int(some[np.array(part.product)].sum())
        errors = [judged.error(i, corrected, some) for corrected in (False, True)]
        note = "" if part.key in nets else "  no network: too few products"
        lines.append(f"{' '.join(part.key):20}{count:12}{errors[0]:11.1%}{errors[1]:9.1%}{note}")
    alone, learned = judged.chosen(False), judged.chosen(True)
    heads = ("model loses", "net loses", "model/torch", "net/torch", "best/torch", "worst", "<0.97")
    lines += ["", f"{'choices':22}{'n':>6}" + "".join(f"{head:>13}" for head in heads)]
    large = np.array([sample.of(row).flops >= sample.LARGE for row in data.rows])
    classes = np.array([row["class"] for row in data.rows])
    groups = [(f"{name} {size}", (classes == name) & (large == (size == "large")))
              for name in sample.SHARES for size in ("large", "small")]  # fmt: skip
    for name, group in [*groups, ("all", np.ones(len(classes), bool))]:
        which = some & group & ~np.isnan(learned) & ~np.isnan(data.torch)
        if which.any():
            best, theirs = data.fastest[which], data.torch[which]
            cells = [f"{np.mean(np.log(x[which] / best)):13.2%}" for x in (alone, learned)]
            cells += [f"{np.exp(np.mean(np.log(theirs / x))):13.3f}" for x in (alone[which], learned[which], best)]
            ratios = theirs / learned[which]
            cells += [f"{ratios.min():13.3f}", f"{np.mean(ratios < 0.97):13.1%}"]
            lines.append(f"{name:22}{int(which.sum()):6}{''.join(cells)}")
    return lines


def write_report(
    lines: list[str], data: Data, facts: dict[str, Any], folder: Path, kinds: Iterable[str] = (), folds: int = 0,
    shipped: bool = False,
) -> None:  # fmt: skip
    """Write the tables of held-out products as held_out.txt of the card's folder in ``folder``.

    Where only the networks of ``kinds`` were fitted, the name of the file has them. ``shipped``: the networks
    are those that the plugins had before.
    """
    path = folder / facts["name"].split()[1].lower() / f"{'_'.join(['held_out', *kinds])}.txt"
    words = f"on products that it holds out, with the networks that {'the plugins have' if shipped else 'it writes'}"
    if folds:
        words = f"on each of {folds} folds of the products, with networks fitted to the other folds"
    path.parent.mkdir(exist_ok=True)
    head = [
        f"products: {len(data.rows)} of `{facts['command']}` on an {facts['name']}",
        f"tables: the report of benchmarks/fit/train.py {words}",
        f"not learned from: {data.left_out}; torch's call took another time than cuBLASLt's first choice",
        f"cuBLASLt {facts['library']}, CUDA {facts['driver']}, torch {facts['torch']}",
        "(net/torch: torch's time over that of the fastest estimated, of those candidates that were timed; "
        "best/torch: of the fastest timed)",
    ]
    path.write_text("\n".join([*head, "", *lines]) + "\n")
