"""The scratch memory of a device: workspaces for the library, and zeros."""

from __future__ import annotations

import threading

from gemmhub.native.cuda import Gpu
from gemmhub.native.cuda_scratch import Scratch


class Workspace(Scratch):
    """The library launches several kernels for one product: whoever puts one on a stream holds the buffer's lock."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu, zeroed=False)
        self._zeros = (0, 0)
        self._zeros_lock = threading.Lock()

    def zeros(self, nbytes: int) -> int:
        """The address of ``nbytes`` zero bytes, never to be written."""
        with self._zeros_lock:
            address, size = self._zeros
            if size < nbytes:
                address = self._gpu.allocate(nbytes, zeroed=True)
                self._zeros = (address, nbytes)
            return address
