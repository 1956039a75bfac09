"""The probe of the built-in backend: NumPy's BLAS, the processor, and the measured rate of SGEMM."""

from __future__ import annotations

import platform
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemmhub._base.processors import blas_threads as blas_threads
from gemmhub._base.processors import cores as cores
from gemmhub._base.processors import first_number as first_number
from gemmhub._base.processors import quota as quota
from gemmhub.capability import CPU, Ready


def cpu_name() -> str:
    """The processor's model name, where the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """All words of /proc/cpuinfo, the processor's instruction sets among them; empty where it cannot be read."""
    try:
        return frozenset(cpuinfo.read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return frozenset()


def numpy_versions() -> dict[str, str]:
    """Versions that the speed of NumPy's BLAS depends on: NumPy, the BLAS it was built with, the processor."""
    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    name = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    return {"numpy": np.__version__, "blas": name, "cpu": cpu_name(), "cores": str(cores())}


def probe() -> Ready:
    """Return Ready, always; its versions name the BLAS that NumPy was built with."""
    return Ready((CPU,), numpy_versions(), ("f16, bf16, fp8 through f32", "int8 exact through f32"))


@lru_cache(maxsize=1)
def sgemm_rate() -> float:
    """Return the float32 rate of this BLAS in flop/s, measured once (about 3 ms).

    Threads of a BLAS that contend with other processes can make the large product 20 times slower, and estimates keep
    this rate for the life of the process. OpenBLAS multiplies the small product on one core, in microseconds, so the
    best of many is seldom disturbed: it bounds the rate from below.
    """
    return max(_best_rate(384, 4), _best_rate(64, 64))


def _best_rate(n: int, times: int) -> float:
    """Return the best rate of ``times`` products of two float32 matrices (n, n), in flop/s."""
    a, b = np.random.default_rng(0).random((2, n, n), dtype=np.float32)
    out = np.empty((n, n), np.float32)
    return 2.0 * n**3 / min(_seconds(a, b, out) for _ in range(times))


def _seconds(a: Any, b: Any, out: Any) -> float:
    """Return the seconds of one product."""
    start = time.perf_counter()
    np.matmul(a, b, out=out)
    return time.perf_counter() - start
