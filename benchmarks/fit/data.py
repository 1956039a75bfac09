"""The measurements of measure.py, described as the plugins describe candidates."""

from __future__ import annotations

import importlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.fit import sample
from benchmarks.lib.drawn import FP8
from gemmhub.problem import GemmProblem

Array = np.ndarray[Any, Any]
Key = tuple[str, str]
"""Plugin and kind of a network."""
PLUGINS = {
    "cublas": "gemmhub_cublas.corrections",
    "hopper": "gemmhub_hopper.cost.corrections",
    "cuda": "gemmhub_cuda.cost.corrections",
}
_NEAR, _LEAST = 5.0, 0.01
"""Decay of a candidate's weight with its distance from the fastest of its product, and its least value."""
_UNEQUAL = 0.1
"""Ratio of the times of cuBLASLt's first choice and of torch's call, as a logarithm, from which on they are unequal."""
_HELD = 20
"""Inverse of the fraction of products that are held out."""


@dataclass
class Part:
    """The candidates of one kind of one plugin, one entry for each."""

    key: Key
    product: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    modelled: list[float] = field(default_factory=list)
    rows: list[list[float]] = field(default_factory=list)
    handled: list[tuple[int, ...]] = field(default_factory=list)
    """Features that may differ where they were constant (gemmhub.kit.net.Net.covers)."""


@dataclass
class Data:
    """The measurements: products by number, times in seconds."""

    rows: list[dict[str, Any]]
    torch: Array
    """Seconds of torch's call; NaN where it was not timed."""
    fastest: Array
    """Seconds of gemmhub's fastest candidate."""
    parts: list[Part]
    unequal: Array
    """Whether cuBLASLt's first choice took another time than torch's call (:func:`unequal`): networks do not learn from
    such a product, which is judged as others are.
    """

    @property
    def left_out(self) -> str:
        """The products that networks do not learn from, as numbers by class."""
        every = Counter(row["class"] for row in self.rows)
        some = Counter(row["class"] for row, left_out in zip(self.rows, self.unequal) if left_out)
        return ", ".join(f"{number} of {every[name]} {name}" for name, number in some.items()) or "none"

    def fold(self, index: int, folds: int) -> Array:
        """Return, for each product, whether it is in this one of so many folds."""
        return np.array([zlib.crc32(f"{x['class']} {x['number']}".encode()) % folds == index for x in self.rows])

    @property
    def held(self) -> Array:
        return self.fold(0, _HELD)


def plugins() -> dict[str, ModuleType]:
    """Return the modules that describe candidates, by plugin."""
    return {name: importlib.import_module(module) for name, module in PLUGINS.items()}


def margins(names: Iterable[str]) -> dict[str, float]:
    """Return the factors by which the plugins' backends multiply their estimates."""
    return {name: getattr(importlib.import_module(f"gemmhub_{name}.backend"), "MARGIN", 1.0) for name in names}


def cards(facts: dict[str, Any]) -> dict[str, Any]:
    """Return, for each plugin, the card of card.json as its ``describe`` takes it."""
    from gemmhub_cuda.variants.card import Card as CudaCard
    from gemmhub_hopper.cost.model import Card as HopperCard

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
    parts: dict[Key, Part] = {}
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
                part.handled += [tuple(found.handled)] * len(found.names)
    fastest = [min(us for name in modules for us in row["us"].get(name, {}).values()) * 1e-6 for row in rows]
    theirs = [min(row["us"].get("torch", {}).values(), default=math.nan) * 1e-6 for row in rows]
    unlike = [unequal(row) for row in rows]
    return Data(rows, np.array(theirs), np.array(fastest), list(parts.values()), np.array(unlike, bool))


def unequal(row: dict[str, Any]) -> bool:
    """Return whether cuBLASLt's first choice took another time than torch's call of floats, as a rule the same kernel.

    Then either the host disturbed one of the two, or torch's call ran another kernel: the times do not tell which.
    """
    us = row["us"]
    first, theirs = us.get("cublas", {}).get("first"), us.get("torch", {})
    if not first or not theirs or row["dtype"] in ("int8", FP8):
        return False
    return abs(math.log(min(theirs.values()) / first)) > _UNEQUAL


def card_of(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the facts of card.json, which must be those of one kind of card, with the commands of all folders."""
    found = [json.loads((folder / "card.json").read_text()) for folder in folders]
    for facts, folder in zip(found, folders):
        other = [key for key in ("name", "sms", "bandwidth", "library") if facts[key] != found[0][key]]
        if other:
            raise SystemExit(f"{folder} is of another card than {folders[0]}: {', '.join(other)}; train them apart")
    return {**found[0], "command": ", ".join(dict.fromkeys(facts["command"] for facts in found))}


def weights(measured: Array, fastest: Array) -> Array:
    """Return the weights of candidates by their distance from the fastest of their products."""
    found: Array = np.exp(-_NEAR * (measured / fastest - 1)) + _LEAST
    return found
