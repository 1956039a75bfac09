"""The proof that grouped products are right on a card: small ones with exact results, before any is offered.

The kernel reads offsets by itself, stores the end of a group by other instructions than the rest, and clears what is
behind it. So in each process and on each device some products run first: of ping-pong, of swapped operands, wide and
narrow, and of groups along k. Groups are empty, of one row, of several tiles, and begin anywhere; what no group has
is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.proof import computed, difference

from gemmhub.backend import Run
from gemmhub.capability import Device, Refusal
from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Groups, Operand
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.candidates.grouped import GroupedChoice
from gemmhub_hopper.lowering import groups
from gemmhub_hopper.variants.shapes import GROUPED_SHAPES

GROUPS = "grouped"
"""Name of this proof among those of inputs."""
_ENDS = np.array([1, 1, 300, 309, 310], np.int32)
_EXTENT, _ACROSS, _OTHER = 320, 136, 200
"""Elements of the divided dimension, of which the last ten belong to no group, and of the others."""


class GroupedProof(NamedTuple):
    """A product of the proof."""

    shape: str
    swapped: bool
    divides: str
    launch: Callable[[int, Choice], Run]

    @property
    def name(self) -> str:
        """The candidate."""
        return self.shape + "t" * self.swapped

    def problem(self, index: int) -> GemmProblem:
        """Return its problem on a device."""
        m, n, k = {"m": (_EXTENT, _ACROSS, _OTHER), "k": (_ACROSS, _OTHER, _EXTENT)}[self.divides]
        of, dtype = Groups(len(_ENDS), self.divides), as_dtype("bfloat16")
        orders = {"a": "row" if self.divides == "m" else "col", "b": "row", "out": "row"}
        a, b, out = (
            Operand(dtype, MatrixLayout.contiguous(*sides, of.batch(name), orders[name]), 256)
            for name, sides in (("a", (m, k)), ("b", (k, n)), ("out", (m, n)))
        )
        return GemmProblem(
            m, n, k, a=a, b=b, out=out, compute_dtype=compute_dtype(dtype, dtype, dtype), groups=of,
            device=Device("cuda", index),
        )  # fmt: skip

    def wrong(self, index: int, gpu: Gpu) -> str:
        """Return what is wrong with the product on a device; empty where it is right."""
        problem = self.problem(index)
        lowerings = groups.lowerings(problem)
        assert not isinstance(lowerings, Refusal), lowerings
        run = self.launch(index, GroupedChoice(lowerings[self.swapped], GROUPED_SHAPES.by_name[self.shape], 1))
        a, b, expected = self._data(problem)
        stored_a = np.ascontiguousarray(a.T) if self.divides == "k" else a
        return difference(computed(gpu, run, {"a": stored_a, "b": b, "offsets": _ENDS}, expected.nbytes), expected)

    def _data(self, problem: GemmProblem) -> tuple[Any, Any, Any]:
        """Return a, b and the result: whole numbers, whose sums are exact, and NaN where no group is."""
        rng, dtype, count = np.random.default_rng(0), problem.a.dtype, len(_ENDS)
        shapes = [(*x.layout.batch, x.layout.rows, x.layout.cols) for x in (problem.a, problem.b, problem.out)]
        a, b = (rng.integers(-1, 2, shape).astype(dtype) for shape in shapes[:2])
        expected = np.zeros(shapes[2])
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        for group, (begin, end) in enumerate(zip((0, *_ENDS[: count - 1].tolist()), _ENDS.tolist())):
            if self.divides == "m":
                expected[begin:end] = wide_a[begin:end] @ wide_b[group]
            else:
                expected[group] = wide_a[:, begin:end] @ wide_b[begin:end]
        behind = int(_ENDS[-1])
        if self.divides == "m":
            a[behind:] = np.nan
        else:
            a[:, behind:], b[behind:] = np.nan, np.nan
        return a, b, expected.astype(dtype)


def trials(launch: Callable[[int, Choice], Run]) -> Iterator[GroupedProof]:
    """Yield the products of the proof; ``launch`` returns a choice ready to run on a device."""
    for shape, swapped, divides in (
        ("128x160x5p", False, "m"), ("128x256x4", True, "m"), ("128x16x8", True, "m"), ("128x96x6", False, "k"),
    ):  # fmt: skip
        yield GroupedProof(shape, swapped, divides, launch)
