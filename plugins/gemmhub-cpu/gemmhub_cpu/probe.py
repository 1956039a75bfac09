"""What this CPU and this process can do.

Nothing large is imported to find out: numkong (the extra) is, because it is small and made for this; torch and
MKL count only where the caller has them in the process already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from gemmhub.capability import CPU, Ready
from gemmhub.kit import install
from gemmhub.numpy_backend.probe import blas_threads, cores, numpy_versions
from gemmhub_cpu import library, limits, sources
from gemmhub_cpu.units import UNITS

BF16_UNITS = ("sapphireamx", "graniteamx", "smebf16")
"""numkong's names of units that make bfloat16 faster than float32. AVX512-BF16 alone is slower: it is absent."""
INT8_UNITS = ("sapphireamx", "graniteamx", "icelake", "sierra", "neonsdot", "svesdot", "smebi32")
"""The same for int8: matrix units and dot-product (VNNI) instructions."""


@dataclass(frozen=True)
class Machine:
    """The facts that the gates look at. Tests mask them."""

    cores: int
    units: frozenset[str] = frozenset()
    """numkong's capabilities; empty without numkong."""
    numkong: str = ""
    """Its version, or empty."""
    why_no_numkong: str = ""
    native: frozenset[str] = frozenset()
    """Names of the units of our own kernels that are there, and right."""
    why_no_native: str = ""
    torch: str = ""
    """Version of the torch in this process, or empty."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def has(self, units: tuple[str, ...]) -> bool:
        return any(unit in self.units for unit in units)


def look() -> Machine:
    """This machine and process."""
    version, units, reason = _numkong()
    torch = sys.modules.get("torch")
    torch_version = str(getattr(torch, "__version__", "")) if torch is not None else ""
    versions = dict(numpy_versions())
    if version:
        versions["numkong"] = version
    if torch_version:
        versions["torch"] = torch_version
    _, native, why = library.load()
    if native:
        versions["kernels"] = sources.library().digest
    return Machine(cores(), units, version, reason, native, why, torch_version, versions)


def _numkong() -> tuple[str, frozenset[str], str]:
    if find_spec("numkong") is None:
        return "", frozenset(), f"numkong is not installed ({install.command('gemmhub-cpu[numkong]')})"
    from gemmhub_cpu import numkong_engine

    try:
        return numkong_engine.load()
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        return "", frozenset(), f"numkong cannot be used: {type(error).__name__}: {error}"


def ready(machine: Machine) -> Ready:
    """What the probe reports of ``machine``."""
    features = ["f16, bf16, fp8, int8 through f32, converted by all cores"]
    names = ", ".join(unit.name for unit in UNITS if unit.name in machine.native)
    if names:
        features.append(f"kernels of its own: {names}")
    if machine.why_no_native:
        features.append(f"no kernels of its own: {machine.why_no_native}")
    if machine.numkong:
        units = ", ".join(sorted(machine.units & {*BF16_UNITS, *INT8_UNITS})) or "no unit that helps"
        features.append(f"numkong {machine.numkong}: {units}")
    else:
        features.append(machine.why_no_numkong)
    if "openblas" in machine.versions.get("blas", "") and not os.environ.get("OPENBLAS_THREAD_TIMEOUT"):
        features.append("OPENBLAS_THREAD_TIMEOUT is not set: slower right after BLAS calls (docs/cpu.md)")
    if machine.torch:
        features.append(f"torch {machine.torch}, when tuning finds it faster")
    return Ready((CPU,), machine.versions, tuple(features), _threads)


def _threads() -> str:
    """The threads of a call, and those of the BLAS that multiplies converted blocks."""
    return f"{limits.threads()}, BLAS {min(limits.threads(), blas_threads())}"
