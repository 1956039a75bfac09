"""The library without exclusions, as audits call it."""

from __future__ import annotations

import contextlib

import pytest
from fake_lt import ANY, TENSOR
from fakes import FakeMemory, Home, problem
from gemmhub_cublas.algorithm_proof import COPIES
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.every_algorithm import EveryAlgorithm
from gemmhub_cublas.library import Library
from gemmhub_nvidia.driver import Driver

from gemmhub._audit.backends import implementation
from gemmhub._audit.check import check
from gemmhub._audit.implementation import Refused
from gemmhub._audit.judge import Wrong
from gemmhub._audit.trials import Trial
from gemmhub.testing.case import Case


def made(home, kind):
    backend = kind(lambda: Driver(home.cuda, COPIES), lambda major: Library(home.lt, "libcublasLt.so"))
    return backend, backend.probe()


def test_nothing_is_excluded():
    home = Home()
    kept, every = (made(home, kind)[0] for kind in (CublasBackend, EveryAlgorithm))
    asked = problem(64, 64, 512, dtype="float16", activation="relu")
    names = {backend: {*backend.offer(asked).names} for backend in (kept, every)}
    assert names[kept] < names[every]


def test_an_audit_finds_what_the_backend_excludes():
    """Algorithms that leave out the K remainder of products with scales."""
    scaled = Case(
        32, 64, 48, a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn", out_dtype="bfloat16", b="col",
        operands={"scale_a": "tensor", "scale_b": "tensor"},
    )  # fmt: skip
    home = Home()

    def checked(kind):
        return check(implementation("cublaslt", *made(home, kind), FakeMemory(home)), Trial("product", scaled))

    assert checked(EveryAlgorithm) < 1
    home.lt.partial = {TENSOR, ANY}
    with pytest.raises(Wrong, match="error/bound"):
        checked(EveryAlgorithm)
    with contextlib.suppress(Refused):  # where no other algorithm is proposed
        assert checked(CublasBackend) < 1
