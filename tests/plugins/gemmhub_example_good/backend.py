"""float32 GEMM in square blocks, with alpha, beta and bias."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gemmhub_example_good.probe import probe

from gemmhub import Absent, Backend, Candidate, GemmProblem, Kernel, Offer, Ready, Refusal
from gemmhub.lowering import lower


class ExampleBackend(Backend):
    """C = alpha A B + beta C + bias, block by block."""

    name = "example"
    takes: ClassVar = {"c": frozenset({"matrix"}), "bias": frozenset({"n", "m"}), "precision": None}

    def probe(self) -> Ready | Absent:
        return probe()

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        dtypes = {problem.a.dtype.name, problem.b.dtype.name, problem.out.dtype.name, problem.compute_dtype.name}
        if dtypes != {"float32"}:
            return Refusal(f"it takes float32, not {', '.join(sorted(dtypes - {'float32'}))}", "convert the operands")
        if problem.batch:
            return Refusal("it takes no batches", "multiply matrix by matrix")
        call = lower(problem)
        if isinstance(call, Refusal):
            return call
        seconds = 20e-6 + problem.flops / 1e9
        return Offer((Candidate("block64", seconds), Candidate("block256", seconds)))

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        size = int(candidate.removeprefix("block"))

        def run(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None) -> None:
            rows = bias if bias is None or (problem.bias and problem.bias.axis == "n") else bias[:, np.newaxis]
            for i in range(0, problem.m, size):
                for j in range(0, problem.n, size):
                    place = np.s_[i : i + size, j : j + size]
                    block = np.zeros(out[place].shape, np.float32)
                    for k in range(0, problem.k, size):
                        block += a[i : i + size, k : k + size] @ b[k : k + size, j : j + size]
                    block *= np.float32(alpha)
                    if c is not None:
                        block += np.float32(beta) * c[place]
                    if rows is not None:
                        block += np.broadcast_to(rows, out.shape)[place]
                    out[place] = block

        return Kernel(run, f"blocks of {size}", size * size * 4)
