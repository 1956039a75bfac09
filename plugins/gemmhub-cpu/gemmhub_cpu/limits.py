"""How many threads a call may use: the processors of the process, less what its surroundings allow.

The least of the processors that the calling thread may run on, the CPU quota of the control group (a container's),
``OMP_NUM_THREADS``, and what threadpoolctl sets.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from gemmhub.numpy_backend.probe import cores, quota
from gemmhub_cpu.sources import STEM

_chosen: int | None = None
"""The limit set through threadpoolctl."""


def threads() -> int:
    """Threads for a call from this thread, at least 1."""
    return max(1, min(cores(), _surroundings(), chosen()))


def chosen() -> int:
    """The limit set through threadpoolctl; a large number where there is none."""
    return _chosen or 1 << 30


@lru_cache(maxsize=1)
def _surroundings() -> int:
    """The limits that do not change while the process runs."""
    return min(_from_environment(os.environ.get("OMP_NUM_THREADS", "")), quota())


def _from_environment(value: str) -> int:
    """The first number of OMP_NUM_THREADS, which may give one for each level of nesting."""
    first = value.partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else sys.maxsize


def register() -> None:
    """Make threadpoolctl find these threads. It is called where threadpoolctl is imported before the kernels are."""
    import threadpoolctl

    class Controller(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = "blas"
        internal_api = "gemmhub_cpu"
        filename_prefixes = (STEM,)

        def get_num_threads(self) -> int:
            return threads()

        def set_num_threads(self, num_threads: int | None) -> None:
            global _chosen
            _chosen = num_threads

        def get_version(self) -> str | None:
            return None

        def set_additional_attributes(self) -> Any:
            return None

    threadpoolctl.register(Controller)
