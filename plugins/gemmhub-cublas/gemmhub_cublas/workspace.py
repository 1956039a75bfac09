"""The scratch memory of a device: workspaces for the library, and zeros."""

from __future__ import annotations

from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_scratch import Scratch


class Workspace(Scratch):
    """Nothing in a workspace must be zero, and what the library has left there no later product reads."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu, zeroed=False)
        self._zeros = (0, 0)

    def zeros(self, nbytes: int) -> int:
        """The address of ``nbytes`` zero bytes, never to be written."""
        address, size = self._zeros
        if size < nbytes:
            address = self._gpu.allocate(nbytes, zeroed=True)
            self._zeros = (address, nbytes)
        return address
