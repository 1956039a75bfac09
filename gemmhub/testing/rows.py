"""Check of the bits of rows, which a backend promises for ``reproducible="batch"`` and for a named order.

One matrix of a case is multiplied by each candidate, and then parts of it again: other numbers of rows, at other
positions, among rows of any numbers, in stacks, in other layouts and at other alignments, with a packed b, from several
threads. Each row has the same bits in all of these products, by every function of a kernel and every candidate of the
same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub.backend import Backend, Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.operands import OPERANDS
from gemmhub.testing.answers import call, offered, prepared, require
from gemmhub.testing.case import Case
from gemmhub.testing.forms import forms
from gemmhub.testing.memory import Memory, Unrepresentable
from gemmhub.testing.operands import Operands
from gemmhub.testing.packing import packed_by, typical_of

Array = Any

_MANY = 8192
"""Rows of the largest product on the host, where b has few elements; a twentieth of them where it has more."""
_CALLERS = 3


def check_rows(backend: Backend, case: Case, memory: Memory) -> None:
    """Check that ``backend``, which accepts the pinned problem of ``case``, keeps the bits of rows.

    Raises AssertionError with the product and the row whose bits differ.
    """
    whole = _Whole(backend, case, memory)
    accepted: list[str] = []
    refused: list[str] = []
    for part in _parts(case, np.random.default_rng(case.seed), memory):
        try:
            x = whole.part(part)
        except Unrepresentable:
            continue
        offer = offered(backend, x.problem)
        if isinstance(offer, Offer):
            _check_part(whole, part, x, offer)
        if part.dense and whole.has_forms(x):
            (accepted if isinstance(offer, Offer) else refused).append(part.label)
    require(
        not (accepted and refused),
        f"offer() accepts {accepted[:1]} and refuses {refused[:1]}: the number of rows is no reason to refuse a "
        "product whose bits are pinned",
    )
    _check_packed(whole)
    if case.threads > 1 and memory.device.type == "cpu":
        _check_threads(whole)


@dataclass(frozen=True)
class _Part:
    """Rows of a case, and the product that they are computed in."""

    label: str
    case: Case
    rows: Array
    """The row of the case that each row of the product is."""
    dense: bool = False
    """Whether operands are row-major and aligned, without batch."""
    among_others: bool = False
    """Whether each second row of a is not of the case: it has huge numbers, or none."""


def _parts(case: Case, rng: np.random.Generator, memory: Memory) -> Iterator[_Part]:
    """Yield the products that have rows of ``case``, which the matrices of a stack repeat."""
    c = case.c if case.c in (None, "out") else "row"
    operands = {name: form.removeprefix("batch ") for name, form in case.operands.items()}
    alone = replace(
        case, a="row", out="row", batch=(), a_batch="full", b_batch="full", c=c, operands=operands, offset=0
    )

    def part(label: str, rows: Array, dense: bool = False, **changes: Any) -> _Part:
        return _Part(label, replace(alone, m=len(rows), **changes), rows, dense)

    def some(count: int) -> Array:
        return rng.integers(0, case.m, count)

    several = int(rng.integers(3, 2 * case.m + 4))
    host, size = memory.device.type == "cpu", case.n * case.k
    many = [_MANY] if host and size <= 2**12 else [_MANY // 20] if size <= (2**14 if host else 2**11) else []
    for count in (1, 2, several, *many):
        yield part(f"{count} rows", some(count), dense=True)
    yield part("the rows in another order", rng.permutation(case.m), dense=True)
    if dtypes.info(dtypes.as_dtype(case.a_dtype)).inexact:
        yield replace(part("rows among huge ones and NaN", some(max(4, several)), dense=True), among_others=True)
    yield part("rows of a padded, unaligned a", some(several), a="row_odd", offset=3)
    yield part("one row of a padded, unaligned a", some(1), a="row_odd", offset=1)
    yield part("rows of a column-major a", some(several), a="col")
    yield part("rows of a column-major b", some(several), b="row" if case.b.startswith("col") else "col")
    yield part("rows of a column-major, padded result", some(several), out="col_odd")
    yield part("rows in a stack", some(several), batch=(3,), b_batch="missing")
    yield part("single rows in an interleaved stack", some(1), batch=(2, 2), a="interleaved", out="interleaved")


class _Whole:
    """One matrix of a case: the operands, and the bits of its result in each order."""

    def __init__(self, backend: Backend, case: Case, memory: Memory) -> None:
        self.backend, self.case, self.memory = backend, case, memory
        self.operands = x = Operands(replace(case, data="residual"), memory)
        x.fill(case.seed)
        rng = np.random.default_rng(case.seed)
        self._matrix = tuple(int(rng.integers(size)) for size in case.batch)
        offer = offered(backend, x.problem)
        assert isinstance(offer, Offer), "the caller asked"
        self.results: dict[str | None, Array] = {}
        """The result, by order."""
        self.kernels: dict[str, Kernel] = {}
        """The kernels of all candidates, by name."""
        for candidate in offer.candidates:
            kernel = self.kernels[candidate.name] = prepared(backend, x.problem, candidate.name, offer.workspace)
            for label, result in _products(x, kernel):
                result = result[self._matrix]
                known = self.results.setdefault(candidate.order, result)
                _compare(
                    result, known, np.arange(case.m), f"candidate {candidate.name!r} of {candidate.order}, {label}"
                )
        self.order = offer.first.order
        self.check_order(offered(backend, x.problem.canonical), "1024 x 1024 x 1024, which decides for all sizes,")
        self.dense = _is_dense(case)

    def check_order(self, offer: Offer | Refusal, label: str) -> None:
        """Require that the first candidate of an offer adds in the order of the case's first one."""
        order = None if isinstance(offer, Refusal) else offer.first.order
        require(order == self.order, f"the first order of {label} is {order}, and that of the case is {self.order}")

    def has_forms(self, x: Operands) -> bool:
        """Whether a part has the operands of the case in the same forms: those of one row may be simpler."""
        parts, whole = ({name: y.form for name, y in z.problem.operands.items()} for z in (x, self.operands))
        return all(whole[name].removeprefix("batch ") == form for name, form in parts.items())

    def part(self, part: _Part) -> Operands:
        """The operands of a part of the rows."""
        x = Operands(replace(part.case, data="residual"), self.memory)
        for name, placed in x.inputs.items():
            placed.fill(self._rows(name, part.rows), None)
        if part.among_others:
            values = x.a.values.copy()
            with np.errstate(all="ignore"):
                values[1::4], values[3::4] = np.nan, values[3::4] * values.dtype.type(2**14)
            x.a.fill(values, None)
        x.addend = None if part.case.c is None else self._rows("c", part.rows)
        x.poison(self.case.seed)
        return x

    def _rows(self, name: str, rows: Array) -> Array:
        """The values of an operand of the matrix, of these rows where it has rows."""
        case, whole = self.case, self.operands
        if name in ("a", "b") or case.parts.get(name) == "matrix":
            values: Array = whole.addend if name == "c" else whole.inputs[name].values
            matrix = np.broadcast_to(values, (*case.batch, *values.shape[-2:]))[self._matrix]
            return matrix if name == "b" else matrix[rows]
        values, form = whole.inputs[name].values, case.parts[name]
        sizes = [size for size in forms(name)[form] if size != "batch"]
        values = values[self._matrix] if form.startswith("batch") else values
        return values.take(rows, sizes.index("m")) if "m" in sizes else values


