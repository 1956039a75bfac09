"""Products of packed b: a panel of b's columns at a time, all cores over the rows of a, epilogues by tiles.

A panel is as wide as scratch memory allows. All cores multiply rows of a by it. Tiles that are not already the result
are finished (epilogue, conversion) by the thread that made them. An engine adds how a panel is packed and multiplied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub.kit.floats import DefaultMode
from gemmhub.numpy_backend.probe import cores
from gemmhub.numpy_backend.scratch import Scratch
from gemmhub.problem import GemmProblem
from gemmhub_cpu.finishing import finish_tile
from gemmhub_cpu.threads import each

Array = Any


@dataclass(frozen=True)
class Packed:
    """B as panels of ``width`` columns; owns its memory."""

    panels: tuple[Any, ...]
    width: int


class PanelGemm(ABC):
    """A problem bound to its panels: call it with two-dimensional operands, batches one by one."""

    any_strides = False
    """Whether rows of a are read wherever they are; else those that are not dense are copied."""

    def __init__(self, problem: GemmProblem, limit: int) -> None:
        self.problem = problem
        self._accumulator = np.dtype(np.int32 if problem.a.dtype == np.int8 else np.float32)
        self._tile_bytes = min(_TILE_BYTES, limit // (4 * cores()))
        column = 2 * max(1, problem.k) * problem.b.dtype.itemsize
        """Bytes of a column of b, transposed and packed."""
        width = min((limit - self._tile_bytes * cores()) // column, self._tile_bytes // (4 * _ROWS))
        self.width = problem.n if problem.n <= width else width // 64 * 64
        """Columns of a panel; 0 where ``limit`` does not suffice for 64."""
        self.scratch_bytes = self.width * column + self._tile_bytes * cores() if self.width or not problem.n else 0
        """Bytes of scratch memory of a call; 0 where ``limit`` does not suffice."""

    def pack(self, b: Array) -> Packed:
        """All of ``b`` (k, n)."""
        return Packed(tuple(self._panels(b)), self.width)

    def _panels(self, b: Array) -> Iterator[Any]:
        """The packed panels of ``b``, one after the other."""
        for start in range(0, b.shape[1], self.width):
            yield self.pack_panel(b[:, start : start + self.width])

    @abstractmethod
    def pack_panel(self, b: Array) -> Any:
        """The packed form of a panel (k, width), which owns its memory."""

    @abstractmethod
    def multiply(self, a: Array, packed: Any, out: Array) -> None:
        """``out = a @ b`` for some rows of a and a packed panel; ``out`` is int32 or float32 with dense rows."""

    def __call__(
        self, a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any,
        c: Array | None = None, bias: Array | None = None,
    ) -> None:  # fmt: skip
        """A kernel's ``run``."""
        with DefaultMode():
            self._matrices(a, b, out, c, bias, alpha, beta)

    def _matrices(
        self, a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any
    ) -> None:
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
        dense = self.any_strides or a.strides[1] == a.itemsize
        in_place = dense and problem.plain and target.dtype == self._accumulator and target.flags.c_contiguous
        if problem.deterministic:  # out must not decide how many rows are multiplied at once
            in_place = False

        def rows(first: int, last: int) -> None:
            if in_place:
                self.multiply(a[first:last], packed, target[first:last])
                return
            columns = cols.stop - cols.start
            height = max(1, self._tile_bytes // (4 * columns))
            shape = min(height, last - first), columns
            quiet = np.errstate(over="ignore", invalid="ignore", under="ignore")
            with quiet, _tiles.lease(4 * shape[0] * shape[1]) as lease:
                tile = lease.take(shape, self._accumulator)
                for start in range(first, last, height):
                    part = slice(start, min(start + height, last))
                    made = tile[: part.stop - part.start]
                    self.multiply(a[part], packed, made)
                    finish_tile(problem, lease, made, target[part], c, bias, alpha, beta, part, cols)

        each(rows, problem.m, 128 if problem.m >= 128 * cores() else _ROWS)


_TILE_BYTES = 1 << 20
"""A tile this small stays in the cache between the product and its epilogue."""
_ROWS = 16
"""The least rows of a tile, but for a b that was packed within a larger limit."""
_tiles = Scratch()
