"""Fit the corrections of gemmhub's CUDA backends to the times of measure.py on one card.

    python -m benchmarks.fit.train DIR... [--write] [--epochs 120] [--kinds | --keep PLUGIN/KIND... | --judge]
                                  [--folds 5]

It needs torch (on the CPU) and the plugins to fit, no card. All networks are trained together: the loss is mostly the
error of each candidate relative to the others of its product, of any backend, weighted to those near the fastest; the
choice depends on nothing else. Some products are held out, and the tables show the gain of the corrections on them.
Nothing is learned from products for which cuBLASLt's first choice took another time than torch's call; they are counted
by class, and judged where they are held out. ``--write`` replaces gemmhub_PLUGIN/data/CARD of each plugin, and writes
the tables of the held-out products to benchmarks/results/CARD/held_out.txt.

``--kinds`` trains some networks only, to measurements of their products: the others are those that the plugins have.
``--write`` then writes those networks and held_out_KINDS.txt. ``--folds`` is for few products: the tables are of all of
them, each judged by networks that were fitted to the other folds, and the networks that are written are fitted to all.

``--keep`` trains all networks but some, which stay as the plugins have them, and so do those with too few products.
``--judge`` trains none: the tables are of the networks that the plugins have.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fit import sample
from benchmarks.fit.data import Array, Data, Key, Part, card_of, cards, margins, plugins, read, weights
from benchmarks.fit.judged import Judged, report, write_report
from benchmarks.lib.results import FOLDER
from gemmhub.kit import corrections
from gemmhub.kit.corrections import LIMIT, Origin
from gemmhub.kit.net import Net

_WIDTH, _LAYERS = 64, 2
_BATCH, _RATE, _DECAY, _WARM_UP = 128, 3e-3, 1e-2, 100
"""Products of a step; parameters of Adam with decoupled weight decay, whose rate rises and then falls as a cosine."""
_COMMON = 0.1
"""Weight of the error that all candidates of a product share."""
_LARGE = 0.1
"""Error of an estimate, as a logarithm, from which on it counts in proportion."""
_SHARE = 3.0
"""Mean weight of all candidates of a product together."""
_FEWEST = 60
"""Least number of products of a kind for a network."""


class Ranges:
    """The ranges of features that Net covers, and their scaling."""

    def __init__(self, rows: Array) -> None:
        self.least, self.most = (end(rows, axis=0).astype(np.float32) for end in (np.min, np.max))
        spread = rows.std(axis=0)
        self.mean = rows.mean(axis=0).astype(np.float32)
        self.scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0).astype(np.float32)

    def scaled(self, rows: Array) -> torch.Tensor:
        return torch.from_numpy((rows - self.mean) * self.scale).float()


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
    """The network of one part with its training data; a ``known`` network is not trained."""

    def __init__(self, part: Part, data: Data, seen: Array, known: Net | None = None) -> None:
        self.part, self.known = part, known
        product = np.array(part.product)
        kept = seen[product]
        rows = np.array(part.rows, np.float32)[kept]
        measured, modelled = (np.array(x)[kept] for x in (part.measured, part.modelled))
        self.product = product[kept]
        logs = np.clip(np.log(measured / modelled), -LIMIT, LIMIT)
        self.logs = torch.from_numpy(logs).float()
        self.weights = torch.from_numpy(weights(measured, data.fastest[self.product])).float()
        if known is not None:
            self.fixed = torch.from_numpy(np.clip(known.predict(rows), -LIMIT, LIMIT) - logs).float()
            return
        self.ranges = Ranges(rows)
        self.scaled = self.ranges.scaled(rows)
        self.net = Module(rows.shape[1])

    def errors(self, which: torch.Tensor) -> torch.Tensor:
        """Return the errors of these candidates."""
        return self.net(self.scaled[which]) - self.logs[which] if self.known is None else self.fixed[which]

    def batches(self, place: Array, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return, for each step, the candidates and the positions of their products in it."""
        at = place[self.product]
        order = np.argsort(at, kind="stable")
        cuts = np.searchsorted(at[order], np.arange(1, steps) * _BATCH)
        return [(torch.from_numpy(which), torch.from_numpy(at[which] % _BATCH)) for which in np.split(order, cuts)]


