"""The capabilities of this CPU and of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from gemmhub.capability import CPU, Absent, Ready
from gemmhub.numpy_backend.probe import blas_threads, cores, numpy_versions
from gemmhub_cpu import library, limits, sources
from gemmhub_cpu.units import UNITS


@dataclass(frozen=True)
class Machine:
    """The facts that the gates look at. Tests mask them."""

    cores: int
    native: frozenset[str] = frozenset()
    """Names of the units of our own kernels that are there, and right."""
    why_no_native: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def look() -> Machine:
    """This machine and process."""
    versions = dict(numpy_versions())
    _, native, why = library.load()
    if native:
        versions["kernels"] = sources.library().digest
    return Machine(cores(), native, why, versions)


def elsewhere() -> Absent | None:
    """The reason why this plugin does nothing on another system than Linux; None on Linux."""
    if sys.platform.startswith("linux"):
        return None
    return Absent(f"its kernels and threads are written for Linux, not for {sys.platform}", "use the numpy backend")


def ready(machine: Machine) -> Ready:
    """What the probe reports of ``machine``."""
    features = ["f16, bf16, fp8, int8 through f32, converted by all cores"]
    names = ", ".join(unit.name for unit in UNITS if unit.name in machine.native)
    if names:
        features.append(f"kernels of its own: {names}")
    if machine.why_no_native:
        features.append(f"no kernels of its own: {machine.why_no_native}")
    if "openblas" in machine.versions.get("blas", "") and not os.environ.get("OPENBLAS_THREAD_TIMEOUT"):
        features.append("OPENBLAS_THREAD_TIMEOUT is not set: slower right after BLAS calls (docs/cpu.md)")
    return Ready((CPU,), machine.versions, tuple(features), _threads)


def _threads() -> str:
    """The threads of a call, and those of the BLAS that multiplies converted blocks."""
    return f"{limits.threads()}, BLAS {min(limits.threads(), blas_threads())}"
