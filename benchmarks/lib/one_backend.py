"""Probing, offers and refusals for the benchmarks of one backend on an NVIDIA card."""

from __future__ import annotations

from benchmarks.lib.drawn import DEVICE
from gemmhub.backend import Backend, Kernel, Offer
from gemmhub.capability import Absent, Ready, Refusal
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


def offered(backend: Backend, asked: GemmProblem, order: str) -> Offer | None:
    """Return what a backend offers for a product. Print the reason and return None where it refuses it."""
    answer = backend.offer(asked)
    if isinstance(answer, Refusal):
        print(f"{asked.m:6}{asked.n:6}{asked.k:6} {order}  refused: {answer.reason}")
        return None
    return answer


def prepared(backend: Backend, asked: GemmProblem, candidate: str, workspace: int) -> Kernel:
    """Return the kernel of a candidate in ``workspace`` bytes. Raises ValueError where it is refused."""
    kernel = backend.prepare(asked, candidate, workspace)
    if isinstance(kernel, Refusal):
        raise ValueError(f"{kernel.reason}; {kernel.remedy}")
    return kernel
