"""Racing: time the best few candidates of all backends at the first call of a signature, and record the times.

The setting ``tune = "first"`` switches it on. Estimates rank candidates well but not perfectly, and on hardware that
was never measured they are only a model. A race decides by measurement: the candidates read the caller's operands and
write to scratch memory, never to ``out``, on the caller's stream. The times become tuning records, so that the same
candidates are never raced twice, here or in another process. Where there are records, only backends that were never
measured and whose estimates are far below the fastest record are raced, against that one.
"""

from __future__ import annotations

import logging
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemmhub._arrays.spec.operands import SpecArrays
from gemmhub._base import processors
from gemmhub._call import bind
from gemmhub._call.describe import Call
from gemmhub._call.options import Request
from gemmhub._choice import decide, ranking, records
from gemmhub._choice.answers import Eligible
from gemmhub.backend import Kernel
from gemmhub.errors import AllocationError, GemmhubError, OutputError
from gemmhub.kit import locks

_log = logging.getLogger("gemmhub")

BUDGET = 0.05
"""Seconds, without compilation, after which a race launches nothing more. A launch cannot be cut short: a race takes as
long as this and one launch at most."""
_BACKEND_CANDIDATES = 3
"""Maximum number of candidates of one backend in a race: the fastest is nearly always among the first three."""
_CANDIDATES = 8
_DROPPED = 1.3
"""Ratio to the fastest time so far beyond which a candidate is not timed again."""
_ROUNDS = 5
_STRETCH = 1e-4
"""Seconds of work in one timed stretch."""
_REPEATS = 10
"""Maximum number of launches in one stretch."""

_lock = locks.lock()
"""Lock of the one race at a time: two would disturb each other's timing."""
_running = False


@dataclass
class _Runner:
    """One candidate, ready to be timed."""

    eligible: Eligible
    candidate: str
    run: Callable[[], object]
    first: float = math.inf
    """Seconds of the first launch, which may load code and start threads."""
    samples: list[float] = field(default_factory=list)
    """Seconds of a later launch, one for each round."""
    failure: str = ""

    @property
    def seconds(self) -> float:
        """The median of the samples; the first launch where it was the only one; infinite without any."""
        return statistics.median(self.samples) if self.samples else self.first

    @property
    def shortest(self) -> float:
        return min(self.samples, default=self.first)


def preview(call: Call, request: Request) -> str:
    """The candidates that the first call of this signature would race, or why none; empty where the setting is off."""
    if request.settings.tune == "off":
        return ""
    eligible = _eligible(call, request)
    listed = shortlist(eligible)
    with call.arrays.on(request.stream):
        reason = _obstacle(call, request, eligible, listed)
    if reason:
        return f"none: {reason}"
    return f"{_count(listed)}, {BUDGET * 1e3:.0f} ms and one launch at most, at the first call"


def race(call: Call, request: Request, a: Any, b: Any) -> str:
    """Time the shortlist and record the times. Return a summary in words; a candidate's errors are never raised."""
    global _running
    with _lock:
        if _running:
            return "none: a call from within a race"
        eligible = _eligible(call, request)
        listed = shortlist(eligible)
        named = {x.entry.name for x, _ in listed}
        others = [(x, x.candidate) for x in eligible if x.entry.name not in named and x.source == "estimated"]
        _running = True
        try:
            with call.arrays.on(request.stream):
                reason = _obstacle(call, request, eligible, listed)
                return f"none: {reason}" if reason else _race(call, request, a, b, listed, others)
        finally:
            _running = False


def _eligible(call: Call, request: Request) -> list[Eligible]:
    """The backends that a race may have: the one that the settings name, if any, else all that can run the call."""
    eligible, settings = decide.candidates(call.problem, request.settings), request.settings
    preferred = next((x for name in settings.backend for x in eligible if x.entry.name == name), None)
    return [x for x in eligible if x is preferred] if preferred is not None or settings.forced else eligible


def shortlist(eligible: list[Eligible]) -> list[tuple[Eligible, str]]:
    """The (backend, candidate) pairs to race, the most promising first; none where records have decided."""
    measured = [x for x in eligible if x.source == "measured"]
    new = ranking.newcomers(eligible) if measured else [x for x in eligible if x.seconds is not None]
    limit = ranking.MARGIN * min((x.seconds or 0.0 for x in new), default=0.0)
    ranked = sorted((x for x in new if (x.seconds or 0.0) <= limit), key=lambda x: x.seconds or 0.0)
    if ranked and measured:
        ranked.append(min(measured, key=lambda x: x.seconds or 0.0))
    rows = [(rank, x, candidate) for x in ranked for rank, candidate in enumerate(_candidates(x))]
    rows.sort(key=lambda row: row[0])  # stable: each backend's first candidate before any backend's second
    return [(x, candidate) for _, x, candidate in rows[:_CANDIDATES]]


def _candidates(eligible: Eligible) -> Sequence[str]:
    """The first candidates of a backend; of a measured one the fastest alone."""
    if eligible.source == "measured":
        return (eligible.candidate,)
    return eligible.offer.names[:_BACKEND_CANDIDATES]


