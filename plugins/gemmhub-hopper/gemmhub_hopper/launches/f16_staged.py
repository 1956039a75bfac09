"""Launches products of float32 by float16 planes, each K pass with one by bfloat16 planes for rejected operands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.scratch import Scratch

from gemmhub_hopper.candidates.candidate import Choice, Occupancy
from gemmhub_hopper.launches.launch import Function
from gemmhub_hopper.launches.staged import Staged
from gemmhub_hopper.lowering import f16_planes
from gemmhub_hopper.lowering.f16_planes import GROUP_ROWS
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.variants.config import Variant

_JOBS = tuple(
    (f16_planes.Parameters.jobs.offset + i * ctypes.sizeof(f16_planes.Job)) // 8 for i in range(2)
)  # fmt: skip
"""The indices of the words of each job's source address; its ``to``, ``marks`` and ``scales`` follow."""


def by_tiles(choice: Choice, fallback: Choice, passes: KPasses) -> bool:
    """Return whether each tile takes the scheme that its own rows and columns allow; else all take the same one.

    Both kernels may store an element, so where they add c, or sums of K passes before, their tiles must be parts of
    one cell of the marks (kernels/rejected_tiles.cuh).
    """
    shapes = choice.shape, fallback.shape
    parts = all(GROUP_ROWS % (x.m * x.cluster_m) == GROUP_ROWS % (x.n * x.cluster_n) == 0 for x in shapes)
    return parts or (passes.count == 1 and choice.lowering.form.addend is None)


class F16Staged(Staged):
    """A prepared product by float16 planes. Which scheme computes a K pass is decided on the device."""

    _jobs = _JOBS

    def __init__(
        self, gpu: Gpu, card: Occupancy, choice: Choice, kernel: Callable[[Variant], int], f16_prepass: int,
        workspace: Scratch, limit: int, passes: KPasses, fallback: Staged, redo: int,
    ) -> None:  # fmt: skip
        """``fallback``: the same product by bfloat16 planes, in the same K passes.

        ``redo``: :data:`f16_planes.BY_TILES`, or 0.
        """
        self._fallback, self._by_rows = fallback, choice.lowering.form.registers_a
        super().__init__(gpu, card, choice, kernel, f16_prepass, workspace, limit, passes, redo)
        self._scales = {
            side.name: (side.copy or 0) + f16_planes.scales_offset(self._planes(side.access)) for side in self._copied
        }
        """Offsets of the scales of copied operands in the workspace."""

    def _copier(self, function: int, k: int) -> Function:
        lowering = self._choice.lowering
        p = f16_planes.parameters(lowering.k)
        tiles = [
            f16_planes.fill(job, side.access, self._planes(side.access), side.access.mn_major, k)
            for job, side in zip(p.jobs, self._copied)
        ]
        p.first_tiles = tiles[0]
        return Function(self._gpu, function, f16_planes.Arguments(p), sum(tiles), f16_planes.THREADS, 0)

    def _planes(self, access: Any) -> Any:
        """Return the layout of the planes that the pre-pass makes."""
        form = self._choice.lowering.form
        return access.copy(form, self._passes.k(form))

    def launch_pass(
        self, i: int, scratch: int, first: Any, second: Any, out: Any, alpha: Any, beta: Any, stream: int, c: Any,
        bias: Any, scales: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Launch pass ``i`` by float16 planes, then by bfloat16 planes: for operands that the device rejects."""
        super().launch_pass(i, scratch, first, second, out, alpha, beta, stream, c, bias, scales)
        self._fallback.launch_pass(i, scratch, first, second, out, alpha, beta, stream, c, bias, scales)

    def _fill_job(self, words: Any, job: int, side: Any, scratch: int) -> None:
        super()._fill_job(words, job, side, scratch)
        words[job + 3] = scratch + self._scales[side.name]

    def _operand(self, p: Any, name: str, i: int, scratch: int, operand: Any) -> int:
        side = self._sides[name]
        if name == "a" and self._by_rows:
            return super()._operand(p, name, i, scratch, operand)
        if side.copy is None:
            groups = i * self._passes.k(self._choice.lowering.form) // f16_planes.GROUP_K
            scales = operand.scales + 4 * groups * f16_planes.scale_pitch(side.access.rows)
        else:
            scales = scratch + self._scales[name]
        setattr(p, f"{name}_scales", scales)
        return super()._operand(p, name, i, scratch, operand)
