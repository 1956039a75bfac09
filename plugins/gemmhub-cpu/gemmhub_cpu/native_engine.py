"""int8, bfloat16 and float16 by kernels of our own (kernels/), for AVX2, AVX-512, AMX and NEON.

Operands may have any strides: packing reads them in place. Threads are those of the library, which sleep between calls.
Integers are exact wherever the result fits in int32, and wrap elsewhere; floats are accumulated in float32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from gemmhub.buckets import end
from gemmhub.kit.floats import DefaultMode
from gemmhub.numpy_backend.scratch import Lease, Scratch
from gemmhub.problem import GemmProblem
from gemmhub_cpu import library, limits
from gemmhub_cpu.finishing import finish_tile
from gemmhub_cpu.threads import each
from gemmhub_cpu.units import Unit

Array = Any

_DTYPES = {"int8": 0, "int32": 1, "float16": 2, "bfloat16": 3, "float32": 4}
"""The numbers of ``Dtype`` in unit.h."""
_NUMBERS: dict[Any, int] = {}
"""The same, by dtypes met so far."""
_CALL = struct.Struct("=28q2d")
"""``Call`` of gemm.h."""
_NO_MATRIX = (0, 0, 0, 0)


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])  # half as slow as ctypes.data


def _matrix(x: Array) -> tuple[int, int, int, int]:
    rows, columns = x.strides
    number = _NUMBERS.get(x.dtype)
    if number is None:  # a dtype's name is slow to ask for
        number = _NUMBERS[x.dtype] = _DTYPES[x.dtype.name]
    return _address(x), rows, columns, number


def described(
    unit: Unit, a: Array, b: Array | Packed, out: Array, *, c: Array | None = None, bias: Array | None = None,
    relu: bool = False, alpha: float = 1.0, beta: float = 0.0, workspace: tuple[int, int] = (0, 0), threads: int = 0,
) -> bytes:  # fmt: skip
    """The bytes of ``Call``. ``bias`` is float32 of out's shape, with strides of 0; ``workspace`` (address, bytes)."""
    (m, k), n = a.shape, out.shape[1]
    right, packed = (_NO_MATRIX, b.address) if isinstance(b, Packed) else (_matrix(b), 0)
    return _CALL.pack(
        unit.index, threads or limits.threads(), m, n, k, *_matrix(a), *right, packed, *_matrix(out),
        *(_NO_MATRIX if c is None else _matrix(c)),
        *((0, 0, 0) if bias is None else (_address(bias), *bias.strides)), relu, *workspace, alpha, beta,
    )  # fmt: skip


class Packed:
    """All of b in the form that a unit reads. It owns its memory."""

    def __init__(self, library: Any, unit: Unit, b: Array, memory: Array | None = None) -> None:
        """Pack ``b`` (k, n), into ``memory`` where that is given."""
        self.k, self.n = b.shape
        self.unit = unit
        size = packed_bytes(library, unit, self.n, self.k)
        self.memory = np.empty(size, np.uint8) if memory is None else memory[:size]
        self.address = _address(self.memory)
        library.gemmhub_cpu_pack(_sizes(unit, 0, self.n, self.k, _matrix(b), self.address))

    def from_column(self, column: int) -> Packed:
        """The same from ``column`` on, which is a multiple of the unit's columns."""
        rest = object.__new__(Packed)
        rest.k, rest.n, rest.unit, rest.memory = self.k, self.n - column, self.unit, self.memory
        words = self.memory.nbytes // max(1, -(-self.n // self.unit.columns) * self.unit.columns)
        rest.address = self.address + column * words
        return rest


def _sizes(
    unit: Unit, m: int, n: int, k: int, b: tuple[int, int, int, int] = _NO_MATRIX, packed: int = 0, limit: int = 0,
    threads: int = 0,
) -> bytes:  # fmt: skip
    """A ``Call`` of sizes only, with b for packing."""
    return _CALL.pack(
        unit.index, threads or limits.most(), m, n, k, *_NO_MATRIX, *b, packed, *_NO_MATRIX, *_NO_MATRIX,
        0, 0, 0, 0, 0, limit, 1.0, 0.0,
    )  # fmt: skip


def packed_bytes(library: Any, unit: Unit, n: int, k: int) -> int:
    """Bytes of the packed form of b (k, n)."""
    return int(library.gemmhub_cpu_packed_bytes(_sizes(unit, 0, n, k)))


_memory = Scratch()


