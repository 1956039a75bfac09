"""Both backends against gemmhub's promises, on the stub libraries of a simulated MUSA home."""

from __future__ import annotations

from gemmhub_mublas.backend import MublasBackend
from gemmhub_mublas.lt.backend import MublasLtBackend
from gemmhub_musa.testing import MusaMemory

from gemmhub.testing import ConformanceSuite


class TestMublas(ConformanceSuite):
    backend = MublasBackend
    memory = MusaMemory()


class TestMublasLt(ConformanceSuite):
    """Skips on SDK 3.1, which has no muBLASLt."""

    backend = MublasLtBackend
    memory = MusaMemory()
