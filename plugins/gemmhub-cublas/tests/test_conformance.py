"""The plugin against gemmhub's promises, on a fake cuBLASLt that computes what its descriptors specify."""

from __future__ import annotations

import pytest
from fakes import FakeMemory, Home

from gemmhub.testing import ConformanceSuite

HOME = Home()


class TestOnFake(ConformanceSuite):
    backend = staticmethod(HOME.backend)
    memory = FakeMemory(HOME)

    @pytest.fixture(autouse=True)
    def _no_complaints(self):
        HOME.cuda.complaints.clear()
        yield
        assert HOME.cuda.complaints == []
        assert HOME.cuda.stack == []
