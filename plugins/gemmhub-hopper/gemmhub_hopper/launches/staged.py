"""Launches products whose operands are copied or split: in each K pass a pre-pass, where needed, and the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.scratch import Scratch

from gemmhub_hopper.candidates.candidate import Choice, Occupancy
from gemmhub_hopper.launches import prepass
from gemmhub_hopper.launches.launch import (
    Function,
    Gemm,
    Params,
    clear_largest,
    marks_kept,
    params,
    place_range,
    place_scales,
)
from gemmhub_hopper.lowering import f16_planes, k_passes
from gemmhub_hopper.lowering.f16_planes import BY_TILES, ONLY_REJECTED
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.operands import OperandAccess
from gemmhub_hopper.variants.config import Variant

_JOBS = tuple(
    (prepass.Parameters.jobs.offset + i * ctypes.sizeof(prepass.Job) + prepass.Job.source.offset) // 8 for i in range(2)
)
"""The indices of the words of each pre-pass job's source address; its ``to`` and ``marks`` follow."""


class _Side(NamedTuple):
    """The kernel's a or b."""

    name: str
    access: OperandAccess
    step: int
    """Bytes of the operand from one K pass to the next."""
    copy: int | None
    """Offset of its copy in the workspace; None where there is none."""
    marks: int
    """Offset of its marks in the workspace."""
    kept: bool
    """Whether its marks belong to a packed operand."""