def _obstacle(call: Call, request: Request, eligible: list[Eligible], listed: list[tuple[Eligible, str]]) -> str:
    """The reason why nothing is raced; empty where there is none."""
    problem, settings = call.problem, request.settings
    if isinstance(call.arrays, SpecArrays):
        return "specs have no data"
    if settings.reproducible == "run":
        return "equal bits from run to run are asked for"
    measured = any(x.source == "measured" for x in eligible)
    if measured and not listed:
        return "a record of this problem exists"
    if len(listed) < 2:
        return "there is one candidate"
    if problem.empty:
        return "the result is empty"
    if call.arrays.capturing():
        return "the stream is being captured into a graph"
    if _ranks() > 1:
        return "the process group has several ranks, which must choose alike"
    predicted = listed[0][0].seconds or 0.0
    if 2 * predicted > BUDGET:
        return f"one launch takes {predicted * 1e3:.3g} ms by estimate, more than half of {BUDGET * 1e3:.0f} ms"
    return ""


def _ranks() -> int:
    """The number of ranks of torch's default process group; 1 where there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def _race(
    call: Call, request: Request, a: Any, b: Any, listed: list[tuple[Eligible, str]], others: list[tuple[Eligible, str]]
) -> str:
    try:
        target = _scratch(call, a, b)
    except AllocationError as error:
        return f"none: no memory for a scratch result: {error}"

    def ready(chosen: list[tuple[Eligible, str]]) -> list[_Runner]:
        prepared = []
        for x, candidate in chosen:
            kernel = decide.prepared(x, candidate, call.problem, request.settings)
            if isinstance(kernel, Kernel):
                prepared.append(_runner(call, request, x, candidate, kernel, (a, b, target)))
            else:
                _log.debug("not raced: %s %s: %s", x.entry.name, candidate, kernel.reason)
        return prepared

    load, runners = processors.load(), ready(listed)
    spent = _timed(runners, call, BUDGET)
    # Where the best estimate was far too low, the shortlist that it limited may lack the fastest.
    best = min((x.seconds for x in runners), default=math.inf)
    late = ready([row for row in others if (row[0].seconds or 0.0) < best])
    spent += _timed(late, call, BUDGET - spent)
    runners += late
    tried = [x for x in runners if x.failure or x.seconds < math.inf]
    records.put(
        records.record(call.problem, x.eligible.entry.name, x.candidate, x.seconds, x.eligible.ready, load, x.failure)
        for x in tried
    )
    finished = [x for x in tried if not x.failure]
    if not finished:
        return "none: no candidate ran"
    return f"{_count([(x.eligible, x.candidate) for x in finished])}, in {spent * 1e3:.3g} ms; recorded"


def _scratch(call: Call, a: Any, b: Any) -> Any:
    """An array like the result; None where the library's arrays are immutable and each launch makes its own."""
    arrays = call.arrays
    if call.out is not None:
        return arrays.wrap(arrays.empty_strided_like(call.out), (a, b))
    scratch = arrays.wrap(arrays.empty(call.out_shape, call.problem.out.dtype), (a, b))
    try:
        arrays.target(scratch, call.out_shape)
    except OutputError:
        return None
    return scratch


def _runner(
    call: Call, request: Request, eligible: Eligible, candidate: str, kernel: Kernel, operands: tuple[Any, Any, Any]
) -> _Runner:
    execute, rest = bind.bind(call, eligible.entry.name, kernel), request.rest

    def run() -> None:
        execute(*operands, *rest)

    return _Runner(eligible, candidate, run)


def _timed(runners: list[_Runner], call: Call, budget: float) -> float:
    """Time interleaved rounds over the runners that may still win; return the seconds that this took.

    Nothing is launched after ``budget`` seconds, nor what takes longer than the rest of it: by its estimate at first,
    then by its first launch. That one is timed as well, because an estimate may be far too low.
    """
    arrays, clock = call.arrays, call.arrays.clock()
    arrays.synchronize()  # earlier work of the caller is not part of the first launch
    begin = time.perf_counter()
    racing = list(runners)
    for turn in range(1 + _ROUNDS):
        for runner in list(racing):
            left = begin + budget - time.perf_counter()
            expected = runner.eligible.seconds or 0.0 if turn == 0 else runner.shortest
            if expected > left:
                racing.remove(runner)
                continue
            try:
                if turn == 0:
                    start = time.perf_counter()
                    runner.run()
                    arrays.synchronize()
                    runner.first = time.perf_counter() - start
                else:
                    repeats = max(1, min(_REPEATS, int(_STRETCH / max(expected, 1e-6)))) if turn > 1 else 1
                    runner.samples.append(clock.measure(runner.run, repeats))
            except GemmhubError as error:
                _log.debug("not raced: %s %s: %s", runner.eligible.entry.name, runner.candidate, error)
                racing.remove(runner)
                runner.first, runner.samples = math.inf, []
                runner.failure = "" if isinstance(error, AllocationError) else str(error)
        racing.sort(key=lambda x: x.shortest)
        if turn > 0:
            racing = [x for x in racing if x.shortest <= _DROPPED * racing[0].shortest]
    return time.perf_counter() - begin


def _count(listed: list[tuple[Eligible, str]]) -> str:
    names = list(dict.fromkeys(x.entry.name for x, _ in listed))
    return f"{len(listed)} candidates of {', '.join(names)}"
