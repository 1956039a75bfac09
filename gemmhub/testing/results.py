"""Outcome of a case, and the check of what one call wrote: a result within its bound, and nothing beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub.accuracy import Reference
from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.testing import diagnose
from gemmhub.testing.answers import call, require
from gemmhub.testing.operands import Operands

Array = Any


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case that did not fail."""

    refusal: Refusal | None = None
    """Refusal of the backend; None where it accepted, and its result is correct."""
    worst: float = 0.0
    """Largest error as a fraction of its bound."""

    @property
    def accepted(self) -> bool:
        return self.refusal is None


def run_once(operands: Operands, kernel: Kernel, label: str, packed: object = None) -> float:
    """Call ``run`` once; return the worst error/bound."""
    call(f"{label}: run()", operands.run, kernel, packed)
    return verify(operands, label)


def verify(operands: Operands, label: str) -> float:
    """Check that a call has changed only what it writes, and check that; return the worst error/bound."""
    for argument, placed in operands.inputs.items():
        now = placed.read()[1]
        require(bool(np.array_equal(now, placed.image)), f"{label}: run() changed its input {argument}")
    results = {}
    for argument, placed in operands.written.items():
        results[argument], now = placed.read()
        stray = placed.outside() & (now != placed.image)
        if stray.any():
            at = np.flatnonzero(stray)
            which = "the result" if argument == "out" else argument
            raise AssertionError(
                f"{label}: run() wrote outside {which}: {at.size} bytes between its elements or around it, the first "
                f"{int(at[0]) - placed.offset:+d} bytes from element [0, 0] (layout {operands.case.out!r})"
            )
    want = operands.expected()
    worst = compare(operands, results.pop("out"), label, want)
    return max(worst, *(_compare_other(operands, name, got, label, want) for name, got in results.items()), 0.0)


def compare(operands: Operands, got: Array, label: str, want: Reference | None = None) -> float:
    """The largest error/bound of the result ``got``; AssertionError where it is above 1."""
    if not got.size:
        return 0.0
    want = operands.expected() if want is None else want
    with np.errstate(all="ignore"):
        ratio = np.broadcast_to(want.ratio(got), got.shape)
        worst = float(np.max(ratio))
        if not worst <= 1.0:
            about = diagnose.describe(operands, got, ratio, operands.out.values)
            raise AssertionError(f"{label}, data seed {operands.seed}: wrong result\n  {about}")
    return worst


def _compare_other(operands: Operands, name: str, got: Array, label: str, want: Reference) -> float:
    """The largest error/bound of what a call wrote beside the result; AssertionError where it is above 1."""
    beside = want.pre if name == "pre_activation" else want.amax
    assert beside is not None, name
    if not got.size:
        return 0.0
    with np.errstate(all="ignore"):
        ratio = np.broadcast_to(beside.ratio(got), got.shape)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    if not ratio[at] <= 1.0:
        raise AssertionError(
            f"{label}, data seed {operands.seed}: wrong {name}\n  {int((ratio > 1).sum())} of {ratio.size} elements "
            f"are off; worst at {list(map(int, at))}: got {got[at]} (error/bound {ratio[at]:.3g})"
        )
    return float(ratio[at])
