"""A packed b, as :func:`gemmhub.pack` returns it: a copy that is contiguous along K, with rows aligned to 16 bytes.

float32 is kept twice: as it is, for tf32 products, and split into planes, for products of float32's accuracy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from gemmhub.kit.cuda import DriverError, Gpu
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem
from gemmhub_hopper import operands, prepass
from gemmhub_hopper.config import Form
from gemmhub_hopper.k_passes import MARKS
from gemmhub_hopper.launch import Function

_LINE = 256
"""Alignment of the copies, in bytes."""


class PackedMatrix:
    """The memory of a packed b. The caller owns it through gemmhub's PackedB; it is freed with the last reference."""

    def __init__(self, gpu: Gpu, plain: int, planes: int) -> None:
        """Allocate ``plain`` bytes for a copy and ``planes`` bytes for planes. AllocationError without memory."""
        self._gpu = gpu
        plain = -(-plain // _LINE) * _LINE
        self.nbytes = 4 * MARKS + plain + planes
        self.marks = gpu.allocate(self.nbytes, zeroed=True)
        """The address of the marks (split_planes.cuh)."""
        self.plain = self.marks + 4 * MARKS
        self.planes = self.plain + plain

    def of(self, kind: str) -> int:
        """Return the address of what the kernel reads for an input of ``kind``."""
        return self.planes if kind == "split" else self.plain

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
    packed = PackedMatrix(gpu, sum(x for kind, x in sizes.items() if kind != "split"), sizes.get("split", 0))
    if not rows or not k:
        return packed
    layout: MatrixLayout = replace(problem.b.layout, batch=(), batch_strides=())
    b = replace(problem.b, layout=layout)
    with gpu:
        gpu.driver.call("cuCtxSynchronize")  # b may still be written on any stream
        for kind, copier in copiers.items():
            reading = operands.reading(replace(problem, b=b, batch=()), "b", b, 1, 0, forms[kind])
            reading = replace(reading, mn_major=False)
            call = Function(gpu, copier, prepass.Arguments(), 1, prepass.THREADS, 0)
            slot = call.slot()
            p = slot.arguments.p
            job = p.jobs[0]
            p.first_tiles = prepass.fill(job, reading, forms[kind], made[kind], k)
            job.source, job.to, job.marks = address, packed.of(kind), packed.marks
            slot.grid[0] = p.first_tiles
            call.check(call.start(slot, 0))
        gpu.driver.call("cuCtxSynchronize")
    return packed
