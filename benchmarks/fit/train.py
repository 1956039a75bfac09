"""Fit the corrections of gemmhub's CUDA backends to the times of measure.py on one card.

    python -m benchmarks.fit.train DIR... [--write] [--epochs 120]

It needs torch (on the CPU) and the plugins to fit, no card. All networks are trained together: the loss is mostly the
error of each candidate relative to the others of its product, of any backend, weighted to those near the fastest; the
choice depends on nothing else. Some products are held out, and the tables show the gain of the corrections on them.
``--write`` replaces gemmhub_PLUGIN/data/CARD of each plugin, and writes the tables of the held-out products to
benchmarks/results/CARD/held_out.txt.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.fit import sample
from benchmarks.lib.results import FOLDER
from gemmhub.kit.corrections import LIMIT, UNMEASURED, Origin
from gemmhub.kit.net import Net
from gemmhub.problem import GemmProblem

Array = np.ndarray[Any, Any]
PLUGINS = ("cublas", "hopper", "cuda")
_WIDTH, _LAYERS = 64, 2
_BATCH, _RATE, _DECAY, _WARM_UP = 128, 3e-3, 1e-2, 100
"""Products of a step; parameters of Adam with decoupled weight decay, whose rate rises and then falls as a cosine."""
_NEAR, _LEAST = 5.0, 0.01
"""Decay of a candidate's weight with its distance from the fastest of its product, and its least value."""
_COMMON = 0.1
"""Weight of the error that all candidates of a product share."""
_SHARE = 3.0
"""Mean weight of all candidates of a product together."""
_RARE = 1e-3
"""Fraction of a feature's values that may be outside the network's range, on either side."""
_HELD = 20
"""Inverse of the fraction of products that are held out."""
_FEWEST = 60
"""Least number of products of a kind for a network."""


@dataclass
class Part:
    """The candidates of one kind of one plugin, one entry for each."""

    key: tuple[str, str]
    """Plugin and kind."""
    product: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    modelled: list[float] = field(default_factory=list)
    rows: list[list[float]] = field(default_factory=list)


@dataclass
class Data:
    """The measurements: products by number, times in seconds."""

    rows: list[dict[str, Any]]
    torch: Array
    """Seconds of torch's call; NaN where it was not timed."""
    fastest: Array
    """Seconds of gemmhub's fastest candidate."""
    parts: list[Part]

    @property
    def held(self) -> Array:
        return np.array([zlib.crc32(f"{row['class']} {row['number']}".encode()) % _HELD == 0 for row in self.rows])


def plugins() -> dict[str, ModuleType]:
    """Return the modules that describe candidates, by plugin."""
    return {name: importlib.import_module(f"gemmhub_{name}.corrections") for name in PLUGINS}


def margins(names: Iterable[str]) -> dict[str, float]:
    """Return the factors by which the plugins' backends multiply their estimates."""
    return {name: getattr(importlib.import_module(f"gemmhub_{name}.backend"), "MARGIN", 1.0) for name in names}


def cards(facts: dict[str, Any]) -> dict[str, Any]:
    """Return, for each plugin, the card of card.json as its ``describe`` takes it."""
    from gemmhub_cuda.model import Card as CudaCard
    from gemmhub_hopper.model import Card as HopperCard

    capability = tuple(facts["capability"])
    common = facts["sms"], facts["clock"], facts["bandwidth"]
    limits = facts["shared_per_block"], facts["shared_per_sm"], facts["threads_per_sm"]
    return {
        "cublas": SimpleNamespace(**{**facts, "capability": capability}),
        "hopper": HopperCard(*common, tuple(facts["clusters"])),
        "cuda": CudaCard(*common, capability, *limits),
    }


def described(module: ModuleType, asked: GemmProblem, card: Any, names: Sequence[str]) -> list[Any]:
    """Return the descriptions that have candidates; a plugin has one, several, or none."""
    found = module.describe(asked, card, names)
    if found is None:
        return []
    return [x for x in ([found] if hasattr(found, "kind") else found) if x.names]


def read(rows: list[dict[str, Any]], modules: dict[str, ModuleType], card: dict[str, Any]) -> Data:
    rows = [row for row in rows if any(row["us"].get(name) for name in modules)]
    parts: dict[tuple[str, str], Part] = {}
    for i, row in enumerate(rows):
        asked = sample.problem(sample.of(row))
        for name, module in modules.items():
            us = row["us"].get(name, {})
            for found in described(module, asked, card[name], list(us)) if us else ():
                part = parts.setdefault((name, found.kind), Part((name, found.kind)))
                part.product += [i] * len(found.names)
                part.names += found.names
                part.measured += [us[x] * 1e-6 for x in found.names]
                part.modelled += found.modelled
                part.rows += found.rows
    fastest = [min(us for name in modules for us in row["us"].get(name, {}).values()) * 1e-6 for row in rows]
    theirs = [min(row["us"].get("torch", {}).values(), default=math.nan) * 1e-6 for row in rows]
    return Data(rows, np.array(theirs), np.array(fastest), list(parts.values()))


