"""Probing and refusals for the benchmarks of one backend on an NVIDIA card."""

from __future__ import annotations

from benchmarks.lib.drawn import DEVICE
from gemmhub.backend import Backend
from gemmhub.capability import Absent, Ready
from gemmhub.problem import GemmProblem


def opened(backend: Backend) -> Ready | None:
    """Probe a backend. Print the reason and return None where it is absent, or does not run on the first card."""
    found = backend.probe()
    if isinstance(found, Absent):
        print(f"{found.reason}; {found.remedy}")
        return None
    if DEVICE not in found.devices:
        print(f"{backend.name} does not run on {DEVICE}")
        return None
    return found


def refused(backend: Backend, asked: GemmProblem, order: str) -> bool:
    """Return whether a backend refuses a product, and print the reason."""
    refusal = backend.supports(asked)
    if refusal is not None:
        print(f"{asked.m:6}{asked.n:6}{asked.k:6} {order}  refused: {refusal.reason}")
    return refusal is not None
