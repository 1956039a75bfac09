"""One matmul that runs on the best GEMM backend present, reports why, and lets you check the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmhub._doors import traced
from gemmhub.api import explain, matmul, pack, plan, tune
from gemmhub.config import use
from gemmhub.errors import (
    AllocationError,
    BackendError,
    ConfigError,
    DeviceError,
    DTypeError,
    GemmhubError,
    InputError,
    KernelError,
    NoBackendError,
    OutputError,
    RecordError,
    ShapeError,
)
from gemmhub.registration import backends, register, reload, unregister

if TYPE_CHECKING:
    from gemmhub._call.plan import Plan
    from gemmhub._check.spot_check import SpotCheck, spot_check
    from gemmhub._measure.compare import Comparison, compare
    from gemmhub.backend import Backend, BackendDescription, Candidate, Kernel, Offer
    from gemmhub.capability import Absent, Copy, Device, Ready, Refusal
    from gemmhub.hookspecs import hookimpl
    from gemmhub.packed import PackedB
    from gemmhub.problem import GemmProblem
    from gemmhub.verdict import Decision

__version__ = "0.2.0"

traced.trace(matmul, plan, explain, pack, tune, backends, register, unregister, reload)

_LAZY = {
    "Absent": "capability",
    "Backend": "backend",
    "BackendDescription": "backend",
    "Candidate": "backend",
    "Comparison": "_measure.compare",
    "Copy": "capability",
    "Decision": "verdict",
    "Device": "capability",
    "GemmProblem": "problem",
    "Kernel": "backend",
    "Offer": "backend",
    "PackedB": "packed",
    "Plan": "_call.plan",
    "Ready": "capability",
    "Refusal": "capability",
    "SpotCheck": "_check.spot_check",
    "compare": "_measure.compare",
    "hookimpl": "hookspecs",
    "spot_check": "_check.spot_check",
}
"""Public names that are imported at first use, so that ``import gemmhub`` stays light."""

__all__ = [
    # products
    "matmul", "plan", "pack", "PackedB", "Plan",
    # decisions
    "explain", "Decision", "backends", "use", "reload",
    # checking and tuning
    "spot_check", "SpotCheck", "compare", "Comparison", "tune",
    # writing a backend
    "Backend", "BackendDescription", "Offer", "Candidate", "Kernel", "GemmProblem", "Device", "Ready", "Absent",
    "Refusal", "Copy", "register", "unregister", "hookimpl",
    # errors
    "GemmhubError", "InputError", "ShapeError", "DTypeError", "OutputError", "DeviceError", "AllocationError",
    "ConfigError", "BackendError", "NoBackendError", "KernelError", "RecordError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gemmhub' has no attribute {name!r}")
    import importlib

    from gemmhub.kit import locks

    with locks.deciding:
        value = getattr(importlib.import_module(f"gemmhub.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
