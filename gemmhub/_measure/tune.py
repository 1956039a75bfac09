"""Tuning: time every candidate of every backend on one call, and record the times."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from gemmhub._arrays.dlpack.operands import DLPackArrays
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._base import geometry, processors, progress, units
from gemmhub._base.guard import guarded
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table, bars
from gemmhub._base.timing import Clock, Timing, interleave, rotation
from gemmhub._call import bind, describe
from gemmhub._call.options import Request
from gemmhub._check.product import on_host
from gemmhub._choice import decide, records, registry
from gemmhub._choice.answers import Eligible
from gemmhub._measure.compare import check_result
from gemmhub.backend import Imported
from gemmhub.capability import Refusal
from gemmhub.errors import AllocationError, BackendError, GemmhubError, InputError, NoBackendError, RecordError
from gemmhub.kit import locks
from gemmhub.problem import GemmProblem

_log = logging.getLogger("gemmhub")

_SCREENED, _NEAR = 8, 1.15
"""Number of candidates beyond which only so many, within this factor of the fastest, are timed in full."""
_LARGE, _LARGE_OPERAND, _SAMPLES = 2**20, 2**26, 1024
"""Elements of a result, and of an operand, beyond which only a sample of the result is checked once another candidate's
result was checked in full: a full check reads all of the operands, in float64 on the host.
"""
_SPREAD = 1.5
"""Ratio of the median of the fastest candidate's rounds to the least of them beyond which something disturbs them."""


@dataclass(frozen=True)
class Tuned:
    """One candidate. ``seconds`` is None where it did not run or was wrong, for the reason in ``remark``."""

    backend: str
    candidate: str
    seconds: float | None
    remark: str = ""


