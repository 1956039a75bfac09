"""A packed b, as :func:`gemmhub.pack` returns it: a row-major copy, each row at the start of a line."""

from __future__ import annotations

from gemmhub_musa.array import Memory
from gemmhub_musa.runtime import Runtime

from gemmhub.layout import MatrixLayout
from gemmhub_musa_kernels.library import Library
from gemmhub_musa_kernels.lower import pitch


class PackedMatrix:
    """A packed b, owned by the caller through gemmhub's PackedB; its memory is freed with the last reference."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def address(self) -> int:
        """The address of the copy."""
        return self._memory.address

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return self._memory.nbytes


def pack(runtime: Runtime, index: int, copier: Library, address: int, b: MatrixLayout) -> PackedMatrix:
    """Return a copy of the (k, n) matrix at ``address``. Waits for all work on the device, before and after.

    Raises AllocationError without memory, KernelError and MusaError where the device fails.
    """
    memory = Memory(runtime, index, 2 * b.rows * pitch(b.cols))
    with runtime.device(index):
        runtime.synchronize()  # b may be written on any stream
        copier.copy(address, memory.address, b.rows, b.cols, b.row_stride, b.col_stride, pitch(b.cols), 0)
        runtime.synchronize()
    return PackedMatrix(memory)