class Ranges:
    """The ranges that Net clips features to, and their scaling."""

    def __init__(self, rows: Array) -> None:
        self.least, self.most = (np.quantile(rows, q, axis=0).astype(np.float32) for q in (_RARE, 1 - _RARE))
        inside = np.clip(rows, self.least, self.most)
        spread = inside.std(axis=0)
        self.mean = inside.mean(axis=0).astype(np.float32)
        self.scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0).astype(np.float32)

    def scaled(self, rows: Array) -> torch.Tensor:
        return torch.from_numpy((np.clip(rows, self.least, self.most) - self.mean) * self.scale).float()


class Module(torch.nn.Module):
    """The trainable form of gemmhub.kit.net.Net."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        sizes = [inputs, *[_WIDTH] * _LAYERS, 1]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(x, y) for x, y in pairwise(sizes))
        for layer in self.layers:
            last = layer.out_features == 1
            torch.nn.init.normal_(layer.weight, 0, math.sqrt(2 / layer.in_features) * (0.1 if last else 1))
            torch.nn.init.zeros_(layer.bias)

    def forward(self, scaled: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers[:-1]):
            found = torch.nn.functional.silu(layer(scaled))
            scaled = found if i == 0 else scaled + found
        answer: torch.Tensor = self.layers[-1](scaled)[:, 0]
        return answer

    def arrays(self, ranges: Ranges) -> dict[str, Array]:
        """Return the arrays for Net.of, in half precision, whose rounding is below the noise of measurements."""
        found = {name: getattr(ranges, name) for name in ("least", "most", "mean", "scale")}
        for i, layer in enumerate(self.layers):
            found[f"weights{i}"] = layer.weight.detach().numpy().T.astype(np.float16)
            found[f"biases{i}"] = layer.bias.detach().numpy().astype(np.float32)
        return found


class Learner:
    """The network of one part with its training data."""

    def __init__(self, part: Part, data: Data, seen: Array) -> None:
        self.part = part
        product = np.array(part.product)
        kept = seen[product]
        rows = np.array(part.rows, np.float32)[kept]
        measured, modelled = (np.array(x)[kept] for x in (part.measured, part.modelled))
        self.product = product[kept]
        self.ranges = Ranges(rows)
        self.scaled = self.ranges.scaled(rows)
        self.logs = torch.from_numpy(np.clip(np.log(measured / modelled), -LIMIT, LIMIT)).float()
        lost = measured / data.fastest[self.product] - 1
        self.weights = torch.from_numpy(np.exp(-_NEAR * lost) + _LEAST).float()
        self.net = Module(rows.shape[1])

    def batches(self, place: Array, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return, for each step, the candidates and the positions of their products in it."""
        at = place[self.product]
        order = np.argsort(at, kind="stable")
        cuts = np.searchsorted(at[order], np.arange(1, steps) * _BATCH)
        return [(torch.from_numpy(which), torch.from_numpy(at[which] % _BATCH)) for which in np.split(order, cuts)]


def fit(data: Data, epochs: int, seed: int = 0, fewest: int = _FEWEST) -> dict[tuple[str, str], dict[str, Array]]:
    """Return networks as arrays for Net.of, by (plugin, kind), fitted to the products that are not held out."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    seen = ~data.held
    learners = [Learner(x, data, seen) for x in data.parts if len({i for i in x.product if seen[i]}) >= fewest]
    if not learners:
        return {}
    numbers = np.flatnonzero(seen)
    steps = -(-len(numbers) // _BATCH)
    parameters = [x for learner in learners for x in learner.net.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=_RATE, betas=(0.9, 0.99), weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, epochs * steps))
    place = np.zeros(len(data.rows), int)
    start = time.monotonic()
    for epoch in range(epochs):
        place[numbers] = rng.permutation(len(numbers))
        total = 0.0
        for some in zip(*(learner.batches(place, steps) for learner in learners)):
            loss = _loss(learners, some)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: {total / steps:.6f}, {time.monotonic() - start:.0f} s", flush=True)
    return {learner.part.key: learner.net.arrays(learner.ranges) for learner in learners}


def _rate(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / _WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


def _loss(learners: list[Learner], some: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the loss: errors that a product's candidates do not share, and a small part of the one that they share."""
    errors, weights, at = (torch.cat(list(x)) for x in zip(*(
        (x.net(x.scaled[which]) - x.logs[which], x.weights[which], places) for x, (which, places) in zip(learners, some)
    )))  # fmt: skip
    whole, common = (torch.zeros(_BATCH).index_add(0, at, x) for x in (weights, weights * errors))
    common = common / (whole + 1e-6)
    own = (weights * (errors - common[at]) ** 2).sum()
    loss: torch.Tensor = (own / _SHARE + _COMMON * (common**2).sum()) / _BATCH
    return loss


