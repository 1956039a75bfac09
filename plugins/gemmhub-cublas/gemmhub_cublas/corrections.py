"""The learned corrections of the cost model, where one was fitted on the card.

The library has one candidate here, its own first choice, so that estimates depend on the problem alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log, log2
from pathlib import Path

from gemmhub.kit import corrections
from gemmhub.kit.corrections import Correction, Described
from gemmhub.problem import GemmProblem
from gemmhub_cublas import lower, model
from gemmhub_cublas.lower import Lowered
from gemmhub_cublas.model import Card

KINDS = ("half", "tf32", "single", "complex", "byte", "byte_rows", "byte_blocks")
"""Kinds of products, each with a correction of its own: 16-bit floats, tf32, float32, complex64, int8 and fp8, and fp8
with scales of rows and with scales of blocks. float64 and complex128 have none.
"""
FIRST = "first"
"""Name of the one candidate: the first algorithm that the library proposes."""
DATA = Path(__file__).parent / "data"
"""Folder with one folder of networks for each card."""
_TILES = ((256, 128), (128, 256), (128, 128), (64, 64))
_MAX_ALIGNMENT = 128
"""Bytes of a cache line: a larger alignment gains nothing."""
_HANDLED = (9, 10, 11)
"""Features that may differ from the one value that a network was fitted to: the element size of the result, the
epilogue and c, whose bytes the model counts.
"""
_HANDLED_INT8 = (3, 4, 5)
"""The same of int8 products alone: the batch and the orders, for which :func:`gemmhub_cublas.model.byte_order` has
factors.
"""


def describe(problem: GemmProblem, card: Card, names: Sequence[str]) -> Described | None:
    """Describe those of ``names`` that are candidates, with their features.

    Returns None for products without a network, without elements, or which the library refuses, and for cards whose
    rates are not reported.
    """
    network = network_of(problem)
    if network is None or problem.empty or problem.k == 0 or not model.rated(card):
        return None
    lowered = lower.lowered(problem)
    if not isinstance(lowered, Lowered):
        return None
    first = [name for name in names if name == FIRST]
    modelled = model.seconds(problem, lowered, card)
    return Described(
        network, first, [modelled for _ in first], [_features(problem, lowered, card, modelled) for _ in first],
        handled(problem),
    )  # fmt: skip


def handled(problem: GemmProblem) -> tuple[int, ...]:
    """Return the features that may differ from the one value that the network of ``problem`` was fitted to."""
    return _HANDLED_INT8 + _HANDLED if problem.compute_dtype.name == "int32" else _HANDLED


def network_of(problem: GemmProblem) -> str | None:
    """Return one of :data:`KINDS`; None for float64 and complex128."""
    if problem.compute_dtype.name == "complex64":
        return "complex"
    if problem.compute_dtype.name not in ("float32", "int32"):
        return None
    scales = [x for name in ("scale_a", "scale_b") if (x := problem.operands.get(name)) is not None]
    if any(x.depth for x in scales):
        return "byte_blocks"
    return "byte_rows" if any(x.axis for x in scales) else model.dtype_class(problem)


def find(problem: GemmProblem, card: Card, library: str) -> Correction | None:
    """Return the correction for ``problem`` on ``card`` with that version of cuBLASLt; None where none was fitted."""
    network = network_of(problem)
    return corrections.find(DATA, network, card.name, card.sms, card.bandwidth, library) if network else None


def seconds(problem: GemmProblem, lowered: Lowered, card: Card, library: str) -> float | None:
    """Return the seconds of a call; None where the driver does not report the device's rates."""
    if not model.rated(card):
        return None
    modelled, correction = model.seconds(problem, lowered, card), find(problem, card, library)
    factor = model.byte_order(problem, lowered)
    row = [_features(problem, lowered, card, modelled)] if correction is not None and problem.k else []
    if correction is None or not row or not correction.net.covers(row, handled(problem))[0]:
        return factor * model.scales(lowered) * modelled
    return factor * modelled * float(correction.factors(row, handled(problem))[0])


def _features(problem: GemmProblem, lowered: Lowered, card: Card, modelled: float) -> list[float]:
    """Return the features of the product as lowered: column-major, a and b swapped where the result is row-major."""
    form = lowered.forms[0]
    m, n, count = form.d.rows, form.d.cols, form.products * len(lowered.offsets)
    tiles = []
    for rows, cols in _TILES:
        waves = ceil(m / rows) * ceil(n / cols) * count / card.sms
        # Waves, and the share of the SMs' time that tile and wave quantization leave.
        tiles += [log(waves), m * n * count / (ceil(waves) * card.sms * rows * cols)]
    return [
        log(m), log(n), log(form.k), log(count), float(form.trans_a), float(form.trans_b),
        *(log2(min(_MAX_ALIGNMENT, x)) for x in model.alignments(form)), float(problem.out.dtype.itemsize),
        float(form.epilogue != lower.NO_EPILOGUE), float(form.addend), *tiles,
        log(modelled), log(modelled * card.bandwidth / problem.nbytes),
        log(modelled * model.rate(problem, card) / problem.flops), log(problem.flops / problem.nbytes),
    ]  # fmt: skip
