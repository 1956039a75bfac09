"""A backend that keeps the bits of rows of floating products, slowly, for tests of what is above backends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

import gemmhub
from gemmhub.backend import BASIC, Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Ready, Refusal
from gemmhub.problem import GemmProblem

Array = Any


def chain(a: Array, b: Array, backwards: bool = False) -> Array:
    """Sums of products whose terms are added one by one along k, from either end."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    terms = range(a.shape[-1])
    for i in reversed(terms) if backwards else terms:
        total = total + a[..., i : i + 1] * b[..., i : i + 1, :]
    return total


class Rowwise(Backend):
    """Multiplies floating matrices where the bits of rows are pinned; the kernels count their calls."""

    name = "rowwise"
    takes: ClassVar = {**BASIC, "activation": frozenset({"relu"}), "reproducible": frozenset({"batch"})}
    layout_sensitive = False
    orders: ClassVar = {"forwards": "mul.add"}
    """The order of each candidate; one called "backwards" adds from the other end."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, GemmProblem]] = []
        """Candidate and problem of each call."""

    def probe(self) -> Ready:
        return Ready((CPU,), {"rowwise": "1"})

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if not problem.pinned or problem.compute_dtype.kind != "f":
            return Refusal("it multiplies floats where the bits of rows are pinned", "choose another backend")
        return Offer([Candidate(name, 1e-9, order=order) for name, order in self.orders.items()])

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        dtype = problem.compute_dtype

        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
            self.calls.append((candidate, problem))
            x = chain(a.astype(dtype), b.astype(dtype), backwards=candidate == "backwards")
            x = x if alpha == 1 else x * dtype.type(alpha)
            x = x + dtype.type(beta) * operands["c"].astype(dtype) if "c" in operands else x
            if problem.bias is not None:
                bias = operands["bias"].astype(dtype)
                x = x + (bias[:, np.newaxis] if problem.bias.axis == "m" else bias)
            out[...] = np.maximum(x, 0) if problem.activation == "relu" else x

        return Kernel(run, candidate)


@contextmanager
def registered(backend: Backend) -> Iterator[Any]:
    """Register a backend for a block."""
    gemmhub.register(backend)
    try:
        yield backend
    finally:
        gemmhub.unregister(backend.name)
