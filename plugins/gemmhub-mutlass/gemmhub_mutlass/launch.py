"""Launches prepared products with MUTLASS."""

from __future__ import annotations

from typing import Any

from gemmhub.errors import BackendError, KernelError
from gemmhub.problem import GemmProblem
from gemmhub_mutlass.library import Call, Library, call_of
from gemmhub_mutlass.lower import Lowered
from gemmhub_mutlass.probe import Machine
from gemmhub_mutlass.variants import Configuration


class NotImplementableError(BackendError):
    """MUTLASS's own check refuses a problem."""


class Gemm:
    """A prepared problem: :meth:`run` is the kernel. Safe in any number of threads."""

    def __init__(
        self, machine: Machine, problem: GemmProblem, lowered: Lowered, configuration: Configuration, library: Library,
        limit: int,
    ) -> None:  # fmt: skip
        """``limit`` is the bytes of workspace that are allowed.

        Raises NotImplementableError where MUTLASS's ``can_implement`` refuses the problem, and AllocationError.
        """
        self._machine, self._lowered, self._library = machine, lowered, library
        self._index = problem.device.index
        self._product = lowered.form.k > 0
        self._call = call_of(lowered.form, self._index)
        with self._machine.current(self._index):
            refused = library.refused(self._call) if self._product else ""
            if refused:
                raise NotImplementableError(
                    f"MUTLASS's can_implement does not take {problem} by {configuration}: {refused}"
                )
            self.workspace_bytes = library.workspace(self._call) if self._product else 0
            if self.workspace_bytes <= limit:  # else the caller refuses it
                machine.workspace(self._index).reserve(self.workspace_bytes, limit)

    def run(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None) -> None:
        """The function of gemmhub's contract. Raises KernelError, and AllocationError where many calls run at once."""
        # MUTLASS's kernels fault where k is 0, and propagate NaN of the operands where alpha is 0.
        product = self._product and alpha != 0
        if self._lowered.swapped:
            a, b = b, a
        call = Call.from_buffer_copy(self._call)
        call.alpha, call.beta = float(alpha), float(beta)
        stream = stream or 0
        with self._machine.current(self._index):
            if not (product and self.workspace_bytes):
                self._launch(call, (a, b, c, out), product, 0, stream)
                return
            with self._machine.workspace(self._index).lease(stream, self.workspace_bytes) as block:
                self._launch(call, (a, b, c, out), product, block.address, stream)

    def _launch(
        self, call: Call, places: tuple[int, int, int | None, int], product: bool, workspace: int, stream: int
    ) -> None:
        a, b, c, d = places
        for a_offset, b_offset, c_offset, d_offset in self._lowered.offsets:
            call.a, call.b, call.d = a + a_offset, b + b_offset, d + d_offset
            call.c = None if c is None else c + c_offset
            status, pending = self._library.run(call, product, workspace, stream)
            if pending:
                self._machine.cleared.note(self._machine.runtime.words(pending)[0])
            if status:
                raise KernelError("mutlass", f"MUTLASS's status is {self._library.words(status)}")
