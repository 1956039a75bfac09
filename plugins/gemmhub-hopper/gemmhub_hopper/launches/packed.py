"""A packed b, as :func:`gemmhub.pack` returns it: a copy that is contiguous along K, with rows aligned to 16 bytes.

float32 is kept twice: as it is, for tf32 products, and split into planes, for products of float32's accuracy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from gemmhub_nvidia.driver import DriverError, Gpu

from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem
from gemmhub_hopper.launches import prepass
from gemmhub_hopper.launches.launch import Function
from gemmhub_hopper.lowering import f16_planes, operands
from gemmhub_hopper.lowering.k_passes import MARKS
from gemmhub_hopper.variants.config import F16X3, Form

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

    def of(self, input_type: str) -> int:
        """Return the address of what the kernel reads for an input of ``input_type``."""
        return {"split": self.planes, F16X3: self.f16_planes}.get(input_type, self.plain)

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
    forms = {input_type: Form(False, False, input_type, problem.out.dtype.name) for input_type in copiers}
    layouts = {input_type: operands.packed_form(form, rows, k) for input_type, form in forms.items()}
    sizes = {input_type: stored.count * stored.stride for input_type, stored in layouts.items()}
    plain = sum(x for input_type, x in sizes.items() if input_type not in ("split", F16X3))
    f16, scales = 0, 0
    if F16X3 in layouts:
        f16, scales = f16_planes.nbytes(rows, k, 1, layouts[F16X3]), f16_planes.scales_offset(layouts[F16X3])
    packed = PackedMatrix(gpu, plain, sizes.get("split", 0), f16, scales)
    if not rows or not k:
        return packed
    layout: MatrixLayout = replace(problem.b.layout, batch=(), batch_strides=())
    b = replace(problem.b, layout=layout)
    with gpu:
        gpu.driver.call("cuCtxSynchronize")  # b may still be written on any stream
        for input_type, copier in copiers.items():
            access = operands.access(replace(problem, b=b, batch=()), "b", b, 1, 0, forms[input_type])
            access = replace(access, mn_major=False)
            is_f16 = input_type == F16X3
            template = f16_planes.Arguments(f16_planes.parameters(k)) if is_f16 else prepass.Arguments()
            call = Function(gpu, copier, template, 1, prepass.THREADS, 0)
            slot = call.slot()
            p = slot.arguments.p
            job = p.jobs[0]
            if is_f16:
                p.first_tiles = f16_planes.fill(job, access, layouts[input_type], False, k)
                job.scales = packed.scales
            else:
                p.first_tiles = p.tiles = prepass.fill(job, access, forms[input_type], layouts[input_type], k)
            job.source, job.to, job.marks = address, packed.of(input_type), packed.marks
            slot.grid[0] = p.first_tiles
            call.check(call.start(slot, 0))
        gpu.driver.call("cuCtxSynchronize")
    return packed