def fit(
    data: Data,
    epochs: int,
    seed: int = 0,
    fewest: int = _FEWEST,
    seen: Array | None = None,
    fixed: Mapping[Key, Net | None] | None = None,
) -> dict[Key, dict[str, Array]]:
    """Return networks as arrays for Net.of, by (plugin, kind), fitted to the products of ``seen``.

    By default these are the products that are not held out; those of :attr:`Data.unequal` are left out. The parts of
    ``fixed`` are not trained: those with a network enter the loss with its estimates, the others do not.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    seen, fixed = (~data.held if seen is None else seen) & ~data.unequal, fixed or {}
    parts = [x for x in data.parts if x.key not in fixed and len({i for i in x.product if seen[i]}) >= fewest]
    trained = [Learner(x, data, seen) for x in parts]
    if not trained:
        return {}
    known = [(x, fixed.get(x.key)) for x in data.parts]
    learners = [*trained, *(Learner(x, data, seen, net) for x, net in known if net is not None)]
    numbers = np.flatnonzero(seen)
    steps = -(-len(numbers) // _BATCH)
    parameters = [x for learner in trained for x in learner.net.parameters()]
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
    return {learner.part.key: learner.net.arrays(learner.ranges) for learner in trained}


def _rate(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / _WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


def _robust(errors: torch.Tensor) -> torch.Tensor:
    """Return about the squares of small errors, and multiples of large ones: those of times that were disturbed.

    (Charbonnier et al., "Two deterministic half-quadratic regularization algorithms", 1994.)
    """
    return 2 * _LARGE**2 * ((1 + (errors / _LARGE) ** 2).sqrt() - 1)


def _loss(learners: list[Learner], some: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the loss: errors that a product's candidates do not share, and a small part of the one that they share."""
    errors, weights, at = (torch.cat(list(x)) for x in zip(*(
        (x.errors(which), x.weights[which], places) for x, (which, places) in zip(learners, some)
    )))  # fmt: skip
    whole, common = (torch.zeros(_BATCH).index_add(0, at, x) for x in (weights, weights * errors))
    common = common / (whole + 1e-6)
    own = (weights * _robust(errors - common[at])).sum()
    loss: torch.Tensor = (own / _SHARE + _COMMON * (common**2).sum()) / _BATCH
    return loss


def by_folds(data: Data, folds: int, epochs: int, fixed: Mapping[Key, Net | None], margins: dict[str, float]) -> Judged:
    """Return the estimates of each fold by networks that were fitted to the others."""
    found: Judged | None = None
    for i in range(folds):
        held = data.fold(i, folds)
        judged = Judged(data, together(fit(data, epochs, seen=~held, fixed=fixed), fixed), margins)
        if found is None:
            found = judged
        found.take(judged, held)
    assert found is not None, folds
    return found


def together(nets: Mapping[Key, dict[str, Array]], fixed: Mapping[Key, Net | None]) -> dict[Key, Net]:
    """Return the fitted networks and those of ``fixed``."""
    known = {key: net for key, net in fixed.items() if net is not None}
    return {**known, **{key: Net.of(arrays) for key, arrays in nets.items()}}


def origin(plugin: str, facts: dict[str, Any]) -> Origin:
    """Return the origin of a plugin's networks."""
    library = ".".join(facts["library"].split(".")[:2]) if plugin == "cublas" else ""
    return Origin(facts["name"], facts["sms"], facts["bandwidth"], library, facts["driver"], facts["command"])


def shipped(key: Key, facts: dict[str, Any], folders: dict[str, Path]) -> Net | None:
    """Return the network that the plugin has for this card; None where it has none."""
    made = origin(key[0], facts)
    found = corrections.find(folders[key[0]], key[1], made.card, made.sms, made.bandwidth, made.library)
    return found and found.net