def _is_dense(case: Case) -> bool:
    layouts = {case.a, case.out, *([] if case.c in (None, "out") else [case.c])}
    return layouts == {"row"} and not case.batch and not case.offset


def _check_part(whole: _Whole, part: _Part, x: Operands, offer: Offer) -> None:
    """Check the rows of a part, computed by its own kernels and by those of the case that serve it."""
    whole.check_order(offer, part.label)
    for candidate in offer.candidates if whole.case.every_candidate else offer.candidates[:1]:
        if candidate.order not in whole.results:
            continue
        kernels = {"": prepared(whole.backend, x.problem, candidate.name, offer.workspace)}
        own = whole.kernels.get(candidate.name)
        if own is not None and part.dense and whole.dense and whole.has_forms(x):
            if own.any_size:
                kernels[", by the kernel of other sizes"] = own
            if own.with_rows is not None and x.problem == whole.operands.problem.with_rows(len(part.rows)):
                run = call("with_rows()", own.with_rows, len(part.rows))
                kernels |= (
                    {} if run is None else {", by the kernel of other rows": replace(own, run=run, with_rows=None)}
                )
        for which, kernel in kernels.items():
            for label, result in _products(x, kernel):
                step = 2 if part.among_others else 1
                for matrix in result.reshape(-1, *result.shape[-2:]):
                    _compare(
                        matrix[::step], whole.results[candidate.order], part.rows[::step],
                        f"{part.label}, candidate {candidate.name!r} of {candidate.order}, {label}{which}",
                    )  # fmt: skip


