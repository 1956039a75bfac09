"""Products whose scales differ by block of k: a product of a unit for each block, added in float32.

The scales of a block are factors of its rows and columns, which the unit's last store multiplies before it adds the
blocks before. The store of the last block finishes the results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gemmhub.buckets import end
from gemmhub.layout import MatrixLayout
from gemmhub.numpy_backend.scratch import Scratch
from gemmhub.operands import BLOCK, Operand, Scale
from gemmhub.problem import GemmProblem
from gemmhub_cpu.native_engine import NativeGemm
from gemmhub_cpu.units import Unit

Array = Any

_FACTORS = ("scale_a", "scale_b")
_FLOAT32 = np.dtype(np.float32)

_memory = Scratch()


def needed(problem: GemmProblem) -> bool:
    """Whether a scale of ``problem`` differs by block of k."""
    return any(isinstance(x, Scale) and x.depth for x in map(problem.operands.get, _FACTORS))


def refusal(problem: GemmProblem) -> str:
    """The reason for which blocks do not serve such a problem; empty where they do."""
    if problem.packed_by is not None:
        return "b is packed over all of k"
    if problem.pinned:
        return "the order in which blocks are added has no name"
    if problem.c is not None or not problem.alpha_is_one:
        return "alpha and c are not added to sums of blocks"
    if problem.batch or not problem.k:
        return "stacks, and an empty k, are not cut into blocks"
    return ""


def of_block(problem: GemmProblem) -> GemmProblem:
    """The product of the last block, which finishes the results: with a factor for each row and column, and the sum of
    the blocks before as its addend.
    """
    factors = {
        name: replace(x, axis=axis, depth=False, depth_stride=0)
        for name, axis in zip(_FACTORS, "mn")
        if isinstance(x := problem.operands.get(name), Scale)
    }
    k = min(problem.k, BLOCK)
    a = replace(problem.a, layout=replace(problem.a.layout, cols=k))
    b = replace(problem.b, layout=replace(problem.b.layout, rows=k))
    sums = Operand(_FLOAT32, MatrixLayout.contiguous(problem.m, problem.n, ()))
    return replace(problem, k=k, a=a, b=b).having(c=sums, **factors)


class BlockGemm:
    """Such a product, bound to a unit: call it with operands of any sizes. Usable from several threads at once."""

    def __init__(self, problem: GemmProblem, unit: Unit, limit: int) -> None:
        """``limit`` bounds workspace in bytes; :attr:`scratch_bytes` is 0 where ``problem`` needs more."""
        last = of_block(problem)
        sums = last.having(**{name: None for name in last.operands if name not in (*_FACTORS, "c")})
        sums = replace(sums, out=last.operands["c"], activation=None)
        self._limit = limit // 2
        self._first, self._inner, self._last, self._only = engines = [
            NativeGemm(x, unit, self._limit) for x in (sums.having(c=None), sums, last, last.having(c=None))
        ]
        self._bias_rows = problem.bias is not None and problem.bias.axis == "m"
        needs = [x.scratch_bytes for x in engines if x.fused]
        held = max(needs) + min(self._limit, 4 * end(problem.m) * end(problem.n)) if needs else 0
        self.scratch_bytes = held if len(needs) == len(engines) and all(needs) else 0

    @property
    def description(self) -> str:
        """Text for users."""
        return f"{self._only.description}, {BLOCK} of k at a time"

    def __call__(
        self, a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, scale_a: Array | None = None,
        scale_b: Array | None = None, **rest: Array,
    ) -> None:  # fmt: skip
        """A kernel's ``run``."""
        n, k = out.shape[-1], a.shape[-1]
        a, out = a.reshape(-1, k), out.reshape(-1, n)  # views: rows that are decided as one matrix follow one another
        if scale_b is not None and scale_b.shape[1] not in (1, n):
            scale_b = np.repeat(scale_b, BLOCK, axis=1)[:, :n]
        height = max(1, self._limit // (4 * max(1, n)))
        for top in range(0, len(out), height):
            rows = slice(top, top + height)
            left = scale_a if scale_a is None or len(scale_a) == 1 else scale_a[rows]
            here = {**rest, "bias": rest["bias"][rows]} if self._bias_rows else rest
            self._rows(a[rows], b, out[rows], left, scale_b, here)

    def _rows(
        self, a: Array, b: Array, out: Array, scale_a: Array | None, scale_b: Array | None, rest: dict[str, Array]
    ) -> None:
        """The product of some rows, whose sums fit into the workspace."""
        k = a.shape[1]
        with _memory.lease(4 * out.size) as lease:
            sums = lease.take(out.shape, _FLOAT32)
            for start in range(0, k, BLOCK):
                span, block = slice(start, start + BLOCK), start // BLOCK
                operands: dict[str, Array] = {"c": sums} if start else {}
                if scale_a is not None:
                    operands["scale_a"] = scale_a[:, block : block + 1] if scale_a.shape[1] > 1 else scale_a
                if scale_b is not None:
                    operands["scale_b"] = scale_b[block : block + 1] if len(scale_b) > 1 else scale_b
                if start + BLOCK < k:
                    engine, target = self._inner if start else self._first, sums
                else:
                    engine, target = self._last if start else self._only, out
                    operands.update(rest)
                engine(a[:, span], b[span], target, 1, 1, None, **operands)
