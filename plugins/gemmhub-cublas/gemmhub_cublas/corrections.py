"""What the model of :mod:`gemmhub_cublas.model` misses, as far as measurements tell: a factor.

Where the algorithm is known, and the product is one of 16 bits, a neural network says it, which benchmarks/net_fit.py
fitted together with gemmhub-hopper's; else regression trees do, fitted by benchmarks/cublas_model_fit.py. Both were
fitted to measured time over modelled time, so that sizes beyond what was measured still follow the model. They are for
the kind of card and the kinds of products that were measured, and change an estimate by a factor of exp(0.4) at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, exp, log
from typing import NamedTuple

import numpy as np

from gemmhub.capability import Refusal
from gemmhub.layout import BlasCall, lower
from gemmhub.native.cuda import Gpu
from gemmhub.net import Net
from gemmhub.problem import GemmProblem
from gemmhub.trees import Trees
from gemmhub_cublas.facts import Size, Tables, facts, shipped

KINDS = ("half", "tf32", "single")
"""Of products, by what multiplies: 16-bit floats, tf32 and float32. Each has trees of its own."""
LIMIT = 0.4
"""The logarithm of a factor is this at most."""
SMS, CAPABILITY = 132, (9, 0)
"""Of the card that was measured."""
DATA, NET = "estimates132.npz", "algorithms132.npz"
_TILES = (
    (256, 128), (128, 256), (192, 128), (128, 192), (192, 160), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32),
    (128, 32), (64, 16), (16, 64),
)  # fmt: skip
TMA = 16
"""Bytes that TMA asks of addresses and strides."""
_ALIGNMENTS = (128, 64, 32, 16, 8, 4)


class Chosen(NamedTuple):
    """The algorithm that will run."""

    size: Size
    """The product as the library sees it."""
    config: str


def measured(problem: GemmProblem, gpu: Gpu) -> BlasCall | None:
    """The product in row-major words, where it is of a kind that was measured. Results are stored by rows (or by
    columns, and a and b change places), b either way, and so is an a of 16 bits; other a are stored by rows.
    """
    if gpu.sms != SMS or gpu.capability != CAPABILITY or problem.empty or problem.k == 0:
        return None
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    half = a in ("float16", "bfloat16") and out in (a, "float32")
    if a != b or problem.compute_dtype.name != "float32" or not (half or a == out == "float32"):
        return None
    call = lower(problem, "row")
    return None if isinstance(call, Refusal) or (call.trans_a and not half) else call


def alignment(problem: GemmProblem) -> int:
    """Bytes that the addresses and the rows, as they are stored, of a, b and the result are aligned to, 16 at most."""
    call = lower(problem, "row")
    if isinstance(call, Refusal):
        return TMA
    operands = (problem.b, problem.a, problem.out) if call.swapped else (problem.a, problem.b, problem.out)
    found = TMA
    for x, ld in zip(operands, (call.lda, call.ldb, call.ldd)):
        single = 1 in (x.layout.rows, x.layout.cols)  # then no row follows another
        found = min(found, x.alignment, TMA if single else _power(ld * x.dtype.itemsize))
    return found


def features(
    problem: GemmProblem, call: BlasCall, gpu: Gpu, rate: float, modelled: float, cycles: Sequence[float]
) -> list[float]:
    """What the trees are told: ``rate`` is the peak in operations a second, ``modelled`` the model's seconds, and
    ``cycles`` those of the model for each of its tiles.
    """
    m, n, k, count = call.m, call.n, call.k, problem.batch_count
    operands = (problem.b, problem.a, problem.out) if call.swapped else (problem.a, problem.b, problem.out)
    aligned = [
        float(_aligned(min(x.alignment, _power(ld * x.dtype.itemsize))))
        for x, ld in zip(operands, (call.lda, call.ldb, call.ldd))
    ]
    waves = []
    for rows, cols in _TILES:
        tiles = ceil(m / rows) * ceil(n / cols)
        wave = tiles * count / gpu.sms
        waves += [wave, ceil(wave) / wave, m * n / (tiles * rows * cols)]
    least = min(cycles)
    return [
        log(m), log(n), log(k), float(call.trans_a), float(call.trans_b), *aligned, float(problem.out.dtype.itemsize),
        log(m * n * count), log(problem.flops), log(problem.nbytes), log(problem.flops / problem.nbytes), log(modelled),
        log(modelled * gpu.bandwidth / problem.nbytes), log(modelled * rate / problem.flops), *waves,
        *(log(x / least) for x in cycles), log(least / (modelled * gpu.clock)), float(cycles.index(least)),
    ]  # fmt: skip


def of_chosen(chosen: Chosen, known: Tables, modelled: float) -> list[float]:
    """What the network is told besides; ``known`` knows the configuration."""
    found = facts(*chosen, known)
    for name in ("work", "traffic"):
        found[name] -= log(modelled)
    return list(found.values())


def factors(by: Net | Trees | None, rows: Sequence[list[float]]) -> list[float]:
    """By which the model's seconds are to be multiplied; 1 without data."""
    if by is None or not rows:
        return [1.0] * len(rows)
    return [exp(min(LIMIT, max(-LIMIT, float(x)))) for x in by.predict(np.array(rows))]


@cache
def trees(kind: str) -> Trees | None:
    """Those of a kind, as benchmarks/cublas_model_fit.py wrote them."""
    return shipped(DATA, lambda data: Trees.of(data, f"{kind}.") if f"{kind}.roots" in data else None)


@cache
def net() -> Net | None:
    """Of the algorithms of products of 16-bit floats, as benchmarks/net_fit.py wrote it."""
    return shipped(NET, Net.of)


def _power(number: int) -> int:
    """The largest power of two that divides it."""
    return number & -number


def _aligned(nbytes: int) -> int:
    """The number of the first of some alignments that so many bytes are a multiple of."""
    return next((i for i, each in enumerate(_ALIGNMENTS) if nbytes % each == 0), len(_ALIGNMENTS))
