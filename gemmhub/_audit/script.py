"""Scripts that repeat a fault without gemmhub: NumPy, the library, the operands, and the bound that breaks."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gemmhub import dtypes
from gemmhub._audit.implementation import Implementation, plain_scalar
from gemmhub._audit.result import anonymous
from gemmhub._audit.trials import Trial
from gemmhub.accuracy import problem_model
from gemmhub.testing.case import Case
from gemmhub.testing.memory import Placed
from gemmhub.testing.operands import Operands

_ELEMENTS = 64
"""Elements of an operand that a script lists at most."""
_SECONDS = 120

_PLACE = """\
def place(x, shape, steps, first, size):  # x in memory with these strides, NaN (or 77) around its elements
    store, e = np.full(size, 77 if x.dtype.kind in "biu" else np.nan).astype(x.dtype).view("u1"), x.itemsize
    view = np.ndarray(shape, x.dtype, store, first * e, [step * e for step in steps])
    return np.copyto(view, x) or view"""


def script(
    implementation: Implementation, trial: Trial, text: str, kind: str = "value", guarded: bool = False
) -> str | None:
    """Return a script whose exit code is not 0 where the fault shows; None where there is no short one.

    ``text`` and ``kind`` are those of the fault. ``guarded`` is whether operands that are dense have NaN after their
    last element, too.
    """
    if trial.kind == "alias":  # an odd seed: the call writes into out, as in the audit
        trial = replace(trial, case=replace(trial.case, seed=trial.case.seed | 1))
    case = trial.case
    unwritten = case.activation not in (None, "relu") or case.operands or case.c == "out" or case.packed
    if unwritten or trial.kind == "threads" or case.precision != "ieee" or kind == "outside":
        return None
    operands = Operands(case)
    operands.fill(case.seed)
    values = _values(operands, guarded)
    if values is None:
        return None
    placed = any("place(" in x for x in values)
    call = implementation.script(case, not placed, trial.kind != "alias" and kind not in ("shape", "input"))
    if call is None:
        return None
    setup, expression = call
    versions = ", ".join(f"{name} {version}" for name, version in implementation.versions().items())
    first = text.splitlines()[0].strip()
    lines = [f"# {implementation.name}: {trial.kind}; {first:.140}", f"# {versions}" if versions else "#"]
    imports = len(lines)
    lines += [line for line in (setup,) if line]
    compared = [*_compared(implementation, trial, operands, expression, kind)]
    lines += [_PLACE] * any("place(" in text for text in (*values, *compared))
    lines += [f"rng = np.random.default_rng({case.seed})"] * any("rng." in value for value in values)
    lines += values
    if trial.kind == "nan in c":
        lines.append("c = np.full_like(c, np.nan)")
    if trial.case.alpha != 1:
        lines.append(f"alpha = {plain_scalar(case.alpha)!r}")
    lines += ["kept = [a.tobytes(), b.tobytes()]"] * (kind == "input")
    lines += compared
    lines[imports:imports] = _imports(setup, "\n".join(lines[imports:]))
    return "\n".join(lines) + "\n"


def _imports(setup: str, text: str) -> Iterator[str]:
    """Yield the imports that a script needs and that ``setup``, its first statements, does not have."""
    modules = ["ml_dtypes"] * ("ml_dtypes" in text) + ["numpy as np"]
    missing = [x for x in modules if not re.search(rf"^import .*\b{x}\b", setup, re.MULTILINE)]
    if missing:
        yield f"import {', '.join(missing)}"


FAILS = "run alone: fails"
"""The outcome of a script that repeats its fault."""
NOT_RUN = "not run alone"


def outcome(text: str) -> str:
    """Run a script in a process of its own; return :data:`FAILS`, or what happened instead."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fault.py"
        path.write_text(text, encoding="utf-8")
        try:
            run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return f"does not run alone: no end after {_SECONDS} seconds"
        except OSError as error:
            return f"{NOT_RUN}: {error.strerror or type(error).__name__}"
    if run.returncode == 0:
        return "run alone: passes"
    if re.search("^AssertionError", run.stderr, re.MULTILINE):  # its text may have several lines
        return FAILS
    last = next((x for x in reversed(run.stderr.splitlines()) if x and not x[0].isspace()), "")
    return f"does not run alone: {anonymous(last)[:200] or f'exit code {run.returncode}'}"


def _values(operands: Operands, guarded: bool) -> list[str] | None:
    """The statements that make the operands; None where there is no short text for their values."""
    case, lines = operands.case, []
    exact = problem_model(operands.problem).exact and dtypes.info(operands.out.dtype).kind in ("int", "uint")
    for name, placed in operands.inputs.items():
        shape = tuple(1 if step == 0 else size for size, step in zip(placed.shape, placed.steps))
        text = _drawn(placed, shape, case.data, exact)
        if text is None:
            drawn = placed.values[tuple(slice(None, size) for size in shape)]
            if drawn.size > _ELEMENTS or drawn.dtype.kind == "c":
                return None
            numbers = repr(drawn.astype(np.float64 if drawn.dtype.kind in "fV" else np.int64).tolist())
            numbers = numbers.replace("nan", "np.nan").replace("inf", "np.inf")
            text = f"np.array({numbers}).astype({_dtype(drawn.dtype.name)}).reshape({shape})"
        lines.append(f"{name} = {_in_place(placed, text, guarded)}")
    return lines


