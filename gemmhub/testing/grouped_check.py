"""Check of one grouped case on one backend against the contract, without pytest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gemmhub import accuracy, dtypes
from gemmhub.backend import Backend, Kernel
from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.operands import Bias, Described, Operand, Product, addend_dtypes, described
from gemmhub.operands import Operands as Table
from gemmhub.problem import GemmProblem
from gemmhub.testing.answers import call, first_kernel, offered, prepared, require
from gemmhub.testing.forms import shape
from gemmhub.testing.groups import GroupedCase, spans
from gemmhub.testing.memory import HOST, Memory, Placed, strides
from gemmhub.testing.operands import draw_values
from gemmhub.testing.results import Outcome

Array = Any
_ROUNDS = 3


def check_groups(backend: Backend, case: GroupedCase, memory: Memory = HOST) -> Outcome:
    """Check ``backend`` (already probed) against the contract of :class:`gemmhub.problem.Groups` on ``case``.

    Raises AssertionError with the case, the group and the worst element. A case that the backend refuses with a reason
    and a remedy passes.
    """
    try:
        operands = GroupedOperands(case, memory)
        offer = offered(backend, operands.problem)
        if isinstance(offer, Refusal):
            return Outcome(offer)
        worst = 0.0
        for name in offer.names:
            kernel = prepared(backend, operands.problem, name, offer.workspace)
            for seed, ends in enumerate(_ends(case)):
                operands.fill(case.seed + seed, ends)
                label = f"candidate {name!r}, ends {ends}" + ", other than before, in the same memory" * (seed > 0)
                worst = max(worst, operands.run_once(kernel, label))
        if case.reproducible is not None:
            _repeats(operands, first_kernel(backend, operands.problem))
        if operands.problem.pinned and not operands.others:
            _as_products(backend, operands)
        return Outcome(worst=worst)
    except AssertionError as error:
        raise AssertionError(f"{case!r}\n  {error}") from error.__cause__


def _ends(case: GroupedCase) -> tuple[tuple[int, ...], ...]:
    """The ends of a case, and others for the same kernel: the sizes in reverse order, and one more in each group."""
    sizes = [span.stop - span.start for span in spans(case.ends, case.extent)]
    backwards = tuple(int(x) for x in np.cumsum(sizes[::-1]))
    longer = tuple(min(end + i + 1, case.extent) for i, end in enumerate(backwards))
    return case.ends, backwards, longer


class GroupedOperands:
    """All arguments of one call of a kernel."""

    def __init__(self, case: GroupedCase, memory: Memory) -> None:
        self.case, self.memory = case, memory
        groups = case.groups
        a, b, out = (dtypes.as_dtype(x) for x in (case.a_dtype, case.b_dtype, case.out_dtype))
        self.placed = {
            "a": self._matrix("a", a, case.m, case.k, case.a), "b": self._matrix("b", b, case.k, case.n, case.b),
            "out": self._matrix("out", out, case.m, case.out_columns, case.out),
        }  # fmt: skip
        self.offsets = Placed(memory, np.dtype(np.int32), (groups.count,), (1,), 1, groups.count)
        self.product = Product(
            case.m, case.n, case.k, (groups.count,), 3, 3, (groups.count, case.m, case.n), out, case.compute_dtype
        )
        self.others: dict[str, Placed] = {}
        described_by: dict[str, Described] = {}
        for name, form in (("c", "matrix" if case.c else None), ("bias", case.bias), *case.operands.items()):
            if form is not None:
                described_by[name] = self._add(name, form)
        self.problem = GemmProblem(
            m=case.m, n=case.n, k=case.k, a=self._operand("a"), b=self._operand("b"), out=self._operand("out"),
            compute_dtype=case.compute_dtype, operands=Table(described_by), alpha_is_one=case.alpha == 1,
            activation=case.activation, precision=case.precision, reproducible=case.reproducible, device=memory.device,
            groups=groups,
        )  # fmt: skip
        self.spans: list[slice] = []

    def _matrix(self, name: str, dtype: dtypes.DType, rows: int, cols: int, layout: str) -> Placed:
        batch = self.case.groups.batch(name)
        x = strides(layout, batch, rows, cols)
        steps = (*x.batch, x.row, x.col)
        return Placed(self.memory, dtype, (*batch, rows, cols), steps, self.case.offset + x.first, x.size)

    def _operand(self, name: str) -> Operand:
        x = self.others[name] if name == "c" else self.placed[name]
        batch = self.case.groups.batch("out" if name == "c" else name)
        *outer, row, col = x.steps
        steps = tuple(step if size > 1 else 0 for size, step in zip(batch, outer))
        return Operand(x.dtype, MatrixLayout(x.shape[-2], x.shape[-1], row, col, batch, steps), x.alignment)

    def _add(self, name: str, form: str) -> Described:
        case, count = self.case, self.case.groups.count
        if name == "c":
            self.others[name] = self._matrix("out", self.placed["out"].dtype, case.m, case.n, case.out)
            return self._operand(name)
        if name == "bias":
            dtype = addend_dtypes(self.placed["out"].dtype, case.compute_dtype)[0]
            sizes: tuple[int, ...] = (count, case.n) if form == "batch n" else (case.n,)
        else:
            dtype = np.dtype(np.float32)
            sizes = shape(name, form, case.m, case.n, case.k, (count,))
        steps = tuple(prod(sizes[i + 1 :]) for i in range(len(sizes)))
        placed = Placed(self.memory, dtype, sizes, steps, case.offset, max(1, prod(sizes)))
        self.others[name] = placed
        if name == "bias":
            return Bias(dtype, "n", 1, (case.n,) if len(sizes) == 2 and count > 1 else ())
        description = described(name, placed.values, self.product)[1]
        require(description.form == form or count == 1, f"{name} is of the form {description.form!r}, not {form!r}")
        return description

    @property
    def read(self) -> dict[str, Placed]:
        """The arrays that a call reads, by name."""
        return {"a": self.placed["a"], "b": self.placed["b"], **self.others, "offsets": self.offsets}

    def fill(self, seed: int, ends: tuple[int, ...]) -> None:
        """Draw new values from ``seed``, with these ends, into the same memory. No group has what is beyond the last
        end: it is NaN."""
        case, rng = self.case, np.random.default_rng(seed)
        self.seed, self.spans = seed, spans(ends, case.extent)
        exact = accuracy.problem_model(self.problem).exact and dtypes.info(self.placed["out"].dtype).kind != "float"
        for name, placed in self.read.items():
            if name == "offsets":
                placed.fill(np.array(ends, np.int32), None)
                continue
            plain = name in self.others or case.data == "alternate"
            values = draw_values(rng, placed.shape, placed.dtype, "normal" if plain else case.data, exact)
            if name.startswith("scale"):
                values = np.abs(values) + np.float32(0.5)
            axis = _axis(name, case.divides)
            if axis is not None and dtypes.info(placed.dtype).inexact:
                along = np.moveaxis(values, axis, 0)
                along[self.spans[-1].stop :] = np.nan
                for span in self.spans[1::2] if case.data == "alternate" else []:
                    along[span] = np.nan
            placed.fill(values, None)
        self.poison()

    def poison(self) -> None:
        """Fill the result as before a call: with NaN."""
        self.placed["out"].fill(None, None)

    def run(self, kernel: Kernel) -> None:
        """Call ``kernel`` and wait."""
        x = self.placed
        others = {name: placed.array for name, placed in self.others.items()}
        self.memory.synchronize()
        with np.errstate(all="ignore"):
            kernel.run(
                x["a"].array, x["b"].array, x["out"].array, self.case.alpha, self._beta, self.memory.stream, **others,
                offsets=self.offsets.array,
            )  # fmt: skip
        self.memory.synchronize()

    @property
    def _beta(self) -> float:
        return self.case.beta if self.case.c else 0

    def run_once(self, kernel: Kernel, label: str) -> float:
        """Call ``kernel`` and check what it wrote; return the worst error/bound."""
        call(f"{label}: run()", self.run, kernel)
        for name, placed in self.read.items():
            require(bool(np.array_equal(placed.read()[1], placed.image)), f"{label}: run() changed its input {name}")
        out = self.placed["out"]
        result, now = out.read()
        stray = out.outside() & (now != out.image)
        require(not stray.any(), f"{label}: run() wrote {int(stray.sum())} bytes outside the result")
        worst = max((self._compare(i, x, y, label) for i, x, y in self._groups(result)), default=0.0)
        axis = _axis("out", self.case.divides)
        beyond = result[:0] if axis is None else np.moveaxis(result, axis, 0)[self.spans[-1].stop :]
        wrong = np.argwhere(accuracy.widen(beyond) != 0)
        if len(wrong):
            place = wrong[0].tolist()
            raise AssertionError(
                f"{label}: {self.case.divides} = {place[0] + self.spans[-1].stop} is beyond the last end, "
                f"{self.spans[-1].stop}, and has {beyond[tuple(place)]}, not 0"
            )
        return worst

    def _groups(self, result: Array) -> Iterator[tuple[int, slice, Array]]:
        """Number, slice and result of each group."""
        axis = _axis("out", self.case.divides)
        for i, span in enumerate(self.spans):
            yield i, span, result[i] if axis is None else result[span] if axis == 0 else result[:, span]

    def cut(self, name: str, group: int, span: slice) -> Array:
        """The values of an operand that one group's product has."""
        values = (self.placed.get(name) or self.others[name]).values
        form = self.problem.operands[name].form if name in self.others else ""
        if self.case.groups.batch("out" if name == "c" else name) or form.startswith("batch") or values.ndim == 3:
            return values[group] if len(values) > 1 else values[0]
        axis = _axis(name, self.case.divides)
        if axis is None or values.shape[axis] == 1:
            return values
        return values[span] if axis == 0 else values[:, span]

    def _compare(self, group: int, span: slice, got: Array, label: str) -> float:
        """The largest error/bound of one group; AssertionError where it is above 1."""
        if not got.size:
            return 0.0
        case = self.case
        with np.errstate(all="ignore"):
            want = accuracy.reference(
                self.cut("a", group, span), self.cut("b", group, span), model=accuracy.problem_model(self.problem),
                alpha=case.alpha, beta=self._beta, activation=case.activation, out_dtype=self.placed["out"].dtype,
                **{name: self.cut(name, group, span) for name in self.others},
            )  # fmt: skip
            ratio = np.broadcast_to(want.ratio(got), got.shape)
        at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        if not ratio[at] <= 1.0:
            expected = np.broadcast_to(want.value, got.shape)[at]
            raise AssertionError(
                f"{label}, data seed {self.seed}: wrong result of group {group} ({case.divides} from {span.start} to "
                f"{span.stop})\n  {int((ratio > 1).sum())} of {ratio.size} elements are off; worst at "
                f"{list(map(int, at))} of the group: got {got[at]}, expected {expected} (error/bound {ratio[at]:.3g})"
            )
        return float(ratio[at])


