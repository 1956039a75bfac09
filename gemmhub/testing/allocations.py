"""Check of what a call allocates against the workspace and the copies that are declared for it."""

from __future__ import annotations

from functools import cache
from typing import Any

from gemmhub.backend import Backend, Candidate, Kernel
from gemmhub.capability import Refusal
from gemmhub.testing.answers import call, offered, require
from gemmhub.testing.case import Case
from gemmhub.testing.memory import HOST, Memory
from gemmhub.testing.operands import Operands

SIZE = 512
"""Rows and columns of the operands: a matrix of the narrowest dtype has more bytes than :data:`UNCOUNTED`."""
UNCOUNTED = 200 * 2**10
"""Bytes that need no declaration: Python objects, and three of NumPy's conversion buffers, 8192 elements of 8 bytes."""

_DTYPES = (
    ("float32", "float32", "float32"), ("float64", "float64", "float64"), ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"), ("int8", "int8", "int32"), ("int32", "int32", "int32"),
)  # fmt: skip
_EPILOGUES: tuple[dict[str, Any], ...] = (
    {}, {"alpha": 3}, {"c": "row", "beta": 2}, {"bias": "n", "activation": "relu"},
)  # fmt: skip
_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"a": "col"}, {"b": "col"}, {"out": "col"}, {"a": "strided", "b": "strided", "out": "strided"},
    {"reproducible": "run", "out": "col"},
)  # fmt: skip


@cache
def large() -> tuple[Case, ...]:
    """The cases for :func:`check_allocations`, int32 in one layout alone: NumPy multiplies it by scalar loops."""
    return tuple(
        Case(SIZE, SIZE, SIZE, *dtypes, **changes)
        for dtypes in _DTYPES
        for changes in _EPILOGUES + (() if dtypes[0] == "int32" else _LAYOUTS)
    )


def observes(memory: Memory) -> bool:
    """Whether ``memory`` observes what a call allocates."""
    return memory.allocated(lambda: None) is not None


def check_allocations(backend: Backend, case: Case, memory: Memory = HOST) -> bool:
    """Check that a call of each candidate allocates no more than its workspace and its copies.

    Results are not compared. Returns whether anything was observed: the backend may refuse the case, and ``memory`` may
    observe nothing. The second call is observed, as the first may import modules and lease memory that later ones use.
    """
    if not observes(memory):
        return False
    operands = Operands(case, memory)
    offer = offered(backend, operands.problem)
    if isinstance(offer, Refusal):
        return False
    operands.fill(case.seed)
    for candidate in offer.candidates:
        kernel = call("prepare()", backend.prepare, operands.problem, candidate.name, offer.workspace)
        if isinstance(kernel, Kernel):
            _check(operands, candidate, kernel)
    return True


def _check(operands: Operands, candidate: Candidate, kernel: Kernel) -> None:
    operands.poison(0)
    call("run()", operands.run, kernel)
    operands.poison(0)
    allocated = operands.memory.allocated(lambda: call("run()", operands.run, kernel))
    copied = sum(copy.nbytes for copy in candidate.copies)
    require(
        allocated is not None and allocated <= kernel.workspace_bytes + copied + UNCOUNTED,
        f"{operands.case!r}\n  candidate {candidate.name!r}: a call allocates {allocated} bytes, but it declares "
        f"{kernel.workspace_bytes} bytes of workspace and copies of {copied} bytes",
    )