class Saved(Report):
    """A result whose records can be written to a file."""

    _records: tuple[records.Record, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Merge the records of the result into a file, to ship: ``use(records=path)`` decides by it.

        Raises RecordError where nothing was tuned, or it cannot be written, or has another purpose.
        """
        if not self._records:
            raise RecordError("\n".join([f"{os.fspath(path)}: not written: nothing was tuned", *self._remarks()]))
        records.write(Path(path), self._records)

    def _remarks(self) -> Iterable[str]:
        """Why there are no records."""
        return ()


@dataclass(frozen=True, repr=False)
class TuneResult(Saved):
    """The result of :func:`gemmhub.tune`: candidates, fastest first, and the record file."""

    problem: str
    rows: tuple[Tuned, ...]
    path: Path | None
    warning: str = ""
    """Reason not to trust the times: the machine was loaded; empty where nothing disturbed them."""
    flops: float = 0.0
    """Operations of one product."""
    note: str = ""
    """Reason why these records have no effect here: a file of a block decides; empty where they have."""
    _records: tuple[records.Record, ...] = field(default=(), compare=False)

    @property
    def best(self) -> Tuned:
        """The fastest correct candidate."""
        return self.rows[0]

    def _parts(self) -> Iterator[Part]:
        seconds = [row.seconds for row in self.rows if row.seconds is not None]
        unit, scale = units.rate_unit(1e-9 * self.flops / x for x in seconds)
        rows = [
            (
                row.backend, row.candidate, units.duration(row.seconds),
                "-" if row.seconds is None else units.number(1e-9 * self.flops / row.seconds * scale), bar, row.remark,
            )
            for row, bar in zip(self.rows, bars([row.seconds for row in self.rows]))
        ]  # fmt: skip
        yield Facts([("problem", self.problem)])
        yield Table(("backend", "candidate", "time", unit, "", "remarks"), rows, right=("time", unit))
        head = [(name, text) for name, text in (("warning", self.warning), ("note", self.note)) if text]
        yield Facts([*head, ("recorded", str(self.path) if self.path else "no: records are off")])


def tune_call(a: Any, b: Any, out: Any, request: Request) -> TuneResult:
    """Tune one call, as :func:`gemmhub.tune` does."""
    call = describe.describe(a, b, out, request)
    check_writable()
    tuned, new = measure(call, a, b, request)
    store(new)
    return tuned


def check_writable() -> None:
    """Raise RecordError where records cannot be written: before the measuring, which may take minutes."""
    store(())


def store(new: Sequence[records.Record]) -> None:
    """Write records to the file in force, where there is one."""
    path = records.path()
    if path is not None:
        records.write(path, new)
        records.forget()


def measure(
    call: describe.Call, a: Any, b: Any, request: Request, also: tuple[str, str] | None = None
) -> tuple[TuneResult, list[records.Record]]:
    """Time one call; return the result and the records of it.

    ``also`` is a backend and its candidate that is timed in full, whatever a first look shows.
    """
    problem = call.problem
    with locks.deciding:
        eligible = decide.candidates(problem, request.settings)
    if request.settings.forced:
        eligible = [x for x in eligible if x.entry.name == request.settings.backend[0]]
    arrays, clock, load = call.arrays, call.arrays.clock(), processors.load()
    request = describe.beside(arrays, request)
    with arrays.on(request.stream):
        trial = _Trial(call, request, a, b, clock.cache_bytes)
        rows: list[Tuned] = []
        ready: list[_Contender] = []
        for backend in eligible:
            for candidate in backend.offer.names:
                progress.report(f"{backend.entry.name} {candidate}")
                trial.enter(backend, candidate, ready, rows)
        ready = _finalists(ready, trial, clock, rows, also)
        if not ready:
            verdict = decide.decide(problem, request.settings)
            tried = [f"{row.backend} {row.candidate}".rstrip() + f": {row.remark}" for row in rows]
            why = "\n".join(["no candidate ran this product correctly", *tried]) if tried else verdict.why
            raise NoBackendError(f"nothing to tune: {why}", verdict)
        progress.report(f"timing {len(ready)} candidates")
        timings = interleave([contender.run for contender in ready], clock=clock)
    new = [
        records.record(problem, x.backend.entry.name, x.candidate, timing.median, x.backend.ready, load)
        for x, timing in zip(ready, timings)
    ]
    rows += [Tuned(r.backend, r.candidate, r.seconds) for r in new]
    rows.sort(key=lambda row: (row.seconds is None, row.seconds or 0.0))
    new += [
        records.record(problem, x.entry.name, candidate, 0.0, x.ready, load, failure)
        for x, candidate, failure in trial.failed
    ]
    warning = _disturbed(load, timings)
    if warning:
        _log.warning("tuned %s: %s", problem, warning)
    note = _overruled(problem, request, ready)
    return TuneResult(str(problem), tuple(rows), records.path(), warning, problem.flops, note, tuple(new)), new


def _overruled(problem: GemmProblem, request: Request, ready: Sequence[_Contender]) -> str:
    """The note that a file of ``use(records=...)`` decides before the new records; empty where none does."""
    files = request.settings.record_files
    for x in ready if files else ():
        backend = x.backend
        file = records.decided_before(files, backend.entry.name, problem, backend.ready, backend.offer.names)
        if file:
            return f"in this block of use(records=...) {file} decides, before these records"
    return ""


def _disturbed(load: float | None, timings: Sequence[Timing]) -> str:
    """The reason why the times may be wrong; empty where there is none. ``load``: :func:`processors.load` before."""
    fastest = min(timings, key=lambda timing: timing.median)
    if load is not None and load > 1:
        what = f"the load average was {load:.3g} for each processor of this process before the measurement"
    elif fastest.median > _SPREAD * fastest.minimum:
        what = f"the fastest candidate took from {fastest.minimum * 1e3:.3g} to {fastest.maximum * 1e3:.3g} ms"
    else:
        return ""
    return f"{what}: other work disturbs the times; tune again on an idle machine"


@dataclass(frozen=True)
class _Contender:
    backend: Eligible
    candidate: str
    execute: Callable[..., Any]
    run: Callable[[], object]
    """One call, on the next set of operands."""

    @property
    def name(self) -> str:
        return f"{self.backend.entry.name}:{self.candidate}"


def _finalists(
    ready: list[_Contender], trial: _Trial, clock: Clock, rows: list[Tuned], also: tuple[str, str] | None
) -> list[_Contender]:
    """The candidates to time in full: all correct ones; of many, the fastest. The others are added to ``rows``."""
    quick = [0.0] * len(ready)
    if len(ready) > _SCREENED:
        quick = [t.minimum for t in interleave([x.run for x in ready], clock=clock, rounds=2, min_time=2e-4)]
    pool = list(zip(ready, quick))
    right: set[str] = set()
    while True:
        near = _near(pool, also)
        progress.report("checking results")
        wrong = [x for x in near if x.name not in right and not trial.right(x, rows)]
        if not wrong:
            break
        # A wrong candidate is often fast: it must not set the limit for the others.
        right |= {x.name for x in near if x not in wrong}
        pool = [(x, seconds) for x, seconds in pool if x not in wrong]
    for x, seconds in pool:
        if x not in near:
            remark = "not among the fastest at a first look: neither checked nor recorded"
            rows.append(Tuned(x.backend.entry.name, x.candidate, None, f"{seconds * 1e3:.4g} ms, {remark}"))
    return near


def _near(pool: list[tuple[_Contender, float]], also: tuple[str, str] | None) -> list[_Contender]:
    """The fastest candidates, and the first of each backend: an untuned call uses that one, so its record is needed to
    show that another is faster. ``also`` is one more.
    """
    times = sorted(seconds for _, seconds in pool)
    limit = min([*times[_SCREENED - 1 : _SCREENED], *(_NEAR * fastest for fastest in times[:1])], default=0.0)
    kept: list[_Contender] = []
    seen: set[str] = set()
    for x, seconds in pool:
        first = x.backend.entry.name not in seen
        if seconds <= limit or first or (x.backend.entry.name, x.candidate) == also:
            kept.append(x)
        seen.add(x.backend.entry.name)
    return kept


class _Trial:
    """One call's operands, in rotating sets, and the host copies that results are checked with."""

    def __init__(self, call: describe.Call, request: Request, a: Any, b: Any, cache_bytes: float) -> None:
        self._call, self._request = call, request
        self._sets = _sets(call, a, b, cache_bytes)
        self._hosted = on_host(call, request)
        arrays = call.arrays
        native = (
            arrays.empty(call.out_shape, call.problem.out.dtype)
            if call.out is None
            else arrays.empty_strided_like(call.out)
        )
        self._target = arrays.wrap(native, (a, b))
        self._checked: set[str] = set()
        self.failed: list[tuple[Eligible, str, str]] = []
        """Backend, candidate and reason of those that raised or were wrong, but for lack of memory."""

    def _fail(self, backend: Eligible, candidate: str, error: GemmhubError | str, rows: list[Tuned]) -> None:
        rows.append(Tuned(backend.entry.name, candidate, None, str(error)))
        if not isinstance(error, AllocationError):
            self.failed.append((backend, candidate, str(error)))

    def enter(self, backend: Eligible, candidate: str, ready: list[_Contender], rows: list[Tuned]) -> None:
        """Prepare one candidate and run it once; add it to ``ready``, or to ``rows`` with the reason."""
        call, request, target = self._call, self._request, self._target
        kernel = decide.prepared(backend, candidate, call.problem, request.settings)
        if isinstance(kernel, Refusal):
            rows.append(Tuned(backend.entry.name, candidate, None, kernel.reason))
            return
        execute = bind.bind(call, backend.entry.name, kernel)
        direct = bind.shortcut(call, kernel) if call.problem.plain else None
        turn, rest = cycle(self._sets), request.rest

        def run() -> None:
            left, right = next(turn)
            if direct is not None:
                direct(left, right, target)
            else:
                execute(left, right, target, *rest)

        try:
            bind.first_run(call, backend.entry.name, kernel, execute, *self._sets[0], target, request)
        except GemmhubError as error:
            self._fail(backend, candidate, error, rows)
            return
        ready.append(_Contender(backend, candidate, execute, run))

    def right(self, x: _Contender, rows: list[Tuned]) -> bool:
        """Whether a contender's result is correct; if not, it is added to ``rows``."""
        request, name = self._request, x.backend.entry.name
        try:
            result = x.execute(*self._sets[0], self._target, *request.rest)
            ok, ratio, remark = check_result(self._hosted, request, result, samples=self._samples(name))
        except GemmhubError as error:
            self._fail(x.backend, x.candidate, error, rows)
            return False
        if not ok:
            self._fail(x.backend, x.candidate, f"wrong: {ratio:.3g} times its bound; {remark}", rows)
        return ok

    def _samples(self, backend: str) -> int | None:
        """The sample size for a check; None for a full one. Large results of a backend are sampled after the first."""
        problem = self._call.problem
        first = backend not in self._checked
        self._checked.add(backend)
        m, n, k, batch = problem.m, problem.n, problem.k, problem.batch_count
        large = m * n * batch > _LARGE or k * max(m, n) * batch > _LARGE_OPERAND
        return _SAMPLES if large and not first else None


def _sets(call: describe.Call, a: Any, b: Any, cache_bytes: float) -> list[tuple[Any, Any]]:
    """Copies of the operands with their strides: operands that stay in the cache would favour their last reader."""
    arrays = call.arrays
    if call.packed or isinstance(arrays, DLPackArrays):
        return [(a, b)]
    if arrays is NUMPY:
        a, b = call.a, call.b
    span = geometry.reach(call.a)[1] + geometry.reach(call.b)[1]

    def copy() -> tuple[Any, Any]:
        left, right = (arrays.wrap(arrays.clone(x), (a, b)) for x in (a, b))
        return left, right

    return [(a, b), *(copy() for _ in range(rotation(span, cache_bytes) - 1))]


@dataclass(frozen=True)
class ImportResult:
    """The result of :func:`import_times`."""

    records: tuple[records.Record, ...]
    skipped: Mapping[str, int]
    """Number of unusable rows of the file, by reason."""


def import_times(path: Path, backend: str, device: str = "cpu") -> ImportResult:
    """Read a file of a vendor's profiler as records of ``backend`` on this machine; write nothing.

    ``device`` is a device or a device type of the backend ("musa:1", "musa"); for "cpu" its first device is taken.
    The file does not name the card and the versions that it was measured with: those of this machine are assumed.
    Raises InputError where the backend is unknown or does not run on ``device``, BackendError where it is not ready,
    RecordError where it cannot read the file.
    """
    entry = registry.registry().find(backend)
    if entry is None:
        known = sorted({each.name for each in registry.registry()})
        raise InputError("backend", f"no backend is called {backend!r}", ", ".join(known))
    answer = entry.get()
    if isinstance(answer, Refusal):
        raise BackendError(f"backend {backend!r}: {answer.reason}; {answer.remedy}")
    loaded, ready = answer
    fitting = [x for x in ready.devices if device in (str(x), x.type)]
    if not fitting and device != "cpu":
        raise InputError("device", f"{backend!r} does not run on {device}", ", ".join(map(str, ready.devices)))
    where = (fitting or ready.devices)[0]
    remedy = f"report it to the authors of {entry.distribution}"
    imported = guarded(lambda: loaded.import_times(path, where), "import_times()", remedy)
    if not isinstance(imported, (Imported, Refusal)):
        imported = Refusal(f"import_times() returned {type(imported).__name__}", remedy)
    if isinstance(imported, Refusal):
        raise RecordError(f"{path}: {imported.reason}; {imported.remedy}")
    times = [
        records.record(problem, backend, candidate, seconds, ready) for problem, candidate, seconds in imported.times
    ]
    return ImportResult(tuple(times), imported.skipped)
