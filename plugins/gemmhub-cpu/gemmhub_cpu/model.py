"""A cost model: what a product takes through our own kernels and through converted blocks.

The constants are fitted to ``python -m benchmarks.run.cpu_model`` on an EPYC with AVX2; SGEMM's rate is measured on the
machine at hand. They decide which candidate goes first; tuning replaces them by measurements.
"""

from __future__ import annotations

from gemmhub.dtypes import name_of
from gemmhub.numpy_backend.probe import sgemm_rate
from gemmhub.operands import BLOCK
from gemmhub.problem import GemmProblem
from gemmhub_cpu.native_engine import finishes
from gemmhub_cpu.probe import Machine
from gemmhub_cpu.units import Unit

_TO_FLOAT = {"float16": 2.1e-9, "bfloat16": 0.35e-9, "int8": 0.3e-9}
"""Seconds to convert an element to float32 on one core."""
_FROM_FLOAT = {"float16": 8e-9, "bfloat16": 2.5e-9}
"""And back."""
_OTHER = 0.5e-9
_TURNED = 4e-9
"""Seconds that an element takes besides, where NumPy turns a column-major operand into row-major blocks."""
_CALL = 30e-6
_PACK, _STRIPS = 0.15e-9, 0.25e-9
"""Seconds to pack, or to finish, an element for our own kernels on one core; the second for b where few rows of a use
it: each task packs strips of its own columns, which come from memory."""
_PACK_OF = {
    "int8 on AVX2": (0.15e-9, 0.35e-9), "float32 on AVX2": (0.9e-9, 0.9e-9), "int32 on AVX2": (0.5e-9, 2.2e-9),
    "int64 on AVX2": (1e-9, 20e-9),
}  # fmt: skip
"""The same of units with other ones."""
_FEW_ROWS = 128
_OWN_CALL = 3e-6
"""Seconds that a call costs beside its product."""
_OWN_PRODUCT = 1.1e-6
"""Seconds that each further product of a batch costs."""
_VECTOR_RATE, _VECTOR_ELEMENT = 25e9, 55e-12
"""Bytes of a matrix that a core reads in a second, and its seconds for an element, in a product by a vector."""
_PYTHON_EPILOGUE = 20e-6
"""Seconds that a call costs besides, where NumPy finishes what our own kernels sum."""


def by_vector(problem: GemmProblem, unit: Unit) -> bool:
    """Whether the kernels read the matrix as it is: one row or column, of which a batch does not make a matrix, and
    which may be summed as vectors are.
    """
    folds = problem.batch_count > 1 and problem.b.layout.matrices == 1
    ordered = problem.pinned and not (unit.chained or unit.order == "exact")
    decoded = unit.order != "exact" and 1 in (problem.a.dtype.itemsize, problem.b.dtype.itemsize)
    return 1 in (problem.m, problem.n) and not (folds or ordered or decoded) and unit.pair != "int64"


def exchanges(problem: GemmProblem) -> bool:
    """Whether the kernels exchange the operands: few columns by many rows, as ``turned`` of gemm.cpp has it."""
    return problem.packed_by is None and problem.n <= 32 and problem.m > 64


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
            seconds += self._b * (_TO_FLOAT.get(b, _OTHER) + _TURNED * (self._problem.b.layout.order == "col"))
        seconds += self._a * _TURNED * (self._problem.a.layout.order == "col")
        return _CALL + max(self._sgemm, self._reading(4, cores)) + seconds / cores

    def native(self, unit: Unit, machine: Machine) -> float:
        """Seconds through our own kernels, both operands packed in each call unless b was packed beforehand."""
        problem, cores = self._problem, machine.cores
        call = _OWN_CALL + _OWN_PRODUCT * (problem.batch_count - 1 if problem.b.layout.matrices > 1 else 0)
        if not self._packed and by_vector(problem, unit):
            matrix, elements = (problem.b, self._b) if problem.m == 1 else (problem.a, self._a)
            reading = elements * matrix.dtype.itemsize / (_VECTOR_RATE * min(2, cores))
            return call + max(reading, elements * _VECTOR_ELEMENT / cores)
        m, n, a, b = problem.m, problem.n, self._a, self._b
        if exchanges(problem):
            m, n, a, b = n, m, b, a
        pack, strips = _PACK_OF.get(unit.name, (_PACK, _STRIPS))
        packed = a * pack
        if not self._packed:
            packed += b * (strips if m <= _FEW_ROWS else pack)
        finished = self._results * pack
        if unit.pair.startswith("int") and not finishes(unit, problem):
            call += _PYTHON_EPILOGUE
            finished += self._results * 1e-9
        # A micro-tile is multiplied as a whole, but for vectors of 16 columns on AVX-512.
        columns = unit.columns
        height = 4 if columns <= 24 else 2 if m <= 2 else 8
        rows, step = -(-m // height) * height, min(columns, 16 if columns == 48 else 48)
        padded = rows * -(-n // step) * step / max(1, m * n)
        product = padded * self._sgemm / unit.gain
        if problem.symmetric:  # the tiles that cross the diagonal are more than half, and the result is mirrored
            product, finished = 0.55 * product, 2 * finished
        width = {"float": 4, "bfloat16": 2}.get(unit.pair, problem.b.dtype.itemsize)
        return call + max(product, self._reading(width, cores)) + (packed + finished) / cores

    def added_blocks(self) -> float:
        """Seconds that products of blocks of k take beside one product: a call each, and sums that are read again."""
        blocks = -(-self._problem.k // BLOCK) - 1
        return blocks * (_OWN_CALL + self._results * 8 / _VECTOR_RATE)

    def _reading(self, itemsize: int, cores: int) -> float:
        """Seconds in which a packed b of elements of ``itemsize`` bytes is read; 0 where b is packed or converted in
        each call, which takes longer.
        """
        return self._b * itemsize / (_VECTOR_RATE * min(2, cores)) if self._packed else 0.0
