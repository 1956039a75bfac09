"""Comparison of backends: one call runs on each that can, and each result is checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub import accuracy
from gemmhub._base import progress, registered
from gemmhub._base.guard import memory_errors
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._call import bind, describe
from gemmhub._call.describe import Call
from gemmhub._call.options import DEFAULTS, Options, Request, request, unknown
from gemmhub._check.product import hosted, on_host
from gemmhub._check.spot_check import examine, generator
from gemmhub._choice import answers, decide
from gemmhub.capability import Refusal
from gemmhub.config import Settings
from gemmhub.errors import GemmhubError, InputError
from gemmhub.kit import locks

if TYPE_CHECKING:
    from typing_extensions import Unpack

HOST = "numpy"
"""The backend that serves as a reference where the operands are on a device."""

_REFERENCE_SECONDS = 1.0


@dataclass(frozen=True)
class Compared:
    """One backend's result. ``ratio`` is its worst error over its bound among the elements recomputed."""

    backend: str
    status: str
    """Verdict: "passed", "failed", or "refused" (the settings name the backend, and it refuses these operands)."""
    ratio: float
    """Worst error over its bound among the elements recomputed; NaN where there is no result."""
    difference: float
    """Largest absolute difference from the first correct result of a backend; NaN without either."""
    remark: str
    wrong: bool = False
    """Whether there is a result, and it violates its bound. A backend that failed otherwise raised, or its kernel did
    not compile."""

    @property
    def ok(self) -> bool:
        """Whether the backend ran and its result is correct."""
        return self.status == "passed"

    @property
    def summary(self) -> str:
        """The first line of the remark, which may be all of a compiler's output."""
        return self.remark.partition("\n")[0]


@dataclass(frozen=True, repr=False)
class Comparison(Report):
    """The result of :func:`compare`. True where no backend failed."""

    problem: str
    rows: tuple[Compared, ...]

    def __bool__(self) -> bool:
        return not self.deviating

    @property
    def deviating(self) -> tuple[str, ...]:
        """Names of the backends that failed."""
        return tuple(row.backend for row in self.rows if row.status == "failed")

    @property
    def wrong(self) -> bool:
        """Whether a result violates its bound."""
        return any(row.wrong for row in self.rows)

    def _parts(self) -> Iterator[Part]:
        header = ("backend", "verdict", "error/bound", "max difference", "remarks")
        rows = [(r.backend, r.status, shown(r.ratio), shown(r.difference), r.summary) for r in self.rows]
        yield Facts([("problem", self.problem)])
        yield Table(header, rows, right=header[2:4], marked=("verdict",))
        yield Facts([("deviating", ", ".join(self.deviating) or "none")])


def shown(number: float) -> str:
    """Format a ratio or difference for tables."""
    return "-" if np.isnan(number) else f"{number:.3g}"


@dataclass(frozen=True)
class _Side:
    """The call for one group of backends: with its operands on their device, or on the host."""

    call: Call
    a: Any
    b: Any
    request: Request


