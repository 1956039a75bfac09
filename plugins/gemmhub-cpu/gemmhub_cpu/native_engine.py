"""Integers and floats by kernels of our own (kernels/), for AVX2, AVX-512, AMX and NEON.

The kernels read NumPy's array objects themselves: one native call a product, batches included. Operands may have any
strides: packing reads them in place. Threads are those of the library, which sleep between calls. Integers are exact
modulo 2**32 (of int8 and int32) or 2**64 (of int64); float64 is accumulated in float64, other floats in float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from copy import copy
from math import prod
from typing import Any

import numpy as np

from gemmhub.backend import DirectEpilogue
from gemmhub.buckets import end
from gemmhub.errors import KernelError
from gemmhub.kit.floats import DefaultMode
from gemmhub.numpy_backend.scratch import Scratch
from gemmhub.numpy_backend.symmetric import HALF
from gemmhub.problem import GemmProblem
from gemmhub_cpu import library, limits
from gemmhub_cpu.finishing import finish_tile
from gemmhub_cpu.threads import each
from gemmhub_cpu.units import Unit

Array = Any

_DTYPES = {
    "int8": 0, "int32": 1, "uint32": 1, "float16": 2, "bfloat16": 3, "float32": 4, "int64": 5, "uint64": 5,
    "float64": 6, "float8_e4m3fn": 7, "float8_e5m2": 8,
}  # fmt: skip
"""The numbers of ``Dtype`` in unit.h."""
_NO_WORKSPACE, _UNLIKE, _SHARED = 1, 2, 3
"""``Status`` of arrays.cpp."""
_FINISHED = ("float16", "bfloat16", "float32")
"""Dtypes of results, and addends, that the kernels finish; of addends also int32."""
_EXTRAS = ("c", "bias", "scale_a", "scale_b", "scale_out")
"""The operands beside a, b and out, in the order of the native call."""
ACTIVATIONS = {
    None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6, "relu_squared": 7,
    "leaky_relu": 8, "hardswish": 9,
}  # fmt: skip
"""The numbers of the activations in kernels/gemm.h."""
"""The numbers of ``Activation`` in gemm.h."""


class Prepared(ctypes.Structure):
    """``Prepared`` of arrays.cpp: what the kernels are told of a problem once, when it is prepared."""

    _fields_ = (
        ("head", ctypes.c_int64), ("unit", ctypes.c_int64), ("workspace_bytes", ctypes.c_int64),
        ("dtypes", ctypes.c_void_p * 3), ("none", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("a", "b", "out", "c", "bias")),
        *((name, ctypes.c_int64) for name in ("bias_rows", "activation", "folds", "pinned", "symmetric")),
    )  # fmt: skip

    def __init__(
        self, unit: Unit, limit: int, a: Any, b: Any, out: Any, c: Any = None, bias: Any = None,
        bias_rows: bool = False, activation: str | None = None, folds: bool = False,
        pinned: bool = False, symmetric: bool = False,
    ) -> None:  # fmt: skip
        """``a``, ``b``, ``out``, ``c`` and ``bias`` are dtypes."""
        self.expected = a, b, out  # keeps them alive: they are compared by their addresses
        numbers = [0 if x is None else _DTYPES[x.name] for x in (a, b, out, c, bias)]
        dtypes = (ctypes.c_void_p * 3)(*map(id, self.expected))
        super().__init__(
            object.__basicsize__, unit.index, limit, dtypes, id(None), *numbers, bias_rows, ACTIVATIONS[activation],
            folds, pinned, symmetric,
        )  # fmt: skip
        self.address = ctypes.addressof(self)


class Packed:
    """All of b in the form that a unit reads. It owns its memory."""

    def __init__(self, library: Any, prepared: Prepared, columns: int, b: Array, memory: Array | None = None) -> None:
        """Pack ``b`` (k, n), into ``memory`` where that is given, for a unit of so many ``columns``."""
        self.shape = self.k, self.n = b.shape
        self.columns = columns
        size = library.gemmhub_cpu_bytes_of_packed(prepared.address, self.n, self.k)
        self.memory = np.empty(size, np.uint8) if memory is None else memory[:size]
        self.address: int = self.memory.ctypes.data
        library.gemmhub_cpu_pack_array(prepared.address, limits.most(), b, self.address)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form."""
        return int(self.memory.nbytes)

    def part(self, columns: slice) -> Packed:
        """Some columns of it, from a multiple of the unit's columns on."""
        part = copy(self)
        part.shape = self.k, part.n = self.k, columns.stop - columns.start
        part.address += columns.start * (self.memory.nbytes // max(1, -(-self.n // self.columns) * self.columns))
        return part


_memory = Scratch()


def accumulator(unit: Unit, problem: GemmProblem) -> Any:
    """The dtype in which ``unit`` sums the products of ``problem``."""
    out = problem.out.dtype
    wide = {"int8": np.dtype(np.int32), "int32": out, "int64": out, "float64": np.dtype(np.float64)}
    return wide.get(unit.pair, np.dtype(np.float32))


def finishes(unit: Unit, problem: GemmProblem) -> bool:
    """Whether the kernels finish all results of ``problem``: any epilogue in float32, of other results none."""
    sums = accumulator(unit, problem)
    if sums in (np.float32, np.int32) and problem.out.dtype.name in _FINISHED:
        return problem.c is None or problem.c.dtype.name in (*_FINISHED, "int32")
    return problem.plain and problem.out.dtype == sums


class NativeGemm:
    """A product bound to a unit: call it with operands of any sizes. Usable from several threads at once."""

    def __init__(self, problem: GemmProblem, unit: Unit, limit: int) -> None:
        """``limit`` bounds workspace in bytes; :attr:`scratch_bytes` is 0 where ``problem`` needs more."""
        self.problem = problem
        self.unit = unit
        self._library = library.load().library
        self._accumulator = accumulator(unit, problem)
        self.fused = finishes(unit, problem)
        """Whether the kernels finish all results."""
        self._beforehand = problem.packed_by is not None
        self._panels = not (self.fused or self._beforehand or 1 in (problem.m, problem.n))
        """Whether b is packed in panels of columns, for the parts that NumPy finishes."""
        self._limit = limit
        a, b, c, bias = problem.a.dtype, problem.b.dtype, problem.c, problem.bias
        # Of what is not finished by the kernels, b is packed in panels and the result made in blocks of rows.
        if self.fused:
            self._prepared = Prepared(
                unit, limit, a, b, problem.out.dtype, c and c.dtype, bias and bias.dtype,
                bias is not None and bias.axis == "m", problem.activation, problem.reproducible != "run",
                problem.pinned, problem.symmetric,
            )  # fmt: skip
        else:
            self._prepared = Prepared(unit, limit // 4, a, b, self._accumulator, pinned=problem.pinned)
        self.threads = limits.ceiling()
        """Threads that the workspace has room for: a call uses fewer where its thread may run on fewer processors."""
        self.scratch_bytes = self._most()
        while not self.scratch_bytes and self.threads > 1:
            self.threads //= 2
            self.scratch_bytes = self._most()

    @property
    def description(self) -> str:
        """Text for users."""
        return f"{self.unit.name}, up to {self.threads} threads{HALF * self.problem.symmetric}"

    def _most(self) -> int:
        """The most bytes that a product of the problem's bucket uses; 0 where one does not fit.

        One row is packed otherwise than many; the matrices of a batch may be one of more rows.
        """
        problem = self.problem
        m, batch = end(problem.m), prod(map(end, problem.batch))
        needs = [self._workspace(rows, end(problem.n), end(problem.k)) for rows in {1, m, m * max(1, batch)}]
        if not all(native for native, *_ in needs):
            return 0
        if self.fused and batch > 1:
            return self._limit  # threads that take products of their own fill it
        return max(native + beside for native, beside, *_ in needs)

    def _workspace(self, m: int, n: int, k: int) -> tuple[int, int, int, int]:
        """Bytes for a product of two matrices in a call of the kernels, 0 where the limit does not suffice, and beside
        it for the parts that NumPy finishes; the columns and the rows of these.
        """
        columns, limit, native = self.unit.columns, self._limit, self._library
        packed = self._beforehand or self._panels
        need = native.gemmhub_cpu_workspace_of(self._prepared.address, self.threads, m, n, k, packed)
        if self.fused:
            return need, 0, n, m
        column = native.gemmhub_cpu_bytes_of_packed(self._prepared.address, 1, k) // columns if self._panels else 0
        # Of 16 rows at least: a tile, an addend in its dtype, and one more block of an activation.
        tile = 3 * 8
        panel = min(limit // 2 // max(1, column), limit // 4 // (16 * tile)) // columns * columns
        width = min(n, panel)
        rows = min(max(1, m), limit // 4 // (tile * max(1, width)))
        beside = column * -(-width // columns) * columns + tile * width * rows
        return 0 if n and not width else need, beside, width, rows

    def pack(self, b: Array) -> Packed:
        return Packed(self._library, self._prepared, self.unit.columns, b)

    def direct(self, a: Array, b: Array, out: Array | None) -> Array:
        """A kernel's ``direct``, of a plain problem."""
        result = self._empty(a, b) if out is None else out
        status = self._library.gemmhub_cpu_product(
            self._prepared.address, min(self.threads, limits.chosen()), a, b, result
        )
        if status == _SHARED:
            beside = np.empty(result.shape, result.dtype)
            self.direct(a, b, beside)
            result[...] = beside
        elif status:
            self.direct(*self._alike(status, a, b, result))
        return result if out is not None or result.ndim else result[()]

    def groups(self, axes: tuple[int, int, int], ends: Array, a: Array, b: Array, out: Array) -> bool:
        """A kernel's ``groups``, of a plain problem."""
        status = self._library.gemmhub_cpu_groups(
            self._prepared.address, min(self.threads, limits.chosen()), *axes, ends, a, b, out
        )
        return not status

    def direct_packed(self, a: Array, b: Packed, out: Array | None) -> Array:
        """A kernel's ``direct``, of a plain problem with a packed b."""
        result = self._empty(a, b) if out is None else out
        self._run(a, b, result)
        return result

    def with_epilogue(self, size: int) -> DirectEpilogue:
        """A kernel's ``direct_epilogue``, where the kernels finish all results of a problem that is not plain."""
        run, empty = self._run, self._empty
        problem = self.problem
        scaled, with_c = not problem.alpha_is_one, problem.c is not None
        names = [name if name in problem.operands else None for name in _EXTRAS]

        def product(a: Array, b: Array | Packed, out: Array | None, options: Mapping[str, Any]) -> Array:
            result = empty(a, b) if out is None else out
            extras = [None if name is None else options[name] for name in names]
            for i, x in enumerate(extras):
                # A call may have them as scalars, lists or memory maps, which the kernels cannot read.
                if x is not None and x.__class__ is not np.ndarray:
                    extras[i] = np.asarray(x)
            run(a, b, result, options["alpha"] if scaled else 1, options["beta"] if with_c else 0, *extras)
            return result

        return product

    def _empty(self, a: Array, b: Array | Packed) -> Array:
        """A new array for the result."""
        left, right = a.shape, b.shape
        if len(left) == 2 and len(right) == 2:
            return np.empty((left[0], right[1]), self.problem.out.dtype)
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        return np.empty((*batch, *left[-2:-1], *right[-1:][: len(right) - 1]), self.problem.out.dtype)

    def _alike(self, status: int, *operands: Array) -> tuple[Array, ...]:
        """The operands with the very dtype objects that are expected, where theirs are equal to these; raise an error
        where that was not the reason for which the kernels returned ``status``.
        """
        if status == _NO_WORKSPACE:
            raise MemoryError(f"{self._limit} bytes of workspace do not suffice for this product")
        pairs = list(zip(operands, self._prepared.expected))
        if all(x.dtype is dtype for x, dtype in pairs) or any(x.dtype != dtype for x, dtype in pairs):
            given = ", ".join(f"{x.dtype} {x.shape}" for x in operands)
            raise KernelError(
                "cpu",
                f"a, b and out are {given}, or c, bias or a scale does not fit them; prepared for {self.problem}",
            )
        return tuple(x.view(dtype) for x, dtype in pairs)

    def __call__(
        self, a: Array, b: Array | Packed, out: Array, alpha: Any, beta: Any, stream: Any,
        c: Array | None = None, bias: Array | None = None, **factors: Array,
    ) -> None:  # fmt: skip
        """A kernel's ``run``."""
        if self.fused:
            self._run(a, b, out, alpha, beta, c, bias, **factors)
            return
        if bias is not None and self._accumulator == np.float32:
            with DefaultMode():
                bias = bias.astype(np.float32, copy=False)
        for left, right, result, addend in self._matrices(a, b, out, c):
            self._multiply_and_finish(left, right, result, addend, bias, alpha, beta)

    def _run(
        self, a: Array, b: Array | Packed, out: Array, alpha: Any = 1, beta: Any = 0, c: Array | None = None,
        bias: Array | None = None, scale_a: Array | None = None, scale_b: Array | None = None,
        scale_out: Array | None = None,
    ) -> None:  # fmt: skip
        """One call of the kernels. ``out`` may overlap any operand."""
        right, packed = b, 0
        if b.__class__ is Packed:
            if (a.shape[-1], out.shape[-1]) != b.shape:
                raise KernelError("cpu", f"a is {a.shape} and out {out.shape}; b was packed as {b.shape}")
            right, packed = None, b.address
        status = self._library.gemmhub_cpu_product_with(
            self._prepared.address, min(self.threads, limits.chosen()), a, right, packed, out, c, bias, scale_a,
            scale_b, scale_out, alpha, beta,
        )  # fmt: skip
        if status == _SHARED:
            beside = np.empty(out.shape, out.dtype)
            self._run(a, b, beside, alpha, beta, c, bias, scale_a, scale_b, scale_out)
            out[...] = beside
        elif status:
            left, like, into = self._alike(status, a, np.empty(0, self._prepared.expected[1]) if packed else b, out)
            self._run(left, b if packed else like, into, alpha, beta, c, bias, scale_a, scale_b, scale_out)

    def _matrices(self, a: Array, b: Array | Packed, out: Array, c: Array | None) -> Iterator[tuple[Any, ...]]:
        """The products of two matrices that a call is made of: one, where a batch shares b and is dense."""
        *batch, m, n = out.shape
        if not batch:
            yield a, b, out, c
            return
        along_n = self.problem.bias is None or self.problem.bias.axis == "n"
        shared = isinstance(b, Packed) or b.ndim == 2
        if shared and along_n and self.problem.reproducible != "run":
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

    def _multiply_and_finish(
        self, a: Array, b: Array | Packed, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any
    ) -> None:
        """Sums in blocks of rows, which NumPy finishes: epilogues that the kernels do not have."""
        (m, k), n = a.shape, out.shape[1]
        need, beside, width, height = self._workspace(m, n, k)
        if not need and out.size:
            raise MemoryError(f"{self._limit} bytes of workspace do not suffice for this product")
        with DefaultMode(), _memory.lease(beside) as lease:
            for start in range(0, n, max(1, width)):
                cols = slice(start, min(start + width, n))
                lease.used = 0
                right: Array | Packed
                if isinstance(b, Packed):
                    right = b.part(cols)
                elif not self._panels:
                    right = b[:, cols]
                else:
                    size = self._library.gemmhub_cpu_bytes_of_packed(self._prepared.address, cols.stop - start, k)
                    panel = lease.take((size,), np.dtype(np.uint8))
                    right = Packed(self._library, self._prepared, self.unit.columns, b[:, cols], panel)
                mark = lease.used
                for top in range(0, m, height):
                    rows = slice(top, min(top + height, m))
                    lease.used = mark
                    tile = lease.take((rows.stop - top, cols.stop - start), self._accumulator)
                    self._run(a[rows], right, tile)
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
