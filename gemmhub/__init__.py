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
    DependencyError,
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
from gemmhub.registered_epilogues import register_epilogue, unregister_epilogue
from gemmhub.registration import backends, register, reload, unregister

if TYPE_CHECKING:
    from gemmhub._arrays.spec.operands import ArraySpec
    from gemmhub._call.plan import Plan
    from gemmhub._check.spot_check import SpotCheck, spot_check
    from gemmhub._contractions.einsum import einsum
    from gemmhub._contractions.linear import bmm, linear
    from gemmhub._contractions.tensordot import tensordot, vecdot
    from gemmhub._doors.grouped import grouped_matmul
    from gemmhub._grouped.check import GroupedCheck, spot_check_grouped
    from gemmhub._grouped.explain import GroupedDecision, explain_grouped
    from gemmhub._measure.compare import Comparison, compare
    from gemmhub.backend import Backend, BackendDescription, Candidate, Kernel, Offer
    from gemmhub.capability import Absent, Copy, Device, Ready, Refusal
    from gemmhub.hookspecs import hookimpl
    from gemmhub.packed import PackedB
    from gemmhub.problem import GemmProblem
    from gemmhub.quantization import quantize
    from gemmhub.verdict import Decision

__version__ = "0.2.0"

traced.trace(
    matmul, plan, explain, pack, tune, backends, register, unregister, reload, register_epilogue, unregister_epilogue
)

_LAZY = {
    "Absent": "capability",
    "ArraySpec": "_arrays.spec.operands",
    "Backend": "backend",
    "BackendDescription": "backend",
    "Candidate": "backend",
    "Comparison": "_measure.compare",
    "Copy": "capability",
    "Decision": "verdict",
    "Device": "capability",
    "GemmProblem": "problem",
    "GroupedCheck": "_grouped.check",
    "GroupedDecision": "_grouped.explain",
    "Kernel": "backend",
    "Offer": "backend",
    "PackedB": "packed",
    "Plan": "_call.plan",
    "Ready": "capability",
    "Refusal": "capability",
    "SpotCheck": "_check.spot_check",
    "bmm": "_contractions.linear",
    "compare": "_measure.compare",
    "einsum": "_contractions.einsum",
    "explain_grouped": "_grouped.explain",
    "grouped_matmul": "_doors.grouped",
    "hookimpl": "hookspecs",
    "linear": "_contractions.linear",
    "quantize": "quantization",
    "spot_check": "_check.spot_check",
    "spot_check_grouped": "_grouped.check",
    "tensordot": "_contractions.tensordot",
    "vecdot": "_contractions.tensordot",
}
"""Public names that are imported at first use, so that ``import gemmhub`` stays light."""

_MODULES = {
    "torch": "torch", "jax": "jax",
    **dict.fromkeys(
        ("accuracy", "array_api", "array_library", "backend", "buckets", "capability", "distributed", "dtypes",
         "epilogues", "errors", "kit", "layout", "lowering", "numpy", "operands", "problem", "scale_layouts", "testing",
         "verdict"),
        "numpy",
    ),
}  # fmt: skip
"""Public modules that are imported at first use, each with the library without which it cannot be."""

__all__ = [
    # products
    "matmul", "linear", "bmm", "einsum", "tensordot", "vecdot", "grouped_matmul", "plan", "pack", "PackedB",
    "Plan", "quantize",
    # your own epilogue
    "register_epilogue", "unregister_epilogue",
    # decisions
    "explain", "explain_grouped", "ArraySpec", "Decision", "GroupedDecision", "backends", "use", "reload",
    # checking and tuning
    "spot_check", "spot_check_grouped", "SpotCheck", "GroupedCheck", "compare", "Comparison", "tune",
    # writing a backend
    "Backend", "BackendDescription", "Offer", "Candidate", "Kernel", "GemmProblem", "Device", "Ready", "Absent",
    "Refusal", "Copy", "register", "unregister", "hookimpl",
    # errors
    "GemmhubError", "InputError", "ShapeError", "DTypeError", "OutputError", "DeviceError", "AllocationError",
    "ConfigError", "DependencyError", "BackendError", "NoBackendError", "KernelError", "RecordError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'gemmhub' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"gemmhub.{name}")
    from gemmhub.kit import locks

    with locks.deciding:
        value = getattr(importlib.import_module(f"gemmhub.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, and the public modules whose library is installed."""
    import sys
    from importlib.util import find_spec

    modules = [name for name, library in _MODULES.items() if sys.modules.get(library) or find_spec(library)]
    return sorted({*__all__, "__version__", *modules})
