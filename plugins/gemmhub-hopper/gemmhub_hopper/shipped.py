"""The kernels that the wheel carries compiled: those of plain products of bfloat16, float16, tf32 and float32.

There are a few of grouped products of bfloat16 besides.

A plain product has matrices of one dtype and of any sizes and orders, no c, bias or activation, and a
row-major result of the operands' dtype. ``data/shipped.json`` lists its kernels, which were selected by
``python -m benchmarks.run.hopper_shipped`` for random products; those of float16 are those of bfloat16. The module
stands apart from the backend: the build of the wheel imports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, replace
from importlib import resources
from typing import Any

from gemmhub_nvidia.nvrtc import Source

from gemmhub_hopper.variants.compiled import F16_PREPASS, Code, source_of
from gemmhub_hopper.variants.config import Form, Variant
from gemmhub_hopper.variants.gemv_kernel import GemvKernel
from gemmhub_hopper.variants.shapes import shapes
from gemmhub_hopper.variants.sources import ARCH, PREPASSES

ARCHITECTURES = (ARCH,)
PREPASS_CODES: tuple[Code, ...] = (F16_PREPASS, *(PREPASSES[name] for name in ("split", "tf32", "bfloat16")))
"""The pre-passes: float16 shares that of bfloat16."""
_FILE = "shipped.json"


def codes() -> list[Code]:
    """Return the kernels, those of one form one after another, as they compress best."""
    kernels: list[Code] = [*PREPASS_CODES]
    for line in json.loads((resources.files(__package__) / "data" / _FILE).read_text()):
        some = _decoded(line)
        kernels += some
        kernels += [as_float16(x) for x in some if half(x)]
    return kernels


def sources(architecture: str) -> list[Source]:
    """Return the sources of the kernels; all are for one architecture."""
    assert architecture == ARCH
    return [source_of(what)[0] for what in codes()]


def half(kernel: Code) -> bool:
    """Return whether a kernel multiplies bfloat16, and there is one for float16: those of groups have none."""
    grouped = isinstance(kernel, Variant) and kernel.form.divided is not None
    return not isinstance(kernel, int) and _input(kernel) == "bfloat16" and not grouped


def of_float16(kernel: Code) -> bool:
    """Return whether a kernel multiplies float16."""
    return not isinstance(kernel, int) and _input(kernel) == "float16"


def as_float16(kernel: Code) -> Code:
    """Return the kernel for float16 that has everything else in common with one for bfloat16."""
    if isinstance(kernel, GemvKernel):
        return replace(kernel, input="float16")
    assert isinstance(kernel, Variant)
    output = "float16" if kernel.form.output == "bfloat16" else kernel.form.output
    return replace(kernel, form=replace(kernel.form, input="float16", output=output))


def encoded(kernels: Iterable[Code]) -> str:
    """Return the text of the list for these kernels, without pre-passes: JSON, a line for each form."""
    lines: dict[str, dict[str, Any]] = {}
    for kernel in sorted((x for x in kernels if not isinstance(x, int)), key=repr):
        if isinstance(kernel, Variant):
            form = {"form": _changed(kernel.form, ()), "split_k": kernel.split_k}
            lines.setdefault(json.dumps(form), {**form, "shapes": []})["shapes"].append(kernel.shape.name)
        else:
            form = {"vectors": _changed(kernel, _OF_DIVISION)}
            division = [getattr(kernel, name) for name in _OF_DIVISION]
            lines.setdefault(json.dumps(form), {**form, "divisions": []})["divisions"].append(division)
    return "[\n" + ",\n".join(json.dumps(line) for line in lines.values()) + "\n]\n"


_OF_DIVISION = ("split_threads", "cluster_size", "cp_async")
"""Fields of a kernel for vectors that are the cost model's choice; the others are the product's."""


def _changed(record: Form | GemvKernel, without: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a record, but those of ``without``, that differ from their defaults."""
    values = {x.name: (getattr(record, x.name), x.default) for x in fields(record) if x.name not in without}
    return {name: value for name, (value, default) in values.items() if value != default}


def _decoded(line: dict[str, Any]) -> list[Variant | GemvKernel]:
    if "vectors" in line:
        return [GemvKernel(**line["vectors"], **dict(zip(_OF_DIVISION, x))) for x in line["divisions"]]
    form = Form(**line["form"])
    return [Variant(shapes(form).by_name[name], form, line["split_k"]) for name in line["shapes"]]


def _input(kernel: Variant | GemvKernel) -> str:
    return kernel.form.input if isinstance(kernel, Variant) else kernel.input