def by_vector(problem: GemmProblem) -> bool:
    """Whether the kernels read the matrix as it lies: one row or column, and a matrix that is contiguous somehow."""
    if problem.batch and problem.b.layout.matrices == 1:
        return False  # the rows of a batch make one matrix
    matrix = problem.b if problem.m == 1 else problem.a
    return 1 in (problem.m, problem.n) and (matrix.layout.stored("row") or matrix.layout.stored("col"))


class NativeGemm:
    """A product bound to a unit: call it with operands of any sizes. Usable from several threads at once."""

    def __init__(self, problem: GemmProblem, unit: Unit, limit: int) -> None:
        """``limit`` bounds scratch memory in bytes; :attr:`scratch_bytes` is 0 where ``problem`` needs more."""
        self.problem = problem
        self.unit = unit
        self._library = library.load().library
        self._accumulator = np.dtype(np.int32 if unit.pair == "int8" else np.float32)
        self._fused = self._finishes()
        beforehand = problem.packed_by is not None
        self._gets_packed = beforehand or not (self._fused or by_vector(problem))
        """Whether the kernels get b packed: beforehand, or in panels."""
        self._limit = limit
        self._last: tuple[tuple[int, ...], tuple[int, int, int, int]] = (), (0, 0, 0, 0)
        self.threads = limits.ceiling()
        """Threads that the workspace has room for: a call uses fewer where its thread may run on fewer processors."""
        self.scratch_bytes = self._most()
        while not self.scratch_bytes and self.threads > 1:
            self.threads //= 2
            self.scratch_bytes = self._most()

    @property
    def description(self) -> str:
        """Text for users."""
        return f"{self.unit.name}, up to {self.threads} threads"

    def _most(self) -> int:
        """The most bytes that a product of the problem's bucket needs; 0 where one does not fit.

        One row is packed otherwise than many; the matrices of a batch may be one of more rows.
        """
        problem = self.problem
        m, batch = end(problem.m), prod(map(end, problem.batch))
        needs = [self._workspace(rows, end(problem.n), end(problem.k))[0] for rows in {1, m, m * max(1, batch)}]
        return max(needs) if all(needs) else 0

    def _workspace(self, m: int, n: int, k: int) -> tuple[int, int, int, int]:
        """Bytes for a product of two matrices, those of a call of the kernels among them, and the columns and rows of
        the parts that NumPy finishes. 0 bytes where the limit does not suffice.
        """
        unit, limit = self.unit, self._limit
        # Of what is not finished by the kernel, b is packed in panels and the result made in blocks of rows.
        share = limit if self._fused else limit // 4
        sizes = _sizes(unit, m, n, k, packed=self._gets_packed, limit=share, threads=self.threads)
        need = share = int(self._library.gemmhub_cpu_workspace(sizes))
        if self._fused:
            return need, share, n, m
        column = 0 if self.problem.packed_by is not None else packed_bytes(self._library, unit, 1, k) // unit.columns
        # Of 16 rows at least: a tile, an addend in its dtype, and one more block of an activation.
        tile = 3 * 8
        panel = min(limit // 2 // max(1, column), limit // 4 // (16 * tile)) // unit.columns * unit.columns
        width = min(n, panel)
        rows = min(max(1, m), limit // 4 // (tile * max(1, width)))
        if not need or (n and not width):
            return 0, share, width, rows
        return need + column * -(-width // unit.columns) * unit.columns + tile * width * rows, share, width, rows

    def _finishes(self) -> bool:
        """Whether the kernel finishes its tiles: any epilogue in floats but for activations other than relu."""
        problem = self.problem
        if self._accumulator == np.int32:
            return problem.plain and problem.out.dtype == np.int32
        names = [x.dtype.name for x in (problem.out, problem.c) if x is not None]
        return problem.activation in (None, "relu") and all(_DTYPES.get(name, 0) >= 2 for name in names)

    def pack(self, b: Array) -> Packed:
        return Packed(self._library, self.unit, b)

    def __call__(
        self, a: Array, b: Array | Packed, out: Array, alpha: Any, beta: Any, stream: Any,
        c: Array | None = None, bias: Array | None = None,
    ) -> None:  # fmt: skip
        """A kernel's ``run``."""
        for left, right, result, addend in self._matrices(a, b, out, c):
            (self._multiply if self._fused else self._multiply_and_finish)(
                left, right, result, addend, bias, alpha, beta
            )

    def _matrices(self, a: Array, b: Array | Packed, out: Array, c: Array | None) -> Iterator[tuple[Any, ...]]:
        """The products of two matrices that a call is made of: one, where a batch shares b and is dense."""
        *batch, m, n = out.shape
        if not batch:
            yield a, b, out, c
            return
        along_n = self.problem.bias is None or self.problem.bias.axis == "n"
        shared = isinstance(b, Packed) or b.ndim == 2
        if shared and along_n and not self.problem.deterministic:
            stacks = [x for x in (a, out, c) if x is not None]
            if all(x.shape[:-2] == out.shape[:-2] and x.flags.c_contiguous for x in stacks):
                rows = prod(batch) * m  # not -1, which a size of 0 leaves unknown
                left, result = a.reshape(rows, a.shape[-1]), out.reshape(rows, n)
                yield left, b, result, None if c is None else c.reshape(result.shape)
                return
        left = np.broadcast_to(a, (*batch, *a.shape[-2:]))
        right = b if isinstance(b, Packed) else np.broadcast_to(b, (*batch, *b.shape[-2:]))
        addend = None if c is None else np.broadcast_to(c, out.shape)
        for index in np.ndindex(*batch):
            one = right if isinstance(right, Packed) else right[index]
            yield left[index], one, out[index], None if addend is None else addend[index]

    def _multiply(
        self, a: Array, b: Array | Packed, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any
    ) -> None:
        vector = None
        if bias is not None and self.problem.bias is not None:
            with DefaultMode():
                single = bias.astype(np.float32, copy=False)
            vector = np.broadcast_to(single if self.problem.bias.axis == "n" else single[:, np.newaxis], out.shape)
        need = self._needed(a, out)[1]
        with _memory.lease(need) as lease:
            if self.problem.plain:
                self._run(lease, need, a, b, out)
                return
            self._run(
                lease, need, a, b, out, c=c, bias=vector, relu=self.problem.activation == "relu", alpha=float(alpha),
                beta=float(beta),
            )  # fmt: skip

    def _needed(self, a: Array, out: Array) -> tuple[int, int, int, int]:
        """The answer of :meth:`_workspace` for these operands. Sizes that repeat are not looked at again."""
        m, n = out.shape
        sizes, last = (m, n, a.shape[1]), self._last
        if last[0] == sizes:
            return last[1]
        found = self._workspace(*sizes)
        if not found[0] and out.size:
            raise MemoryError(f"{self._limit} bytes of scratch memory do not suffice for this product")
        self._last = sizes, found
        return found

    def _run(self, lease: Lease, need: int, a: Array, b: Array | Packed, out: Array, **epilogue: Any) -> None:
        memory = lease.take((need,), np.dtype(np.uint8))
        workspace = _address(memory), memory.nbytes
        threads = min(self.threads, limits.chosen())  # fewer where the library finds a narrower affinity
        call = described(self.unit, a, b, out, workspace=workspace, threads=threads, **epilogue)
        if self._library.gemmhub_cpu_multiply(call):
            raise MemoryError(f"{memory.nbytes} bytes of scratch memory do not suffice for this product")

    def _multiply_and_finish(
        self, a: Array, b: Array | Packed, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any
    ) -> None:
        """Sums in blocks of rows, which NumPy finishes: epilogues that the kernels do not have."""
        if bias is not None and self._accumulator == np.float32:
            bias = bias.astype(np.float32, copy=False)
        whole, need, width, height = self._needed(a, out)
        with DefaultMode(), _memory.lease(whole) as lease:
            for start in range(0, out.shape[1], max(1, width)):
                cols = slice(start, min(start + width, out.shape[1]))
                lease.used = 0
                packed: Array | Packed
                if isinstance(b, Packed):
                    packed = b.from_column(start)
                elif by_vector(self.problem):
                    packed = b[:, cols]
                else:
                    size = packed_bytes(self._library, self.unit, cols.stop - start, a.shape[1])
                    panel = lease.take((size,), np.dtype(np.uint8))
                    packed = Packed(self._library, self.unit, b[:, cols], panel)
                mark = lease.used
                for top in range(0, out.shape[0], height):
                    rows = slice(top, min(top + height, out.shape[0]))
                    lease.used = mark
                    tile = lease.take((rows.stop - top, cols.stop - start), self._accumulator)
                    after = lease.used
                    self._run(lease, need, a[rows], packed, tile)
                    lease.used = after
                    self._finish(tile, out[rows, cols], c, bias, alpha, beta, rows, cols)

    def _finish(
        self, tile: Array, target: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any, rows: slice,
        cols: slice,
    ) -> None:  # fmt: skip
        def some(first: int, last: int) -> None:
            part, here = tile[first:last], slice(rows.start + first, rows.start + last)
            with np.errstate(over="ignore", invalid="ignore", under="ignore"), _memory.lease(0) as lease:
                finish_tile(self.problem, lease, part, target[first:last], c, bias, alpha, beta, here, cols)

        each(some, tile.shape[0], max(1, (1 << 18) // max(1, tile.shape[1])))
