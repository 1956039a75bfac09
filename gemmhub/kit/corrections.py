"""Learned corrections of cost models: small networks fitted to the measured times of one card.

A plugin ships a folder for each card that was measured, with ``card.json`` (a :class:`Origin`) and one network for each
class of products. A correction serves only on the card and with the library that it was fitted to: elsewhere the model
alone serves, and so it does for candidates unlike those that were measured (:func:`factors`). Handwritten kernels then
have :data:`UNMEASURED` as a margin. The vendor's library has none: gemmhub-cublas uses its model as it is.
``benchmarks/fit`` measures and trains.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemmhub.kit.net import Net

LIMIT = 0.7
"""Largest absolute logarithm of a correction's factor."""
UNMEASURED = 1.1
"""Factor on the estimates of handwritten kernels where no correction serves: a wrong guess against the vendor's library
costs more than the gain of a right one.
"""
NOTE = "not measured on this card"
"""Remark of ``explain`` where no correction serves."""
_NEAR = 0.05
"""Largest relative difference of the memory bandwidths of two cards that count as one."""


@dataclass(frozen=True)
class Origin:
    """The card and the versions that a folder of corrections was measured with."""

    card: str
    """Name of the card, as the driver reports it."""
    sms: int
    """Multiprocessors."""
    bandwidth: float
    """Memory bandwidth in bytes a second."""
    library: str = ""
    """Version of the vendor library, major and minor; empty for a plugin's own kernels."""
    driver: str = ""
    """CUDA version of the driver, for information: corrections serve with any driver."""
    command: str = ""
    """Command that measured."""

    def serves(self, card: str, sms: int, bandwidth: float, library: str = "") -> bool:
        """Whether these corrections serve a device and a library version (of any number of components)."""
        same_card = card == self.card and sms == self.sms and abs(bandwidth / self.bandwidth - 1) <= _NEAR
        return same_card and library.split(".")[:2] == self.library.split(".")[:2]


class Described(NamedTuple):
    """Candidates of one class for a problem, as input for a network."""

    kind: str
    names: list[str]
    modelled: list[float]
    """Seconds of each candidate by the analytic model."""
    rows: list[list[float]]
    """Features of each candidate."""
    handled: tuple[int, ...] = ()
    """Features that the plugin accounts for itself, as of :meth:`gemmhub.kit.net.Net.covers`."""


@dataclass(frozen=True)
class Correction:
    """One network, for one class of products on one card."""

    net: Net
    """Network that predicts log(measured seconds / modelled seconds) from a row of features."""
    origin: Origin

    def factors(
        self, rows: Sequence[Sequence[float]] | np.ndarray[Any, Any], handled: Sequence[int] = ()
    ) -> np.ndarray[Any, Any]:
        """The factors on the modelled seconds of the candidates of one product, one for each row of features."""
        if not len(rows):
            return np.empty(0)
        return factors(self.net, rows, [0] * len(rows), handled)


def factors(
    net: Net, rows: Sequence[Sequence[float]] | np.ndarray[Any, Any], products: Sequence[int],
    handled: Sequence[int] = (), alone: float = UNMEASURED,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """The factors on the modelled seconds of candidates, one for each row of features.

    The network corrects those that :meth:`Net.covers`: outside of the ranges that it was fitted to, its output is a
    guess. There the model alone serves, with ``alone`` as a margin. Where the network covers other candidates of the
    same product and their median factor is above the margin, the median is the margin: a candidate must not win
    because it is unlike those that were measured.

    ``products``: the number of each candidate's product. ``handled``: as of :meth:`Net.covers`.
    """
    single, numbers = np.asarray(rows), np.asarray(products)
    found: np.ndarray[Any, Any] = np.exp(np.clip(net.predict(single), -LIMIT, LIMIT))
    covered = net.covers(single, handled)
    for product in np.unique(numbers[~covered]).tolist():
        own = numbers == product
        others = found[own & covered]
        found[own & ~covered] = max(alone, float(np.median(others))) if len(others) else alone
    return found


@cache
def find(data: Path, kind: str, card: str, sms: int, bandwidth: float, library: str = "") -> Correction | None:
    """The correction for products of ``kind`` (a file name without suffix) in a plugin's folder ``data``; None where no
    folder of it serves. It is read once a process.
    """
    for folder in sorted(data.iterdir()) if data.is_dir() else ():
        origin = _origin(folder)
        file = folder / f"{kind}.npz"
        if origin is not None and origin.serves(card, sms, bandwidth, library) and file.is_file():
            with np.load(file, allow_pickle=False) as arrays:
                return Correction(Net.of(arrays), origin)
    return None


def _origin(folder: Path) -> Origin | None:
    file = folder / "card.json"
    return Origin(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
