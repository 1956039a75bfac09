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


class Estimates:
    """The expected seconds of one problem, whose sizes and dtypes are looked at once."""

    def __init__(self, problem: GemmProblem) -> None:
        self._problem = problem
        self._packed = problem.packed_by is not None
        self._dtypes = name_of(problem.a.dtype), name_of(problem.b.dtype), name_of(problem.out.dtype)
        self._a, self._b = problem.a.layout.distinct_elements, problem.b.layout.distinct_elements
        self._results = problem.m * problem.n * problem.batch_count
        self._sgemm = problem.flops / sgemm_rate()

    def converted(self, cores: int) -> float:
        """Seconds through blocks converted by ``cores`` for SGEMM."""
        a, b, out = self._dtypes
        seconds = self._a * _TO_FLOAT.get(a, _OTHER) + self._results * _FROM_FLOAT.get(out, _OTHER)
        if not self._packed:
            seconds += self._b * _TO_FLOAT.get(b, _OTHER)
        return _CALL + max(self._sgemm, self._reading(4, cores)) + seconds / cores

    def numkong(self, machine: Machine) -> float:
        """Seconds through numkong, b transposed (unless it is column-major) and packed in each call."""
        problem, size = self._problem, self._problem.b.dtype.itemsize
        b = 0 if self._packed else self._b
        transposed = 0.0 if problem.b.layout.stored("col") else b * size * _TRANSPOSE
        product = self._sgemm / GAIN[f"{self._dtypes[0]} {'matrix' if machine.has(BF16_UNITS) else 'dot'}"]
        finished = self._results * _FROM_FLOAT.get(self._dtypes[2], 0.0)
        product = max(product, self._reading(size, machine.cores))
        return _CALL + product + b * _PACK + (transposed + finished) / machine.cores

    def native(self, unit: Unit, machine: Machine) -> float:
        """Seconds through our own kernels, both operands packed in each call unless b was packed beforehand."""
        problem, cores = self._problem, machine.cores
        if not self._packed and native_engine.by_vector(problem):
            matrix, elements = (problem.b, self._b) if problem.m == 1 else (problem.a, self._a)
            count = max(1, problem.batch_count)
            return count * _OWN_CALL + elements * matrix.dtype.itemsize / (_VECTOR_RATE * min(2, cores))
        a, b = problem.a.layout, problem.b.layout
        packed = self._a * (_OWN_PACK if a.stored("row") or a.stored("col") else _OWN_GATHER)
        if not self._packed:
            column_major = b.stored("col")
            if problem.m <= _FEW_ROWS and not column_major:
                packed += self._b * _OWN_STRIPS[self._dtypes[1]]
            else:
                packed += self._b * (_OWN_PACK if column_major or b.stored("row") else _OWN_GATHER)
        finished = self._results * _OWN_PACK
        call = _OWN_CALL * max(1, problem.batch_count if b.matrices > 1 else 1)
        as_summed = problem.plain and self._dtypes[2] == "int32"
        if problem.activation not in (None, "relu") or (unit.pair == "int8" and not as_summed):
            call += _PYTHON_EPILOGUE
            finished += self._results * 1e-9
        # A micro-tile is multiplied as a whole, but for vectors of 16 columns on AVX-512.
        columns = unit.columns
        rows, step = 2 if problem.m <= 2 else -(-problem.m // 8) * 8, min(columns, 16 if columns == 48 else 48)
        padded = rows * -(-problem.n // step) * step / max(1, problem.m * problem.n)
        product = padded * self._sgemm / unit.gain
        width = 4 if unit.pair == "float" else problem.b.dtype.itemsize
        return call + max(product, self._reading(width, cores)) + (packed + finished) / cores

    def _reading(self, itemsize: int, cores: int) -> float:
        """Seconds in which a packed b of elements of ``itemsize`` bytes is read; 0 where b is packed or converted in
        each call, which takes longer.
        """
        return self._b * itemsize / (_VECTOR_RATE * min(2, cores)) if self._packed else 0.0
