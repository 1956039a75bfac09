"""The facts and refusals for machines with and without a usable NVIDIA driver."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_int
from types import SimpleNamespace

import pytest
from gemmhub_nvidia import probe
from gemmhub_nvidia.driver import FUNCTIONS, Driver

from gemmhub.capability import Absent
from gemmhub.testing.answers import honest


def looked(open_driver):
    found = probe.look(open_driver, "525", "an NVIDIA GPU")
    assert isinstance(found, Absent)
    honest(found, "probe()")
    return found


def raising(error):
    def fails():
        raise error

    return fails


class Library(SimpleNamespace):
    """A libcuda whose functions all return one status, but for those named otherwise."""

    def __init__(self, status, **others):
        makers = {name: CFUNCTYPE(c_int, *types) for name, types in FUNCTIONS.items()}
        answers = {name: others.get(name, lambda *given: status) for name in makers}
        super().__init__(**{name: make(answers[name]) for name, make in makers.items()})


def test_no_driver():
    found = looked(raising(OSError("libcuda.so.1: cannot open shared object file")))
    assert "no NVIDIA driver" in found.reason
    assert "an NVIDIA GPU" in found.remedy


def test_a_driver_without_a_function():
    found = looked(lambda: Driver(SimpleNamespace()))
    assert "too old" in found.reason
    assert "525" in found.remedy


def test_functions_asked_for_must_be_there():
    with pytest.raises(AttributeError, match="cuLaunchKernelEx"):
        Driver(Library(0), {"cuLaunchKernelEx": ()})


@pytest.mark.parametrize("status", [0, 100])
def test_no_device(status):
    """cuInit reports it, or the number of devices is 0."""
    assert "shows no device" in looked(lambda: Driver(Library(0, cuInit=lambda flags: status))).reason


def test_a_driver_that_fails():
    def name(code, out):
        ctypes.c_char_p.from_address(out).value = b"CUDA_ERROR_UNKNOWN"
        return 0

    found = looked(lambda: Driver(Library(0, cuInit=lambda flags: 999, cuGetErrorName=name)))
    assert "does not work: cuInit: CUDA_ERROR_UNKNOWN (999)" in found.reason


def test_versions_distinguish_cards_of_one_name():
    """An H100 and an H100 NVL, or an H200 that reports the same name: only the memory differs."""
    driver = SimpleNamespace(cuda_version=(12, 8))
    sxm, nvl = (SimpleNamespace(name="H100", sms=132, bandwidth=x) for x in (3.352e12, 3.938e12))
    assert probe.versions(driver, [sxm]) == {
        "driver": "12.8", "device": "H100", "multiprocessors": "132", "memory": "3.35 TB/s",
    }  # fmt: skip
    assert probe.versions(driver, [nvl])["memory"] == "3.94 TB/s"
    assert probe.versions(driver, [nvl, sxm, nvl])["memory"] == "3.35 TB/s + 3.94 TB/s"


@pytest.mark.parametrize("cuda", [(12,), (12, 4)])
def test_the_age_of_the_driver(cuda):
    assert probe.too_old(SimpleNamespace(cuda_version=(12, 4)), cuda, "550") is None
    found = probe.too_old(SimpleNamespace(cuda_version=(11, 8)), cuda, "550")
    assert f"runs up to CUDA 11.8, CUDA {'.'.join(map(str, cuda))} is needed" in found.reason
    assert "550" in found.remedy
