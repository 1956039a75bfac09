"""Tensors of torch on the CPU that gemmhub gets as those of a device."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from address_backend import add

from gemmhub import api
from gemmhub._arrays import find
from gemmhub._arrays.torch.operands import TorchArrays
from gemmhub.capability import Device


class OnDevice(TorchArrays):
    """Tensors on the CPU, as those of a device."""

    def __init__(self):
        super().__init__(Device("cuda", 0))
        self.torch_device = torch.device("cpu")

    def on(self, stream):
        return nullcontext()

    def current_stream(self):
        return 7

    def capturing(self):
        return False


class InHostMemory:
    """A part of a backend: its results are as aligned as torch's memory on the CPU."""

    def kernel(self, problem, candidate):
        return super().kernel(replace(problem, out=replace(problem.out, alignment=1)), candidate)


def take_tensors(monkeypatch):
    """Let gemmhub take torch's tensors for those of the device."""
    arrays, original = OnDevice(), find.native_arrays

    def native(x, argument):
        return arrays if isinstance(x, torch.Tensor) else original(x, argument)

    monkeypatch.setattr(find, "native_arrays", native)


@contextmanager
def on_the_device(monkeypatch, backend):
    """Let gemmhub take torch's tensors for those of the device, and ``backend`` for one of its backends."""
    take_tensors(monkeypatch)
    api.forget_decisions()
    yield add(backend)
    assert not backend.violations
    api.forget_decisions()
