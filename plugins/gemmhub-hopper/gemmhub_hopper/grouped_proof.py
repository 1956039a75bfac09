"""The proof that grouped products are right on a card: small ones with exact results, before any is offered.

The kernel reads offsets by itself, stores the end of a group by other instructions than the rest, and clears what is
behind it. So in each process and on each device some products run first: of ping-pong, of swapped operands, wide and
narrow, and of groups along k. Groups are empty, of one row, of several tiles, and begin anywhere; what no group has
is NaN. Float32, whose groups along k are cleared in other tiles, has products of its own.
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
from gemmhub_hopper.variants.shapes import shapes

GROUPS, FLOAT32_GROUPS = "grouped", "grouped float32"
"""Names of the proofs among those of inputs: of the walk through groups, and of float32 besides."""
_TRIALS = {
    GROUPS: ("bfloat16", (
        ("128x256x4", False, "m"), ("128x160x5p", True, "m"), ("128x32x8", True, "m"), ("64x256x5p", False, "k"),
    )),
    FLOAT32_GROUPS: ("float32", (("128x64x7", False, "m"), ("128x32x8", True, "m"), ("128x64x7", False, "k"))),
}  # fmt: skip
"""The dtype of each proof, and its products: shape, whether operands are swapped, and what the groups divide. Those of
bfloat16 are kernels that the wheel carries (:mod:`gemmhub_hopper.shipped`)."""
_ENDS = np.array([1, 1, 300, 309, 310], np.int32)
_EXTENT, _ACROSS, _OTHER = 320, 136, 200
"""Elements of the divided dimension, of which the last ten belong to no group, and of the others."""


class GroupedProof(NamedTuple):
    """A product of the proof."""

    shape: str
    swapped: bool
    divides: str
    dtype: str
    launch: Callable[[int, Choice], Run]

    @property
    def name(self) -> str:
        """The candidate."""
        return self.shape + "rs" * (self.dtype == "float32") + "t" * self.swapped

    def problem(self, index: int) -> GemmProblem:
        """Return its problem on a device."""
        m, n, k = {"m": (_EXTENT, _ACROSS, _OTHER), "k": (_ACROSS, _OTHER, _EXTENT)}[self.divides]
        of, dtype = Groups(len(_ENDS), self.divides), as_dtype(self.dtype)
        orders = {"a": "row" if self.divides == "m" else "col", "b": "row", "out": "row"}
        a, b, out = (
            Operand(dtype, MatrixLayout.contiguous(*sides, of.batch(name), orders[name]), 256)
            for name, sides in (("a", (m, k)), ("b", (k, n)), ("out", (m, n)))
        )
        return GemmProblem(
            m, n, k, a=a, b=b, out=out, compute_dtype=compute_dtype(dtype, dtype, dtype), groups=of,
            device=Device("cuda", index),
        )  # fmt: skip

    def choice(self, index: int) -> Choice:
        """Return its candidate for that problem."""
        lowerings = groups.lowerings(self.problem(index))
        assert not isinstance(lowerings, Refusal), lowerings
        lowering = next(x for x in lowerings if x.swapped == self.swapped)
        return GroupedChoice(lowering, shapes(lowering.form).by_name[self.shape], 1)

    def wrong(self, index: int, gpu: Gpu) -> str:
        """Return what is wrong with the product on a device; empty where it is right."""
        run = self.launch(index, self.choice(index))
        a, b, expected = self._data(self.problem(index))
        stored_a = np.ascontiguousarray(a.T) if self.divides == "k" else a
        return difference(computed(gpu, run, {"a": stored_a, "b": b, "offsets": _ENDS}, expected.nbytes), expected)

    def _data(self, problem: GemmProblem) -> tuple[Any, Any, Any]:
        """Return a, b and the result: whole numbers, whose sums are exact, and NaN where no group is.

        There float32 has ones: sums of float32 that are NaN are computed anew, so that NaN would hide what is wrong.
        """
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
        unread = 1 if self.dtype == "float32" else np.nan
        if self.divides == "m":
            a[behind:] = unread
        else:
            a[:, behind:], b[behind:] = unread, unread
        return a, b, expected.astype(dtype)


def trials(name: str, launch: Callable[[int, Choice], Run]) -> Iterator[GroupedProof]:
    """Yield the products of the proof called ``name``; ``launch`` returns a choice ready to run on a device."""
    dtype, products = _TRIALS[name]
    for shape, swapped, divides in products:
        yield GroupedProof(shape, swapped, divides, dtype, launch)