def _products(x: Operands, kernel: Kernel, packed: object = None) -> Iterator[tuple[str, Array]]:
    """Yield the results of the functions of a kernel, each with the function's name."""
    problem, out = x.problem, x.out.array
    x.poison(x.case.seed)
    call("run()", x.run, kernel, packed)
    yield "run()", x.out.read()[0].copy()
    if x.memory.device.type != "cpu":
        return
    b = x.b.array if packed is None else packed
    targets = [("None", None), ("out", out)]
    with np.errstate(all="ignore"):
        if kernel.direct is not None and problem.plain:
            for name, target in targets:
                x.poison(x.case.seed)
                yield f"direct(a, b, {name})", np.asarray(call("direct()", kernel.direct, x.a.array, b, target)).copy()
            if problem.m == 1 and not problem.batch:
                vector = call("direct()", kernel.direct, x.a.array[0], b, None)
                yield "direct(vector, b, None)", np.asarray(vector)[np.newaxis]
        if kernel.direct_epilogue is not None and not any(OPERANDS[name].written for name in x.others):
            direct = call("direct_epilogue()", kernel.direct_epilogue, problem.m * problem.n * problem.batch_count)
            if direct is None:
                return
            for name, target in targets[x.case.c == "out" :]:
                x.poison(x.case.seed)
                result = call("direct_epilogue()", direct, x.a.array, b, target, x.options)
                yield f"direct_epilogue(..., out={name})", np.asarray(result).copy()


def _check_packed(whole: _Whole) -> None:
    """Check the rows of the product with a packed b, where the backend packs one for it."""
    rows = np.arange(whole.case.m)[::-1]
    x = whole.part(next(_parts(whole.case, np.random.default_rng(0), whole.memory)))
    x = whole.part(_Part("packed b", replace(x.case, m=len(rows)), rows))
    problem = packed_by(whole.backend, x.problem)
    offer = offered(whole.backend, problem)
    packed = call("pack()", whole.backend.pack, x.b.array, typical_of(x.problem))
    if isinstance(offer, Refusal) or isinstance(packed, Refusal):
        return
    for candidate in offer.candidates:
        kernel = prepared(whole.backend, problem, candidate.name, offer.workspace)
        for label, result in _products(x, kernel, packed) if candidate.order in whole.results else ():
            label = f"packed b, candidate {candidate.name!r} of {candidate.order}, {label}"
            _compare(result, whole.results[candidate.order], rows, label)


def _check_threads(whole: _Whole) -> None:
    """Check the rows that several threads compute at once, one of which may use a single processor."""
    rng, barrier = np.random.default_rng(whole.case.seed), Barrier(_CALLERS)
    part = next(_parts(whole.case, rng, whole.memory))
    work = []
    for _ in range(_CALLERS):
        rows = rng.integers(0, whole.case.m, whole.case.m + 2)
        x = whole.part(_Part("", replace(part.case, m=len(rows)), rows))
        offer = offered(whole.backend, x.problem)
        if isinstance(offer, Refusal):
            return
        work.append((rows, x, offer.first, prepared(whole.backend, x.problem, offer.first.name, offer.workspace)))

    def multiply(index: int) -> None:
        rows, x, candidate, kernel = work[index]
        if index == 0 and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread alone
        barrier.wait(timeout=60.0)
        for label, result in _products(x, kernel):
            _compare(result, whole.results[candidate.order], rows, f"{_CALLERS} threads at once, {label}")

    with ThreadPoolExecutor(_CALLERS) as pool:
        list(pool.map(multiply, range(_CALLERS)))


def _compare(result: Array, whole: Array, rows: Array, label: str) -> None:
    """Require that each row of a product has the bits of the row of the case that it is."""
    result, expected = (np.ascontiguousarray(x).view(np.uint8) for x in (result, whole[rows]))
    bad = np.flatnonzero((result != expected).any(axis=-1))
    require(
        not bad.size,
        f"{label}: {bad.size} of {len(rows)} rows have other bits than the same rows in the product of {len(whole)} "
        f"rows, the first row {bad[:1]}",
    )
