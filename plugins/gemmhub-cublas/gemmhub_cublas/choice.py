"""Which of the library's algorithms an untuned product gets.

The library's own first choice, unless measurements on the same kind of card speak against it. The rule:

1. A product that was measured when the records shipped with this plugin were made gets its fastest algorithm.
2. Any other of the same kind gets the algorithm of which :mod:`gemmhub_cublas.model`, fitted to measurements, expects
   the least time, if that is less than the library's choice should take by more than :data:`MARGIN`; if there is none,
   that choice.

Records and model exist for 16-bit floats on Hopper cards with 132 multiprocessors (H200; the H100 SXM has as many).
Tuning (:func:`gemmhub.tune`) measures the very product, and goes before all of this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from gemmhub.native.cuda import Gpu
from gemmhub.problem import GemmProblem
from gemmhub_cublas import model
from gemmhub_cublas.facts import Size
from gemmhub_cublas.forms import TYPE, Form

MARGIN = 0.06
"""An algorithm must be expected to be faster by this share: below, prediction errors eat the gain."""

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
_RECORDS = "hopper132.jsonl"


def extra(gpu: Gpu, form: Form) -> tuple[str, ...]:
    """Configurations worth a look besides the library's own proposals."""
    return CHAMPIONS if _hopper_half(gpu, form) else ()


def choose(gpu: Gpu, problem: GemmProblem, form: Form, configs: Sequence[str]) -> str | None:
    """One of ``configs``, of which the first is the library's choice for ``form``, which is all of ``problem`` or the
    part that a launch does; None where there is nothing better to say.
    """
    if not _hopper_half(gpu, form) or gpu.sms != 132 or len(configs) < 2:
        return None
    size = size_of(form)
    recorded = _records().get(size)
    if recorded in configs:
        return recorded
    estimates = model.estimates(problem, gpu, size, configs)
    if configs[0] not in estimates:
        return None
    best = min(estimates, key=lambda config: estimates[config])
    return best if estimates[best] < (1 - MARGIN) * estimates[configs[0]] else None


def size_of(form: Form) -> Size:
    """What of a form the records are keyed by."""
    return Size(form.d.rows, form.d.cols, form.k, form.trans_a, form.trans_b, 2, form.count)


def _hopper_half(gpu: Gpu, form: Form) -> bool:
    types = {form.a.type, form.b.type, form.d.type}
    aligned = min(x.alignment for x in (form.a, form.b, form.c, form.d)) >= _ALIGNMENT
    return gpu.capability == (9, 0) and len(types) == 1 and form.a.type in _HALVES and aligned


@cache
def _records() -> dict[Size, str]:
    found = files("gemmhub_cublas") / "data" / _RECORDS
    if not found.is_file():
        return {}
    lines = json.loads(f"[{','.join(found.read_text(encoding='utf-8').splitlines())}]")  # at once is five times as fast
    return {Size(x["m"], x["n"], x["k"], x["trans_a"], x["trans_b"], 2, 1): x["config"] for x in lines if "config" in x}
