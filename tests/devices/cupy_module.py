"""A fake cupy, as far as gemmhub uses it."""

from __future__ import annotations

import types

import numpy as np
from machine import Capsule, at, dense_strides

CUDA = 2


def build(machine):
    """A fresh ``cupy`` for one machine."""
    cupy = types.ModuleType("cupy")
    cupy.cuda = cuda = types.SimpleNamespace()

    class OutOfMemoryError(MemoryError):
        pass

    class Memory:
        def __init__(self, ptr, size, device_id, owner):
            self.ptr, self.size, self.device_id, self.owner = ptr, size, device_id, owner

    class MemoryPointer:
        def __init__(self, mem, offset):
            self.mem, self.device_id, self.ptr = mem, mem.device_id, mem.ptr + offset
            self._offset = offset

        def __add__(self, offset):
            return MemoryPointer(self.mem, self._offset + offset)

    def unowned(ptr, size, owner, device_id=-1):
        return Memory(ptr, size, machine.owner(ptr) if ptr and device_id < 0 else machine.device, owner)

    class Device:
        def __init__(self, device=None):
            self.id = machine.device if device is None else int(device)
            self.attributes = {"L2CacheSize": 2**16}
            self._stack = []

        def __enter__(self):
            self._stack.append(machine.device)
            machine.device = self.id
            return self

        def __exit__(self, *error):
            machine.device = self._stack.pop()

        def __eq__(self, other):  # and so, as the real one, it cannot be hashed
            return self.id == other.id

        def synchronize(self):
            machine.log.append(("synchronize", self.id))

    class Event:
        def __init__(self, block=False, disable_timing=False):
            self.device, self.stream, self.time = machine.device, None, None

        def record(self, stream=None):
            (stream or get_current_stream()).record(self)

        def synchronize(self):
            machine.log.append(("synchronize", "event"))

    class ExternalStream:
        def __init__(self, ptr, device_id=-1):
            self.ptr, self.device_id = ptr, machine.device if device_id < 0 else device_id
            self._within = []

        def __enter__(self):
            if machine.device != self.device_id:
                raise RuntimeError(f"stream of device {self.device_id}, but {machine.device} is current")
            self._within.append(machine.streaming("cupy", self.device_id, self.ptr))
            self._within[-1].__enter__()
            return self

        def __exit__(self, *error):
            self._within.pop().__exit__(*error)

        def record(self, event=None):
            event = Event() if event is None else event
            assert event.device == self.device_id == machine.device, "an event belongs to one device"
            event.stream, event.time = self.ptr, machine.clock
            machine.log.append(("record", self.ptr))
            return event

        def is_capturing(self):
            return self.ptr in machine.capturing

        def wait_event(self, event):
            machine.log.append(("wait", self.ptr, event.stream))

        def synchronize(self):
            machine.log.append(("synchronize", "stream"))

        def __cuda_stream__(self):
            return 0, self.ptr

    def get_current_stream(device_id=-1):
        device_id = machine.device if device_id < 0 else device_id
        return ExternalStream(machine.streams("cupy")[device_id], device_id)

    class ndarray:  # noqa: N801
        """As in cupy, made on the current device; ``host`` is the same memory for the tests."""

        def __init__(self, shape, dtype=float, memptr=None, strides=None):
            self.shape, self.dtype = tuple(shape), np.dtype(dtype)
            self.itemsize, self.ndim = self.dtype.itemsize, len(self.shape)
            self.size = int(np.prod(self.shape))
            self.strides = dense_strides(self.shape, self.itemsize) if strides is None else tuple(strides)
            if memptr is None:
                nbytes = self.size * self.itemsize
                memory = machine.allocate(nbytes, machine.device)
                if memory is None:
                    raise OutOfMemoryError(f"{nbytes} bytes")
                memptr = MemoryPointer(Memory(memory.ctypes.data, nbytes, machine.device, memory), 0)
            self.data = memptr
            self.host = at(memptr.ptr, self.dtype, self.shape, self.strides, memptr.mem)

        @property
        def device(self):
            return Device(self.data.device_id)

        def _view(self, host):
            offset = host.ctypes.data - self.host.ctypes.data
            return ndarray(host.shape, self.dtype, self.data + offset, host.strides)

        def __getitem__(self, key):
            return self._view(self.host[key if isinstance(key, tuple) else (key, ...)])

        def __setitem__(self, key, value):
            assert self.data.device_id == machine.device, "cupy writes on the current device only"
            machine.log.append(("copy", get_current_stream().ptr))
            self.host[key] = value.host if isinstance(value, ndarray) else value

        def __imul__(self, other):
            machine.log.append(("multiply", get_current_stream().ptr))
            self.host[...] *= other
            return self

        def __dlpack_device__(self):
            return CUDA, self.data.device_id

        def __dlpack__(self, *, stream=None, **options):
            return Capsule(self.data.ptr, self.dtype, self.shape, self.strides, self.data.device_id, self)

        @property
        def __cuda_array_interface__(self):
            facts = {"shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False), "version": 3}
            return facts | {"strides": self.strides, "stream": get_current_stream().ptr or 1}

        def fill(self, value):
            machine.log.append(("fill", get_current_stream().ptr))
            machine.clock += machine.fill_time(machine.clock)
            self.host.fill(value)

        @property
        def T(self):  # noqa: N802
            return self._view(self.host.T)

        def transpose(self, axes):
            return self._view(self.host.transpose(axes))

        def reshape(self, shape):
            host = self.host.reshape(shape)
            return self._view(host) if np.may_share_memory(host, self.host) else asarray(host)

        def diagonal(self, offset, first, second):
            return self._view(self.host.diagonal(offset, first, second))

        def sum(self, axes, dtype):
            return asarray(self.host.sum(axes, dtype=dtype))

        def astype(self, dtype):
            return asarray(self.host.astype(dtype))

        def __mul__(self, other):
            return asarray(np.multiply(self.host, other.host))

    def elapsed(start, end):
        return max(1e-4, end.time - start.time)

    def empty(shape, dtype=float):
        return ndarray(shape, dtype)

    def asarray(x):
        made = ndarray(x.shape, x.dtype)
        made.host[...] = x
        return made

    def from_dlpack(x):
        assert x.__dlpack_device__()[0] == CUDA
        found = x.__dlpack__(stream=get_current_stream().ptr)
        memory = Memory(found.address, 0, found.device, found)
        return ndarray(found.shape, found.dtype, MemoryPointer(memory, 0), found.strides)

    runtime = types.SimpleNamespace(
        getDevice=lambda: machine.device,
        pointerGetAttributes=lambda address: types.SimpleNamespace(device=machine.owner(address)),
        is_hip=False,
    )
    vars(cuda).update(
        Device=Device, Event=Event, ExternalStream=ExternalStream, get_current_stream=get_current_stream,
        get_elapsed_time=elapsed, MemoryPointer=MemoryPointer, UnownedMemory=unowned, runtime=runtime,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    )  # fmt: skip
    ndarray.__module__ = "cupy"
    cupy.ndarray, cupy.empty, cupy.asarray, cupy.from_dlpack = ndarray, empty, asarray, from_dlpack
    cupy.zeros = lambda *arguments: asarray(np.zeros(*arguments))
    cupy.asnumpy = lambda x: x.host.copy()
    return cupy
