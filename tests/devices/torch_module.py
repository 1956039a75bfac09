"""A fake torch, as far as gemmhub uses it: tensors, devices, streams, the grad mode."""

from __future__ import annotations

import types
from contextlib import contextmanager

import ml_dtypes
import numpy as np
from machine import at, dense_strides

from gemmhub import dtypes


class dtype:  # noqa: N801
    def __init__(self, name, numpy):
        self.name, self.numpy, self.itemsize = name, numpy, numpy.itemsize

    def __repr__(self):
        return f"torch.{self.name}"


def build(machine):
    """A fresh ``torch`` for one machine."""
    torch = types.ModuleType("torch")
    torch.cuda, torch._C = types.SimpleNamespace(), types.SimpleNamespace()
    torch.version = types.SimpleNamespace(hip=None, cuda="13.0")
    torch.__version__ = "2.1.0"
    torch.nn, torch.autograd = types.SimpleNamespace(), types.SimpleNamespace()
    torch.strided, torch.sparse_coo = "torch.strided", "torch.sparse_coo"
    modes = {"grad": True, "inference": False}
    known = {}
    for name in dtypes.SUPPORTED:
        ours = np.dtype(getattr(ml_dtypes, name, None) or name)
        known[ours] = dtype(name, ours)
        setattr(torch, name, known[ours])
    torch.qint8 = dtype("qint8", np.dtype(np.int8))

    class OutOfMemoryError(RuntimeError):
        pass

    class device:  # noqa: N801
        def __init__(self, kind, index=None):
            self.type, self.index = kind, index

        def __eq__(self, other):
            return (self.type, self.index) == (other.type, other.index)

        def __hash__(self):
            return hash((self.type, self.index))

        def __repr__(self):
            return self.type if self.index is None else f"{self.type}:{self.index}"

    class Size(tuple):
        pass

    class Tensor:
        """A tensor on ``machine``'s memory, or on the host's; ``host`` is the same memory for the tests.

        ``_counter`` is the version counter: views share it, and autograd looks at it in a backward pass.
        """

        @classmethod
        def __torch_function__(cls, function, kinds, arguments=(), options=None):
            """torch's own functions make results of the subclass."""

        __torch_dispatch__ = None

        def __init__(self, host, kind, place, owner=None):
            self._counter = [0]
            self.host, self.dtype, self.device, self._owner = host, kind, place, owner
            self.requires_grad, self.layout = False, torch.strided
            self._conj = self._neg = False
            self.is_nested, self.is_meta, self._inference = False, False, modes["inference"]

        @property
        def is_cpu(self):
            return self.device.type == "cpu"

        @property
        def shape(self):
            return Size(self.host.shape)

        def stride(self):
            strides = self.host.strides if self.host.size else dense_strides(self.host.shape, self.host.itemsize)
            return tuple(step // self.host.itemsize for step in strides)

        def data_ptr(self):
            if self.layout is not torch.strided:
                raise RuntimeError("sparse tensors have no storage")
            return self.host.ctypes.data if self.host.size else 0

        def element_size(self):
            return self.host.itemsize

        def get_device(self):
            return -1 if self.device.index is None else self.device.index

        def numel(self):
            return self.host.size

        def is_conj(self):
            return self._conj

        def is_neg(self):
            return self._neg

        def is_inference(self):
            return self._inference

        @property
        def _version(self):
            if self._inference:
                raise RuntimeError("Inference tensors do not track version counter.")
            return self._counter[0]

        def _like(self, host, kind=None):
            made = type(self)(host, kind or self.dtype, self.device, self)
            if host is self.host or np.may_share_memory(host, self.host):
                made._counter, made._inference = self._counter, self._inference
            made._conj, made._neg, made.requires_grad = self._conj, self._neg, self.requires_grad
            return made

        def __getitem__(self, key):
            return self._like(self.host[key if isinstance(key, tuple) else (key, ...)])

        @property
        def T(self):  # noqa: N802
            return self._like(self.host.T)

        def conj(self):
            made = self._like(self.host)
            made._conj = not self._conj
            return made

        def negated(self):
            """As torch._neg_view."""
            made = self._like(self.host)
            made._neg = not self._neg
            return made

        def detach(self):
            made = self._like(self.host)
            made.requires_grad = False
            return made

        def resolve_conj(self):
            made = self._like(self.host.conj() if self._conj else self.host)
            made._conj = False
            return made

        def resolve_neg(self):
            made = self._like(-self.host if self._neg else self.host)
            made._neg = False
            return made

        def is_contiguous(self):
            return self.host.flags.c_contiguous

        def contiguous(self):
            return self._like(self.host if self.host.flags.c_contiguous else self.host.copy())

        def reshape(self, *shape):
            return self._like(self.host.reshape(*shape))

        def as_strided(self, shape, steps, offset=0):
            strides = [step * self.host.itemsize for step in steps]
            return self._like(
                at(self.host.ctypes.data + offset * self.host.itemsize, self.host.dtype, shape, strides, self)
            )

        def view(self, kind):
            if self.stride()[-1] != 1:
                raise RuntimeError("self.stride(-1) must be 1 to view it as of another size")
            if self._conj or self._neg:
                raise RuntimeError("torch refuses that")
            return self._like(self.host.view(kind.numpy), kind)

        def cpu(self):
            return Tensor(self.host.copy(), self.dtype, device("cpu"))

        def numpy(self):
            assert self.device.type == "cpu"
            return self.host

        def to(self, place):
            made = empty(self.shape, dtype=self.dtype, device=place)
            made.host[...] = self.host
            return made

        def copy_(self, other):
            machine.log.append(("copy", machine.streams("torch")[self.device.index]))
            self.host[...] = other.host
            self._counter[0] += 1

        def __imul__(self, other):
            machine.log.append(("multiply", machine.streams("torch")[self.device.index]))
            self.host[...] *= other
            self._counter[0] += 1
            return self

        def zero_(self):
            machine.log.append(("fill", machine.streams("torch")[self.device.index]))
            machine.clock += machine.fill_time(machine.clock)
            self.host.fill(0)
            self._counter[0] += 1

        def __dlpack_device__(self):
            return (1, 0) if self.device.type == "cpu" else (2, self.device.index)

        def __dlpack__(self, **options):
            return self.host.__dlpack__()

    def empty_strided(shape, steps, *, dtype, device):
        size = dtype.numpy.itemsize
        strides = [step * size for step in steps]
        nbytes = size + sum((n - 1) * step for n, step in zip(shape, strides)) if 0 not in shape else 0
        if device.type == "cpu":
            memory = np.empty(nbytes, np.uint8)
        else:
            memory = machine.allocate(nbytes, device.index)
            if memory is None:
                raise OutOfMemoryError(f"tried to allocate {nbytes} bytes")
        return Tensor(at(memory.ctypes.data, dtype.numpy, shape, strides, memory), dtype, device, memory)

    def empty(shape, *, dtype, device):
        shape = (shape,) if isinstance(shape, int) else shape
        steps = [step // dtype.numpy.itemsize for step in dense_strides(shape, dtype.numpy.itemsize)]
        return empty_strided(shape, steps, dtype=dtype, device=device)

    class Stream:
        def __init__(self, handle, index):
            self.cuda_stream, self.device = handle, device("cuda", index)

        def wait_stream(self, other):
            machine.log.append(("wait", self.cuda_stream, other.cuda_stream))

    def external(handle, device=None):
        index = machine.device if device is None else device.index
        return Stream(handle or 0x9001, index)  # for 0 the real one takes a stream of torch's own, too

    @contextmanager
    def streaming(stream):
        with machine.on(stream.device.index), machine.streaming("torch", stream.device.index, stream.cuda_stream):
            yield

    class Event:
        def __init__(self, enable_timing=False):
            self.device = None

        def record(self):
            assert self.device in (None, machine.device), "an event belongs to one device"
            self.device, self.time = machine.device, machine.clock
            machine.log.append(("record", machine.streams("torch")[machine.device]))

        def synchronize(self):
            machine.log.append(("synchronize", "event"))

        def elapsed_time(self, end):
            return max(1e-4, end.time - self.time)

    @contextmanager
    def mode(name, value):
        before, modes[name] = modes[name], value
        try:
            yield
        finally:
            modes[name] = before

    def from_dlpack(x):
        found = x.__dlpack__(stream=machine.streams("torch")[machine.device])
        host = at(found.address, found.dtype, found.shape, found.strides, found)
        return Tensor(host, known[found.dtype], device("cuda", found.device), found)

    def as_tensor(x, device):
        """Of the CUDA array interface; as the real one it copies to the device asked for."""
        assert device == "cuda"
        facts = x.__cuda_array_interface__
        kind, (address, _) = np.dtype(facts["typestr"]), facts["data"]
        strides = facts.get("strides") or dense_strides(facts["shape"], kind.itemsize)
        found = Tensor(at(address, kind, facts["shape"], strides, x), known[kind], place(machine.device), x)
        if address and machine.owner(address) < 0:
            raise RuntimeError("pointer of the host's")
        return found if not address or machine.owner(address) == machine.device else found.to(place(machine.device))

    def place(index):
        return device("cuda", index)

    def current(index=None):
        index = machine.device if index is None else index
        return Stream(machine.streams("torch")[index], index)

    vars(torch.cuda).update(
        device=machine.on, stream=streaming, ExternalStream=external, Event=Event, current_stream=current,
        default_stream=lambda index=None: Stream(0, machine.device if index is None else index),
        is_current_stream_capturing=lambda: machine.streams("torch")[machine.device] in machine.capturing,
        current_device=lambda: machine.device, synchronize=lambda index: machine.log.append(("synchronize", index)),
        get_device_properties=lambda index: types.SimpleNamespace(L2_cache_size=2**16),
    )  # fmt: skip
    torch._C._cuda_getCurrentRawStream = lambda index: machine.streams("torch")[index]
    torch.OutOfMemoryError, torch.Tensor, torch.device, torch.Size = OutOfMemoryError, Tensor, device, Size
    torch.empty, torch.empty_strided, torch.from_dlpack, torch.as_tensor = empty, empty_strided, from_dlpack, as_tensor
    torch.from_numpy = lambda x: Tensor(x, known[x.dtype], device("cpu"))
    torch.is_grad_enabled = lambda: modes["grad"]
    torch.no_grad = lambda: mode("grad", False)
    torch.inference_mode = lambda enabled=True: mode("inference", enabled)

    class Parameter(Tensor):
        """To torch's own functions it is a plain tensor."""

        __torch_function__ = object()

    def increment_version(x):
        """As that of torch 2.1, which does not take an inference tensor outside of the mode."""
        if x.is_inference() and not modes["inference"]:
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")
        x._counter[0] += 1

    torch.nn.Parameter = Parameter
    torch.autograd.graph = types.SimpleNamespace(increment_version=increment_version)
    Tensor.__module__ = "torch"
    return torch
