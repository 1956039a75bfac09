"""The facts of a card that decide which variants run on it, and from which the cost model estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gemmhub_nvidia.driver import Gpu

from gemmhub_cuda.variants.form import FLOAT8
from gemmhub_cuda.variants.limits import Sm

_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM, _CTAS_PER_SM, _SHARED_RESERVED, _L2 = 97, 81, 39, 106, 111, 38
"""Numbers of CUdevice_attribute."""


class Rates(NamedTuple):
    """Multiply-adds per cycle and SM, by the dtype of the operands; of mma.sync where tensor cores compute them."""

    float32: int
    """Without tensor cores."""
    half: int
    """float16 and bfloat16, summed in float32."""
    int8: int
    float8: int
    """Summed in float32; 0 where there is no such instruction."""

    def of(self, dtype: str) -> int:
        """Return the rate of products of ``dtype``, as :attr:`gemmhub_cuda.variants.form.Form.input` names it."""
        if dtype in FLOAT8:
            return self.float8
        return {"float32": self.float32, "float16": self.half, "bfloat16": self.half, "int8": self.int8}[dtype]


_RATES = {
    (7, 0): Rates(64, 512, 0, 0), (7, 2): Rates(64, 512, 0, 0), (7, 5): Rates(64, 512, 1024, 0),
    (8, 0): Rates(64, 1024, 2048, 0), (8, 6): Rates(128, 512, 1024, 0), (8, 7): Rates(128, 1024, 2048, 0),
    (8, 9): Rates(128, 512, 1024, 1024), (9, 0): Rates(128, 1270, 2540, 2540),
    (12, 0): Rates(128, 512, 1024, 1024), (12, 1): Rates(128, 512, 1024, 1024),
}  # fmt: skip
"""Rates by compute capability, from the published peak rates of cards, their SMs and clocks. That of mma.sync on 9.0
was measured for 16 bits, 0.62 of wgmma's 2048, and twice that is assumed for 8 bits."""
_OTHER = Rates(128, 512, 1024, 1024)
"""Rates that are assumed for other compute capabilities."""
_HALVED = ((8, 6), (8, 9), (12, 0))
"""Compute capabilities whose GeForce cards add to float32 accumulators at half the rate."""
_GEFORCE = "GeForce"


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
    l2_bytes: int = 0
    """Bytes of the L2 cache; 0 where unknown."""
    ctas_per_sm: int = 32
    """CTAs that an SM runs at once."""
    shared_reserved: int = 1024
    """Bytes of shared memory that each CTA takes beyond those that it requests."""

    @property
    def sm(self) -> Sm:
        """The resources of an SM."""
        return Sm(
            self.shared_per_block, self.shared_per_sm, self.threads_per_sm, self.ctas_per_sm, self.shared_reserved
        )

    @property
    def rates(self) -> Rates:
        """The peak rates of an SM."""
        rates = _RATES.get(self.capability, _OTHER)
        if self.capability in _HALVED and _GEFORCE in self.name:
            return rates._replace(half=rates.half // 2, float8=rates.float8 // 2)
        return rates

    @property
    def single_cycles(self) -> int:
        """Cycles in which each scheduler of an SM issues a float32 multiply-add of a warp."""
        return 128 // self.rates.float32

    @classmethod
    def of(cls, gpu: Gpu) -> Card:
        """Return the facts of ``gpu``, from the driver."""
        per_block, per_sm, threads, ctas, reserved, l2 = map(
            gpu.attribute,
            (_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM, _CTAS_PER_SM, _SHARED_RESERVED, _L2),
        )
        return cls(
            gpu.sms, gpu.clock, gpu.bandwidth, gpu.capability, per_block, per_sm, threads, gpu.name, l2, ctas, reserved
        )
