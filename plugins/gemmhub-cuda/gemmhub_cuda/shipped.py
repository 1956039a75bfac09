"""The kernels that the wheel carries compiled: those of plain products of bfloat16, float16 and float32.

A plain product has matrices of one dtype and of any sizes and orders, alpha 1, no c, bias or activation, and a result
of the operands' dtype. ``data/shipped.json`` lists its kernels, which were selected by
``python -m benchmarks.run.cuda_shipped`` for random products; those of float16 are those of bfloat16. Both operands are
loaded by the narrower of their two loads (:func:`gemmhub_cuda.compiled.uniform`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from typing import Any

from gemmhub_nvidia.nvrtc import Source

from gemmhub_cuda.candidate import SHAPES
from gemmhub_cuda.variants import limits
from gemmhub_cuda.variants import sources as kernel_sources
from gemmhub_cuda.variants.form import Form
from gemmhub_cuda.variants.variant import Variant

_CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0))
SHARED = {kernel_sources.architecture(x): limits.SMS[x].shared_per_block for x in _CAPABILITIES}
"""Bytes of shared memory that a CTA may have, by the architecture that the wheel has kernels for."""
ARCHITECTURES = tuple(SHARED)
_FILE = "shipped.json"
_FIELDS = ("a_m_major", "b_n_major", "a_alignment", "input")
"""Fields of a form that the list has: the others follow from them."""


def variants() -> list[Variant]:
    """Return the kernels for every architecture, those of one form one after another, as they compress best."""
    kernels: list[Variant] = []
    for line in json.loads((resources.files(__package__) / "data" / _FILE).read_text()):
        some = _decoded(line)
        kernels += some
        if line["input"] == "bfloat16":
            kernels += map(as_float16, some)
    return kernels


def sources(architecture: str) -> list[Source]:
    """Return the sources of the kernels that cards of an architecture run."""
    limit, digits = SHARED[architecture], architecture.removeprefix("sm_")
    capability = int(digits[:-1]), int(digits[-1])
    return [kernel_sources.source(x, capability) for x in variants() if x.refusal(limit) is None]


def as_float16(variant: Variant) -> Variant:
    """Return the kernel for float16 that has everything else in common with one for bfloat16."""
    return replace(variant, form=replace(variant.form, input="float16", output="float16"))


def encoded(kernels: Iterable[Variant]) -> str:
    """Return the text of the list for these kernels: JSON, a line for each form."""
    lines: dict[str, dict[str, Any]] = {}
    for kernel in sorted(kernels, key=repr):
        form = {name: getattr(kernel.form, name) for name in _FIELDS} | {"split_k": getattr(kernel, "split_k", False)}
        lines.setdefault(json.dumps(form), {**form, "shapes": []})["shapes"].append(kernel.shape.name)
    return "[\n" + ",\n".join(json.dumps(line) for line in lines.values()) + "\n]\n"


def _decoded(line: dict[str, Any]) -> list[Variant]:
    values = {name: line[name] for name in _FIELDS}
    form = Form(**values, b_alignment=line["a_alignment"], output=line["input"])
    return [SHAPES[name].variant(form, line["split_k"]) for name in line["shapes"]]
