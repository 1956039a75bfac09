"""A cost model of the two ways: what a product takes through numkong and through converted blocks.

The constants were measured on two cores of an Intel Xeon with AMX (docs/cpu.md); SGEMM's rate is measured on
the machine at hand. They decide which way goes first; tuning replaces them by measurements.
"""

from __future__ import annotations

from gemmhub.numpy_backend.probe import sgemm_rate
from gemmhub.problem import GemmProblem
from gemmhub_cpu.probe import BF16_UNITS, Machine

GAIN = {"bfloat16 matrix": 2.6, "int8 matrix": 6.5, "int8 dot": 2.3}
"""Rate of numkong's product over SGEMM's, by dtype and kind of unit."""
_TO_FLOAT = {"float16": 1.2e-9, "bfloat16": 0.35e-9, "int8": 0.3e-9}
"""Seconds to convert an element to float32 on one core."""
_FROM_FLOAT = {"float16": 2.3e-9, "bfloat16": 0.5e-9}
"""And back."""
_OTHER = 0.5e-9
_TRANSPOSE = 1.0e-9
"""Seconds to transpose a byte of B on one core."""
_PACK = 0.5e-9
"""Seconds to pack an element of B; one core does it."""
_CALL = 30e-6
_VNNI_GAIN = 3.8
"""Rate of our own int8 kernels over SGEMM's: 4 by the instructions."""
_VNNI_PACK, _VNNI_GATHER = 0.2e-9, 1.5e-9
"""Seconds to pack an element on one core, of dense rows and of others."""


def converted(problem: GemmProblem, machine: Machine) -> float:
    """Seconds through blocks converted for SGEMM."""
    elements = sum(
        operand.layout.distinct_elements * _TO_FLOAT.get(operand.dtype.name, _OTHER)
        for operand in (problem.a, problem.b)
    )
    elements += _results(problem) * _FROM_FLOAT.get(problem.out.dtype.name, _OTHER)
    return _CALL + problem.flops / sgemm_rate() + elements / machine.cores


def numkong(problem: GemmProblem, machine: Machine) -> float:
    """Seconds through numkong, b transposed (unless it is column-major) and packed in each call."""
    unit = "matrix" if machine.has(BF16_UNITS) else "dot"
    b = problem.b.layout.distinct_elements
    transposed = 0.0 if problem.b.layout.stored("col") else b * problem.b.dtype.itemsize * _TRANSPOSE
    product = problem.flops / (sgemm_rate() * GAIN[f"{problem.a.dtype.name} {unit}"])
    finished = _results(problem) * _FROM_FLOAT.get(problem.out.dtype.name, 0.0)
    return _CALL + product + b * _PACK + (transposed + finished) / machine.cores


def vnni(problem: GemmProblem, machine: Machine) -> float:
    """Seconds through our own int8 kernels, b packed in each call."""
    b = problem.b.layout.distinct_elements
    packed = b * (_VNNI_PACK if problem.b.layout.stored("row") else _VNNI_GATHER)
    left = problem.m * problem.k * problem.batch_count
    packed += left * (_VNNI_PACK if problem.a.layout.stored("row") else _VNNI_GATHER)
    finished = _results(problem) * _FROM_FLOAT.get(problem.out.dtype.name, 0.0)
    # The micro-tile has 8 rows and the panel 48 columns, however few are there.
    tiles = -(-problem.m // 8) * 8 * -(-problem.n // 48) * 48 / max(1, problem.m * problem.n)
    return _CALL + tiles * problem.flops / (sgemm_rate() * _VNNI_GAIN) + (packed + finished) / machine.cores


def _results(problem: GemmProblem) -> int:
    return problem.m * problem.n * problem.batch_count
