"""What NumPy was built with, and how fast its BLAS is here."""

from __future__ import annotations

import os
import platform
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemmhub.capability import CPU, Ready


def cpu_name() -> str:
    """The processor's model name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Every word of /proc/cpuinfo, the processor's instruction sets among them; empty where it cannot be read."""
    try:
        return frozenset(cpuinfo.read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return frozenset()


def cores() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def numpy_versions() -> dict[str, str]:
    """What the speed of NumPy's BLAS depends on: its version, the BLAS it was built with, the processor."""
    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    name = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    return {"numpy": np.__version__, "blas": name, "cpu": cpu_name(), "cores": str(cores())}


def probe() -> Ready:
    """NumPy is always ready; its versions say which BLAS it brings."""
    return Ready((CPU,), numpy_versions(), ("f16, bf16, fp8 through f32", "int8 exact through f32"))


@lru_cache(maxsize=1)
def sgemm_rate() -> float:
    """Measured f32 flop/s of this BLAS on a 384^3 product (about 2 ms, once)."""
    n = 384
    rng = np.random.default_rng(0)
    a, b = rng.random((2, n, n), dtype=np.float32)
    out = np.empty((n, n), np.float32)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        np.matmul(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 / best
