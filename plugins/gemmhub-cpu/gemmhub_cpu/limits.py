"""How many threads a call may use.

The least of the processors that the calling thread may run on, the CPU quota of the control group (a container's),
``OMP_NUM_THREADS``, and what threadpoolctl sets. The affinity of a thread may change at any time: what is kept from one
call to the next depends on :func:`ceiling` alone.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from gemmhub.numpy_backend.probe import cores, first_number, quota
from gemmhub_cpu.sources import STEM

_chosen: int | None = None
"""The limit set through threadpoolctl."""


def threads() -> int:
    """Threads for a call from this thread now, at least 1."""
    return min(cores(), most())


def most() -> int:
    """Threads for a call from a thread that may run on all processors, at least 1: the limit of the process."""
    return max(1, min(ceiling(), chosen()))


def ceiling() -> int:
    """Threads that no call of this process exceeds, whatever the affinity of its thread and threadpoolctl."""
    return max(1, min(os.cpu_count() or 1, _surroundings()))


def chosen() -> int:
    """The limit set through threadpoolctl, at least 1; a large number where there is none."""
    return max(1, _chosen) if _chosen else 1 << 30


@lru_cache(maxsize=1)
def _surroundings() -> int:
    """The limits that do not change while the process runs."""
    return min(_from_environment(os.environ.get("OMP_NUM_THREADS", "")), quota())


def _from_environment(value: str) -> int:
    """The first number of OMP_NUM_THREADS, which may give one for each level of nesting."""
    return first_number(value) or sys.maxsize


def register() -> None:
    """Make threadpoolctl find these threads. It is called where threadpoolctl is imported before the kernels are."""
    import threadpoolctl

    class Controller(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = "blas"
        internal_api = "gemmhub_cpu"
        filename_prefixes = (STEM,)

        def get_num_threads(self) -> int:
            return most()  # threadpoolctl sets it again, for the process, whichever thread asked

        def set_num_threads(self, num_threads: int | None) -> None:
            global _chosen
            _chosen = num_threads

        def get_version(self) -> str | None:
            return None

        def set_additional_attributes(self) -> Any:
            return None

    threadpoolctl.register(Controller)
