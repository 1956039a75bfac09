"""The workspace of a device: scratch memory of :mod:`gemmhub.native.cuda_scratch`, and whose turn it is."""

from __future__ import annotations

import threading

from gemmhub.native.cuda import Gpu
from gemmhub.native.cuda_scratch import Scratch


class Workspace(Scratch):
    """A buffer for each stream. Two threads may use one stream: whoever puts kernels on it that find in the buffer what
    the ones before have left there holds ``turn`` until the last one is on its way.
    """

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.turn = threading.Lock()
