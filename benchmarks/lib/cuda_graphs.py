"""Timing on an NVIDIA card by CUDA graphs, for all benchmarks.

Each contender is captured once into a graph of several calls on operands that rotate past the L2 cache; replays of
the graphs are timed by events, in interleaved rounds. So neither the host's time nor a drifting clock has an effect:
the ratios are of device times for the same products in the same minute.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Call = Callable[[Any, Any, Any], object]
"""A function of (a, b, out) that launches one product on the current stream, without allocation."""

_CACHE = 2.0e8
"""Bytes that operands rotate through, more than three times the L2 cache of an H200."""
_STRETCH = 4e-4
"""Target seconds of a graph."""
_SETTLING = 0.03
"""Seconds of work on the card before the timing."""


def launching(run: Callable[..., object], **operands: Any) -> Call:
    """Return ``run`` of a gemmhub kernel as a call on torch's current stream, with further operands of the product."""

    def call(a: Any, b: Any, out: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        addresses = {name: x.data_ptr() for name, x in operands.items()}
        run(a.data_ptr(), b.data_ptr(), out.data_ptr(), 1, 0, stream, **addresses)

    return call


def matrix(rows: int, cols: int, order: str, dtype: torch.dtype) -> Any:
    """Allocate an uninitialised matrix on the card, row-major ("n") or column-major ("t")."""
    stored = (cols, rows) if order == "t" else (rows, cols)
    made = torch.empty(stored, device="cuda", dtype=dtype)
    return made.t() if order == "t" else made


class Rig:
    """One product: operands in several sets, and the graphs of its contenders."""

    def __init__(self, m: int, n: int, k: int, order: str, dtype: torch.dtype, seconds: float, batch: int = 1) -> None:
        """Allocate operands; in ``order``, for a and b, "n" is row-major and "t" column-major.

        ``seconds`` is the approximate time of one call, ``batch`` the number of products of one call, for subclasses
        whose operands have a batch.
        """
        size = torch.empty(0, dtype=dtype).element_size()
        nbytes = size * batch * (m * k + k * n + m * n)
        self.sets = [self._operands(m, n, k, order, dtype) for _ in range(max(2, min(32, int(_CACHE / nbytes) + 1)))]
        self.calls = max(2, min(40, int(_STRETCH / seconds) + 1))
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._graphs: list[Any] = []
        self.busy = 0.0
        """Seconds of the card in timed replays."""

    @staticmethod
    def _operands(m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        a, b = matrix(m, k, order[0], dtype).normal_(), matrix(k, n, order[1], dtype).normal_()
        return a, b, matrix(m, n, "n", dtype)

    def add(self, call: Call) -> int:
        """Run a contender once and capture it; return its number."""
        call(*self.sets[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(self.calls):
                call(*self.sets[i % len(self.sets)])
        graph.replay()
        self._graphs.append(graph)
        return len(self._graphs) - 1

    def once(self, contender: int) -> float:
        """Return the seconds a call of one replay."""
        self._start.record()
        self._graphs[contender].replay()
        self._end.record()
        self._end.synchronize()
        seconds = self._start.elapsed_time(self._end) * 1e-3
        self.busy += seconds
        return seconds / self.calls

    def medians(self, contenders: list[int], rounds: int) -> list[float]:
        """Return the seconds a call of each contender: medians over interleaved rounds in random orders.

        Orders are random because a contender heats the card for the next. The card changes its clock in steps, most of
        them in the first tens of milliseconds. So all run in turn untimed first, and medians are of a contender's share
        of its round: a step between two rounds then changes no share, and one within a round only the shares of that
        round.
        """
        while self.busy < _SETTLING:
            for contender in contenders:
                self.once(contender)
        logs = np.empty((rounds, len(contenders)))
        for turn in range(rounds):
            for i in random.Random(turn).sample(range(len(contenders)), len(contenders)):
                logs[turn, i] = math.log(self.once(contenders[i]))
        common = logs.mean(axis=1, keepdims=True)
        found: list[float] = np.exp(np.median(common) + np.median(logs - common, axis=0)).tolist()
        return found


def expected(m: int, n: int, k: int, rate: float = 6e14, bandwidth: float = 4e12) -> float:
    """Return the approximate seconds of one 16-bit product."""
    return max(3e-6, 2 * m * n * k / rate, 2 * (m * k + k * n + m * n) / bandwidth)
