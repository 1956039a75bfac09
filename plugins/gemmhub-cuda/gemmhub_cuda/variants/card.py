"""The facts of a card that decide which variants run on it, and from which the cost model estimates."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_nvidia.driver import Gpu

_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM = 97, 81, 39  # CUdevice_attribute
_SLOW_SINGLE = ((7, 0), (7, 2), (7, 5), (8, 0))
"""Compute capabilities with 64 float32 multiply-adds per cycle and SM; others have 128."""
_TENSOR = {(8, 0): 1024, (8, 7): 1024, (9, 0): 1270}
"""16-bit multiply-adds of mma.sync per cycle and SM; others have 512. On 9.0 it is 0.62 of wgmma's 2048."""


@dataclass(frozen=True)
class Card:
    """The facts of a device that the model uses."""

    sms: int
    """SMs of the device."""
    clock: float
    """The highest clock of the SMs, in Hz."""
    bandwidth: float
    """Bandwidth of the memory, in bytes a second."""
    capability: tuple[int, int]
    """The compute capability."""
    shared_per_block: int
    """Largest shared memory of a CTA in bytes, if a kernel opts in."""
    shared_per_sm: int
    """Shared memory of an SM in bytes."""
    threads_per_sm: int
    """Threads that an SM runs at once."""
    name: str = ""
    """The name that the driver reports."""

    @property
    def single_cycles(self) -> int:
        """Cycles in which each scheduler of an SM issues a float32 multiply-add of a warp."""
        return 2 if self.capability in _SLOW_SINGLE else 1

    @property
    def tensor_rate(self) -> int:
        """16-bit multiply-adds of mma.sync per cycle and SM."""
        return _TENSOR.get(self.capability, 512)

    @classmethod
    def of(cls, gpu: Gpu) -> Card:
        """Return the facts of ``gpu``, from the driver."""
        per_block, per_sm, threads = map(gpu.attribute, (_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM))
        return cls(gpu.sms, gpu.clock, gpu.bandwidth, gpu.capability, per_block, per_sm, threads, gpu.name)
