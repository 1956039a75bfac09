"""Tensors of torch on the CPU that gemmhub gets as those of a device."""

from __future__ import annotations

from contextlib import nullcontext

import torch

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