class Staged:
    """A prepared product with copies, or with marks of split operands: :meth:`run` launches pre-passes and kernels.

    Safe in any number of threads.
    """

    _jobs = _JOBS

    def __init__(
        self, gpu: Gpu, card: Occupancy, choice: Choice, kernel: Callable[[Variant], int], copier: int,
        workspace: Scratch, limit: int, passes: KPasses, redo: int = 0,
    ) -> None:  # fmt: skip
        """``kernel`` compiles a variant. ``copier``: the pre-pass for the form's input, where copies are needed.

        ``redo``: bits of :data:`ONLY_REJECTED`, with which pre-passes and kernels do nothing where float16 planes hold
        both operands, and of :data:`BY_TILES`.

        Raises DriverError where the driver refuses the tensor maps.
        """
        self._card, self._redo = card, redo
        self._gpu, self._choice, self._passes, self._workspace, self._limit = gpu, choice, passes, workspace, limit
        lowering, form = choice.lowering, choice.lowering.form
        self._sums = k_passes.sums(lowering) if passes.sums is not None else None
        grid = choice.grid(card)
        variants = k_passes.variants(choice.shape, form, choice.splits > 1, passes.count)
        self._gemms = [
            Gemm(gpu, choice, passes, variant, kernel(variant), self._params(i, len(variants)), grid, workspace.dummy())
            for i, variant in enumerate(variants)
        ]
        self._sides = {
            name: _Side(name, access, access.k_bytes(passes.k(form)), copy, marks, kept)
            for name, access, copy, marks, kept in zip(
                "ab",
                (lowering.a, lowering.b),
                (passes.a, passes.b),
                (k_passes.A_MARKS, k_passes.B_MARKS),
                marks_kept(lowering),
            )
        }
        self._copied = [side for side in self._sides.values() if side.copy is not None]
        sizes = {self._pass_k(0), self._pass_k(passes.count - 1)} if self._copied else ()
        self._copiers: dict[int, Function] = {k: self._copier(copier, k) for k in sizes}
        """Pre-passes by the elements along K of a K pass."""

    def _copier(self, function: int, k: int) -> Function:
        """Return the pre-pass of a K pass with ``k`` elements, without addresses."""
        p, form = prepass.Parameters(), self._choice.lowering.form
        tiles = [
            prepass.fill(job, side.access, form, side.access.copy(form, self._passes.k(form)), k)
            for job, side in zip(p.jobs, self._copied)
        ]
        p.first_tiles, p.tiles = tiles[0], sum(tiles)
        p.limit = f16_planes.small_limit(self._choice.lowering.k)
        p.kept = sum(side.kept << i for i, side in enumerate(self._sides.values()))
        if self._redo & BY_TILES and not form.registers_a:  # there, a rejected b rejects all tiles
            shape = self._choice.shape
            p.spans[:] = shape.m * shape.cluster_m, shape.n * shape.cluster_n
            p.marked_groups[:] = [f16_planes.marked_groups(side.access) for side in self._sides.values()]
        p.first_is = "ab".index(self._copied[0].name)
        grid = p.tiles
        # Rarely taken; idle CTAs cost time, so cap the grid at 2 (large operands: 8) CTAs per SM.
        if self._redo & ONLY_REJECTED:
            sms = self._card.max_active_clusters(1)
            grid = min(grid, max(2 * sms, min(8 * sms, grid // 8)))
        return Function(self._gpu, function, prepass.Arguments(p), grid, prepass.THREADS, 0)

    def _params(self, which: int, count: int) -> Params:
        """Return the parameters of the kernel of the first K pass (0), of those between, or of the last one."""
        lowering, passes = self._choice.lowering, self._passes
        k = self._pass_k(passes.count - 1 if which == count - 1 else 0)
        p = params(self._choice, k, self._card, self._redo)
        if count > 1:
            ld, batch, pairs = lowering.d_ld, lowering.d_batch, int(lowering.pairs)
            if self._sums is not None:
                ld, batch, pairs = self._sums.ld // 4, self._sums.stride // 4, 1
            if which > 0:
                p.c_ld, p.c_batch = ld, batch
            if which < count - 1:
                p.d_ld, p.d_batch, p.pairs = ld, batch, pairs
        return p

    def run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None,
        **scales: int,
    ) -> None:  # fmt: skip
        """Launch all K passes on ``stream``; operands are addresses."""
        stream = stream or 0
        first, second = (b, a) if self._choice.lowering.swapped else (a, b)
        with self._gpu, self._workspace.lease(stream, self._passes.nbytes, self._limit) as lease:
            clear_largest(self._gpu, scales, stream)
            for i in range(self._passes.count):
                self.launch_pass(i, lease.address, first, second, out, alpha, beta, stream, c, bias, scales)

    def launch_pass(
        self, i: int, scratch: int, first: Any, second: Any, out: Any, alpha: Any, beta: Any, stream: int, c: Any,
        bias: Any, scales: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Launch pass ``i`` of the kernel's a and b, ``first`` and ``second``, with the workspace at ``scratch``."""
        passes = self._passes
        sums = out if passes.sums is None else scratch + passes.sums
        if self._copied:
            self._launch_copies(i, scratch, first, second, stream)
        last = i == passes.count - 1
        gemm = self._gemms[0 if i == 0 else -1 if last else 1]
        slot = gemm.take()
        p = slot.arguments.p
        if slot.filled != (i, scratch):
            self._fill(p, i, scratch)
            slot.filled = i, scratch
        p.alpha, p.beta = float(alpha), float(beta) if i == 0 else 1.0
        p.c, p.bias = (c or 0 if i == 0 else sums), bias or 0
        place_scales(p, self._choice.lowering, scales, i * passes.k_blocks)
        place_range(p, scales if last else {})
        at_a, at_b = self._operand(p, "a", i, scratch, first), self._operand(p, "b", i, scratch, second)
        gemm.place(slot, at_a, at_b, out if last else sums)
        gemm.check(gemm.start(slot, stream))
        gemm.free.append(slot)

    def _pass_k(self, i: int) -> int:
        """Return the elements along K of pass ``i``."""
        k = self._passes.k(self._choice.lowering.form)
        return min(k, self._choice.lowering.k - i * k)

    def _launch_copies(self, i: int, scratch: int, a: Any, b: Any, stream: int) -> None:
        copier = self._copiers[self._pass_k(i)]
        slot = copier.take()
        for job, side in zip(self._jobs, self._copied):
            slot.words[job] = (a if side.name == "a" else b) + i * side.step
            if slot.filled != scratch:
                self._fill_job(slot.words, job, side, scratch)
        if self._redo & ONLY_REJECTED:
            p = slot.arguments.p
            p.a_marks, p.b_marks = (
                operand.marks if side.kept else scratch + side.marks
                for side, operand in zip(self._sides.values(), (a, b))
            )
        slot.filled = scratch
        copier.check(copier.start(slot, stream))
        copier.free.append(slot)

    def _fill_job(self, words: Any, job: int, side: _Side, scratch: int) -> None:
        """Fill in the addresses of a job that depend on the workspace at ``scratch``."""
        words[job + 1], words[job + 2] = scratch + (side.copy or 0), scratch + side.marks

    def _fill(self, p: Any, i: int, scratch: int) -> None:
        """Fill in the parameters of pass ``i`` that depend on the workspace at ``scratch`` and not on operands."""
        lowering, passes = self._choice.lowering, self._passes
        p.a_block, p.b_block = (0 if x.direct is None else i * passes.k_blocks for x in (lowering.a, lowering.b))
        p.counters, p.partials = scratch, scratch + passes.partials
        p.a_marks, p.b_marks, p.finished = (
            scratch + x for x in (k_passes.A_MARKS, k_passes.B_MARKS, k_passes.FINISHED)
        )

    def _operand(self, p: Any, name: str, i: int, scratch: int, operand: Any) -> int:
        """Return the address for the map of the kernel's a (b) in pass ``i``; fill in what recomputing needs."""
        side = self._sides[name]
        original = operand
        if side.access.packed:
            if side.kept:
                setattr(p, f"{name}_marks", operand.marks)
            form = self._choice.lowering.form
            unsplit = form.registers_a if name == "a" else form.split_planes_b
            original, operand = operand.plain, operand.of("tf32" if unsplit else form.input)
        setattr(p, name, original + i * side.step)
        return int(operand) if side.copy is None else scratch + side.copy
