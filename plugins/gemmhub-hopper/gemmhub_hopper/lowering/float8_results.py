"""Results of 8-bit floats: the operands that have them, and what is scaled and measured of them.

They are products of two 16-bit operands of one dtype, or of two of 8-bit floats. Float32 is left out: where planes do
not hold an operand, a result is computed twice, and the largest magnitude of the first one would count.
"""

from __future__ import annotations

from gemmhub.capability import Refusal
from gemmhub.problem import GemmProblem
from gemmhub_hopper.lowering.operands import name_of
from gemmhub_hopper.variants.config import FLOAT8_RESULTS, GATED, OUTPUTS

_FACTS = ("scale_out", "amax")
"""Operands that only results of 8-bit floats have."""


def refusal(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of operands or an epilogue that the kernels do not have for the dtype of the result."""
    a, b, out = (name_of(x.dtype) for x in (problem.a, problem.b, problem.out))
    wider = f"give out_dtype= one of {', '.join(OUTPUTS)}"
    if out not in FLOAT8_RESULTS:
        for name in _FACTS:
            if name in problem.operands:
                return Refusal(
                    f"{name}= for a result of {out}: the kernels have it for results of 8-bit floats only",
                    "leave it out, and compute it from the result",
                )
        return None
    if not ((a == b and a in ("bfloat16", "float16")) or {a, b} <= FLOAT8_RESULTS.keys()):
        return Refusal(f"there is no kernel for {a} by {b} with a result of {out}", wider)
    if problem.symmetric or "pre_activation" in problem.operands or problem.activation in GATED:
        what = (
            "a symmetric result" if problem.symmetric else "pre_activation=" if problem.activation not in GATED else ""
        )
        return Refusal(f"{what or problem.activation} has no kernel with a result of {out}", wider)
    if "amax" in problem.operands and problem.empty:
        return Refusal("amax= of a result without elements: no kernel is launched then", "leave amax= out")
    if problem.c is not None and name_of(problem.c.dtype) not in OUTPUTS:
        return Refusal(f"c is {problem.c.dtype}", f"convert it to one of {', '.join(OUTPUTS)}")
    return None