def write(
    nets: Mapping[Key, dict[str, Array]], facts: dict[str, Any], folders: dict[str, Path], add: bool = False
) -> None:
    """Write this card's folder in the data folder of each plugin, replacing an existing one.

    With ``add``, the other networks of the folder stay, and the command of each new one is appended to theirs.
    """
    for plugin, data in folders.items():
        own = {kind: arrays for (name, kind), arrays in nets.items() if name == plugin}
        target = data / re.sub(r"[^a-z0-9]+", "-", facts["name"].lower()).strip("-")
        made = origin(plugin, facts)
        if target.is_dir() and add and own:
            made = _added(Origin(**json.loads((target / "card.json").read_text())), made, own)
        elif target.is_dir() and not add:
            shutil.rmtree(target)
        if own:
            target.mkdir(parents=True, exist_ok=True)
            (target / "card.json").write_text(json.dumps(asdict(made), indent=1) + "\n")
            for kind, arrays in own.items():
                np.savez(target / f"{kind}.npz", **arrays)
            size = sum(file.stat().st_size for file in target.iterdir())
            print(f"{target}: {', '.join(own)}; {size} bytes")


def _added(before: Origin, made: Origin, kinds: Iterable[str]) -> Origin:
    """Return the origin of a folder that networks of ``kinds`` are added to."""
    if not before.serves(made.card, made.sms, made.bandwidth, made.library):
        raise SystemExit(f"the other networks are of another card or library: {before}")
    new = list(kinds)
    kept = [x for x in before.command.split("; ") if not set(x.partition(":")[0].split(", ")) <= set(new)]
    return replace(before, command="; ".join([*kept, f"{', '.join(new)}: {made.command}, CUDA {made.driver}"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--write", action="store_true", help="the networks and the report of held-out products")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--kinds", nargs="+", metavar="PLUGIN/KIND", help="train these networks only")
    some.add_argument("--keep", nargs="+", metavar="PLUGIN/KIND", help="train all networks but these")
    some.add_argument("--judge", action="store_true", help="train nothing: judge the networks that the plugins have")
    parser.add_argument("--folds", type=int, default=0, metavar="N", help="cross-validate, and fit to all products")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the networks are small: several threads wait for each other
    facts, modules = card_of(options.folders), plugins()
    every_kind = {(name, kind) for name, module in modules.items() for kind in module.KINDS}
    given = {(plugin, kind) for plugin, _, kind in (x.partition("/") for x in options.kinds or options.keep or ())}
    chosen, unknown = every_kind - given if options.keep else given, given - every_kind
    if options.judge and options.folds:
        parser.error("--judge trains no folds")
    if unknown or options.folds == 1:
        parser.error(f"there is no kind {'/'.join(min(unknown))}" if unknown else "at least 2 folds are needed")
    folders = {name: module.DATA for name, module in modules.items()}
    rows = [row for folder in options.folders for name in sample.SHARES
            for row in sample.read(folder / f"{name}.jsonl")]  # fmt: skip
    start = time.monotonic()
    data = read(rows, modules, cards(facts))
    print(f"{len(data.rows)} products on {facts['name']}, described in {time.monotonic() - start:.0f} s", flush=True)
    print(f"not learned from: {data.left_out}; torch's call took another time than cuBLASLt's first choice", flush=True)
    others = [part.key for part in data.parts if options.judge or (chosen and part.key not in chosen)]
    fixed = {key: shipped(key, facts, folders) for key in others}
    every = np.ones(len(data.rows), bool)
    nets = fit(data, options.epochs, seen=every if options.folds else ~data.held, fixed=fixed)
    known = together(nets, fixed)
    judged = Judged(data, known, margins(modules))
    learned = report(judged, known, (every if options.folds else ~data.held) & ~data.unequal)
    if options.folds:
        judged = by_folds(data, options.folds, options.epochs, fixed, margins(modules))
    held = report(judged, known, every if options.folds else data.held)
    print("\n".join(["\nproducts that were held out:", *held, "\nproducts that were learned from:", *learned]))
    if options.write:
        if not options.judge:
            write(nets, facts, folders, add=bool(chosen))
        kinds = sorted(kind for _, kind in chosen) if options.kinds else []
        write_report(held, data, facts, FOLDER, kinds, options.folds, options.judge)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