def _drawn(placed: Placed, shape: tuple[int, ...], data: str, exact: bool) -> str | None:
    """The expression that draws the values of an operand as the kit does; None for data that have no short one."""
    facts, dtype = dtypes.info(placed.dtype), _dtype(placed.dtype.name)
    if facts.kind == "bool":
        return f"rng.random({shape}) < 0.5"
    if not facts.inexact:
        limits = np.iinfo(placed.dtype)
        low, high = (int(limits.min), int(limits.max)) if exact else (max(-100, int(limits.min)), 100)
        if data == "extremes":
            return f"rng.choice(np.array(({low}, {low}, {high}), {dtype}), {shape})"
        return f"rng.integers({low}, {high}, {shape}, {dtype}, endpoint=True)"
    if data != "normal":
        return None
    if facts.kind == "complex":
        return f"(rng.standard_normal({shape}) + 1j * rng.standard_normal({shape})).astype({dtype})"
    return f"rng.standard_normal({shape}).astype({dtype})"


def _in_place(placed: Placed, text: str, guarded: bool = False) -> str:
    """The expression of an operand in memory of its layout."""
    dense = tuple(int(np.prod(placed.shape[i + 1 :])) for i in range(len(placed.shape)))
    first = (placed.offset - 256) // placed.dtype.itemsize
    if placed.steps == dense and first == 0 and not guarded:
        return text
    size = placed.image.size // placed.dtype.itemsize
    return f"place({text}, {placed.shape}, {placed.steps}, {first}, {size})"


def _dtype(name: str) -> str:
    return f"ml_dtypes.{name}" if name in dtypes.ML_DTYPES else f"np.{name}_" if name == "bool" else f"np.{name}"


def _compared(
    implementation: Implementation, trial: Trial, operands: Operands, expression: str, kind: str
) -> Iterator[str]:
    """Yield the statements that multiply and compare."""
    case, model = trial.case, problem_model(operands.problem)
    if trial.kind in ("rows", "repeat"):
        yield f"def once(a, out):\n    result = {expression}\n    return out if result is None else result"
        yield f"first = once(a, {_empty(case)})"
        m, parts = case.m, "[slice(None)] * 20" if trial.kind == "repeat" else ""
        parts = parts or f"(slice(0, 1), slice({m - 1}, {m}), slice(0, {m // 2}), slice({m // 3}, {m}))"
        yield f"for part in {parts}:"
        yield f"    assert first[part].tobytes() == once(a[part], {_empty(case)}[part]).tobytes(), part"
        return
    extra = 2 * (case.alpha != 1) + 3 * (case.c is not None) + (case.bias is not None)
    rounds = dtypes.info(dtypes.as_dtype(case.out_dtype)).inexact and extra > 0
    wide = "np.int64" if model.exact and not rounds else "np.complex128" if model.complex else "np.float64"
    if trial.kind == "alias":
        yield "x, got, out = a.copy(), a, a"
    elif implementation.writes(case):
        yield f"got = out = {_in_place(operands.out, _empty(case))}"
    left = "x" if trial.kind == "alias" else "a"
    yield f"want = {_want(case, wide, left)}"
    yield expression if implementation.writes(case) or trial.kind == "alias" else f"got = {expression}"
    if kind == "input":
        yield "assert kept == [a.tobytes(), b.tobytes()]"
        return
    if kind == "shape":
        yield "got = np.asarray(got)"
        yield f"stated = {operands.out.shape}, {_dtype(case.out_dtype)}"
        yield "assert (got.shape, got.dtype) == stated, (got.shape, got.dtype)"
    if case.activation == "relu":
        yield "want = np.maximum(want, 0)"
    if model.exact and not rounds:
        out = _dtype(case.out_dtype)
        yield f"assert np.array_equal(got, want.astype({out})), (got, want.astype({out}))"
        return
    size = _want(case, "np.float64", left, absolute=True)
    # Of exact sums the epilogue alone rounds: their conversion, and each operation.
    relative = (extra + 1) * model.epilogue if model.exact else model.relative(case.k, extra) * (1 + model.output)
    tiny = model.absolute(case.k, extra) + model.output_underflow
    rounding = f" + {model.output:.3g} * np.abs(want)" if model.output else ""
    yield f"bound = {relative:.4g} * ({size}){rounding} + {tiny:.3g}"
    right = f"np.abs(got.astype({wide}) - want) <= bound"
    if case.data == "nonfinite":
        right = f"({right}) | (got == want) | (np.isnan(got) & np.isnan(want))"
    yield f"assert np.all({right}), (np.abs(got - want) / bound).max()"


def _want(case: Case, wide: str, left: str, absolute: bool = False) -> str:
    """The expression that computes the product in ``wide``, or the sum of its absolute values."""
    factors = [f"np.abs({x})" if absolute else x for x in (left, "b")]
    terms = [f"{factors[0]}.astype({wide}) @ {factors[1]}.astype({wide})"]
    if case.alpha == 0:
        terms = [f"np.zeros({(*case.batch, case.m, case.n)})"]
    elif case.alpha != 1:
        terms = [f"{'abs(alpha)' if absolute else 'alpha'} * ({terms[0]})"]
    if case.c is not None and case.beta != 0:
        beta = plain_scalar(case.beta)
        terms.append(f"abs({beta!r}) * np.abs(c).astype({wide})" if absolute else f"{beta!r} * c.astype({wide})")
    if case.bias is not None:
        terms.append(f"np.abs(bias).astype({wide})" if absolute else f"bias.astype({wide})")
    return " + ".join(terms)


def _empty(case: Case) -> str:
    """The expression of a result before a call: NaN, or 77 for integers."""
    dtype = _dtype(case.out_dtype)
    exact = dtypes.info(dtypes.as_dtype(case.out_dtype)).kind in ("int", "uint", "bool")
    return f"np.full({(*case.batch, case.m, case.n)}, {77 if exact else 'np.nan'}).astype({dtype})"
