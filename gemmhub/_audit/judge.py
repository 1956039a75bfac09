"""Judgement of one result: right within the bound, inputs unchanged, nothing written beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub.accuracy import Reference
from gemmhub.testing import diagnose
from gemmhub.testing.operands import Operands
from gemmhub.testing.results import verify

Array = Any

KINDS = {
    "value": "an element is off by more than its bound",
    "nan": "an element is NaN or infinite where the product is finite",
    "shape": "the result has another shape or dtype",
    "input": "the call changed an operand",
    "outside": "the call wrote outside the result",
    "bits": "equal products have different bits, which the implementation claims to be equal",
    "contract": "a backend broke its contract",
}
"""Kinds of faults."""


class Wrong(Exception):  # noqa: N818 - a finding, not an error
    """A product that is not as claimed."""

    def __init__(self, kind: str, text: str, picture: Picture | None = None) -> None:
        self.kind, self.text, self.picture = kind, text, picture
        super().__init__(text)


@dataclass(frozen=True)
class Picture:
    """Where the errors of a result are: error/bound of each element, of the first wrong matrix of a stack."""

    ratio: Array
    worst: float
    count: int
    """Number of elements that are off."""
    size: int
    bound: float
    """Bound of the worst element."""


def judge(operands: Operands, result: Array | None, label: str) -> float:
    """Return the largest error as a fraction of its bound; :class:`Wrong` where the result is not as claimed."""
    prefix = f"{label}: " if label else ""
    for argument, placed in operands.inputs.items():
        if not np.array_equal(placed.read()[1], placed.image):
            raise Wrong("input", f"{prefix}the call changed {argument}, which it only reads")
    if result is None:
        got, now = operands.out.read()
        stray = int((operands.out.outside() & (now != operands.out.image)).sum())
        if stray:
            raise Wrong("outside", f"{prefix}the call wrote {stray} bytes outside the result")
    else:
        got = result
        if got.shape != operands.out.shape or got.dtype != operands.out.dtype:
            raise Wrong(
                "shape", f"{prefix}the result is {got.dtype} {got.shape}, not {operands.out.dtype} {operands.out.shape}"
            )
    if len(operands.written) > 1 and got.size:
        try:
            verify(operands, label)
        except AssertionError as error:
            raise Wrong("value", f"{prefix}{error}") from None
    return compare(operands, got, prefix, in_place=result is None)


def compare(
    operands: Operands, got: Array, prefix: str = "", want: Reference | None = None, in_place: bool = False
) -> float:
    """Return the largest error/bound of ``got``; :class:`Wrong` above 1.

    ``in_place`` is whether the call wrote the result into the operands' ``out``.
    """
    if not got.size:
        return 0.0
    want = operands.expected() if want is None else want
    with np.errstate(all="ignore"):
        ratio = np.broadcast_to(want.ratio(got), got.shape)
        worst = float(np.max(ratio))
        if worst <= 1.0:
            return worst
        wide = np.abs(np.asarray(got).astype(np.complex128 if got.dtype.kind == "c" else np.float64))
        expected = np.broadcast_to(np.abs(want.value), got.shape)
        strange = bool(np.any((ratio > 1.0) & ~np.isfinite(wide) & np.isfinite(expected)))
        before = operands.out.values if in_place else _other_bytes(got)
        text = diagnose.describe(operands, got, ratio, before)
    raise Wrong("nan" if strange else "value", prefix + text, picture(ratio, want))


def picture(ratio: Array, want: Reference) -> Picture:
    """The picture of the errors of a result."""
    worst = int(np.argmax(ratio))
    bound = float(np.broadcast_to(want.bound, ratio.shape).flat[worst])
    matrices = ratio.reshape(-1, *ratio.shape[-2:])
    first = matrices[int(np.argmax((matrices > 1.0).any(axis=(1, 2))))]
    return Picture(first.copy(), float(ratio.flat[worst]), int((ratio > 1.0).sum()), int(ratio.size), bound)


def _other_bytes(got: Array) -> Array:
    """An array like ``got`` all of whose bytes differ, as the content before a call that returns a new array."""
    return (np.ascontiguousarray(got).view(np.uint8) ^ 0xFF).view(got.dtype).reshape(got.shape)
