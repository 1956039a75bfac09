"""The answers of backends to a problem: eligible with a candidate and its seconds, or a negative verdict."""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmhub._base.evicting import keep
from gemmhub._base.guard import guarded
from gemmhub._choice import records, registry
from gemmhub.backend import Backend, Offer
from gemmhub.backend import answer as answer_of
from gemmhub.capability import Absent, Copy, Ready, Refusal
from gemmhub.problem import GemmProblem
from gemmhub.verdict import Verdict

_log = logging.getLogger("gemmhub")


@dataclass(frozen=True)
class Eligible:
    """A backend that can run the problem."""

    entry: registry.Entry
    backend: Backend
    ready: Ready
    offer: Offer
    seconds: float | None
    source: str
    candidate: str
    copies: tuple[Copy, ...]
    remark: str
    record: str = ""
    """The file of the record that its time is from."""

    @property
    def order(self) -> str | None:
        """The order of its candidate."""
        return next((x.order for x in self.offer.candidates if x.name == self.candidate), None)


_failures: OrderedDict[tuple[str, GemmProblem], Refusal] = OrderedDict()
"""Refusals of problems whose preparation raised, kept so that it is not repeated."""


def answers(problem: GemmProblem, order: str | None = None, failures: bool = True) -> list[Eligible | Verdict]:
    """The answer of every backend for the problem's device type, in order of discovery.

    Where ``order`` is not None, candidates that add in other orders are left out. Without
    ``failures`` the kept refusals of problems whose preparation raised are ignored.
    """
    return [
        answer(entry, problem, problem, {}, order, failures)
        for entry in registry.registry()
        if (not entry.device_types or problem.device.type in entry.device_types)
        and problem.packed_by in (None, entry.name)
    ]


def eligible_backends(problem: GemmProblem) -> list[Eligible]:
    """Every backend that can run ``problem``, in order of discovery."""
    return [x for x in answers(problem) if isinstance(x, Eligible)]


def eligible_verdict(x: Eligible, status: str, reason: str) -> Verdict:
    """The verdict of a backend that can run the problem."""
    return Verdict(
        x.entry.name, x.entry.distribution, status, reason, "", x.seconds, x.source, x.candidate, x.order, x.copies,
        x.remark, x.record,
    )  # fmt: skip


def answer(
    entry: registry.Entry,
    problem: GemmProblem,
    copied: GemmProblem,
    short: Mapping[str, Refusal],
    order: str | None,
    failures: bool = True,
) -> Eligible | Verdict:
    """One backend's answer: eligible, or a negative verdict. ``copied`` is the problem whose copies are listed.

    Where ``order`` is not None, candidates that add in other orders are left out.
    """

    def no(refusal: Refusal, status: str = "") -> Verdict:
        failed = refusal.traceback is not None or (isinstance(loaded, Refusal) and not isinstance(loaded, Absent))
        status = status or ("absent" if isinstance(refusal, Absent) else "failed" if failed else "refused")
        return Verdict(
            entry.name, entry.distribution, status, refusal.reason, refusal.remedy, traceback=refusal.traceback,
            transient=refusal.transient, any_layout=refusal.any_layout, any_size=refusal.any_size,
        )  # fmt: skip

    loaded = entry.get()
    if isinstance(loaded, Refusal):
        return no(loaded)
    backend, ready = loaded
    remedy = f"report it to the authors of {entry.distribution}; backend= chooses another"
    if problem.device not in ready.devices:
        devices = ", ".join(map(str, ready.devices))
        remedy = f"it runs on {devices}" if devices else "its probe reported no device"
        return no(Refusal(f"the operands are on {problem.device}", remedy))
    failure = (_failures.get((entry.name, problem)) if failures else None) or short.get(entry.name)
    if failure is not None:
        return no(failure)
    _log.debug("backend %s: asked about %s", entry.name, problem)
    offer = guarded(lambda: answer_of(backend, problem), "offer()", remedy)
    if isinstance(offer, Refusal):
        return no(offer)
    if order is not None:
        candidates = [x for x in offer.candidates if x.order == order]
        if not candidates:
            return no(
                Refusal(f"none of its candidates adds in the order {order}, which rows of other sizes have", remedy)
            )
        offer = replace(offer, candidates=candidates)
    measured = records.lookup(entry.name, problem, ready, offer.names)
    if measured is not None:
        seconds: object = measured.record.seconds  # infinite where it failed: such a backend comes last
        source, candidate, file = "measured", measured.record.candidate, measured.file
        stale = measured.record.caveat
    else:
        seconds, source, candidate, file = offer.first.seconds, "estimated", offer.first.name, ""
        stale = records.unused(entry.name, problem, ready)
    remark = guarded(lambda: str(offer.remark(candidate)), "remark()", remedy)
    if isinstance(remark, Refusal):
        return no(remark)
    remark = "; ".join(filter(None, (remark, stale)))
    there = offer if copied == problem else guarded(lambda: answer_of(backend, copied), "offer()", remedy)
    if isinstance(there, Refusal):
        return no(there)
    copies = next((tuple(x.copies) for x in there.candidates if x.name == candidate), ())
    time = known(seconds)
    source = "" if time is None else source
    return Eligible(entry, backend, ready, offer, time, source, candidate, copies, remark, file)


def known(seconds: object) -> float | None:
    """The time that a backend states, where it is one."""
    return seconds if isinstance(seconds, (int, float)) and 0 < seconds <= sys.float_info.max else None


def expected(x: Eligible) -> float | None:
    """The estimate of what an untuned call of a backend takes, whatever was measured."""
    return known(x.offer.first.seconds)


def failed(backend: str, problem: GemmProblem, refusal: Refusal) -> None:
    """Keep the refusal of a problem whose preparation raised."""
    keep(_failures, (backend, problem), refusal, 4096)


def forget() -> None:
    """Drop the kept refusals, so that backends that failed are tried again."""
    _failures.clear()
