"""Diagnosis of wrong results: the likely mistake behind a failed comparison, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gemmhub import accuracy
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import OPERANDS
from gemmhub.testing.operands import Operands

Array = Any


def describe(operands: Operands, got: Array, ratio: Array, before: Array) -> str:
    """Describe ``got``, whose error is ``ratio`` times the bound, element for element.

    ``before`` is the content of the result before the call.
    """
    bad = ratio > 1.0
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    want = operands.expected()
    value = np.broadcast_to(want.value, got.shape)[worst]
    bound = np.broadcast_to(want.bound, got.shape)[worst]
    index = ", ".join(str(int(i)) for i in worst)
    lines = [
        f"{int(bad.sum())} of {bad.size} elements are off; worst at [{index}]: got {got[worst]}, expected {value} "
        f"within {bound:.3g} (error/bound {ratio[worst]:.3g})"
    ]
    lines += [f"likely: {hint}" for hint in _hints(operands, want, got, bad, before)]
    return "\n  ".join(lines)


def _hints(operands: Operands, want: accuracy.Reference, got: Array, bad: Array, before: Array) -> Iterator[str]:
    alternatives = list(_alternatives(operands, want, got))
    if alternatives:
        yield from alternatives
        return
    yield from _tail(bad)
    if np.array_equal(bad & _same_bytes(got, before), bad):
        yield "the elements that are off have their old content: never written" + (
            ", or NaN was read from the result's old content" if operands.case.poison == "nan" else ""
        )
    elif got.dtype.kind in "fcV" and np.any(np.isnan(got) & ~np.isnan(want.value)):
        yield "NaN where none belongs: padding of an operand, or the result's old content, was read"
    elif not (np.isfinite(np.broadcast_to(want.value, got.shape)) & bad).any():
        yield "NaN or infinity did not propagate (a maximum that drops NaN, a saturating conversion)"
    else:
        yield from _too_coarse(operands, want, got)


def _fits(want: accuracy.Reference, got: Array) -> bool:
    return bool(np.all(want.ratio(got) <= 1.0))


def _alternatives(operands: Operands, want: accuracy.Reference, got: Array) -> Iterator[str]:
    """Yield the mistakes for which the result would be correct."""
    case = operands.case
    previous = {x: operands.previous[x] for x in ("a", "b") if x in operands.previous}
    for changes in [*({name: values} for name, values in previous.items()), previous]:
        if changes and _fits(operands.expected(**changes), got):
            names = " and ".join(changes)
            yield f"the result belongs to the values of {names} before they were rewritten in place: cached by address"
            break
    rows, columns = got.shape[-2:]
    if rows != columns:
        turned = np.swapaxes(got.reshape(*got.shape[:-2], columns, rows), -1, -2)
        if min(rows, columns) > 1 and _fits(want, turned):
            yield "this is the transposed result (written in the other storage order)"
    elif _fits(want, np.swapaxes(got, -1, -2)):
        yield "this is the transposed result"
    if operands.addend is not None:
        if _fits(operands.expected(beta=0, c=None), got):
            yield "beta * c was not added"
        elif case.beta != 1 and _fits(operands.expected(beta=1), got):
            yield "c was added without being multiplied by beta"
    for name in operands.inputs:
        if name not in ("a", "b", "c") and _fits(operands.expected(**{name: None}), got):
            yield f"{OPERANDS[name].noun} ({name}=) did not enter"
    if "bias" in operands.others and case.m == case.n:
        bias = operands.others["bias"].values
        if _fits(operands.expected(bias=bias.reshape(-1, 1) if case.bias == "n" else bias.reshape(-1)), got):
            yield "the bias runs along the wrong axis"
    if case.alpha != 1 and _fits(operands.expected(alpha=1), got):
        yield "alpha was not applied"
    if case.activation is not None:
        arity = EPILOGUES[case.activation].arity
        for other in (None, *EPILOGUES):
            alike = other != case.activation and (EPILOGUES[other].arity if other else 1) == arity
            if alike and _fits(operands.expected(activation=other), got):
                yield f"{case.activation} was not applied" + (f": {other} was, in place of it" if other else "")
                break


def _too_coarse(operands: Operands, want: accuracy.Reference, got: Array) -> Iterator[str]:
    """Yield a hint where the size of the errors is that of arithmetic narrower than promised."""
    promised = want.model.accumulate + want.model.input
    error, size = np.abs(accuracy.widen(got) - want.value), want.magnitude + np.abs(want.value)
    usable = np.isfinite(error) & (np.broadcast_to(size, got.shape) > 0)
    if not promised or not usable.any():
        return
    relative = float(np.max((error / size)[usable]))
    for name, roundoff in (
        ("float32", 2.0**-24),
        ("bf16x3", 2.0**-16),
        ("float16 or tf32", 2.0**-11),
        ("bfloat16", 2.0**-8),
    ):
        if promised < roundoff and relative < 4.0 * roundoff:
            wanted = f"{operands.problem.compute_dtype} at {operands.case.precision!r}"
            yield f"errors of the size that {name} arithmetic makes; {wanted} was promised"
            return


def _tail(bad: Array) -> Iterator[str]:
    """Yield a hint where only the end of one dimension is off."""
    for axis, name in ((-1, "column"), (-2, "row")):
        size = bad.shape[axis]
        others = tuple(i for i in range(bad.ndim) if i != axis % bad.ndim)
        first = int(np.argmax(bad.any(axis=others)))
        count = size - first
        tail = np.moveaxis(bad, axis, -1)[..., first:]
        if count <= size // 2 and tail.mean() >= 0.5:
            which = f"the last {name}" if count == 1 else f"some of the last {count} {name}s"
            yield f"only {which} of {size} off: a tail"


def _same_bytes(x: Array, y: Array) -> Array:
    """Mask of the elements with equal bytes, NaN included."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    bytes_x, bytes_y = (v.view(np.uint8).reshape(*v.shape, v.dtype.itemsize) for v in (x, y))
    return np.all(bytes_x == bytes_y, axis=-1)
