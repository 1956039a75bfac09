"""Tuning of a function: time the candidates of each product that a call of it makes, and record the times."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmhub._base import progress, units
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._base.wording import counted, instance
from gemmhub._call import describe
from gemmhub._call.observe import Observed
from gemmhub._choice import records
from gemmhub._measure import fresh
from gemmhub._measure.tune import Saved, Tuned, TuneResult, measure, store
from gemmhub.errors import AllocationError, GemmhubError, InputError
from gemmhub.problem import GemmProblem


@dataclass(frozen=True)
class TunedProduct:
    """One product of a function."""

    problem: str
    calls: int
    """Number of times that the function made it."""
    chosen: Tuned
    """The candidate that ran it in the function, with its measured time: None where it has none."""
    source: str
    """Reason why that one ran: an estimate, or an earlier record ("estimated", "measured")."""
    rows: tuple[Tuned, ...]
    """All candidates, fastest first; none where the product was not tuned."""
    remark: str = ""
    """Reason why it was not tuned, or why the chosen candidate has no time."""

    @property
    def best(self) -> Tuned:
        """The fastest correct candidate; the chosen one where the product was not tuned."""
        return self.rows[0] if self.rows else self.chosen

    @property
    def gain(self) -> float | None:
        """The time of the chosen candidate, divided by that of the fastest; None where one is unknown."""
        before, after = self.chosen.seconds, self.best.seconds
        return None if before is None or after is None else before / after


@dataclass(frozen=True, repr=False)
class FunctionTuneResult(Saved):
    """The result of :func:`gemmhub.tune` for a function: its products, in the order of their first calls."""

    products: tuple[TunedProduct, ...]
    path: Path | None
    """The record file; None where records are off."""
    warning: str = ""
    """Reason not to trust the times; empty where nothing disturbed them."""
    note: str = ""
    """Reason why these records have no effect in a block: its file decides; empty where they have."""
    _records: tuple[records.Record, ...] = field(default=(), compare=False)

    @property
    def seconds_before(self) -> float:
        """Seconds of all calls by the candidates that ran before, of the products where these are known."""
        return sum(x.calls * (x.chosen.seconds or 0.0) for x in self.products if x.gain is not None)

    @property
    def seconds(self) -> float:
        """Seconds of the same calls by the fastest candidates."""
        return sum(x.calls * (x.best.seconds or 0.0) for x in self.products if x.gain is not None)

    @property
    def gain(self) -> float | None:
        """The first of these divided by the second; None where no product was tuned."""
        return self.seconds_before / self.seconds if self.seconds else None

    def _remarks(self) -> Iterable[str]:
        return dict.fromkeys(f"{x.problem}: {x.remark}" for x in self.products)

    def _parts(self) -> Iterator[Part]:
        rows = [
            (
                x.calls, _named(x.chosen), units.duration(x.chosen.seconds), _named(x.best) if x.rows else "-",
                units.duration(x.best.seconds) if x.rows else "-", units.multiple(x.gain),
                "; ".join(filter(None, (x.problem, x.remark))),
            )
            for x in self.products
        ]  # fmt: skip
        calls = sum(x.calls for x in self.products)
        yield Facts([("function", f"{counted(calls, 'call')} of {counted(len(self.products), 'product')}")])
        header = ("calls", "chosen", "time", "fastest", "tuned", "gain", "product")
        yield Table(header, rows, right=("calls", "time", "tuned", "gain"))
        facts = [(name, text) for name, text in (("warning", self.warning), ("note", self.note)) if text]
        before, after = map(units.duration, (self.seconds_before, self.seconds))
        total = f"{before} before, {after} tuned: {units.multiple(self.gain)}" if self.seconds else "nothing was tuned"
        yield Facts([("total", total), *facts, ("recorded", str(self.path) if self.path else "no: records are off")])


def _named(x: Tuned) -> str:
    return f"{x.backend} {x.candidate}"


def tune_products(products: Sequence[Observed]) -> FunctionTuneResult:
    """Time the candidates of each product on new operands, and record the times of each as soon as they are known."""
    rows, kept, warnings, notes = [], [], [], []
    with progress.bar(len(products)) as (begin, advance):
        for product in products:
            begin(f"tuning {product.problem.m}x{product.problem.n}x{product.problem.k}")
            row, tuned, new = _tune(product)
            store(new)
            rows.append(row)
            kept += new
            warnings += [tuned.warning] if tuned is not None and tuned.warning else []
            notes += [tuned.note] if tuned is not None and tuned.note else []
            advance()
    warning = f"{len(warnings)} of {counted(len(rows), 'product')}: {warnings[0]}" if warnings else ""
    note = f"{len(notes)} of {counted(len(rows), 'product')}: {notes[0]}" if notes else ""
    return FunctionTuneResult(tuple(rows), records.path(), warning, note, tuple(kept))


def _tune(product: Observed) -> tuple[TunedProduct, TuneResult | None, list[records.Record]]:
    """Tune one product; the result of :func:`measure` is None where it cannot be tuned."""
    decision = product.decision
    verdict = decision[decision.chosen or ""]
    chosen = Tuned(verdict.backend, verdict.candidate, None)
    row = TunedProduct(str(product.problem), product.calls, chosen, verdict.source, ())
    if product.problem.empty:
        return replace(row, remark="not tuned: the result is empty"), None, []
    try:
        made = fresh.operands_like(product)
        a, b, out = made.pop("a"), made.pop("b"), made.pop("out", None)
        request = replace(product.request, operands=made)
        call = describe.describe(a, b, out, request)
        if call.problem.key != product.problem.key:
            return replace(row, remark=f"not tuned: new operands are {call.problem.key}"), None, []
        if _alignments(call.problem) != _alignments(product.problem):
            return replace(row, remark="not tuned: new operands are aligned otherwise"), None, []
        tuned, new = measure(call, a, b, request, (chosen.backend, chosen.candidate))
    except (GemmhubError, MemoryError) as error:
        reason = "no memory" if isinstance(error, (AllocationError, MemoryError)) else str(error).partition("\n")[0]
        return replace(row, remark=f"not tuned: {reason}"), None, []
    same = [x for x in tuned.rows if (x.backend, x.candidate) == (chosen.backend, chosen.candidate)]
    chosen = same[0] if same else chosen
    remark = "" if chosen.seconds is not None else f"{_named(chosen)} was not timed: {chosen.remark}"
    return replace(row, chosen=chosen, rows=tuned.rows, remark=remark), tuned, new


def _alignments(problem: GemmProblem) -> tuple[int, ...]:
    return problem.a.alignment, problem.b.alignment, problem.out.alignment


def wait(result: object) -> None:
    """Wait for the programs of JAX that compute a function's ``result``: their products run when it has returned."""
    jax: Any = sys.modules.get("jax")
    if hasattr(jax, "block_until_ready"):
        jax.block_until_ready(result)


def no_product(function: Callable[..., Any], result: object) -> InputError:
    """The error for a ``function`` that made no product through gemmhub, and returned ``result``."""
    torch: Any = sys.modules.get("torch")
    name = instance(type(function)) if torch and isinstance(function, _module_type(torch)) else _name_of(function)
    if hasattr(result, "__dask_graph__"):
        remedy = "it returned a lazy result: compute it in the function, by threads of this process"
    elif inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # it would warn that it never ran
        remedy = f"it returned {instance(type(result))}, which has not run: pass a function that runs it to its end"
    elif torch is not None and isinstance(function, _module_type(torch)):
        remedy = (
            "torch computed its products: call gemmhub.torch.accelerate(model) first, or tune it in a block of "
            "gemmhub.torch.use()"
        )
    else:
        remedy = (
            "multiply by gemmhub.matmul, or torch's own products in a block of gemmhub.torch.use(); make plans in the "
            "function: those made before keep their choice"
        )
    return InputError("function", f"{name} made no product through gemmhub", "a function that makes one", remedy)


def _module_type(torch: Any) -> Any:
    return torch.nn.Module if hasattr(torch, "nn") else ()


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or instance(type(function))
