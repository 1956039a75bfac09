"""Generates the header wgmma.cuh: wgmma names each accumulator register, so there is one header for each tile width."""

from __future__ import annotations

from gemmhub_hopper.variants.config import BF16X3, F16X3, FLOAT8, INT8, Variant

_TYPES = {
    "bfloat16": "bf16.bf16", "float16": "f16.f16", "tf32": "tf32.tf32", "split": "bf16.bf16",
    F16X3: "f16.f16", BF16X3: "bf16.bf16", **{x: x for x in FLOAT8}, INT8: INT8,
}  # fmt: skip
"""The types of a and b in the instruction."""


def header(variant: Variant) -> str:
    """Return a header with two functions ``wgmma(d, a, b, accumulate)``: d (64 x n) = a b, plus d if ``accumulate``.

    Each multiplies 32 bytes along K; d are this thread's accumulators. b is a descriptor of shared memory. a is another
    descriptor, or a fragment: four registers of this thread, which must not change until the wgmma is complete.
    """
    return '#pragma once\n#include "config.cuh"\n' + _function(variant, False) + _function(variant, True)


def _function(variant: Variant, fragment: bool) -> str:
    n, form = variant.shape.n, variant.form
    count, depth = n // 2, 32 // form.input_bytes
    integers = form.input == INT8
    types = f"{'s32' if integers else 'f32'}.{_TYPES[form.input]}"
    # Operands of the assembly: d, a, b, the predicate, and the major-ness, which is selectable only for 16-bit operands
    # in shared memory.
    b = count + (4 if fragment else 1)
    majors = [] if form.only_k_major else ["kWgmmaMnMajorB"] if fragment else ["kMnMajorA", "kWgmmaMnMajorB"]
    inputs = [f'"r"(a[{i}])' for i in range(4)] if fragment else ['"l"(a)']
    inputs += ['"l"(b)', '"r"(accumulate)', *(f'"n"({major})' for major in majors)]
    registers = "{" + _numbers(0, count) + "}"
    a = "{" + _numbers(count, b) + "}" if fragment else f"%{count}"
    factors = "" if integers else ", 1, 1"
    operands = f"{registers}, {a}, %{b}, accumulate{factors}" + "".join(f", %{b + 2 + i}" for i in range(len(majors)))
    outputs = ", ".join(f'"+{"r" if integers else "f"}"(d[{i}])' for i in range(count))
    return f"""
DEVICE void wgmma(Sum (&d)[{count}], {"const u32 (&a)[4]" if fragment else "u64 a"}, u64 b, int accumulate) {{
    asm volatile(
        "{{\\n"
        ".reg .pred accumulate;\\n"
        "setp.ne.b32 accumulate, %{b + 1}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{types} {operands};\\n"
        "}}"
        : {outputs}
        : {", ".join(inputs)});
}}
"""


def _numbers(first: int, end: int) -> str:
    return ", ".join(f"%{i}" for i in range(first, end))
