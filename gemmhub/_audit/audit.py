"""An audit: the trials of each implementation, and its faults reduced, located and written as scripts."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from time import monotonic

import numpy as np

from gemmhub._audit import large, locate, script, shrink
from gemmhub._audit.check import check
from gemmhub._audit.implementation import Implementation, Refused
from gemmhub._audit.judge import Wrong
from gemmhub._audit.result import Audit, Audited, Bits, Fault, anonymous, pooled
from gemmhub._audit.trials import EFFORTS, Trial, trials
from gemmhub._base.progress import report
from gemmhub.errors import InputError
from gemmhub.numpy_backend.probe import cpu_name
from gemmhub.testing.case import Case
from gemmhub.testing.memory import Unrepresentable

_EXAMINED = 12
"""Faults of one implementation that are reduced; of further ones the case that found them is kept."""
_ATTEMPTS = 3
"""Runs of a reduced trial: a fault that depends on chance counts where it shows in one."""
_PICTURED = 2**20
"""Number of products of elements of a case that a picture shows, at most."""
_PROMISES = {"repeat": "run", "rows": "rows", "threads": "threads"}
"""The promise on bits that each kind of trial tests."""


def audit(
    *implementations: Implementation, effort: str = "quick", seed: int = 0, seconds: float = 20.0, scripts: bool = True
) -> Audit:
    """Test implementations of matrix multiplication, each against what it claims.

    The products are those of gemmhub's conformance kit and of the faults that libraries have had: K remainders,
    alignment, strides, stacks, NaN beside operands, extremes of int8, results over an operand. Values are compared with
    the bound of :mod:`gemmhub.accuracy`. Bits are compared from run to run, between threads, and of rows among others;
    where no such promise is claimed, differences are counted and are no fault.

    Parameters
    ----------
    *implementations : implementations, as :meth:`Implementation.of` makes them of functions.
    effort : "quick" (about 1 second per dtype), "normal" (every case of the kit) or "full" (with 4000 random cases and
        a product of more than 2**31 elements where memory allows).
    seed : seed of the random cases.
    seconds : time limit for the reduction of one fault.
    scripts : whether the script of a fault is run, in a process of its own, to see that it repeats the fault.

    Returns
    -------
    Audit
        It is true where every implementation passed: trials ran, and found no fault. ``str()`` of it is what the
        command line prints.

    Raises
    ------
    InputError
        No implementation, what is none, or an unknown effort.

    See Also
    --------
    Implementation.of : make an implementation of a function.
    spot_check : check one result.

    Examples
    --------
    >>> import numpy as np
    >>> from gemmhub.testing import Claims, Implementation, audit, products
    >>> def without_remainder(a, b):  # it multiplies whole tiles of k alone
    ...     k = a.shape[-1] // 8 * 8
    ...     return a[..., :k] @ b[..., :k, :]
    >>> result = audit(Implementation.of(without_remainder, Claims(products("f32"))), scripts=False)
    >>> result.ok, result.faults[0].kind
    (False, 'value')
    """
    if effort not in EFFORTS:
        raise InputError("effort", repr(effort), ", ".join(EFFORTS))
    if not implementations:
        raise InputError("implementations", "none", "one or more implementations", "make one with Implementation.of()")
    for each in implementations:
        if not isinstance(each, Implementation):
            given = getattr(each, "__name__", type(each).__name__)
            remedy = "make one with Implementation.of()"
            raise InputError("implementations", given, "instances of Implementation", remedy)
    audited = tuple(_audited(x, effort, seed, seconds, scripts) for x in implementations)
    return Audit(effort, seed, datetime.now(timezone.utc).date().isoformat(), system(), audited)


def system() -> dict[str, str]:
    """The machine, without anything private: the processor, the system, the version of Python."""
    return {
        "processor": cpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


@dataclass
class _Group:
    """Faults of one kind with the same dtypes."""

    trial: Trial
    wrong: Wrong
    largest: tuple[Trial, Wrong]
    """The fault with the largest result, which pictures show."""
    count: int = 1

    def add(self, trial: Trial, wrong: Wrong) -> None:
        self.count += 1
        if _volume(trial.case) > _volume(self.largest[0].case):
            self.largest = (trial, wrong)


def _volume(case: Case) -> int:
    """Size of a case for a picture: 0 where it is too large, or its data are not random numbers."""
    volume = case.m * case.n * case.k
    return volume if case.data == "normal" and volume < _PICTURED else 0


@dataclass
class _Tally:
    """Counts of one implementation."""

    trials: int = 0
    worst: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    groups: dict[tuple[str, ...], _Group] = field(default_factory=dict)
    equal: Counter[str] = field(default_factory=Counter)
    differed: Counter[str] = field(default_factory=Counter)


def _audited(implementation: Implementation, effort: str, seed: int, seconds: float, scripts: bool) -> Audited:
    claims, tally, start = implementation.claims, _Tally(), monotonic()
    for trial in _limited(trials(claims, effort, seed), implementation.limit):
        report(f"{implementation.name}: {trial}")
        _try(implementation, trial, tally)
    known = tally.groups.keys()  # a product that is wrong by itself is wrong when it is repeated, too
    groups = [x for key, x in tally.groups.items() if key[0] not in _PROMISES or ("product", *key[1:]) not in known]
    faults = tuple(
        _fault(implementation, group, seconds if number < _EXAMINED else 0.0, scripts)
        for number, group in enumerate(groups)
    )
    if effort == "full":
        report(f"{implementation.name}: more than 2**31 elements")
        faults += large.faults(implementation, tally.refused)
    bits = {
        name: Bits(tally.equal[name], tally.differed[name], name in claims.bits)
        for name in _PROMISES.values()
        if tally.equal[name] + tally.differed[name]
    }
    versions = {name: anonymous(str(version)) for name, version in implementation.versions().items()}
    return Audited(
        implementation.name, versions, tuple(_product(*x) for x in sorted(claims.products)), claims.notes, tally.trials,
        dict(tally.refused.most_common()), tally.worst, round(monotonic() - start, 1), bits, faults,
    )  # fmt: skip


def _limited(every: Iterator[Trial], limit: int | None) -> Iterator[Trial]:
    """All trials, or ``limit`` of them, evenly spread."""
    if limit is None:
        return every
    kept = list(every)
    step = max(1.0, len(kept) / limit)
    return (kept[int(i * step)] for i in range(min(limit, len(kept))))


def _try(implementation: Implementation, trial: Trial, tally: _Tally) -> None:
    promise = _PROMISES.get(trial.kind)
    try:
        worst = check(implementation, trial)
    except Refused as refusal:
        tally.refused[anonymous(str(refusal))] += 1
        return
    except (Unrepresentable, MemoryError) as why:
        tally.refused[str(why) or "not enough memory"] += 1
        return
    except Wrong as wrong:
        tally.trials += 1
        if promise is not None and wrong.kind == "bits":
            tally.differed[promise] += 1
            if promise not in implementation.claims.bits:
                return
        case = trial.case
        key = (trial.kind, wrong.kind, case.a_dtype, case.b_dtype, case.out_dtype)
        if key in tally.groups:
            tally.groups[key].add(trial, wrong)
        else:
            tally.groups[key] = _Group(trial, wrong, (trial, wrong))
        return
    tally.trials += 1
    tally.worst = max(tally.worst, worst)
    if promise is not None:
        tally.equal[promise] += 1


def _fault(implementation: Implementation, group: _Group, seconds: float, scripts: bool) -> Fault:
    """A fault with its smallest case, the script of that and where its errors are."""
    trial, wrong = group.trial, group.wrong

    def failure(case: Case) -> Wrong | None:
        for _ in range(_ATTEMPTS):
            try:
                check(implementation, replace(trial, case=case))
            except Wrong as found:
                return found if found.kind == wrong.kind else None
            except (Refused, Unrepresentable, MemoryError):
                return None
        return None

    def fails(case: Case) -> bool:
        return implementation.claims.covers(case) and failure(case) is not None

    report(f"{implementation.name}: reducing {trial}")
    case = shrink.shrunk(trial.case, fails, seconds) if seconds else trial.case
    smallest = failure(case) or wrong
    text, alone = None, ""
    if seconds:
        text, alone = _script(implementation, replace(trial, case=case), smallest, scripts)
    shown, picture = group.largest[0], group.largest[1].picture  # the smallest often has a single element
    located = _located(implementation, shown) if trial.kind == "product" and wrong.picture and seconds else ()
    small = smallest.picture
    return Fault(
        wrong.kind, trial.kind, repr(shown.case), repr(case), anonymous(smallest.text), group.count,
        small.bound if small else None, small.worst if small else None, text,
        alone == script.FAILS, alone, pooled(picture.ratio) if picture else (),
        (picture.ratio.shape[0], picture.ratio.shape[1]) if picture else (0, 0), located,
    )  # fmt: skip


def _script(implementation: Implementation, trial: Trial, wrong: Wrong, run: bool) -> tuple[str | None, str]:
    """The script of a fault, and its outcome alone. It has guards where it does not fail without them."""
    written = script.script(implementation, trial, wrong.text, wrong.kind)
    if written is None:
        return None, ""
    if not (run and implementation.alone):
        return written, script.NOT_RUN
    alone = script.outcome(written)
    if alone == script.FAILS:
        return written, alone
    guarded = script.script(implementation, trial, wrong.text, wrong.kind, guarded=True)
    if guarded is not None and script.outcome(guarded) == script.FAILS:
        return guarded, script.FAILS
    return written, alone


def _located(implementation: Implementation, trial: Trial) -> tuple[tuple[int, int, bool], ...]:
    if trial.case.data != "normal" or np.prod(trial.case.batch) == 0:
        return ()
    try:
        return tuple((x.low, x.high, x.wrong) for x in locate.blocks(implementation, trial.case))
    except Unrepresentable:
        return ()


def _product(a: str, b: str, out: str) -> str:
    operands = a if a == b else f"{a} by {b}"
    return operands if out == a == b else f"{operands} -> {out}"
