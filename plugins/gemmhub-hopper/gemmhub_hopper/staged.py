"""Products whose operands are copied or split: for each slab of k a pre-pass, if there is need of one, and the kernel,
on the caller's stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_scratch import Scratch
from gemmhub_hopper import k_passes, prepass
from gemmhub_hopper.candidate import Choice, Room
from gemmhub_hopper.config import Variant
from gemmhub_hopper.launch import Function, Gemm, Params, marks_kept, params
from gemmhub_hopper.operands import Reading

_JOBS = tuple(
    (prepass.Parameters.jobs.offset + i * ctypes.sizeof(prepass.Job) + prepass.Job.source.offset) // 8 for i in range(2)
)
"""The words of the addresses of the pre-pass's jobs: source; then to and marks."""


class _Side(NamedTuple):
    """The kernel's a or b."""

    name: str
    reading: Reading
    step: int
    """Bytes of the operand from slab to slab."""
    copy: int | None
    """Its copy and its marks in the workspace."""
    marks: int
    kept: bool
    """Its marks are those of a packed operand."""


class Staged:
    """A product that needs copies, or marks of split operands: :meth:`run` makes the copies and calls its kernels.

    Safe in any number of threads.
    """

    def __init__(
        self, gpu: Gpu, card: Room, choice: Choice, kernel: Callable[[Variant], int], copier: int, workspace: Scratch,
        limit: int,
    ) -> None:  # fmt: skip
        """``kernel`` compiles a variant; ``copier`` is the pre-pass for the form's input, if copies are needed.

        Raises DriverError where the driver does not take the tensor maps.
        """
        cut = choice.cut(limit)
        assert not isinstance(cut, str), cut
        self._card = card
        self._gpu, self._choice, self._cut, self._workspace, self._limit = gpu, choice, cut, workspace, limit
        way, form = choice.way, choice.way.form
        self._in_sums = k_passes.sums(way) if cut.sums is not None else None
        grid = choice.grid(card)
        variants = k_passes.variants(choice.shape, form, choice.splits > 1, cut.count)
        self._gemms = [
            Gemm(gpu, choice, cut, variant, kernel(variant), self._params(i, len(variants)), grid, workspace.dummy())
            for i, variant in enumerate(variants)
        ]
        self._sides = {
            name: _Side(name, reading, cut.k(form) * reading.strides[1] * reading.size, copy, marks, kept)
            for name, reading, copy, marks, kept in zip(
                "ab", (way.a, way.b), (cut.a, cut.b), (k_passes.A_MARKS, k_passes.B_MARKS), marks_kept(way)
            )
        }
        self._copied = [side for side in self._sides.values() if side.copy is not None]
        parts = {self._part(0), self._part(cut.count - 1)} if self._copied else ()
        self._copiers = {k: self._copier(copier, k) for k in parts}
        """By the elements along k that a slab has."""

    def _copier(self, function: int, k: int) -> Function:
        """The pre-pass of a slab with ``k`` elements along k, but for the addresses."""
        p, form = prepass.Parameters(), self._choice.way.form
        tiles = [
            prepass.fill(job, side.reading, form, side.reading.copy(form, self._cut.k(form)), k)
            for job, side in zip(p.jobs, self._copied)
        ]
        p.first_tiles = tiles[0]
        return Function(self._gpu, function, prepass.Arguments(p), sum(tiles), prepass.THREADS, 0)

    def _params(self, which: int, count: int) -> Params:
        """Of the kernel of the first slab (0), those between, or the last one."""
        way, cut = self._choice.way, self._cut
        p = params(self._choice, self._part(cut.count - 1 if which == count - 1 else 0), self._card)
        if count > 1:
            ld, batch, pairs = way.d_ld, way.d_batch, int(way.pairs)
            if self._in_sums is not None:
                ld, batch, pairs = self._in_sums.ld // 4, self._in_sums.stride // 4, 1
            if which > 0:
                p.c_ld, p.c_batch = ld, batch
            if which < count - 1:
                p.d_ld, p.d_batch, p.pairs = ld, batch, pairs
        return p

    def run(self, a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        way, cut = self._choice.way, self._cut
        stream = stream or 0
        first, second = (b, a) if way.swapped else (a, b)
        with self._gpu, self._workspace.lease(stream, cut.nbytes, self._limit) as lease:
            scratch = lease.address
            sums = out if cut.sums is None else scratch + cut.sums
            for i in range(cut.count):
                if self._copied:
                    self._copy(i, scratch, first, second, stream)
                last = i == cut.count - 1
                gemm = self._gemms[0 if i == 0 else -1 if last else 1]
                slot = gemm.take()
                p = slot.arguments.p
                if slot.known != (i, scratch):
                    self._point(p, i, scratch)
                    slot.known = i, scratch
                p.alpha, p.beta = float(alpha), float(beta) if i == 0 else 1.0
                p.c, p.bias = (c or 0 if i == 0 else sums), bias or 0
                at_a, at_b = self._operand(p, "a", i, scratch, first), self._operand(p, "b", i, scratch, second)
                gemm.place(slot, at_a, at_b, out if last else sums)
                gemm.check(gemm.start(slot, stream))
                gemm.free.append(slot)

    def _part(self, i: int) -> int:
        """Elements along k of slab ``i``."""
        k = self._cut.k(self._choice.way.form)
        return min(k, self._choice.way.k - i * k)

    def _copy(self, i: int, scratch: int, a: Any, b: Any, stream: int) -> None:
        copier = self._copiers[self._part(i)]
        slot = copier.take()
        for job, side in zip(_JOBS, self._copied):
            slot.words[job] = (a if side.name == "a" else b) + i * side.step
            if slot.known != scratch:
                slot.words[job + 1], slot.words[job + 2] = scratch + (side.copy or 0), scratch + side.marks
        slot.known = scratch
        copier.check(copier.start(slot, stream))
        copier.free.append(slot)

    def _point(self, p: Any, i: int, scratch: int) -> None:
        """The parameters of slab ``i`` in a workspace, but for the operands."""
        way, cut = self._choice.way, self._cut
        p.a_block, p.b_block = (0 if x.direct is None else i * cut.blocks for x in (way.a, way.b))
        p.counters, p.partials = scratch, scratch + cut.partials
        p.a_marks, p.b_marks, p.finished = (
            scratch + x for x in (k_passes.A_MARKS, k_passes.B_MARKS, k_passes.FINISHED)
        )

    def _operand(self, p: Any, name: str, i: int, scratch: int, operand: Any) -> int:
        """Where the map of the kernel's a (b) begins in slab ``i``. Into ``p`` goes what computing anew needs."""
        side = self._sides[name]
        original = operand
        if side.reading.packed:
            if side.kept:
                setattr(p, f"{name}_marks", operand.marks)
            form = self._choice.way.form
            once = form.a_registers if name == "a" else form.b_split
            original, operand = operand.plain, operand.of("tf32" if once else form.input)
        setattr(p, name, original + i * side.step)
        return int(operand) if side.copy is None else scratch + side.copy
