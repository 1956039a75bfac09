"""Counts a kernel's memory accesses, for authors without a card to profile it on.

Kernels compiled with the checker's hooks (see :mod:`checks`) are counted while :func:`counting` is on. The rules are
simple on purpose: a transaction with global memory moves a line of 128 bytes and nothing is cached; shared memory has
32 banks of 4 or of 8 bytes, and a warp's request takes as many wavefronts as its busiest bank has words to give. Lines
of 128 bytes are published for mp_22, the number of banks is not.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gemmhub_musa_sim.runtime.loaded import loaded_runtime

LINE_BYTES = 128


@dataclass(frozen=True)
class Site:
    """One instruction of a kernel that accesses memory, over all warps that executed it."""

    place: str
    space: str
    """ "global" or "shared"."""
    operation: str
    """ "read" or "write"."""
    requests: int
    """Requests of warps; up to 128 (mp_22) or 32 (mp_31) lanes take part in one."""
    lane_bytes: int
    """Bytes that all lanes together asked for."""
    distinct_bytes: int
    """The same, each byte counted once in a request."""
    transactions: int = 0
    """Global memory: lines of 128 bytes that the requests touched."""
    ideal_transactions: int = 0
    """The fewest lines that could have held the distinct bytes."""
    wavefronts_4: int = 0
    """Shared memory: wavefronts that the requests took with banks of 4 bytes (``wavefronts_8``: of 8 bytes)."""
    ideal_wavefronts_4: int = 0
    wavefronts_8: int = 0
    ideal_wavefronts_8: int = 0

    @property
    def coalesced(self) -> float:
        """The fraction of the moved bytes that a lane had asked for; 1 where nothing was moved."""
        return self.distinct_bytes / (self.transactions * LINE_BYTES) if self.transactions else 1.0

    def bank_conflicts(self, bank_bytes: int) -> int:
        """Wavefronts beyond the fewest possible, with banks of 4 or 8 bytes."""
        if bank_bytes == 8:
            return self.wavefronts_8 - self.ideal_wavefronts_8
        return self.wavefronts_4 - self.ideal_wavefronts_4


@dataclass(frozen=True)
class KernelCounters:
    """One kernel, over its launches."""

    kernel: str
    launches: int
    blocks: int
    threads: int
    barriers: int
    """Barriers that blocks passed, summed over all blocks."""
    async_copies: int
    async_bytes: int
    bank_bytes: int
    """The width of a bank that the program chose by musaFuncSetSharedMemConfig: 4 or 8."""
    minimum_read_bytes: int
    """Distinct bytes of global memory that a launch reads: the traffic if every byte were read once."""
    minimum_written_bytes: int
    sites: list[Site] = field(default_factory=list)

    def _sum(self, name: str, space: str, operation: str | None = None) -> int:
        sites = (site for site in self.sites if site.space == space and operation in (None, site.operation))
        return sum(getattr(site, name) for site in sites)

    @property
    def read_bytes(self) -> int:
        """Bytes moved from global memory."""
        return self._sum("transactions", "global", "read") * LINE_BYTES

    @property
    def written_bytes(self) -> int:
        return self._sum("transactions", "global", "write") * LINE_BYTES

    @property
    def transactions(self) -> int:
        return self._sum("transactions", "global")

    @property
    def moved_over_minimum(self) -> float:
        """Moved bytes over the fewest possible: the factor that caches must save."""
        minimum = self.minimum_read_bytes + self.minimum_written_bytes
        return (self.read_bytes + self.written_bytes) / minimum if minimum else 0.0

    @property
    def bank_conflicts_4(self) -> int:
        return self._sum("wavefronts_4", "shared") - self._sum("ideal_wavefronts_4", "shared")

    @property
    def bank_conflicts_8(self) -> int:
        return self._sum("wavefronts_8", "shared") - self._sum("ideal_wavefronts_8", "shared")

    def table(self) -> str:
        """Return the counters as text, a line for each site."""
        lines = [
            f"{self.kernel}: {self.launches} launches, {self.blocks} blocks, {self.threads} threads",
            f"  barriers {self.barriers}, asynchronous copies {self.async_copies} ({self.async_bytes} bytes)",
            f"  global memory: {self.read_bytes} bytes read, {self.written_bytes} written;"
            f" at least {self.minimum_read_bytes} and {self.minimum_written_bytes}:"
            f" {self.moved_over_minimum:.2f} times that",
            f"  bank conflicts: {self.bank_conflicts_4} with banks of 4 bytes, {self.bank_conflicts_8} of 8",
        ]
        for site in sorted(self.sites, key=lambda site: (site.space, -site.transactions, -site.wavefronts_4)):
            what = f"{site.place:24} {site.space} {site.operation:5} {site.requests:8} requests"
            if site.space == "global":
                lines.append(f"  {what} {site.transactions:8} lines, {site.coalesced:.0%} of them asked for")
            else:
                conflicts = f"{site.bank_conflicts(4)} (4 bytes), {site.bank_conflicts(8)} (8 bytes)"
                lines.append(f"  {what} conflicts {conflicts}")
        return "\n".join(lines)


def read(runtime: ctypes.CDLL | None = None) -> list[KernelCounters]:
    """Return the counters since the last clear (:func:`checks.clear`), a kernel each."""
    library = runtime or loaded_runtime()
    library.musaSimCounters.restype = ctypes.c_char_p
    entries = json.loads(library.musaSimCounters())
    return [KernelCounters(**{**entry, "sites": [Site(**site) for site in entry["sites"]]}) for entry in entries]


@contextmanager
def counting(runtime: ctypes.CDLL | None = None) -> Iterator[None]:
    """Count in launches that are synchronised before the block ends; what was counted before is cleared."""
    library = runtime or loaded_runtime()
    library.musaSimClear()
    library.musaSimSetOption(b"COUNT", 1)
    try:
        yield
        library.musaDeviceSynchronize()
    finally:
        library.musaSimSetOption(b"COUNT", 0)
