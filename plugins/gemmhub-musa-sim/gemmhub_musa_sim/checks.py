"""The checker's findings in kernels compiled with its hooks: races, uninitialised reads, accesses out of bounds.

Hooks are compiled in by a home made with ``checks``, or by any home's ``mcc`` with ``MUSA_SIM_CHECK=1``. Findings add
up over the launches of the process until :func:`clear`.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass

from gemmhub_musa_sim.runtime.loaded import loaded_runtime


@dataclass(frozen=True)
class Finding:
    """One fault at one line, or pair of lines, of a kernel."""

    kind: str
    """The fault: "read-after-write race", "read of bytes that were never written", "access out of bounds", ..."""
    space: str
    """The memory: "shared", "global" or "other"."""
    kernel: str
    place: str
    """The line of the access: ``file:line``."""
    against: str
    """The line of the access that it collides with; empty where there is none."""
    block: int
    """The linear number of the block of the first occurrence."""
    thread: int
    other_block: int
    other_thread: int
    offset: int
    """Bytes from the start of shared memory, or of the allocation."""
    count: int
    text: str
    """The finding as a sentence."""

    def __str__(self) -> str:
        return self.text


def findings(runtime: ctypes.CDLL | None = None) -> list[Finding]:
    """Return all findings since the last :func:`clear`; of the loaded simulated runtime unless another one is given."""
    library = runtime or loaded_runtime()
    library.musaSimReports.restype = ctypes.c_char_p
    return [Finding(**entry) for entry in json.loads(library.musaSimReports())]


def clear(runtime: ctypes.CDLL | None = None) -> None:
    """Forget findings and counters."""
    (runtime or loaded_runtime()).musaSimClear()
