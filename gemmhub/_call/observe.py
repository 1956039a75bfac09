"""Observation of the products of a function: which ones it makes, and how often.

While the cache of decided calls has an :class:`Observer`, it learns nothing. So each product of the process, through
any door and in any thread, is described and decided, and the observer counts it. Without one nothing is tested: warm
calls cost the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemmhub._base.geometry import MAX_ALIGNMENT, DeviceView, address_of
from gemmhub._call.decorated import Function, decorated
from gemmhub._call.describe import Call, operand
from gemmhub._call.options import Request
from gemmhub.array_library import ArrayLibrary
from gemmhub.backend import Kernel
from gemmhub.kit import locks
from gemmhub.problem import GemmProblem
from gemmhub.verdict import Decision


@dataclass
class Observed:
    """Products that have one tuning record: the facts of the first one, and their number. It keeps no array."""

    problem: GemmProblem
    arrays: ArrayLibrary
    operands: Mapping[str, DeviceView]
    """The layouts of all operands, ``out`` among them. A packed b has that of b itself. Of an address only
    the remainder by :data:`MAX_ALIGNMENT` is kept.
    """
    request: Request
    """The options, without operands and stream."""
    decision: Decision
    calls: int = 0


class Observer:
    """The products that were observed so far."""

    def __init__(self) -> None:
        self._products: dict[object, Observed] = {}
        self.ended = False
        """Whether the function has returned: plans that it made count no more."""
        self._counting = locks.lock()

    def end(self) -> list[Observed]:
        """Count no further calls of plans; return the products that ran, in the order of their first calls."""
        self.ended = True
        return [x for x in self._products.values() if x.calls]

    def matmul(self, call: Call, request: Request, decision: Decision) -> None:
        """Count one product."""
        self._count(self._observed(call, request, decision))

    def planned(self, call: Call, request: Request, decision: Decision, kernel: Kernel) -> Kernel:
        """``kernel`` with functions that count each run: a plan that is made now may run at any time."""
        product = self._observed(call, request, decision)

        def counted(function: Function) -> Function:
            def run(*arguments: Any, **operands: Any) -> Any:
                result = function(*arguments, **operands)
                if not self.ended:
                    self._count(product)
                return result

            return run

        return decorated(kernel, counted)

    def _count(self, product: Observed) -> None:
        with self._counting:
            product.calls += 1

    def _observed(self, call: Call, request: Request, decision: Decision) -> Observed:
        problem, settings = call.problem, request.settings
        key = problem.key, problem.device, settings.backend if settings.forced else None
        with self._counting:
            if key not in self._products:
                plain = replace(request, operands={}, stream=None)
                self._products[key] = Observed(problem, call.arrays, _layouts(call, request), plain, decision)
            return self._products[key]


def _layouts(call: Call, request: Request) -> dict[str, DeviceView]:
    named = {"a": call.a, "b": call.b, "out": call.out}
    named |= {name: operand(call.arrays, x, name) for name, x in request.operands.items()}
    views = {
        name: DeviceView(address_of(x) % MAX_ALIGNMENT, x.dtype, x.shape, x.strides)
        for name, x in named.items()
        if hasattr(x, "strides")
    }
    if call.problem.packed_by is not None:
        b = call.problem.b
        size, (k, n) = b.dtype.itemsize, (call.problem.k, call.problem.n)
        views["b"] = DeviceView(0, b.dtype, (k, n), (n * size, size))
    return views
