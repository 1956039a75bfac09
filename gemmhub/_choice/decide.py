"""The decision which backend runs a problem: filter, rank, give reasons.

Filter: a backend for another device type is skipped; one that is absent, failed, or refuses the problem is listed
with its reason. Rank, highest precedence first: the backend that the call or a ``use`` context forces; the order of
preference in environment or file; the shortest time, measured (tuning records of this exact problem on this machine) or
estimated, where an estimate counts as :data:`~gemmhub._choice.ranking.MARGIN` times as long next to a measurement; the
order of discovery.

Estimates are those of the bucket that the sizes are in (:mod:`gemmhub.buckets`): a :class:`Winner` runs all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemmhub import buckets
from gemmhub._base.guard import guarded, neutral
from gemmhub._base.promises import pins_rows
from gemmhub._choice import answers, pins, ranking, records, registry
from gemmhub._choice.answers import Eligible
from gemmhub.backend import WORKSPACE, Kernel
from gemmhub.capability import Copy, Refusal
from gemmhub.config import Settings
from gemmhub.errors import AllocationError, InputError, NoBackendError
from gemmhub.kit import install
from gemmhub.problem import GemmProblem
from gemmhub.verdict import Decision, Verdict

_log = logging.getLogger("gemmhub")


def decide(problem: GemmProblem, settings: Settings, copies: tuple[Copy, ...] = ()) -> Decision:
    """Return the decision for ``problem``: collect the offer of every backend, prepare nothing.

    Raises InputError where ``settings`` name an unknown backend.
    """
    return _decide(problem, settings, copies, {}, True, ranked_at(problem, settings) or problem)[0]


@dataclass(frozen=True)
class Winner:
    """The backend and the candidate that run the problems of a bucket."""

    eligible: Eligible
    ranked: GemmProblem | None
    """The representative of the bucket; None where one problem was decided by itself."""
    decision: Decision
    kernel: Kernel
    """The kernel of the problem that was met first."""

    def prepared(self, problem: GemmProblem, settings: Settings) -> Kernel | None:
        """Return the kernel of ``problem``, another one of the bucket; None where it has to be decided by itself."""
        if self.kernel.any_size:
            return self.kernel
        kernel = prepared(self.eligible, self.eligible.candidate, problem, settings)
        return kernel if isinstance(kernel, Kernel) else None


def ranked_at(problem: GemmProblem, settings: Settings) -> GemmProblem | None:
    """Return the representative of the bucket of ``problem``, whose estimates decide it.

    None where it is decided by itself: it was measured or is to be raced, or a backend makes no promise for buckets.
    """
    if settings.tune != "off" or records.measured(problem):
        return None
    for entry in registry.registry():
        if settings.forced and entry.name != settings.backend[0]:
            continue  # its offer is not requested
        if not entry.device_types or problem.device.type in entry.device_types:
            answer = entry.get()
            if not (isinstance(answer, Refusal) or answer[0].by_bucket):
                return None
    return buckets.representative(problem)


def candidates(problem: GemmProblem, settings: Settings) -> list[Eligible]:
    """The backends that may run ``problem``, in order of discovery: one, with candidates of one order, where bits of
    rows are pinned."""
    if not problem.pinned:
        return answers.eligible_backends(problem)
    pinned = pins.pin(problem, settings)
    found = [] if pinned is None else answers.answers(problem, pinned.order)
    return [x for x in found if isinstance(x, Eligible) and pinned is not None and x.entry.name == pinned.backend]


@neutral()  # once, and not for each question
def _decide(
    problem: GemmProblem, settings: Settings, copies: tuple[Copy, ...], short: Mapping[str, Refusal],
    every_backend: bool, ranked: GemmProblem,
) -> tuple[Decision, Eligible | None]:  # fmt: skip
    """Decide; return the decision and the chosen backend.

    Without ``every_backend`` only the offer of a forced backend is requested, because some take long for a first one.
    ``short`` has the refusals of the backends that were short of memory in this call. The offers are for ``ranked``:
    ``problem``, or the representative of its bucket.
    """
    forced = settings.backend[0] if settings.forced else problem.packed_by
    pinned = pins.pin(problem, settings) if problem.pinned else None
    eligible: list[Eligible] = []
    verdicts: list[Verdict] = []
    layout_free = problem.device.type == "cpu"  # on devices kernels get addresses: the problem has the strides
    size_free = layout_free
    for entry in registry.registry():
        if entry.device_types and problem.device.type not in entry.device_types and entry.name != forced:
            continue
        if not every_backend and forced is not None and entry.name != forced:
            verdicts.append(Verdict(entry.name, entry.distribution, "not asked", "not the one asked for"))
            continue
        loaded = entry.get()
        kept = pinned.order if pinned is not None and entry.name == pinned.backend else None
        answer = answers.answer(entry, ranked, problem if every_backend else ranked, short, kept)
        if isinstance(answer, Verdict):
            size_free &= answer.any_size or isinstance(loaded, Refusal)
        layout_free &= (
            isinstance(loaded, Refusal)
            or not loaded[0].layout_sensitive
            or (isinstance(answer, Verdict) and answer.any_layout)
        )
        if isinstance(answer, Verdict):
            verdicts.append(answer)
        elif forced is not None and entry.name != forced:
            verdicts.append(answers.eligible_verdict(answer, "eligible", "not the one asked for"))
        elif problem.pinned and (pinned is None or entry.name != pinned.backend):
            reason = "no order could be chosen for rows of every size"
            if pinned is not None:
                reason = f"rows of every size keep to {pinned.backend} and its order {pinned.order}"
            verdicts.append(answers.eligible_verdict(answer, "eligible", reason))
        else:
            eligible.append(answer)
    verdicts += _suggested(problem, verdicts, eligible, forced)
    verdicts += _preferred(problem, settings, {v.backend for v in verdicts} | {x.entry.name for x in eligible})
    if settings.forced and forced not in {v.backend for v in verdicts} | {x.entry.name for x in eligible}:
        for entry in registry.registry().entries:
            if entry.transient == "memory":  # the name may be one of its backends
                raise AllocationError(f"the plugin {entry.plugin!r} ran out of memory while it was imported")
        raise InputError("backend", f"no backend is called {forced!r}", ", ".join(registry.names()))
    order, why = ranking.ranked(eligible, settings, forced)
    if pinned is not None and order:
        why = f"rows of every size keep to the order {pinned.order}"
    if settings.forced and problem.packed_by not in (None, forced):
        order, why = [], f"{forced!r} was asked for, but b was packed by {problem.packed_by!r}"
    order = ranking.hinted(order)
    chosen = order[0] if order else None
    size_free &= chosen is not None and len(order) == 1 and chosen.offer.any_size
    size_free &= problem.pinned == pins_rows(problem.reproducible)  # without sums the promise binds no backend
    shown = [
        answers.eligible_verdict(x, "chosen", "")
        if x is chosen
        else answers.eligible_verdict(x, "eligible", _why_not(chosen))
        for x in order or eligible
    ]
    decision = Decision(
        problem,
        chosen.entry.name if chosen else None,
        why,
        tuple(shown + verdicts),
        _origins(settings, problem, chosen),
        copies,
        ranked_at="" if ranked == problem else _sizes(ranked),
        layout_free=layout_free,
        size_free=size_free,
        chosen_layout_free=(
            problem.device.type == "cpu" and chosen is not None and not chosen.backend.layout_sensitive
        ),
        cacheable=registry.registry().complete and not any(verdict.transient for verdict in verdicts),
    )
    return decision, chosen


def _sizes(problem: GemmProblem) -> str:
    batch = f", batch {' x '.join(map(str, problem.batch))}" if problem.batch else ""
    return f"{problem.m} x {problem.n} x {problem.k}{batch}"


def _origins(settings: Settings, problem: GemmProblem, chosen: Eligible | None) -> Mapping[str, str]:
    """The sources of settings that are not defaults, the workspace limit of the chosen backend among them.

    The precision is left out where it has no effect, because ``problem`` has no float32.
    """
    origin = settings.origin
    if settings.allow or settings.deny:
        misnamed = {**registry.misnamed(settings), "backend": ""}  # the reason of the choice names these
        origin = {key: "; ".join(filter(None, (where, misnamed.get(key)))) for key, where in origin.items()}
    if "precision" in origin and settings.precision != problem.precision:
        origin = {key: where for key, where in origin.items() if key != "precision"}
    if chosen is None or settings.workspace_limit is not None or chosen.offer.workspace == WORKSPACE:
        return origin
    default = f"{chosen.entry.name}'s own default, {chosen.offer.workspace / 2**20:.4g} MiB"
    return {**origin, "workspace_mib": default}


def _why_not(winner: Eligible | None) -> str:
    return f"ranked after {winner.entry.name}" if winner is not None else ""


def _suggested(
    problem: GemmProblem, verdicts: list[Verdict], eligible: list[Eligible], forced: str | None
) -> list[Verdict]:
    """Verdicts for distributions that could be installed for this device type, or that ``forced`` names."""
    present = {v.backend for v in verdicts} | {x.entry.name for x in eligible}
    return [
        Verdict(s.backend, s.distribution, "not installed", s.summary, install.command(s.distribution))
        for s in registry.missing()
        if s.backend not in present and (s.device_type == problem.device.type or s.backend == forced)
    ]


def _preferred(problem: GemmProblem, settings: Settings, present: set[str]) -> list[Verdict]:
    """Verdicts for backends that the settings name and that are for another device type, loaded or not."""
    verdicts = []
    for name in settings.backend:
        entry = registry.registry().find(name)
        if name in present:
            continue
        if entry is not None:
            reason, remedy = f"the operands are on {problem.device}", f"it is for {', '.join(entry.device_types)}"
            verdicts.append(Verdict(name, entry.distribution, "refused", reason, remedy))
            continue
        for s in registry.missing():
            if s.backend == name:
                reason, remedy = f"for {s.device_type}: {s.summary}", install.command(s.distribution)
                verdicts.append(Verdict(name, s.distribution, "not installed", reason, remedy))
    return verdicts


def resolve(
    problem: GemmProblem, settings: Settings, copies: tuple[Copy, ...] = (), ranked: GemmProblem | None = None
) -> Winner:
    """Decide and prepare; return what runs ``problem``, and the others of its bucket where ``ranked`` stands for that.

    A backend whose ``prepare`` raises is skipped, and the decision reports it. Raises NoBackendError, carrying the
    decision, where no backend may run the problem; AllocationError where a backend was refused only for lack of memory.
    The next call requests an offer of such a backend again.
    """
    short: dict[str, Refusal] = {}
    while True:
        representative = ranked or problem
        decision, chosen = _decide(problem, settings, copies, short, False, representative)
        if chosen is None:
            for verdict in decision.verdicts:
                if verdict.transient == "memory":
                    raise AllocationError(f"backend {verdict.backend!r} ran out of memory: {verdict.reason}")
            decision = _decide(problem, settings, copies, short, True, representative)[0]
            raise NoBackendError(f"no backend may run this product: {decision.why}", decision)
        best = chosen.candidate
        decision, chosen, kernel = _first_prepared(decision, chosen, problem, settings)
        if isinstance(kernel, Kernel):
            _report(decision, settings)
            # Another candidate than the best of the bucket runs this size alone: which one runs others must not depend
            # on the size that was met first.
            for_bucket = ranked is not None and chosen.candidate == best
            return Winner(chosen, ranked if for_bucket else None, replace(decision, bucketed=for_bucket), kernel)
        if not kernel.transient and representative != problem:
            ranked = None  # the candidate is none for these sizes
            continue
        _log.warning("backend %s: %s", chosen.entry.name, kernel.reason)
        if kernel.transient:
            short[chosen.entry.name] = kernel
            continue
        answers.failed(chosen.entry.name, problem, kernel)


def _first_prepared(
    decision: Decision, chosen: Eligible, problem: GemmProblem, settings: Settings
) -> tuple[Decision, Eligible, Kernel | Refusal]:
    """Prepare the candidate of the chosen backend, or where it is refused the first of the others that is not.

    A smaller workspace than the one that candidates were ranked for may refuse some. ``decision`` then states which one
    runs, and why.
    """
    first = prepared(chosen, chosen.candidate, problem, settings)
    if isinstance(first, Kernel) or first.transient:
        return decision, chosen, first
    refused = [f"{chosen.candidate} is refused: {first.reason.partition(chr(10))[0]}"]
    for candidate in chosen.offer.candidates:
        name = candidate.name
        if name == chosen.candidate:
            continue
        kernel = prepared(chosen, name, problem, settings)
        if isinstance(kernel, Kernel):
            chosen = replace(
                chosen, candidate=name, seconds=answers.known(candidate.seconds), source="estimated", record="",
                copies=tuple(candidate.copies), remark="; ".join((*refused, f"{name} runs")),
            )  # fmt: skip
            shown = answers.eligible_verdict(chosen, "chosen", "")
            verdicts = tuple(shown if x.backend == shown.backend else x for x in decision.verdicts)
            return replace(decision, verdicts=verdicts), chosen, kernel
        refused.append(f"{name} is refused: {kernel.reason.partition(chr(10))[0]}")
    if len(refused) > 1:
        first = replace(first, reason="; ".join(refused))
    return decision, chosen, first


def prepared(eligible: Eligible, candidate: str, problem: GemmProblem, settings: Settings) -> Kernel | Refusal:
    """One candidate's kernel, or the refusal that the exception of its ``prepare`` becomes."""
    remedy = f"report it to the authors of {eligible.entry.distribution}; backend= chooses another"
    limit = settings.workspace_limit
    if limit is None:
        limit = eligible.offer.workspace
    _log.debug("backend %s: asked to prepare %s for %s", eligible.entry.name, candidate, problem)

    def prepare() -> Kernel | Refusal:
        kernel: object = eligible.backend.prepare(problem, candidate, limit)
        if not isinstance(kernel, (Kernel, Refusal)):
            raise TypeError(f"it returned {kernel!r:.60}, not a Kernel or a Refusal")
        return kernel

    return guarded(prepare, "prepare()", remedy)


def _report(decision: Decision, settings: Settings) -> None:
    if settings.backend and decision.chosen not in settings.backend:
        _log.warning("%s runs %s: %s", decision.chosen, decision.problem, decision.why)
    elif _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", decision)


def forget() -> None:
    """Drop the kept refusals, so that backends that failed are tried again, and what problems are pinned to."""
    answers.forget()
    pins.forget()
