"""Launches prepared products."""

from __future__ import annotations

from typing import Any

from gemmhub_musa import workspace
from gemmhub_musa.runtime import MusaError, Runtime

from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels import choose, copies, sqmma
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.library import NAME, Library
from gemmhub_musa_kernels.lower import Gemm, pitch
from gemmhub_musa_kernels.packed import PackedMatrix
from gemmhub_musa_kernels.parameters import Parameters, copied, parameters
from gemmhub_musa_kernels.probe import Machine
from gemmhub_musa_kernels.sources import SQMMA, TRANSPOSE

_LINE = 256


def prepared(
    machine: Machine, problem: GemmProblem, gemm: Gemm, candidate: Candidate, added: str | None
) -> Product | Refusal:
    """Return the product of ``candidate``, proven or not; compiled where needed. Raises AllocationError.

    ``added``: an activation that its library is compiled with beside those of all kernels.
    """
    arch = machine.cards[problem.device.index].arch
    if candidate.kernel == SQMMA and not sqmma.fits(gemm):
        return Refusal(
            "tensor copies cannot read these operands", "pass one contiguous matrix each, aligned to 16 bytes"
        )
    library = machine.libraries.get(
        candidate.kernel, arch, choose.defines(candidate, arch, problem.a.dtype, problem.out.dtype), added
    )
    if isinstance(library, Refusal):
        return library
    copier = copier_of(machine, problem.device.index) if candidate.transposed else None
    if isinstance(copier, Refusal):
        return copier
    return Product(machine.runtime, problem, gemm, candidate, library, copier)


def copier_of(machine: Machine, index: int) -> Library | Refusal:
    """Return the library that copies operands on a device, proven or not."""
    return machine.libraries.get(TRANSPOSE, machine.cards[index].arch, ())


class Product:
    """``run`` has the signature of :class:`gemmhub.backend.Run`; it may be called from several threads."""

    def __init__(
        self,
        runtime: Runtime,
        problem: GemmProblem,
        gemm: Gemm,
        candidate: Candidate,
        library: Library,
        copier: Library | None,
    ) -> None:
        """``copier`` copies operands where ``candidate`` asks for it. Raises AllocationError without memory."""
        self._runtime, self._index, self._library, self._copier = runtime, problem.device.index, library, copier
        self._gemm = gemm
        final = copied(gemm, candidate.transposed)
        self._template = bytes(parameters(final, problem))
        self._deep = choose.deep_operands(final, ())
        self._offsets: dict[str, int] = {}
        self.workspace_bytes = 0
        for operand in candidate.transposed:
            self._offsets[operand] = self.workspace_bytes
            self.workspace_bytes += -(-copies.scratch_bytes(gemm, operand) // _LINE) * _LINE
        self._workspace = workspace.of(runtime, self._index)
        with runtime.device(self._index):
            library.configure(*self._deep)
            self._workspace.reserve(self.workspace_bytes, copies.MOST_BYTES)

    def run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None
    ) -> None:
        if isinstance(b, PackedMatrix):
            b = b.address
        first, second = (b, a) if self._gemm.swapped else (a, b)
        call = Parameters.from_buffer_copy(self._template)
        call.a, call.b, call.c, call.bias, call.d = first, second, c, bias, out
        call.alpha, call.beta = alpha, beta if c is not None else 0.0
        try:
            with self._runtime.device(self._index):
                if not self.workspace_bytes:
                    self._library.gemm(call, *self._deep, stream)
                    return
                with self._workspace.lease(stream, self.workspace_bytes) as block:
                    self._copy(call, block.address, stream)
                    self._library.gemm(call, *self._deep, stream)
        except MusaError as error:
            raise KernelError(NAME, str(error)) from error

    def _copy(self, call: Parameters, scratch: int, stream: int) -> None:
        """Enqueue the copies of operands, and put their addresses into ``call``."""
        assert self._copier is not None
        gemm = self._gemm
        for operand, offset in self._offsets.items():
            to, (lines, elements) = scratch + offset, copies.lines_of(gemm, operand)
            along_k = operand == "a" and not gemm.pinned
            row, col = (gemm.a.col, gemm.a.row) if along_k else (gemm.strides(operand).row, gemm.strides(operand).col)
            self._copier.copy(getattr(call, operand), to, lines, elements, row, col, pitch(elements), stream)
            setattr(call, operand, to)
