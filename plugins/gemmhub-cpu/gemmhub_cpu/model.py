"""A cost model: what a product takes through our own kernels, through numkong and through converted blocks.

The constants were measured on two cores of an Intel Xeon with AMX (docs/cpu.md); SGEMM's rate is measured on
the machine at hand. They decide which candidate goes first; tuning replaces them by measurements.
"""

from __future__ import annotations

from gemmhub.dtypes import name_of
from gemmhub.numpy_backend.probe import sgemm_rate
from gemmhub.problem import GemmProblem
from gemmhub_cpu import native_engine
from gemmhub_cpu.probe import BF16_UNITS, Machine
from gemmhub_cpu.units import Unit

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
_OWN_PACK, _OWN_GATHER = 0.15e-9, 1.0e-9
"""Seconds to pack an element for our own kernels on one core: dense along either dimension, and dense along none."""
_OWN_STRIPS = {"int8": 0.65e-9, "bfloat16": 1.0e-9, "float16": 1.7e-9, "float32": 1.7e-9}
"""The same for rows of b where few rows of a use them: each task packs strips of its own columns, which memory serves
slowly."""
_FEW_ROWS = 128
_OWN_CALL = 28e-6
_VECTOR_RATE = 10e9
"""Bytes of the matrix that a core reads in a second, in a product by a vector."""
_PYTHON_EPILOGUE = 20e-6
"""Seconds that a call costs besides, where NumPy finishes what our own kernels sum."""


def too_small(problem: GemmProblem) -> bool:
    """Whether nothing here gains, however the operands lie: the built-in backend needs less than a call of ours."""
    m, n, k = problem.m, problem.n, problem.k
    elements = problem.batch_count * (m * k + k * n + m * n)
    return problem.flops / sgemm_rate() + elements * _TO_FLOAT["float16"] < _OWN_CALL - 1.5e-6 - 10e-6


def converted(problem: GemmProblem, cores: int) -> float:
    """Seconds through blocks converted by ``cores`` for SGEMM."""
    elements = sum(
        operand.layout.distinct_elements * _TO_FLOAT.get(name_of(operand.dtype), _OTHER)
        for operand in ((problem.a, problem.b) if problem.packed_by is None else (problem.a,))
    )
    elements += _results(problem) * _FROM_FLOAT.get(name_of(problem.out.dtype), _OTHER)
    product = max(problem.flops / sgemm_rate(), _reading(problem, 4, cores))
    return _CALL + product + elements / cores


def numkong(problem: GemmProblem, machine: Machine) -> float:
    """Seconds through numkong, b transposed (unless it is column-major) and packed in each call."""
    unit = "matrix" if machine.has(BF16_UNITS) else "dot"
    b = problem.b.layout.distinct_elements if problem.packed_by is None else 0
    transposed = 0.0 if problem.b.layout.stored("col") else b * problem.b.dtype.itemsize * _TRANSPOSE
    product = problem.flops / (sgemm_rate() * GAIN[f"{name_of(problem.a.dtype)} {unit}"])
    product = max(product, _reading(problem, problem.b.dtype.itemsize, machine.cores))
    finished = _results(problem) * _FROM_FLOAT.get(name_of(problem.out.dtype), 0.0)
    return _CALL + product + b * _PACK + (transposed + finished) / machine.cores


def native(problem: GemmProblem, unit: Unit, machine: Machine) -> float:
    """Seconds through our own kernels, both operands packed in each call unless b was packed beforehand."""
    packed = problem.packed_by is not None
    if not packed and native_engine.by_vector(problem):
        matrix = problem.b if problem.m == 1 else problem.a
        count = max(1, problem.batch_count)
        own = matrix.layout.distinct_elements * matrix.dtype.itemsize
        return count * _OWN_CALL + own / (_VECTOR_RATE * min(2, machine.cores))
    elements = 0.0
    for x in (problem.a,) if packed else (problem.a, problem.b):
        dense = x.layout.stored("row") or x.layout.stored("col")
        seconds = _OWN_PACK if dense else _OWN_GATHER
        if x is problem.b and problem.m <= _FEW_ROWS and not x.layout.stored("col"):
            seconds = _OWN_STRIPS[name_of(x.dtype)]
        elements += x.layout.distinct_elements * seconds
    finished = _results(problem) * _OWN_PACK
    call = _OWN_CALL * max(1, problem.batch_count if problem.b.layout.matrices > 1 else 1)
    as_summed = problem.plain and name_of(problem.out.dtype) == "int32"
    if problem.activation not in (None, "relu") or (unit.pair == "int8" and not as_summed):
        call += _PYTHON_EPILOGUE
        finished += _results(problem) * 1e-9
    # A micro-tile is multiplied as a whole, but for vectors of 16 columns on AVX-512.
    rows, step = 2 if problem.m <= 2 else -(-problem.m // 8) * 8, min(unit.columns, 16 if unit.columns == 48 else 48)
    padded = rows * -(-problem.n // step) * step / max(1, problem.m * problem.n)
    product = padded * problem.flops / (sgemm_rate() * unit.gain)
    width = 4 if unit.pair == "float" else problem.b.dtype.itemsize
    return call + max(product, _reading(problem, width, machine.cores)) + (elements + finished) / machine.cores


def _reading(problem: GemmProblem, itemsize: int, cores: int) -> float:
    """Seconds in which a packed b of elements of ``itemsize`` bytes is read; 0 where b is packed or converted in each
    call, which takes longer.
    """
    packed = problem.packed_by is not None
    return problem.b.layout.distinct_elements * itemsize / (_VECTOR_RATE * min(2, cores)) if packed else 0.0


def _results(problem: GemmProblem) -> int:
    return problem.m * problem.n * problem.batch_count