def _axis(name: str, divides: str) -> int | None:
    """The axis of an operand of the whole arrays, or of the result, that offsets divide; None where they do not."""
    return {
        "m": {"a": 0, "out": 0, "c": 0, "scale_a": 0}, "k": {"a": 1, "b": 0},
        "n": {"b": 1, "out": 1, "c": 1, "scale_b": 1, "bias": 0},
    }[divides].get(name)  # fmt: skip


def _repeats(operands: GroupedOperands, kernel: Kernel) -> None:
    """Require bitwise equal results from call to call."""
    results = set()
    for _ in range(_ROUNDS):
        operands.poison()
        call("run()", operands.run, kernel)
        results.add(operands.placed["out"].read()[0].tobytes())
    require(len(results) == 1, 'reproducible="run" was accepted, but the results of equal calls differ in bits')


def _as_products(backend: Backend, operands: GroupedOperands) -> None:
    """Require that each group that has sums has the bits of its own product, by the candidates of the same order."""
    case, x = operands.case, operands.placed
    offer = offered(backend, operands.problem)
    if isinstance(offer, Refusal):
        raise AssertionError(f"offer() refuses what it accepted: {offer!r}")
    operands.fill(case.seed, case.ends)
    call("run()", operands.run, prepared(backend, operands.problem, offer.first.name, offer.workspace))
    for group, span, got in operands._groups(x["out"].read()[0]):
        a, b = (operands.cut(name, group, span) for name in ("a", "b"))
        if not (a.size and b.size):
            continue
        single = [_copied(operands.memory, np.array(y)) for y in (a, b, np.empty_like(got))]
        left, right, out = single
        plain = replace(
            operands.problem, m=a.shape[0], n=b.shape[1], k=a.shape[1], groups=None, a=_alone(left), b=_alone(right),
            out=_alone(out),
        )  # fmt: skip
        one = offered(backend, plain)
        names = [] if isinstance(one, Refusal) else [y.name for y in one.candidates if y.order == offer.first.order]
        require(bool(names), f"group {group}: its own product has no candidate of the order {offer.first.order!r}")
        kernel = prepared(backend, plain, names[0], 2**31)
        with np.errstate(all="ignore"):
            call("run()", kernel.run, left.array, right.array, out.array, case.alpha, 0, operands.memory.stream)
        operands.memory.synchronize()
        same = out.read()[0].tobytes() == np.ascontiguousarray(got).tobytes()
        require(same, f"group {group}: its bits differ from those of its own product, by {names[0]!r}")


def _copied(memory: Memory, values: Array) -> Placed:
    """A dense copy in memory of its own."""
    rows, cols = values.shape
    placed = Placed(memory, values.dtype, (rows, cols), (cols, 1), 0, max(1, rows * cols))
    placed.fill(values, None)
    return placed


def _alone(x: Placed) -> Operand:
    return Operand(x.dtype, MatrixLayout.contiguous(x.shape[0], x.shape[1]), x.alignment)
