"""The built-in backend passes the conformance kit."""

from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing import ConformanceSuite


class TestNumpyBackend(ConformanceSuite):
    backend = NumpyBackend