@memory_errors
def compare(
    a: Any, b: Any, *, backends: Sequence[str] | None = None, seed: int | None = None, **options: Unpack[Options]
) -> Comparison:
    """Run this product on every capable backend (or on those named) and check each result.

    Operands on a device are copied to the host for ``numpy``, as a reference that shares nothing with the device's
    libraries; unless ``numpy`` is named, only where it takes less than a second. Each result is checked as by
    :func:`gemmhub.spot_check`, with all options of the call. A backend that the settings
    name (``backend=``, a context, environment or file) and that cannot run the operands has a row with its reason.

    Parameters
    ----------
    a, b, options : as of :func:`gemmhub.matmul`, without ``out``.
    backends : names of the backends to run; by default all that can.
    seed : makes the random choices of the checks repeatable.

    Returns
    -------
    A :class:`Comparison`, true where no backend failed. Print it.

    Raises
    ------
    The errors of :func:`gemmhub.matmul`; InputError where a backend in ``backends`` cannot run it, with its reason.

    See Also
    --------
    spot_check : check one result, of any library.
    tune : time the backends.

    Examples
    --------
    >>> a = np.ones((40, 50), np.float32)
    >>> comparison = gemmhub.compare(a, a.T, backends=["numpy"])
    >>> bool(comparison), comparison.deviating
    (True, ())
    """
    for name in options:
        if name not in DEFAULTS and name != "out":  # which has its own error
            raise unknown(name, ("backends", "seed", *DEFAULTS))
    if "out" in options:
        raise InputError(
            "out",
            "given to compare",
            "operands and the other options of matmul",
            "omit out=: each backend allocates its own result",
        )
    if registered.deferring or registered.doors:
        arguments: dict[str, Any] = {"backends": backends, "seed": seed, **options}
        deferred = registered.deferred("compare", (a, b), arguments)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    named = _named(backends)
    generator(seed)  # before anything is computed
    with locks.deciding:
        parsed = request(options)
        described = describe.describe(a, b, None, parsed)
        here = _Side(described, a, b, describe.beside(described.arrays, parsed))
        call = here.call
        eligible = {x.entry.name: (x, here) for x in answers.eligible_backends(call.problem)}
    names = named or tuple(eligible)
    if call.problem.device.type != "cpu" and call.problem.packed_by is None and (not named or HOST in named):
        host = _host_side(here)
        numpy = next((x for x in answers.eligible_backends(host.call.problem) if x.entry.name == HOST), None)
        if numpy is not None and (named or (numpy.seconds or 0.0) <= _REFERENCE_SECONDS):
            eligible[HOST] = numpy, host
            names = names if named else (*names, HOST)
    for name in names:
        if name not in eligible:
            raise InputError("backends", f"{name!r} cannot: {_reason(name, call)}", ", ".join(eligible))
    rows: list[Compared] = []
    first: Any = None
    for name in names:
        progress.report(name)
        backend, side = eligible[name]
        problem, settings = side.call.problem, side.request.settings
        kernel = decide.prepared(backend, backend.candidate, problem, settings)
        if isinstance(kernel, Refusal):
            rows.append(Compared(name, "failed", nan, nan, kernel.reason))
            continue
        try:
            result = bind.run_once(side.call, name, kernel, side.a, side.b, side.request)
        except GemmhubError as error:
            rows.append(Compared(name, "failed", nan, nan, str(error)))
            continue
        ok, ratio, remark = check_result(side.call, side.request, result, seed)
        result = side.call.arrays.to_host(result)
        first = result if first is None and ok else first
        remark = remark if side is here else ", ".join(filter(None, ("on the host", remark)))
        rows.append(Compared(name, "passed" if ok else "failed", ratio, _difference(result, first), remark, not ok))
    refusing = [] if named else [name for name in parsed.settings.backend if name not in eligible]
    rows += [Compared(name, "refused", nan, nan, _reason(name, call)) for name in refusing]
    return Comparison(str(call.problem), tuple(rows))


def _reason(name: str, call: Call) -> str:
    """Why backend ``name`` cannot run ``call``. Forcing it also asks backends of other device types."""
    try:
        verdict = decide.decide(call.problem, Settings(backend=(name,), forced=True))[name]
    except InputError as error:
        return f"{error.given}; the backends are {error.allowed}"
    status = "" if verdict.status == "refused" else f"{verdict.status}: "
    return status + "; ".join(filter(None, (verdict.reason, verdict.remedy)))


def _named(backends: Any) -> tuple[str, ...]:
    """The names in ``backends``, in order; InputError where it is not a sequence of names."""
    try:
        names = () if backends is None else tuple(backends)
    except TypeError:
        names = (None,)
    if isinstance(backends, str) or not all(isinstance(name, str) for name in names):
        remedy = f"pass [{backends!r}]" if isinstance(backends, str) else ""
        raise InputError("backends", f"{backends!r:.80}", "a sequence of names of backends", remedy)
    return names


def _host_side(here: _Side) -> _Side:
    """The call of ``here`` with copies of its operands on the host."""
    call = here.call
    if here.request.stream is not None:
        call.arrays.synchronize()  # the copies run on the current stream
    fetch = call.arrays.to_host
    a, b = fetch(call.a.owner), fetch(call.b.owner)
    parsed = hosted(here.request, fetch)
    return _Side(describe.describe(a, b, None, parsed), a, b, parsed)


def _difference(result: Any, first: Any) -> float:
    if first is None or np.size(result) == 0:
        return float("nan") if first is None else 0.0
    with np.errstate(all="ignore"):
        difference = np.abs(accuracy.widen(result) - accuracy.widen(first))
        return float(np.nanmax(np.where(np.isnan(difference), 0.0, difference)))


def check_result(
    call: Call, request: Request, result: Any, seed: int | None = None, samples: int | None = None
) -> tuple[bool, float, str]:
    """Check ``result``; return (whether it is correct, worst error over bound, remark).

    ``samples`` limits the check to so many random elements.
    """
    problem, arrays = call.problem, call.arrays
    if problem.device.type != "cpu" and request.stream is not None:
        arrays.synchronize()  # the check reads on the current stream
    if problem.packed_by is not None:
        return True, 0.0, "not checked"
    native = np.asarray(arrays.to_host(result))
    verdict = examine(on_host(call, request), request, native, seed=seed, samples=samples)
    return verdict.ok, verdict.worst, "" if verdict.ok else verdict.reason