class Judged:
    """The estimates of all products, by the model alone and corrected."""

    def __init__(
        self, data: Data, nets: dict[tuple[str, str], dict[str, Array]], margins: dict[str, float] | None = None
    ) -> None:
        """Compute the estimates; ``margins`` are those of :func:`margins`, 1 for missing plugins."""
        self.data, self.margins = data, margins or {}
        self.estimates: list[dict[bool, Array]] = []
        for part in data.parts:
            modelled = np.array(part.modelled)
            arrays = nets.get(part.key)
            known = np.zeros(len(modelled)) if arrays is None else Net.of(arrays).predict(np.array(part.rows))
            margin = self.margins.get(part.key[0], 1.0)
            handwritten = part.key[0] != "cublas"
            corrected = modelled * np.exp(np.clip(known, -LIMIT, LIMIT))
            alone = modelled * (UNMEASURED if handwritten else 1.0)
            self.estimates.append({
                False: alone * margin, True: (alone if arrays is None else corrected) * margin,
            })  # fmt: skip

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
        lost = measured / self.data.fastest[np.array(part.product)[which]] - 1
        logs = np.log(self.estimates[index][corrected][which] / self.margins.get(part.key[0], 1.0) / measured)
        weights = np.exp(-_NEAR * lost) + _LEAST
        return math.sqrt((weights * logs**2).sum() / weights.sum()) if len(logs) else math.nan


def report(judged: Judged, nets: dict[tuple[str, str], dict[str, Array]], some: Array) -> list[str]:
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


def write(nets: dict[tuple[str, str], dict[str, Array]], facts: dict[str, Any], folders: dict[str, Path]) -> None:
    """Write this card's folder in the data folder of each plugin, replacing an existing one."""
    for plugin, data in folders.items():
        own = {kind: arrays for (name, kind), arrays in nets.items() if name == plugin}
        target = data / re.sub(r"[^a-z0-9]+", "-", facts["name"].lower()).strip("-")
        if target.is_dir():
            shutil.rmtree(target)
        if own:
            target.mkdir(parents=True)
            library = ".".join(facts["library"].split(".")[:2]) if plugin == "cublas" else ""
            words = facts["name"], facts["sms"], facts["bandwidth"], library, facts["driver"], facts["command"]
            (target / "card.json").write_text(json.dumps(asdict(Origin(*words)), indent=1) + "\n")
            for kind, arrays in own.items():
                np.savez(target / f"{kind}.npz", **arrays)
            size = sum(file.stat().st_size for file in target.iterdir())
            print(f"{target}: {', '.join(own)}; {size} bytes")


def write_report(lines: list[str], products: int, facts: dict[str, Any], folder: Path) -> None:
    """Write the tables of held-out products as held_out.txt of the card's folder in ``folder``."""
    path = folder / facts["name"].split()[1].lower() / "held_out.txt"
    path.parent.mkdir(exist_ok=True)
    head = [
        f"products: {products} of `{facts['command']}` on an {facts['name']}",
        "tables: the report of benchmarks/fit/train.py on products that it holds out, with the networks that it writes",
        f"cuBLASLt {facts['library']}, CUDA {facts['driver']}, torch {facts['torch']}",
        "(net/torch: torch's time over that of the fastest estimated, of those candidates that were timed; "
        "best/torch: of the fastest timed)",
    ]
    path.write_text("\n".join([*head, "", *lines]) + "\n")


def card_of(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the facts of card.json, which must be those of one card."""
    found = [json.loads((folder / "card.json").read_text()) for folder in folders]
    for facts, folder in zip(found, folders):
        other = [key for key in ("name", "sms", "bandwidth", "library") if facts[key] != found[0][key]]
        if other:
            raise SystemExit(f"{folder} is of another card than {folders[0]}: {', '.join(other)}; train them apart")
    card: dict[str, Any] = found[0]
    return card


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--write", action="store_true", help="the networks and the report of held-out products")
    options = parser.parse_args()
    facts, modules = card_of(options.folders), plugins()
    rows = [row for folder in options.folders for name in sample.SHARES
            for row in sample.read(folder / f"{name}.jsonl")]  # fmt: skip
    start = time.monotonic()
    data = read(rows, modules, cards(facts))
    print(f"{len(data.rows)} products on {facts['name']}, described in {time.monotonic() - start:.0f} s", flush=True)
    nets = fit(data, options.epochs)
    print("\nproducts that were held out:")
    judged = Judged(data, nets, margins(modules))
    held = report(judged, nets, data.held)
    print("\n".join(held))
    print("\nproducts that were learned from:")
    print("\n".join(report(judged, nets, ~data.held)))
    if options.write:
        write(nets, facts, {name: Path(module.__file__ or "").parent / "data" for name, module in modules.items()})
        write_report(held, len(data.rows), facts, FOLDER)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
