"""A stub of torch_musa for the real torch: devices "musa" whose memory is a MUSA runtime's.

torch's device type for backends from outside, PrivateUse1, takes the name "musa", a module ``torch.musa`` and operators
in Python, as far as gemmhub and these tests call them. Tensors are made from DLPack capsules of gemmhub_musa.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from itertools import accumulate

import torch
from gemmhub_musa import array, dlpack, runtime
from torch.utils import backend_registration

from gemmhub.dtypes import as_dtype

rt = runtime.load()
streams = {}
"""The current streams, by device."""


class Stream:
    def __init__(self, handle, index):
        self.musa_stream, self.device = handle, torch.device("musa", index)


class ExternalStream(Stream):
    def __init__(self, handle, device):
        assert handle, "for 0 the real one takes a stream of torch's own"
        super().__init__(handle, device.index)


@contextmanager
def entered(stream):
    index = stream.device.index
    before, streams[index] = streams.get(index, 0), stream.musa_stream
    try:
        with rt.device(index):
            yield
    finally:
        streams[index] = before


def synchronize(index=None):
    with rt.device(index or 0):
        rt.synchronize()


module = types.ModuleType("torch.musa")
vars(module).update(
    Stream=Stream, ExternalStream=ExternalStream, stream=entered, synchronize=synchronize,
    device=lambda index: rt.device(index), current_stream=lambda index: Stream(streams.get(index, 0), index),
    default_stream=lambda index: Stream(0, index), is_available=lambda: True, device_count=lambda: 2,
    current_device=lambda: rt.current_device, get_device_name=lambda index: "MTT S4000",
    _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None,
)  # fmt: skip
backend_registration._setup_privateuseone_for_python_backend("musa", backend_module=module)
operators = torch.library.Library("aten", "IMPL")


def tensor_at(owner, address, index, dtype, shape, strides):
    """A tensor over memory of ``owner``; ``strides`` count elements."""
    kind = as_dtype(str(dtype).removeprefix("torch."))
    steps = tuple(step * kind.itemsize for step in strides)
    return torch.utils.dlpack.from_dlpack(dlpack.capsule(owner, address, index, kind, tuple(shape), steps))


def operator(name):
    def implement(function):
        operators.impl(name, function, "PrivateUse1")
        return function

    return implement


@operator("empty.memory_format")
def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    steps = [1, *accumulate((max(x, 1) for x in reversed(size[1:])), int.__mul__)][: len(size)]
    return empty_strided(size, steps[::-1], dtype=dtype, device=device)


@operator("empty_strided")
def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    dtype, span = dtype or torch.get_default_dtype(), 1 + sum((x - 1) * step for x, step in zip(size, stride))
    kind = as_dtype(str(dtype).removeprefix("torch."))
    memory = array.empty((0 if 0 in size else span * kind.itemsize,), as_dtype("uint8"), device.index or 0)
    return tensor_at(memory, memory.data.ptr, device.index or 0, dtype, size, stride)


@operator("as_strided")
def as_strided(x, size, stride, storage_offset=None):
    address = x.data_ptr() + ((storage_offset or 0) - x.storage_offset()) * x.itemsize
    return tensor_at(x, address, x.device.index, x.dtype, size, stride)


@operator("view")
def view(x, size):
    return as_strided(x, size, torch.empty(size, device="meta").stride(), x.storage_offset())


@operator("_copy_from")
def copy_from(source, into, non_blocking=False):
    """Between a contiguous tensor here and one of the host."""
    there, here = (into, source) if into.device.type == "musa" else (source, into)
    assert there.is_contiguous()
    assert here.is_contiguous()
    kind = runtime.TO_DEVICE if there is into else runtime.TO_HOST
    synchronize(there.device.index)
    with rt.device(there.device.index):
        rt.memcpy(into.data_ptr(), source.data_ptr(), source.numel() * source.itemsize, kind)
    return into


def fill_late(into, source, stream):
    """Copy on ``stream``, from the device, which the simulator does as late as the order of the work allows.

    Returns what must live until then.
    """
    there = source.to(into.device)
    with rt.device(into.device.index):
        rt.memcpy_async(into.data_ptr(), there.data_ptr(), source.numel() * source.itemsize, runtime.ON_DEVICE, stream)
    return there
