"""Which of the library's algorithms an untuned product gets.

The library's own first choice, unless measurements on the same kind of card speak against it. The rule:

1. A product that was measured when the records shipped with this plugin were made gets its fastest algorithm.
2. Any other of the same kind gets the algorithm that :mod:`gemmhub_cublas.cost_model`, fitted to those records,
   expects to be faster than the library's choice by more than :data:`MARGIN`; if there is none, that choice.
   It also stays where rows along k begin at odd multiples of 16 bytes: those were few when the model was fitted, and
   of 170 such changes that were measured 54 lost more than 3 %, for a mean gain of 1.4 %.

Records and model exist for 16-bit floats on Hopper cards with 132 multiprocessors (H200; the H100 SXM has as many).
Tuning (:func:`gemmhub.tune`) measures the very product, and goes before all of this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files

from gemmhub.native.cuda import Gpu
from gemmhub_cublas.cost_model import CostModel, Size, Tables, load
from gemmhub_cublas.forms import TYPE, Form

MARGIN = 0.015
"""An algorithm must be expected to be faster by this (in log time): below, prediction errors eat the gain."""

CHAMPIONS = (
    "66.20.1.0.0.1.35.0.3", "66.201.1.0.0.2.35.0.5", "66.10.1.0.1.3.35.0.5", "66.29.1.0.0.1.35.0.3",
    "66.28.1.0.1.2.35.0.5", "66.12.1.0.1.2.35.0.7", "66.164.1.0.0.2.35.0.8", "66.13.1.0.1.3.35.0.5",
    "66.23.1.0.1.4.35.0.3", "66.13.1.0.1.1.35.0.4", "66.92.1.0.0.0.35.0.3", "66.29.1.0.0.3.35.0.5",
    "66.10.4.2.1.1.35.0.3", "66.27.1.0.0.2.35.0.5", "66.18.1.0.0.3.35.0.9", "66.315.1.0.1.3.35.0.9",
    "66.394.1.0.1.1.35.0.4", "66.28.1.0.0.0.35.0.3", "66.18.1.0.0.1.35.0.3", "66.20.1.0.1.3.35.0.5",
    "66.12.5.2.0.2.35.0.6", "66.15.4.2.1.1.35.0.3", "66.193.1.0.1.2.35.0.5", "66.184.1.0.1.2.35.0.5",
    "66.29.1.0.1.1.35.0.3", "66.12.1.0.0.0.35.0.3", "66.134.1.0.1.0.35.0.4", "66.200.1.0.1.2.35.0.9",
    "66.165.1.0.1.0.35.0.3", "66.29.1.0.0.3.35.0.7", "66.28.1.0.1.0.35.0.3", "66.12.1.0.1.0.35.0.4",
    "66.134.1.0.1.2.35.0.5", "66.201.1.0.1.2.35.0.2", "66.20.1.0.1.1.35.0.3", "66.17.1.0.1.0.35.0.3",
)  # fmt: skip
"""Configurations for 16-bit floats on Hopper that were often the fastest where the library proposed others."""

_HALVES = (TYPE["float16"], TYPE["bfloat16"])
_ALIGNMENT = 16
"""Bytes that algorithms for Hopper ask of addresses. The library's check of an algorithm is not told of any."""
_DATA = "hopper132"


def extra(gpu: Gpu, form: Form) -> tuple[str, ...]:
    """Configurations worth a look besides the library's own proposals."""
    return CHAMPIONS if _hopper_half(gpu, form) else ()


def choose(gpu: Gpu, form: Form, configs: Sequence[str]) -> str | None:
    """One of ``configs``, of which the first is the library's choice; None where there is nothing better to say."""
    if not _hopper_half(gpu, form) or gpu.sms != 132 or len(configs) < 2:
        return None
    size = size_of(form)
    recorded = _records().get(size)
    if recorded in configs:
        return recorded
    model = _model()
    if model is None or not model.tables.knows(configs[0]) or _odd_rows(form):
        return None
    others = [config for config in configs[1:] if model.tables.knows(config)]
    gains = model.gains(size, configs[0], others)
    if not len(gains) or gains.max() <= MARGIN:
        return None
    return others[int(gains.argmax())]


def size_of(form: Form) -> Size:
    """What of a form the records are keyed by."""
    k = form.a.rows if form.trans_a else form.a.cols
    return Size(form.d.rows, form.d.cols, k, form.trans_a, form.trans_b, 2, form.count)


def _hopper_half(gpu: Gpu, form: Form) -> bool:
    types = {form.a.type, form.b.type, form.d.type}
    aligned = min(x.alignment for x in (form.a, form.b, form.c, form.d)) >= _ALIGNMENT
    return gpu.capability == (9, 0) and len(types) == 1 and form.a.type in _HALVES and aligned


def _odd_rows(form: Form) -> bool:
    """Whether rows along k, of an operand of 16 bits, begin at odd multiples of 16 bytes."""
    along_k = [x for x, kept in ((form.a, form.trans_a), (form.b, not form.trans_b)) if kept]
    return any(x.ld % 16 for x in along_k)


def tables() -> Tables | None:
    """Sizes of tiles and clusters, as far as the shipped model knows them."""
    model = _model()
    return model.tables if model else None


@cache
def _model() -> CostModel | None:
    found = files("gemmhub_cublas") / "data" / f"{_DATA}.npz"
    if not found.is_file():
        return None
    with as_file(found) as path:
        return load(path)


@cache
def _records() -> dict[Size, str]:
    found = files("gemmhub_cublas") / "data" / f"{_DATA}.jsonl"
    if not found.is_file():
        return {}
    lines = json.loads(f"[{','.join(found.read_text(encoding='utf-8').splitlines())}]")  # at once is five times as fast
    return {Size(x["m"], x["n"], x["k"], x["trans_a"], x["trans_b"], 2, 1): x["config"] for x in lines if "config" in x}
