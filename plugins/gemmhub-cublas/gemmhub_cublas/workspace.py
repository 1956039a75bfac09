"""The scratch memory of a device: workspaces for the library, and zeros."""

from __future__ import annotations

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.scratch import Scratch


class Workspace(Scratch):
    """Workspaces that need not be zero: no product reads what an earlier one left there."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu, zeroed=False)
        self._zeros = (0, 0)

    def zeros(self, nbytes: int) -> int:
        """Return the address of ``nbytes`` zero bytes, which must not be written."""
        address, size = self._zeros
        if size < nbytes:
            size = max(nbytes, 2 * size)  # so that not each of many sizes allocates
            address = self._gpu.allocate(size, zeroed=True)
            self._zeros = (address, size)
        return address
