"""The resources of an SM, which bound the CTAs that it runs at once; those of each architecture.

The figures are those of the table of compute capabilities in NVIDIA's CUDA programming guide. A kernel is compiled for
an architecture, so the launch bounds that limit its registers come from :data:`SMS`. What a device runs at once follows
from the figures that its driver reports (:attr:`gemmhub_cuda.variants.card.Card.sm`).
"""

from __future__ import annotations

from typing import NamedTuple


class Sm(NamedTuple):
    """The resources of an SM."""

    shared_per_block: int
    """Largest shared memory of a CTA in bytes, if a kernel opts in."""
    shared_per_sm: int
    """Shared memory of the SM in bytes."""
    threads: int
    """Threads that it runs at once."""
    ctas: int
    """CTAs that it runs at once."""
    reserved: int
    """Bytes of shared memory that each CTA takes beyond those that it requests."""

    def ctas_at_once(self, threads: int, shared_bytes: int) -> int:
        """Return for how many CTAs of so many threads and bytes of shared memory it has room: 0 where not for one."""
        if shared_bytes > self.shared_per_block:
            return 0
        return min(self.shared_per_sm // (shared_bytes + self.reserved), self.threads // threads, self.ctas)


def _sm(shared_per_block: int, shared_per_sm: int, threads: int, ctas: int, reserved: int = 1) -> Sm:
    """Return the resources, of which those of shared memory are given in KiB."""
    return Sm(1024 * shared_per_block, 1024 * shared_per_sm, threads, ctas, 1024 * reserved)


SMS = {
    (7, 0): _sm(96, 96, 2048, 32, reserved=0), (7, 2): _sm(96, 96, 2048, 32, reserved=0),
    (7, 5): _sm(64, 64, 1024, 16, reserved=0),
    (8, 0): _sm(163, 164, 2048, 32), (8, 6): _sm(99, 100, 1536, 16), (8, 7): _sm(163, 164, 1536, 16),
    (8, 9): _sm(99, 100, 1536, 24), (9, 0): _sm(227, 228, 2048, 32),
    (10, 0): _sm(227, 228, 2048, 32), (10, 3): _sm(227, 228, 2048, 32),
    (12, 0): _sm(99, 100, 1536, 24), (12, 1): _sm(99, 100, 1536, 24),
}  # fmt: skip
"""The resources of an SM by compute capability."""
_SMALLEST = _sm(64, 64, 1024, 16)
"""The resources that an SM of every compute capability has."""


def of(capability: tuple[int, int]) -> Sm:
    """Return the resources of an SM of that compute capability; of an unknown one, those that all have."""
    return SMS.get(capability, _SMALLEST)
