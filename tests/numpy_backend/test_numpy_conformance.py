"""The built-in backend passes the kit that every other backend is held to."""

from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing import ConformanceSuite


class TestNumpyBackend(ConformanceSuite):
    backend = NumpyBackend
