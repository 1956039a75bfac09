"""A backend whose rows have the same bits whatever the other rows are, and a count of its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

import gemmhub
from gemmhub.backend import BASIC, Backend, Candidate, Kernel, Offer
from gemmhub.capability import CPU, Ready, Refusal
from gemmhub.epilogues import EPILOGUES
from gemmhub.problem import GemmProblem

Array = Any


class RowsBackend(Backend):
    """Each element is the sum of its products one after the other, by NumPy's element-wise functions."""

    name = "rows"
    layout_sensitive = False
    takes: ClassVar[Any] = {**BASIC, "reproducible": frozenset({"run", "batch"})}

    def __init__(self) -> None:
        self.problems: list[GemmProblem] = []
        """The problem of each product that ran."""

    def probe(self) -> Ready:
        return Ready((CPU,), {"numpy": np.__version__})

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        if problem.packed_by is not None or problem.compute_dtype.kind not in "fc":
            return Refusal("it multiplies floating operands, unpacked", "pass such operands")
        return Offer((Candidate("loop", 1e-12, order="loop.mul-add"),), any_size=True)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        compute = problem.compute_dtype

        def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
            self.problems.append(problem)
            a, b = a.astype(compute), b.astype(compute)
            shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
            total = np.zeros(shape, compute)
            for i in range(a.shape[-1]):
                total += a[..., i : i + 1] * b[..., i : i + 1, :]
            if not problem.alpha_is_one:
                total = total * compute.type(alpha) if alpha != 0 else np.zeros_like(total)
            if "c" in operands:
                total = total + compute.type(beta) * operands["c"].astype(compute)
            if "bias" in operands:
                bias = operands["bias"].astype(compute)
                total = total + (bias if problem.bias.axis == "n" else bias[:, None])
            if problem.activation is not None:
                total = EPILOGUES[problem.activation](total)
            out[...] = total.astype(out.dtype)

        return Kernel(run, "a sum in the order of k")


@contextmanager
def registered() -> Iterator[RowsBackend]:
    """A block in which gemmhub has the backend."""
    backend = RowsBackend()
    gemmhub.register(backend)
    try:
        yield backend
    finally:
        gemmhub.unregister("rows")
