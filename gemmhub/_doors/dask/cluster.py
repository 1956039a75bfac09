"""How many workers there are, what memory they have, and which of them runs a task."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

OVERHEAD = 1e-3
"""Seconds that Dask's scheduler spends on a task. It is one thread for all workers."""
BANDWIDTH = 1e9
"""Bytes a second that one worker receives from others."""


@dataclass(frozen=True)
class Cluster:
    """What computes a graph: worker processes, their threads, and the memory that the smallest may use."""

    workers: int
    threads: int
    """Of all workers together."""
    memory: int | None
    """Bytes that a worker may use; None where it is not limited."""

    @property
    def threads_a_worker(self) -> int:
        return -(-self.threads // self.workers)


def present() -> Cluster:
    """The workers of the current client; without one, the threads of this process."""
    client = current_client()
    if client is not None:
        threads = client.nthreads()
        if threads:
            limits = [x.get("memory_limit") for x in client.scheduler_info()["workers"].values()]
            known = [limit for limit in limits if limit]
            return Cluster(len(threads), sum(threads.values()), min(known) if known else None)
    return Cluster(1, os.cpu_count() or 1, None)


def physical_memory() -> int:
    """Bytes of this machine; 8 GiB where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30


def current_client() -> Any:
    """The client that Dask would use, or None. Looking for one imports nothing."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def here() -> str:
    """The worker that runs this task, as a person would name it."""
    distributed = sys.modules.get("distributed")
    if distributed is not None:
        try:
            worker = distributed.get_worker()
            return f"worker {worker.name} at {worker.address}"
        except (ValueError, AttributeError):
            pass
    return f"process {os.getpid()}"


def version() -> str:
    """Of the gemmhub that runs here."""
    return str(sys.modules["gemmhub"].__version__)
