"""bfloat16 and int8 through numkong (https://github.com/ashvardanian/NumKong), where its units beat SGEMM.

numkong multiplies row-major A (m, k) by a packed form of B^T (n, k) into row-major float32 (int32). So a
panel of B's columns, as many as scratch memory allows, is transposed by all cores and packed; then all cores
multiply rows of A by it. A is read in place. Tiles that are not already the result are finished (epilogue,
conversion) by the thread that made them. numkong's own threads are not used: they spin (see threads.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from gemmhub.numpy_backend.blocked import finish
from gemmhub.numpy_backend.probe import cores
from gemmhub.numpy_backend.scratch import Lease, Scratch
from gemmhub.problem import GemmProblem
from gemmhub_cpu.threads import each

Array = Any

_TESTED = (7, 8)
"""Major versions: from, below. Minor releases of numkong change its interface."""


@lru_cache(maxsize=1)  # no lock, which a nested call or a forked child would wait for
def load() -> tuple[str, frozenset[str], str]:
    """(version, capabilities, reason why not), after checking a product of each kind. Once a process."""
    return _load()


def _load() -> tuple[str, frozenset[str], str]:
    numkong = import_module("numkong")

    version = str(numkong.__version__)
    if not _TESTED[0] <= int(version.partition(".")[0]) < _TESTED[1]:
        return "", frozenset(), f"numkong {version} is not one of {_TESTED[0]}.x"
    units = frozenset(name for name, present in numkong.get_capabilities().items() if present)
    wrong = [name for name in ("bfloat16", "int8") if not _agrees(name)]
    if wrong:
        return "", frozenset(), f"numkong {version} multiplies {', '.join(wrong)} wrongly on this CPU"
    return version, units, ""


def _agrees(name: str) -> bool:
    """Parity with NumPy on an odd-sized product of random data."""
    import ml_dtypes

    rng = np.random.default_rng()
    m, n, k = 37, 53, 131
    if name == "int8":
        a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (n, k)))
        out = np.empty((m, n), np.int32)
        multiply(a, pack(b), out)
        return bool(np.array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32)))
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    result = np.empty((m, n), np.float32)
    multiply(a, pack(b), result)
    wide_a, wide_b = a.astype(np.float64), b.T.astype(np.float64)
    bound = 2.0**-23 * (k + 2) * (np.abs(wide_a) @ np.abs(wide_b))
    return bool((np.abs(result - wide_a @ wide_b) <= bound).all())


def pack(transposed: Array) -> Any:
    """numkong's packed form of B^T, shape (n, k), C order."""
    numkong = import_module("numkong")

    return numkong.dots_pack(transposed)


def multiply(a: Array, packed: Any, out: Array) -> None:
    """``out = a @ b`` for ``a`` (m, k) and ``out`` (m, n) C-contiguous float32 or int32."""
    numkong = import_module("numkong")

    if a.strides[1] != a.itemsize or a.strides[0] < a.itemsize * a.shape[1]:
        a = np.ascontiguousarray(a)  # a tile of rows, or all of a where its rows are not dense

    kind = "int32" if out.dtype == np.int32 else "float32"
    numkong.dots_packed(a, packed, out=numkong.from_pointer(out.ctypes.data, out.shape, kind, owner=out))


@dataclass(frozen=True)
class Packed:
    """B as panels of ``width`` columns; owns its memory."""

    panels: tuple[Any, ...]
    width: int


