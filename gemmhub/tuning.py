"""Tuning: time every backend, and each of its candidates, on one call; record what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from gemmhub import api, arrays, decision, families, planning, records, views
from gemmhub.capability import Refusal
from gemmhub.comparison import check_result
from gemmhub.decision import Able
from gemmhub.errors import GemmhubError, NoBackendError
from gemmhub.options import Request
from gemmhub.timing import interleave, rotation


@dataclass(frozen=True)
class Tuned:
    """One candidate. ``seconds`` is None where it did not run or was wrong; ``remark`` says why."""

    backend: str
    candidate: str
    seconds: float | None
    remark: str = ""


@dataclass(frozen=True)
class TuneResult:
    """What :func:`gemmhub.tune` measured, fastest first, and the file it was recorded in."""

    problem: str
    rows: tuple[Tuned, ...]
    path: Path | None

    @property
    def best(self) -> Tuned:
        """The fastest right candidate."""
        return self.rows[0]

    def __str__(self) -> str:
        lines = [f"problem: {self.problem}"]
        for row in self.rows:
            time = "-" if row.seconds is None else f"{row.seconds * 1e3:.4g} ms"
            lines.append(f"{row.backend} {row.candidate}: {time} {row.remark}".rstrip())
        lines.append(f"recorded in {self.path}" if self.path else "not recorded: records are off")
        return "\n".join(lines)


def tune_call(a: Any, b: Any, out: Any, asked: Request) -> TuneResult:
    """See :func:`gemmhub.tune`."""
    call = arrays.describe(a, b, out, asked)
    problem = call.problem
    able = decision.able_backends(problem)
    if asked.settings.forced:
        able = [x for x in able if x.entry.name == asked.settings.backend[0]]
    ready: list[tuple[Able, str, Callable[[], object]]] = []
    rows: list[Tuned] = []
    for backend in able:
        for candidate in backend.backend.candidates(problem):
            contender = _contender(backend, candidate, call, a, b, asked)
            if isinstance(contender, str):
                rows.append(Tuned(backend.entry.name, candidate, None, contender))
            else:
                ready.append((backend, candidate, contender))
    if not ready:
        verdict = decision.decide(problem, asked.settings)
        raise NoBackendError("nothing to tune: no candidate ran this product rightly", verdict)
    timings = interleave([run for _, _, run in ready], clock=call.family.clock())
    found = [
        records.record(problem, backend.entry.name, candidate, timing.median, backend.ready)
        for (backend, candidate, _), timing in zip(ready, timings)
    ]
    path = records.path()
    if path is not None:
        records.write(path, found)
        records.forget()
        api.forget_decisions()
    rows += [Tuned(r.backend, r.candidate, r.seconds) for r in found]
    rows.sort(key=lambda row: (row.seconds is None, row.seconds or 0.0))
    return TuneResult(str(problem), tuple(rows), path)


def _contender(
    backend: Able, candidate: str, call: arrays.Call, a: Any, b: Any, asked: Request
) -> Callable[[], object] | str:
    """A function that runs one candidate on rotating operands, or why it may not compete."""
    kernel = decision.prepared(backend, candidate, call.problem, asked.settings)
    if isinstance(kernel, Refusal):
        return kernel.reason
    name, family = backend.entry.name, call.family
    execute = planning.bind(call, name, kernel)
    native = family.empty(call.out_shape, call.problem.out.dtype) if call.out is None else family.twin(call.out)
    target = family.wrap(native, (a, b))
    try:
        result = planning.first_run(call, name, kernel, execute, a, b, target, asked)
        ok, ratio, remark = check_result(call, asked, result)
    except GemmhubError as error:
        return str(error)
    if not ok:
        return f"wrong: {ratio:.3g} times its bound; {remark}"
    run = planning.shortcut(call, kernel, execute)
    turn = cycle(_sets(call, a, b))

    def contend() -> None:
        left, right = next(turn)
        if call.problem.plain:
            run(left, right, target)
        else:
            execute(left, right, target, asked.c, asked.bias, asked.alpha, asked.beta, asked.stream)

    return contend


def _sets(call: arrays.Call, a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Copies of the operands, strides and all: some that stay in the cache would flatter whoever reads them last."""
    family = call.family
    if call.problem.packed_by is not None or family is families.DLPACK:
        return [(a, b)]
    if family is families.NUMPY:
        a, b = call.a, call.b
    span = views.reach(call.a)[1] + views.reach(call.b)[1]
    copies = rotation(span, family.clock().cache_bytes) - 1
    return [
        (a, b),
        *((family.wrap(family.clone(a), (a, b)), family.wrap(family.clone(b), (a, b))) for _ in range(copies)),
    ]
