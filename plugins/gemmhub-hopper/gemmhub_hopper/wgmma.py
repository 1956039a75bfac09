"""The text of wgmma.cuh: the instruction names each of its accumulator registers, so it is written for one width."""

from __future__ import annotations

from gemmhub_hopper.config import Variant

_TYPE = {"bfloat16": "bf16", "float16": "f16", "tf32": "tf32", "split": "bf16"}


def header(variant: Variant) -> str:
    """A function ``wgmma(d, a, b, accumulate)``: d (64 x n, this thread's part) = a b, plus d if ``accumulate``.

    a and b are descriptors of shared memory, one step of k each (32 bytes).
    """
    n, kind = variant.shape.n, _TYPE[variant.form.input]
    count, depth = n // 2, 8 if kind == "tf32" else 16
    registers = ", ".join(f"%{i}" for i in range(count))
    # tf32 has no operands that choose the major-ness.
    majors, major_values = ("", "") if kind == "tf32" else (f", %{count + 3}, %{count + 4}", ', "n"(A_MN), "n"(B_MN)')
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""#pragma once
#include "ptx.cuh"

DEVICE void wgmma(float (&d)[{count}], u64 a, u64 b, int accumulate) {{
    asm volatile(
        "{{\\n"
        ".reg .pred accumulate;\\n"
        "setp.ne.b32 accumulate, %{count + 2}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k{depth}.f32.{kind}.{kind} {{{registers}}}, "
        "%{count}, %{count + 1}, accumulate, 1, 1{majors};\\n"
        "}}"
        : {outputs}
        : "l"(a), "l"(b), "r"(accumulate){major_values});
}}
"""
