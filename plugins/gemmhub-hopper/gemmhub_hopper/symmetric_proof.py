"""The proof that symmetric products are right on a card: small ones with exact results, before any is offered.

Mirrored elements are stored by other instructions than the rest. So in each process and on each device two products
run first: one whose result TMA stores, and one whose result warps store. Their operands break the promise, so that an
element above the diagonal that is no copy of the one below shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.proof import computed, difference

from gemmhub.backend import Run
from gemmhub.capability import Device, Refusal
from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.shapes import shapes

SYMMETRIC = "symmetric"
"""Name of this proof among those of inputs."""
_K = 136


class SymmetricProof(NamedTuple):
    """A product of the proof."""

    name: str
    """The candidate: a shape."""
    n: int
    """Rows and columns of the result."""
    out: str
    """The dtype of the result."""
    launch: Callable[[int, Choice], Run]

    def problem(self, index: int) -> GemmProblem:
        """Return its problem on a device."""
        dtype, out, n = as_dtype("bfloat16"), as_dtype(self.out), self.n
        a, b, d = (
            Operand(x, MatrixLayout.contiguous(*sides, (), order), 256)
            for x, sides, order in ((dtype, (n, _K), "row"), (dtype, (_K, n), "col"), (out, (n, n), "row"))
        )
        return GemmProblem(
            n, n, _K, a=a, b=b, out=d, compute_dtype=compute_dtype(dtype, dtype, out), device=Device("cuda", index),
            symmetric=True,
        )  # fmt: skip

    def wrong(self, index: int, gpu: Gpu) -> str:
        """Return what is wrong with the product on a device; empty where it is right."""
        lowerings = lower.lowerings(self.problem(index))
        assert not isinstance(lowerings, Refusal), lowerings
        first = lowerings[0]
        run = self.launch(index, Choice(first, shapes(first.form).by_name[self.name], 1))
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((self.n, _K), (_K, self.n)))
        lower_half = np.tril(a @ b)  # whole numbers below 256, which bfloat16 holds
        expected = (lower_half + np.tril(lower_half, -1).T).astype(as_dtype(self.out))
        dtype = as_dtype("bfloat16")
        operands = {"a": a.astype(dtype), "b": np.ascontiguousarray(b.T).astype(dtype)}
        return difference(computed(gpu, run, operands, expected.nbytes), expected)


def trials(launch: Callable[[int, Choice], Run]) -> Iterator[SymmetricProof]:
    """Yield the products of the proof; ``launch`` returns a choice ready to run on a device."""
    yield SymmetricProof("128x256x4", 584, "bfloat16", launch)
    yield SymmetricProof("64x64x12", 333, "float32", launch)
