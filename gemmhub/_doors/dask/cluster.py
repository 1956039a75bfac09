"""Facts about the cluster: number of workers, their memory, and the worker of the current task."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

OVERHEAD = 1e-3
"""Seconds that Dask's scheduler, one thread for all workers, spends on a task."""
BANDWIDTH = 1e9
"""Bytes a second that one worker receives from others."""


@dataclass(frozen=True)
class Cluster:
    """The resources for a graph: worker processes, their threads, and the memory of the smallest worker."""

    workers: int
    threads: int
    """Number of threads of all workers together."""
    memory: int | None
    """Memory limit of a worker in bytes; None where it has none."""

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
            limits = [limit for limit in limits if limit]
            return Cluster(len(threads), sum(threads.values()), min(limits, default=None))
    return Cluster(1, os.cpu_count() or 1, None)


def physical_memory() -> int:
    """The memory of this machine in bytes; 8 GiB where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30


def current_client() -> Any:
    """The client that Dask would use, or None. The look-up imports nothing."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def here() -> str:
    """The worker that runs this task, as text for error messages."""
    distributed = sys.modules.get("distributed")
    if distributed is not None:
        try:
            worker = distributed.get_worker()
            return f"worker {worker.name} at {worker.address}"
        except (ValueError, AttributeError):
            pass
    return f"process {os.getpid()}"


def version() -> str:
    """The version of the gemmhub that runs here."""
    return str(sys.modules["gemmhub"].__version__)
