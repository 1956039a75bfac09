"""Launches prepared products with muBLASLt."""

from __future__ import annotations

from ctypes import byref
from typing import Any, NamedTuple

from gemmhub_musa.backend import CallError

from gemmhub.problem import GemmProblem
from gemmhub_mublas.launch import scalar
from gemmhub_mublas.lower import Lowered
from gemmhub_mublas.lt.library import LIBRARYS_CHOICE, Plan
from gemmhub_mublas.lt.probe import Machine

WORKSPACE = 64 * 2**20
"""Bytes of workspace that candidates may need: gemmhub's default limit."""


class _Choice(NamedTuple):
    algorithm: int
    """An index into the algorithms that the library proposed, or LIBRARYS_CHOICE."""
    workspace: int
    """Bytes that the algorithm needs."""


def _first(proposed: list[int]) -> _Choice:
    """Return the first proposed algorithm, given by their workspaces; the library's choice where there is none."""
    return _Choice(0, proposed[0]) if proposed else _Choice(LIBRARYS_CHOICE, 0)


def room(lowered: Lowered) -> int:
    """Return the bytes of workspace that WORKSPACE leaves to an algorithm."""
    return max(0, WORKSPACE - lowered.zero_bytes)


class Gemm:
    """A prepared problem: :meth:`run` is the kernel. Safe in any number of threads."""

    def __init__(self, machine: Machine, problem: GemmProblem, lowered: Lowered, algorithm: int, limit: int) -> None:
        """``algorithm`` is an index into the library's proposals for the first form within :func:`room`, or
        LIBRARYS_CHOICE. Where it needs more than ``limit`` bytes, nothing is reserved: the caller refuses it.

        Raises CallError where the library has no descriptors for this or proposes no such algorithm, AllocationError
        where there is no memory.
        """
        self._machine = machine
        self._index = problem.device.index
        self._lowered = lowered
        self._compute = problem.compute_dtype.name
        self._main = Plan(machine.glue, lowered.main) if lowered.main else None
        self._zero = Plan(machine.glue, lowered.zero) if lowered.zero else None
        self._choice = self._zero_choice = _Choice(LIBRARYS_CHOICE, 0)
        limit -= lowered.zero_bytes
        with machine.current(self._index):
            machine.handles.reserve(self._index)
            if algorithm != LIBRARYS_CHOICE:
                handle = machine.handles.take(self._index, 0)
                try:
                    self._choose(algorithm, handle, limit)
                finally:
                    machine.handles.give(self._index, 0, handle)
            needed = max(self._choice.workspace, self._zero_choice.workspace)
            if needed <= limit:
                machine.workspace(self._index).reserve(needed, limit)
            self._zeros = machine.workspace(self._index).zeros(lowered.zero_bytes) if lowered.zero else 0

    def _choose(self, algorithm: int, handle: int, limit: int) -> None:
        first, *others = [plan for plan in (self._main, self._zero) if plan is not None]
        proposed = first.propose(handle, room(self._lowered))
        if algorithm >= len(proposed):
            raise CallError(f"muBLASLt proposes {len(proposed)} algorithms here, not {algorithm + 1}")
        self._choice = self._zero_choice = _Choice(algorithm, proposed[algorithm])
        for zero in others:  # a product of zeros is the same by each algorithm
            self._zero_choice = _first(zero.propose(handle, max(0, limit)))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device memory that a call uses."""
        return max(self._choice.workspace, self._zero_choice.workspace) + self._lowered.zero_bytes

    def run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None
    ) -> None:
        """The function of gemmhub's contract. Raises KernelError or AllocationError."""
        machine, plan = self._machine, self._main
        if self._lowered.swapped:
            a, b = b, a
        shared = plan is None or (self._zero is not None and alpha == 0)
        algorithm, workspace = self._choice
        if shared:
            # The library never sees alpha = 0 or k = 0: its treatment of NaN is not documented for these.
            plan, a, b, alpha = self._zero, self._zeros, self._zeros, 1
            algorithm, workspace = self._zero_choice
        assert plan is not None
        scalars = byref(scalar(alpha, self._compute)), byref(scalar(beta, self._compute))
        with machine.current(self._index):
            handle = machine.handles.take(self._index, stream)
            try:
                if not workspace:
                    self._launch(plan, algorithm, handle, (a, b, c, out, bias), scalars, (None, 0), stream)
                    return
                with machine.workspace(self._index).lease(stream, workspace) as block:
                    scratch = block.address, workspace
                    self._launch(plan, algorithm, handle, (a, b, c, out, bias), scalars, scratch, stream)
            finally:
                machine.handles.give(self._index, stream, handle)

    def _launch(
        self, plan: Plan, algorithm: int, handle: int, places: tuple[Any, ...], scalars: tuple[Any, Any],
        workspace: tuple[int | None, int], stream: int,
    ) -> None:  # fmt: skip
        machine = self._machine
        a, b, c, out, bias = places
        shared = plan is self._zero
        for a_offset, b_offset, c_offset, d_offset in self._lowered.offsets:
            before = machine.guard.before()
            status = machine.glue.lib.gemmhub_lt_matmul(
                handle, plan.at, algorithm, scalars[0],
                a if shared else a + a_offset, b if shared else b + b_offset, scalars[1],
                None if c is None else c + c_offset, out + d_offset, bias, *workspace, stream,
            )  # fmt: skip
            failure = machine.glue.words(status) if status else ""
            machine.guard.after(before, "mublasLtMatmul", failure)
