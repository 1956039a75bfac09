"""The results of an audit: faults, observations on bits and counts, for each implementation."""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._base.wording import counted

_CELLS = 48
"""Cells of a picture along either side at most."""


@dataclass(frozen=True)
class Fault:
    """A product that is not as claimed."""

    kind: str
    """Kind of fault: "value", "nan", "bits" ..."""
    trial: str
    """Kind of trial that found it: "product", "rows" ..."""
    found: str
    """The case that found it, as an expression."""
    smallest: str
    """The smallest case that still fails."""
    text: str
    """The failure of the smallest case."""
    count: int
    """Number of trials that found a fault of this kind, with these dtypes and parts."""
    bound: float | None = None
    """Bound of the worst element."""
    worst: float | None = None
    """Its error as a multiple of the bound."""
    script: str | None = None
    """A script that repeats it without gemmhub."""
    repeated: bool = False
    """Whether the script was run and failed."""
    alone: str = ""
    """The outcome of the script in a process of its own: "run alone: fails", "does not run alone: NameError ..."."""
    grid: tuple[tuple[float, ...], ...] = ()
    """Error/bound over the result: the largest in each cell."""
    shape: tuple[int, int] = (0, 0)
    """Size of the result that the grid covers."""
    blocks: tuple[tuple[int, int, bool], ...] = ()
    """Blocks of k, [low, high), and whether the product of that block alone is wrong."""


@dataclass(frozen=True)
class Bits:
    """Trials of one promise on bits."""

    equal: int
    differed: int
    claimed: bool


@dataclass(frozen=True)
class Audited:
    """The results of one implementation."""

    name: str
    versions: Mapping[str, str]
    products: tuple[str, ...]
    """Dtypes that it claims: "float32", or "bfloat16 -> float32"."""
    notes: tuple[tuple[str, str], ...]
    """Facts that the claims rest on, and their sources."""
    trials: int
    """Number of trials that ran, refusals not among them."""
    refused: Mapping[str, int]
    """Refusals, by their text."""
    worst: float
    """Largest error of a correct result as a fraction of its bound."""
    seconds: float
    bits: Mapping[str, Bits]
    faults: tuple[Fault, ...] = ()

    @property
    def verdict(self) -> str:
        """ "failed" with a fault, "refused" where no trial ran, else "passed"."""
        return "failed" if self.faults else "passed" if self.trials else "refused"


@dataclass(frozen=True, repr=False)
class Audit(Report):
    """The result of an audit. It is true where every implementation passed."""

    effort: str
    seed: int
    date: str
    system: Mapping[str, str]
    implementations: tuple[Audited, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Whether trials of every implementation ran, and found no fault."""
        return bool(self.implementations) and all(x.verdict == "passed" for x in self.implementations)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults."""
        return tuple(fault for x in self.implementations for fault in x.faults)

    def _parts(self) -> Iterator[Part]:
        rows = [
            (x.name, x.verdict, str(x.trials), str(sum(x.refused.values())),
             str(len(x.faults)), f"{x.worst:.2g}", bits_text(x.bits))
            for x in self.implementations
        ]  # fmt: skip
        header = ("implementation", "result", "trials", "refused", "faults", "worst error/bound", "bits (equal trials)")
        yield Table(header, rows, right=header[2:6], marked=("result",))
        for x in self.implementations:
            if x.verdict == "refused":
                why = (f"{text} ({counted(count, 'trial')})" for text, count in x.refused.items())
                yield Facts([("refused", f"{x.name}: {next(why, 'no trial is among its claims')}")])
            for fault in x.faults:
                facts = [("fault", f"{x.name}: {fault.trial}, {fault.kind}, in {fault.count} trials")]
                facts += [("smallest", fault.smallest), ("failure", fault.text)]
                yield Facts(facts)
                if fault.script is not None:
                    yield f"{fault.script.rstrip()}\n# {fault.alone}"


def bits_text(bits: Mapping[str, Bits]) -> str:
    """The observations on bits as text; a claimed promise has a star."""
    return ", ".join(f"{name}{'*' * x.claimed} {x.equal}/{x.equal + x.differed}" for name, x in bits.items()) or "-"


def pooled(ratio: Any) -> tuple[tuple[float, ...], ...]:
    """The errors of a result as a grid of at most 48 by 48 cells: the largest of each, to three digits."""
    rows, columns = ratio.shape

    def edges(size: int) -> list[int]:
        count = min(size, _CELLS)
        return [size * i // count for i in range(count + 1)]

    down, across = edges(rows), edges(columns)
    return tuple(tuple(float(f"{ratio[i:j, k:n].max():.3g}") for k, n in pairwise(across)) for i, j in pairwise(down))


def anonymous(text: str) -> str:
    """``text`` without paths, the name of the user and that of the host."""
    text = re.sub(r"(?<![\w:/.])(?:/[\w.+~-]+){2,}/?", "<path>", text)
    for private in (str(Path.home()), platform.node(), _user()):
        if len(private) > 3:
            text = text.replace(private, "<private>")
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no entry of the user database
        return ""