class NumkongGemm:
    """A problem bound to its panels: call it with two-dimensional operands, batches one by one."""

    def __init__(self, problem: GemmProblem, limit: int) -> None:
        self.problem = problem
        self._accumulator = np.dtype(np.int32 if problem.a.dtype == np.int8 else np.float32)
        self.width = panel_width(problem, limit)
        self._tile_rows = max(16, min(problem.m, _TILE_BYTES // (4 * max(1, self.width))))
        self.scratch_bytes = 2 * self.width * problem.k * problem.b.dtype.itemsize + _TILE_BYTES * cores()

    def pack(self, b: Array) -> Packed:
        """All of ``b`` (k, n)."""
        return Packed(tuple(self._panels(b)), self.width)

    def _panels(self, b: Array) -> Iterator[Any]:
        """The packed panels of ``b``, one after the other."""
        for start in range(0, b.shape[1], self.width):
            panel = b[:, start : start + self.width]
            with _transposed.lease(panel.nbytes) as lease:
                packed = pack(transposed(panel, lease))
            yield packed

    def __call__(
        self, a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any, stream: Any
    ) -> None:
        """A kernel's ``run``."""
        batch = self.problem.batch
        if not batch:
            self._matrix(a, b, out, c, bias, alpha, beta)
            return
        left = np.broadcast_to(a, (*batch, *a.shape[-2:]))
        right = None if isinstance(b, Packed) else np.broadcast_to(b, (*batch, *b.shape[-2:]))
        for index in np.ndindex(*batch):
            addend = None if c is None else np.broadcast_to(c, out.shape)[index]
            self._matrix(left[index], b if right is None else right[index], out[index], addend, bias, alpha, beta)

    def _matrix(
        self, a: Array, b: Array | Packed, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any
    ) -> None:
        if isinstance(b, Packed):
            width, panels = b.width, iter(b.panels)
        else:
            width, panels = self.width, self._panels(b)
        if bias is not None and self._accumulator == np.float32:
            bias = bias.astype(np.float32, copy=False)
        for index, panel in enumerate(panels):
            cols = slice(index * width, min((index + 1) * width, self.problem.n))
            self._panel(a, panel, out, c, bias, alpha, beta, cols)

    def _panel(
        self, a: Array, packed: Any, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any,
        cols: slice,
    ) -> None:  # fmt: skip
        """Columns ``cols`` of the result."""
        problem = self.problem
        target = out[:, cols]
        dense = a.strides[1] == a.itemsize
        in_place = dense and problem.plain and target.dtype == self._accumulator and target.flags.c_contiguous
        if problem.deterministic:  # out must not decide how many rows are multiplied at once
            in_place = False

        def rows(first: int, last: int) -> None:
            if in_place:
                multiply(a[first:last], packed, target[first:last])
                return
            shape = min(self._tile_rows, last - first), cols.stop - cols.start
            quiet = np.errstate(over="ignore", invalid="ignore", under="ignore")
            with quiet, _tiles.lease(4 * shape[0] * shape[1]) as lease:
                tile = lease.take(shape, self._accumulator)
                for start in range(first, last, self._tile_rows):
                    part = slice(start, min(start + self._tile_rows, last))
                    made = tile[: part.stop - part.start]
                    multiply(a[part], packed, made)
                    self._finish(lease, made, target[part], c, bias, alpha, beta, part, cols)

        each(rows, problem.m, 128 if problem.m >= 128 * cores() else 16)

    def _finish(
        self, lease: Lease, tile: Array, target: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any,
        rows: slice, cols: slice,
    ) -> None:  # fmt: skip
        problem = self.problem
        if tile.dtype == np.int32 and target.dtype != np.int32:
            tile = tile.astype(target.dtype)  # integers wrap to the result's width before the epilogue
        if not problem.plain:
            vector = None
            if bias is not None and problem.bias is not None:
                vector = bias[cols] if problem.bias.axis == "n" else bias[rows, np.newaxis]
            addend = None if c is None else c[rows, cols]
            finish(lease, tile, addend, vector, alpha, beta, problem.activation)
        np.copyto(target, tile, casting="unsafe")


_TILE_BYTES = 1 << 20
"""A tile this small stays in the cache between the product and its epilogue."""
_tiles, _transposed = Scratch(), Scratch()
_STRIP = 16
"""Rows transposed at a time: few enough that their cache lines are still there for the next column."""


def panel_width(problem: GemmProblem, limit: int) -> int:
    """Columns of B whose transposed and packed forms, with the tiles, fit in ``limit`` bytes; 0 below 64."""
    room = limit - _TILE_BYTES * cores()
    width = room // (2 * max(1, problem.k) * problem.b.dtype.itemsize)
    return min(problem.n, width) if problem.n <= width else 0 if width < 64 else width // 64 * 64


def transposed(b: Array, lease: Lease) -> Array:
    """B^T with dense rows: a view where ``b`` is column-major, else a copy made by all cores in strips."""
    view = b.T
    if view.flags.c_contiguous:
        return view
    copy = lease.take(view.shape, b.dtype)

    def strips(first: int, last: int) -> None:
        for start in range(first * _STRIP, min(last * _STRIP, b.shape[0]), _STRIP):
            stop = start + _STRIP
            copy[:, start:stop] = b[start:stop].T

    each(strips, -(-b.shape[0] // _STRIP), 4)
    return copy
