"""Running prepared products with muBLASLt: what a warm call does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from ctypes import addressof
from typing import Any, NamedTuple

from gemmhub.problem import GemmProblem
from gemmhub_mublas.forms import Lowered
from gemmhub_mublas.lt_glue import LIBRARYS_CHOICE, Plan
from gemmhub_mublas.lt_probe import Machine
from gemmhub_mublas.ways import scalar

WORKSPACE = 64 * 2**20
"""Bytes of workspace that candidates may ask for: gemmhub's default limit."""


class _Choice(NamedTuple):
    algorithm: int
    """A place in what a plan's library proposed, or LIBRARYS_CHOICE."""
    workspace: int
    """Bytes."""


def _first(proposed: list[int]) -> _Choice:
    """The first of the proposals, whose workspaces are given; the library's choice where there is none."""
    return _Choice(0, proposed[0]) if proposed else _Choice(LIBRARYS_CHOICE, 0)


class Gemm:
    """A prepared problem: :meth:`run` is the kernel. Safe in any number of threads."""

    def __init__(self, machine: Machine, problem: GemmProblem, lowered: Lowered, algorithm: int, limit: int) -> None:
        """``algorithm`` is a place in what the library proposes within WORKSPACE bytes, or LIBRARYS_CHOICE; where it
        needs more than ``limit`` bytes, the first one proposed within that takes its place, or LIBRARYS_CHOICE.

        Raises StatusError where the library has no descriptors for this, ValueError where it proposes no such
        algorithm, AllocationError where there is no memory for zeros.
        """
        self._machine = machine
        self._index = problem.device.index
        self._lowered = lowered
        self._limit = limit - lowered.zero_bytes
        self._compute = problem.compute_dtype.name
        self.note = ""
        """What became of the algorithm that was asked for, for people."""
        self._main = Plan(machine.glue, lowered.main) if lowered.main else None
        self._zero = Plan(machine.glue, lowered.zero) if lowered.zero else None
        self._choice = self._zero_choice = _Choice(LIBRARYS_CHOICE, 0)
        with self._device():
            if algorithm != LIBRARYS_CHOICE:
                self._choose(problem, algorithm)
            self._zeros = machine.memory(self._index).zeros(lowered.zero_bytes) if lowered.zero else 0

    def _choose(self, problem: GemmProblem, algorithm: int) -> None:
        handle = self._machine.handles.get(self._index)
        if self._zero is not None:
            self._zero_choice = _first(self._zero.propose(handle, max(0, self._limit)))
        if self._main is None:
            self._choice = self._zero_choice
            return
        proposed = self._main.propose(handle, WORKSPACE)
        if algorithm >= len(proposed):
            raise ValueError(f"muBLASLt proposes {len(proposed)} algorithms for {problem}, not {algorithm + 1}")
        self._choice = _Choice(algorithm, proposed[algorithm])
        if self._choice.workspace > self._limit:
            self._main = Plan(self._machine.glue, self._lowered.forms[0])
            self._choice = _first(self._main.propose(handle, max(0, self._limit)))
            self.note = f" (it needs {proposed[algorithm]} bytes of workspace: another took its place)"

    @property
    def workspace_bytes(self) -> int:
        """Device memory that calls on one stream use."""
        return max(self._choice.workspace, self._zero_choice.workspace) + self._lowered.zero_bytes

    def _device(self) -> AbstractContextManager[None]:
        # With one device every thread is on it; with several a thread may be on another.
        return self._machine.runtime.device(self._index) if self._machine.count > 1 else nullcontext()

    def run(self, a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        """The function of gemmhub's contract. Raises KernelError or AllocationError."""
        machine, plan = self._machine, self._main
        if self._lowered.swapped:
            a, b = b, a
        shared = plan is None or (self._zero is not None and alpha == 0)
        algorithm, workspace = self._choice
        if shared:
            # The library never sees alpha = 0 or k = 0: what it makes of NaN then is not documented.
            plan, a, b, alpha = self._zero, self._zeros, self._zeros, 1
            algorithm, workspace = self._zero_choice
        assert plan is not None
        # In local variables, so that they live while the library reads them.
        alpha_here, beta_here = scalar(alpha, self._compute), scalar(beta, self._compute)
        with self._device():
            handle = machine.handles.get(self._index)
            buffer = machine.memory(self._index).buffer(stream, workspace, self._limit) if workspace else None
            with nullcontext() if buffer is None else buffer.lock:
                scratch, nbytes = (None, 0) if buffer is None else (buffer.address, buffer.nbytes)
                for a_offset, b_offset, c_offset, d_offset in self._lowered.offsets:
                    d = out + d_offset
                    before = machine.guard.before()
                    status = machine.glue.lib.gemmhub_lt_matmul(
                        handle, plan.at, algorithm, addressof(alpha_here),
                        a if shared else a + a_offset, b if shared else b + b_offset, addressof(beta_here),
                        None if c is None else c + c_offset, d, bias, scratch, nbytes, stream,
                    )  # fmt: skip
                    failure = machine.glue.words(status) if status else ""
                    machine.guard.after(before, "mublasLtMatmul", failure)
