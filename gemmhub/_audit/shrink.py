"""Reduction of a failing case to a small one that fails in the same manner (delta debugging, one field at a time).

Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE Trans. Software Eng. 28, 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from time import monotonic
from typing import Any

from gemmhub.testing.case import Case, possible

Fails = Callable[[Case], bool]

_SIMPLER: tuple[dict[str, Any], ...] = (
    {"batch": (), "a_batch": "full", "b_batch": "full"}, {"activation": None}, {"operands": {}, "operand_stride": 1},
    {"bias": None, "bias_stride": 1, "bias_offset": 0, "bias_dtype": None}, {"c": None, "beta": 0, "c_dtype": None},
    {"c": "row"}, {"beta": 1}, {"alpha": 1}, {"data": "normal"}, {"out": "row"}, {"a": "row"}, {"b": "row"},
    {"a": "row_odd"}, {"b": "row_odd"},
    {"offset": 0}, {"a_batch": "full"}, {"b_batch": "full"}, {"batch": (2,)}, {"poison": "nan"},
    {"precision": "ieee"}, {"reproducible": None},
)  # fmt: skip
"""Simpler values of fields, those that remove most first."""
_SECONDS = 20.0
"""Time that a reduction may take."""


def shrunk(case: Case, fails: Fails, seconds: float = _SECONDS) -> Case:
    """Return a case that still fails and that no single step makes simpler, as far as ``seconds`` allow.

    ``case`` fails. A fault that shows in some runs only is reduced as far as it shows.
    """
    deadline, tried = monotonic() + seconds, {repr(case)}
    progress = True
    while progress:
        progress = False
        for simpler in _steps(case):
            if monotonic() > deadline:
                return case
            if repr(simpler) in tried:
                continue
            tried.add(repr(simpler))
            if fails(simpler):
                case, progress = simpler, True
                break
    return case


def _steps(case: Case) -> Iterator[Case]:
    """Yield the cases that are one step simpler."""
    for values in _SIMPLER:
        changed = {name: value for name, value in values.items() if getattr(case, name) != value}
        if changed and not (changed.keys() == {"c"} and (case.c is None or case.c == "row")):
            if "beta" in changed and "c" not in values and case.c is None:
                continue
            if values.get("a", values.get("b")) == "row_odd" and "row" in (case.a if "a" in values else case.b):
                continue
            if "batch" in values and values["batch"] == (2,) and not case.batch:
                continue
            simpler = replace(case, **changed)
            if _allowed(simpler, case):
                yield simpler
    for name in case.operands:
        yield replace(case, operands={x: form for x, form in case.operands.items() if x != name})
    for size in ("k", "m", "n"):
        now = getattr(case, size)
        for smaller in dict.fromkeys(
            (1, 2, 3, now // 4, now // 2, now - now % 8, 3 * now // 4, now - 8, now - 2, now - 1)
        ):
            if 0 < smaller < now:
                simpler = replace(case, **{size: smaller})
                if _allowed(simpler, case):
                    yield simpler


def _allowed(simpler: Case, case: Case) -> bool:
    """Whether gemmhub's rules allow the simpler case; data that the kit does not draw for it stay as they are."""
    values = {x.name: getattr(simpler, x.name) for x in fields(simpler) if x.default is not MISSING or x.name in "mnk"}
    values |= {"operands": simpler.operands, "data": "normal"}
    return possible(values)
