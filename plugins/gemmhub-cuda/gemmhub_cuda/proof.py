"""The proof that the kernels of 8-bit floats are right on a card, before any is offered (:mod:`gemmhub_nvidia.proof`).

For each device and pair of formats, two products run first: one of operands that are contiguous along K with scales of
blocks, and one with a b that is contiguous along N, which is read in pairs, with scales of rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gemmhub_nvidia import proof
from gemmhub_nvidia.proof import Trial

from gemmhub.backend import Run
from gemmhub.problem import GemmProblem
from gemmhub_cuda.candidate import SHAPES
from gemmhub_cuda.variants.variant import Shape


class Proofs(proof.Proofs):
    """The outcomes of the proofs of this process, by device and input."""

    def __init__(self, launch: Callable[[GemmProblem, Shape], Run]) -> None:
        """``launch`` returns a problem ready to run by a shape."""
        super().__init__()
        self._launch = launch

    def trials(self, index: int, input_type: str) -> Iterator[Trial]:
        """Yield the products that prove an input on a device."""
        a, b = input_type.split(".")
        for name, order_b, out, scales in (
            ("float8.32x64x64x2w2", "col", "float32", "blocks"),
            ("float8.16x32x128x2w4", "row", "bfloat16", "results"),
        ):
            launch = partial(self._ready, SHAPES[name])
            yield Trial(name, (a, b), order_b, out, scales, launch)

    def _ready(self, shape: Shape, problem: GemmProblem) -> Run:
        return self._launch(problem, shape)
