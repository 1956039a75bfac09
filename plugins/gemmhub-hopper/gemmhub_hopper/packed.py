"""A packed b, as :func:`gemmhub.pack` returns it: a copy that is contiguous along K, with rows aligned to 16 bytes.

float32 is kept twice: as it is, for tf32 products, and split into planes, for products of float32's accuracy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from gemmhub.kit.cuda import DriverError, Gpu
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem
from gemmhub_hopper import f16_planes, operands, prepass
from gemmhub_hopper.config import Form
from gemmhub_hopper.f16_planes import INPUT
from gemmhub_hopper.k_passes import MARKS
from gemmhub_hopper.launch import Function

_LINE = 256
"""Alignment of the copies, in bytes."""


class PackedMatrix:
    """The memory of a packed b. The caller owns it through gemmhub's PackedB; it is freed with the last reference."""

    def __init__(self, gpu: Gpu, plain: int, planes: int, f16_planes: int, scales: int) -> None:
        """Allocate bytes for a copy, for bfloat16 planes, and for float16 planes with their scales from ``scales`` on.

        Raises AllocationError without memory.
        """
        self._gpu = gpu
        plain, planes = (-(-nbytes // _LINE) * _LINE for nbytes in (plain, planes))
        self.nbytes = 4 * MARKS + plain + planes + f16_planes
        self.marks = gpu.allocate(self.nbytes, zeroed=True)
        """The address of the marks (split_planes.cuh)."""
        self.plain = self.marks + 4 * MARKS
        self.planes = self.plain + plain
        self.f16_planes = self.planes + planes
        self.scales = self.f16_planes + scales

    def of(self, kind: str) -> int:
        """Return the address of what the kernel reads for an input of ``kind``."""
        return {"split": self.planes, INPUT: self.f16_planes}.get(kind, self.plain)

    def __del__(self) -> None:
        address, self.marks = getattr(self, "marks", 0), 0
        if address:
            with suppress(DriverError):
                self._gpu.free(address)


def pack(gpu: Gpu, copiers: dict[str, int], address: int, problem: GemmProblem) -> PackedMatrix:
    """Pack the (k, n) matrix at ``address``. ``copiers``: the pre-passes by the kernel's input.

    Waits for all work on the device before and after. Raises AllocationError without memory, KernelError and
    DriverError.
    """
    rows, k = problem.n, problem.k
    forms = {kind: Form(False, False, kind, problem.out.dtype.name) for kind in copiers}
    made = {kind: operands.packed_form(form, rows, k) for kind, form in forms.items()}
    sizes = {kind: stored.count * stored.stride for kind, stored in made.items()}
    plain = sum(x for kind, x in sizes.items() if kind not in ("split", INPUT))
    f16, scales = 0, 0
    if INPUT in made:
        f16, scales = f16_planes.nbytes(rows, k, 1, made[INPUT]), f16_planes.scales_offset(made[INPUT])
    packed = PackedMatrix(gpu, plain, sizes.get("split", 0), f16, scales)
    if not rows or not k:
        return packed
    layout: MatrixLayout = replace(problem.b.layout, batch=(), batch_strides=())
    b = replace(problem.b, layout=layout)
    with gpu:
        gpu.driver.call("cuCtxSynchronize")  # b may still be written on any stream
        for kind, copier in copiers.items():
            reading = operands.reading(replace(problem, b=b, batch=()), "b", b, 1, 0, forms[kind])
            reading = replace(reading, mn_major=False)
            is_f16 = kind == INPUT
            template = f16_planes.Arguments(f16_planes.parameters(k)) if is_f16 else prepass.Arguments()
            call = Function(gpu, copier, template, 1, prepass.THREADS, 0)
            slot = call.slot()
            p = slot.arguments.p
            job = p.jobs[0]
            if is_f16:
                p.first_tiles = f16_planes.fill(job, reading, made[kind], False, k)
                job.scales = packed.scales
            else:
                p.first_tiles = p.tiles = prepass.fill(job, reading, forms[kind], made[kind], k)
            job.source, job.to, job.marks = address, packed.of(kind), packed.marks
            slot.grid[0] = p.first_tiles
            call.check(call.start(slot, 0))
        gpu.driver.call("cuCtxSynchronize")
    return packed
