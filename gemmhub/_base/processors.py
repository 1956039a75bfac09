"""The processors and threads that a call on the CPU may use: what its time depends on."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable
from functools import lru_cache

from gemmhub._base.digits import whole

_COUNTERS = (
    "scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads", "openblas_get_num_threads64_",
    "openblas_get_num_threads", "MKL_Get_Max_Threads", "bli_thread_get_num_threads",
)  # fmt: skip
"""Functions of OpenBLAS (by the names in NumPy's wheels first), MKL and BLIS that return their number of threads."""
VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that limit the threads of a BLAS without such a function, the strongest first."""


def cores() -> int:
    """The number of processors that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(folder: str | os.PathLike[str] = "/sys/fs/cgroup") -> int:
    """The processors that the control group at ``folder`` (version 2 or 1) may use, rounded up."""
    try:
        limit, period = _text(folder, "cpu.max").split()
    except (OSError, ValueError):
        try:
            limit, period = (_text(folder, "cpu", name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        except (OSError, ValueError):
            return sys.maxsize
    share, time = whole(limit), whole(period)  # "max" and "-1": no limit
    return math.ceil(share / time) if share and time else sys.maxsize


def _text(*path: str | os.PathLike[str]) -> str:
    """The text of a file. (The import of pathlib takes 3 ms, a twentieth of gemmhub's.)"""
    with open(os.path.join(*path), encoding="ascii") as file:
        return file.read()


def first_number(value: str) -> int:
    """The first number of a variable like OMP_NUM_THREADS, which may have one for each level of nesting; 0 for none."""
    return whole(value.partition(",")[0].strip()) or 0


@lru_cache(maxsize=1)
def quota_here() -> int:
    """The processors that the control group of this process may use; read once."""
    return quota()


@lru_cache(maxsize=1)
def _counter() -> Callable[[], int] | None:
    """The function of NumPy's BLAS that returns its number of threads; None where none is exported."""
    try:
        from numpy.linalg import _umath_linalg

        # Symbols of the libraries that the extension module is linked with are visible by its handle (not on Windows).
        library = ctypes.CDLL(_umath_linalg.__file__)
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    return next((getattr(library, name) for name in _COUNTERS if hasattr(library, name)), None)


def blas_threads() -> int:
    """The threads that NumPy's BLAS uses at present, as its library, else its environment variables, report them."""
    count = _counter()
    if count is not None:
        number = int(count())
        return number if number > 0 else cores()
    for name in VARIABLES:
        number = first_number(os.environ.get(name, ""))
        if number:
            return number
    return cores()


def threads() -> str:
    """The threads of a product by NumPy's BLAS that the calling thread starts now, as tuning records name them."""
    return str(max(1, min(cores(), quota_here(), blas_threads())))


def load() -> float | None:
    """The load average of the last minute over the processors of this process; None where the system has none."""
    try:
        return os.getloadavg()[0] / cores()
    except (AttributeError, OSError):
        return None


def disturbances(device_type: str = "cpu") -> list[str]:
    """Sentences on what slows measurements down, or limits the threads of products on the CPU."""
    told = []
    count, busy = cores(), load()
    if busy is not None and busy > 1:
        told.append(
            f"the load average is {busy * count:.3g} for the {count} processors of this process: other work disturbs "
            "times; measure on an idle machine"
        )
    if device_type != "cpu":
        return told
    if quota_here() < count:
        told.append(f"the control group permits {quota_here()} of the {count} processors of this process")
    for name in VARIABLES:
        number = first_number(os.environ.get(name, ""))
        if number and number != count:
            told.append(f"{name}={number} sets the threads of products on the CPU; there are {count} processors")
    return told
