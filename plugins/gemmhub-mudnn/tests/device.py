"""Memory of a simulated device for the conformance kit, operands of problems there, and the simulator's switches."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
from gemmhub_musa import runtime
from gemmhub_musa.runtime import TO_DEVICE, TO_HOST

from gemmhub.capability import Device
from gemmhub.testing import Memory


def sim():
    """The simulator's own functions."""
    from gemmhub_musa_sim.runtime import loaded_runtime

    library = loaded_runtime()
    library.musaSimLive.restype = ctypes.c_size_t
    library.musaSimMessage.restype = ctypes.c_char_p
    library.musaSimLimit.argtypes = [ctypes.c_size_t]
    return library


class Buffer:
    """Device memory that is freed with this object."""

    def __init__(self, rt, index, nbytes):
        self.nbytes = nbytes
        with rt.device(index):
            self.address = rt.malloc(nbytes)
        weakref.finalize(self, rt.free, self.address)


class MusaMemory(Memory):
    """Work on a stream of its own, so that what is not ordered by the stream shows."""

    def __init__(self, index=0):
        self.device = Device("musa", index)
        self._stream = None

    @property
    def runtime(self):
        return runtime.machine().runtime

    def _here(self):
        return self.runtime.device(self.device.index)

    @property
    def stream(self):
        if self._stream is None:
            with self._here():
                self._stream = self.runtime.stream_create()
        return self._stream

    def empty(self, nbytes):
        return Buffer(self.runtime, self.device.index, nbytes)

    def write(self, buffer, data):
        data = np.ascontiguousarray(data)
        with self._here():
            self.runtime.memcpy(buffer.address, data.ctypes.data, data.nbytes, TO_DEVICE)

    def read(self, buffer):
        data = np.empty(buffer.nbytes, np.uint8)
        with self._here():
            self.runtime.memcpy(data.ctypes.data, buffer.address, data.nbytes, TO_HOST)
        return data

    def view(self, buffer, dtype, shape, strides, offset):
        return buffer.address + offset

    def synchronize(self):
        with self._here():
            self.runtime.stream_synchronize(self.stream)
