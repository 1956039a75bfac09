"""Launches prepared products with muDNN."""

from __future__ import annotations

from typing import Any

from gemmhub_mudnn.engine import Engine
from gemmhub_mudnn.library import IN_PLACE, NO_ADDEND, SEPARATE
from gemmhub_mudnn.lower import Form, Lowered


class Gemm:
    """A prepared problem: :meth:`run` is the kernel. Safe in any number of threads."""

    def __init__(self, engine: Engine, lowered: Lowered, limit: int) -> None:
        """Where it needs more than ``limit`` bytes of workspace, nothing is reserved: the caller refuses it.

        Raises MudnnError where the library does not take it, AllocationError where there is no device memory.
        """
        self._engine, self._lowered, self._limit = engine, lowered, limit - lowered.zero_bytes
        with engine.turn():
            self._plans = {
                (product, addend): engine.plan(form, addend)
                for product, form in ((True, lowered.main), (False, lowered.zero))
                if form is not None
                for addend in _addends(form)
            }
            most = max(plan.workspace for plan in self._plans.values())
            self.workspace_bytes = most + lowered.zero_bytes
            if most <= self._limit:
                engine.workspace.reserve(most, self._limit)
            self._zeros = engine.workspace.zeros(lowered.zero_bytes)

    def run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None
    ) -> None:
        """See :class:`gemmhub.backend.Run`."""
        lowered = self._lowered
        product = lowered.main is not None and not (alpha == 0 and lowered.zero is not None)
        if not product:
            a, b, alpha = self._zeros, self._zeros, 1
        elif lowered.swapped:
            a, b = b, a
        plan = self._plans[product, NO_ADDEND if c is None else IN_PLACE if c == out else SEPARATE]
        calls = (
            (
                a + a_offset if product else a, b + b_offset if product else b,
                None if c is None else c + c_offset, out + d_offset, bias,
            )
            for a_offset, b_offset, c_offset, d_offset in lowered.offsets
        )  # fmt: skip
        with self._engine.turn():
            self._engine.run(plan, calls, float(alpha), float(beta), stream or 0, self._limit)


def _addends(form: Form) -> tuple[int, ...]:
    """Return the places of c: none, the result's memory (if c has the result's layout), memory of its own."""
    if not form.addend:
        return (NO_ADDEND,)
    return (NO_ADDEND, SEPARATE, IN_PLACE) if form.c == form.d else (NO_ADDEND, SEPARATE)
