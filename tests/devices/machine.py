"""A machine with two fake CUDA devices: memory is the host's, streams and events are entries of a log."""

from __future__ import annotations

import threading
from bisect import bisect_right
from contextlib import contextmanager

import numpy as np

PAGE = 512
"""Bytes; allocations begin at a multiple of it, as on CUDA."""


class Machine:
    """The state that the fake libraries share: the memory, its owners, and a log of operations.

    ``log`` has tuples: ("wait", stream, other), ("copy", stream), ("fill", stream), ("record", stream),
    ("synchronize", what). ``capturing`` has the streams that are being captured into a graph. ``room`` is the number
    of bytes that may still be allocated; while ``lost`` the device answers nothing. ``fill_time`` returns the
    milliseconds of a memory fill that begins at a time of the device's clock.
    """

    def __init__(self, devices=2):
        self.devices = devices
        self.log = []
        self.lost = False
        self.room = float("inf")
        self.capturing = set()
        self._local = threading.local()
        self._owners = {}
        self._addresses = []
        self.clock = 0.0
        self.fill_time = lambda now: 0.01

    @property
    def device(self):
        """The current one of this thread."""
        return getattr(self._local, "device", 0)

    @device.setter
    def device(self, index):
        assert 0 <= index < self.devices
        self._local.device = index

    @contextmanager
    def on(self, index):
        before, self.device = self.device, index
        try:
            yield
        finally:
            self.device = before

    def streams(self, library):
        """{device: handle of the current stream} of a library in this thread."""
        if not hasattr(self._local, "streams"):
            self._local.streams = {}
        return self._local.streams.setdefault(library, dict.fromkeys(range(self.devices), 0))

    @contextmanager
    def streaming(self, library, index, handle):
        streams = self.streams(library)
        before, streams[index] = streams[index], handle
        try:
            yield
        finally:
            streams[index] = before

    def allocate(self, nbytes, device):
        """uint8 memory on a device; None where there is no room. RuntimeError while the device is ``lost``."""
        if self.lost:
            raise RuntimeError("an illegal memory access was encountered")
        if nbytes > self.room:
            return None
        memory = np.full(nbytes + 2 * PAGE, 0xA5, np.uint8)
        first = -memory.ctypes.data % PAGE
        memory = memory[first : first + nbytes]
        address = memory.ctypes.data
        self._owners[address] = (nbytes, device, memory)
        self._addresses = sorted(self._owners)
        return memory

    def owner(self, address):
        """The device that an address belongs to; -2 for the host's, as in CUDA."""
        place = bisect_right(self._addresses, address) - 1
        if place >= 0:
            nbytes, device, _ = self._owners[self._addresses[place]]
            if address < self._addresses[place] + max(1, nbytes):
                return device
        return -2

    def done(self, what):
        return [entry for entry in self.log if entry[0] == what]


class _At:
    def __init__(self, interface, owner):
        self.__array_interface__ = interface
        self.owner = owner


def at(address, dtype, shape, strides, owner=None):
    """The ndarray at an address, with strides in bytes."""
    dtype = np.dtype(dtype)
    if 0 in shape:
        return np.empty(shape, dtype)
    kind = {"shape": tuple(shape), "strides": tuple(strides), "typestr": f"|V{dtype.itemsize}", "version": 3}
    return np.asarray(_At({**kind, "data": (int(address), False)}, owner)).view(dtype)


def dense_strides(shape, itemsize):
    """In C order."""
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


class Capsule:
    """What the fakes' ``__dlpack__`` returns. Strides in bytes."""

    def __init__(self, address, dtype, shape, strides, device, owner):
        self.address, self.dtype, self.shape, self.strides = address, np.dtype(dtype), tuple(shape), tuple(strides)
        self.device, self.owner = device, owner
