"""The proofs that kernels are right on a card, before any is offered (:mod:`gemmhub_nvidia.proof`).

For each device and pair of 8-bit formats, two products run first: a wide tile with multicast, and a small one with
swapped operands and a copied one. Grouped products have theirs in :mod:`gemmhub_hopper.grouped_proof`, symmetric ones
in :mod:`gemmhub_hopper.symmetric_proof`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gemmhub_nvidia import proof
from gemmhub_nvidia.proof import Check, Trial

from gemmhub.backend import Run
from gemmhub.capability import Refusal
from gemmhub.problem import GemmProblem
from gemmhub_hopper import grouped_proof, symmetric_proof
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import INT8, Shape
from gemmhub_hopper.variants.shapes import EIGHT_BIT_SHAPES


class Proofs(proof.Proofs):
    """The outcomes of the proofs of this process, by device and input."""

    def __init__(self, launch: Callable[[int, Choice], Run]) -> None:
        """``launch`` returns a choice ready to run on a device."""
        super().__init__()
        self._launch = launch

    def trials(self, index: int, input_type: str) -> Iterator[Check]:
        """Yield the products that prove an input; or what :data:`grouped_proof.GROUPS`,
        :data:`grouped_proof.FLOAT32_GROUPS` or :data:`symmetric_proof.SYMMETRIC` names.
        """
        if input_type in (grouped_proof.GROUPS, grouped_proof.FLOAT32_GROUPS):
            yield from grouped_proof.trials(input_type, self._launch)
            return
        if input_type == symmetric_proof.SYMMETRIC:
            yield from symmetric_proof.trials(self._launch)
            return
        wide, small = (EIGHT_BIT_SHAPES.by_name[name] for name in ("128x128x6c2x1", "64x64x12"))
        a, b = input_type.split(".")
        out, scales = ("int32", None) if input_type == INT8 else ("float32", "blocks")
        yield Trial(wide.name, (a, b), "col", out, scales, partial(self._ready, index, wide, False))
        # A row-major b is copied by the pre-pass. The formats are those of the kernel's operands.
        swapped = partial(self._ready, index, small, True)
        yield Trial(f"{small.name}t", (b, a), "row", "bfloat16", "results", swapped)

    def _ready(self, index: int, shape: Shape, swapped: bool, problem: GemmProblem) -> Run:
        lowerings = lower.lowerings(problem)
        assert not isinstance(lowerings, Refusal), lowerings
        lowering = next(x for x in lowerings if x.swapped == swapped)
        return self._launch(index, Choice(lowering, shape, 1))
