"""Probing reports what is missing as Absent, with a reason and a remedy, and never raises."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fakes import Home, problem
from gemmhub_cublas import library
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.library import Library
from gemmhub_nvidia.driver import Driver

from gemmhub.backend import Offer
from gemmhub.capability import Absent, Device, Ready
from gemmhub.kit import install
from gemmhub.testing.answers import honest


def absent(home, open_driver=None, open_library=None):
    backend = CublasBackend(
        open_driver or (lambda: Driver(home.cuda)), open_library or (lambda major: Library(home.lt, "libcublasLt.so"))
    )
    found = backend.probe()
    assert isinstance(found, Absent)
    honest(found, "probe()")
    assert backend.probe() is found
    return found


def test_ready():
    found = Home(devices=2).backend().probe()
    assert isinstance(found, Ready)
    assert found.devices == (Device("cuda", 0), Device("cuda", 1))
    assert found.versions == {
        "cublasLt": "13.1.0", "driver": "13.0", "device": "Fake H200", "multiprocessors": "132", "memory": "4.92 TB/s",
    }  # fmt: skip


def test_this_machine():
    """Probing returns an answer on any machine."""
    found = CublasBackend().probe()
    assert isinstance(found, (Ready, Absent))
    if isinstance(found, Absent):
        honest(found, "probe()")


def test_no_driver():
    def open_driver():
        raise OSError("libcuda.so.1: cannot open shared object file")

    found = absent(Home(), open_driver)
    assert "no NVIDIA driver" in found.reason
    assert "install one" in found.remedy


@pytest.mark.parametrize("code", [None, 100])
def test_no_device(code):
    home = Home(devices=0)
    if code is None:
        home.cuda._cuInit = lambda flags: 0
        home.cuda.cuInit = type(home.cuda.cuInit)(lambda flags: 0)
        home.cuda._initialised = True
    found = absent(home)
    assert "no device" in found.reason
    assert "CUDA_VISIBLE_DEVICES" in found.remedy


def test_broken_driver():
    home = Home()
    home.cuda.faults["cuInit"] = 803
    found = absent(home)
    assert "cuInit: unknown error (803)" in found.reason
    assert "nvidia-smi" in found.remedy


@pytest.mark.parametrize("version", [11040, 10020])
def test_old_driver(version):
    found = absent(Home(version=version))
    assert f"{version // 1000}.{version % 100 // 10}" in found.reason
    assert "525" in found.remedy


def test_driver_without_a_function():
    home = Home()
    del home.cuda.cuStreamGetCaptureInfo_v2
    assert "too old" in absent(home).reason


def test_no_library(monkeypatch):
    monkeypatch.setattr(library, "SOURCES", ())
    found = absent(Home(), open_library=library.load)
    assert "libcublasLt.so.13" in found.reason
    assert found.remedy == install.command("gemmhub-cublas[cu13]")


def test_library_newer_than_the_driver(monkeypatch):
    home = Home(version=12080)
    monkeypatch.setattr(library, "SOURCES", (lambda: iter([(home.lt, "/lib/libcublasLt.so.13")]),))
    found = absent(home, open_library=library.load)
    assert "/lib/libcublasLt.so.13 is cuBLAS 13.1.0" in found.reason
    assert "up to CUDA 12" in found.reason
    assert install.command("gemmhub-cublas[cu12]") in found.remedy


def test_the_next_library_is_tried(monkeypatch):
    new, old = Home(version=12080), Home(version=12080)
    old.lt.version = 120805
    sources = (lambda: iter([(new.lt, "new")]), lambda: iter([(SimpleNamespace(), "broken"), (old.lt, "old")]))
    monkeypatch.setattr(library, "SOURCES", sources)
    assert library.load(12).version == "12.8.5"
    assert library.load(13).version == "13.1.0"


def test_older_libraries_run_on_newer_drivers(monkeypatch):
    home = Home(version=13000)
    home.lt.version = 120000
    monkeypatch.setattr(library, "SOURCES", (lambda: iter([(home.lt, "old")]),))
    assert library.load(13).version == "12.0.0"


def test_library_without_a_function():
    home = Home()
    del home.lt.cublasLtMatmulAlgoCheck
    found = absent(home)
    assert "libcublasLt.so has no function cublasLtMatmulAlgoCheck" in found.reason


@pytest.mark.parametrize(("status", "name"), [(1, "NOT_INITIALIZED"), (3, "ALLOC_FAILED"), (99, "unknown")])
def test_library_that_cannot_be_set_up(status, name):
    home = Home()
    home.lt.faults["cublasLtCreate"] = status
    assert name in absent(home).reason


def test_context_that_cannot_be_made():
    home = Home()
    home.cuda.faults["cuDevicePrimaryCtxRetain"] = 2
    assert "CUDA_ERROR_OUT_OF_MEMORY: out of memory" in absent(home).reason


def test_handles_are_made_when_needed():
    home = Home(devices=3)
    home.cuda.stack.append(0x1001)  # a program that works on device 1
    backend = home.backend()
    assert home.lt.calls.count("cublasLtCreate") == 1
    assert home.cuda.calls.count("cuDevicePrimaryCtxRetain") == 1
    assert isinstance(backend.offer(problem(index=1)), Offer)
    assert home.lt.calls.count("cublasLtCreate") == 1
    assert isinstance(backend.offer(problem(index=2)), Offer)
    assert home.lt.calls.count("cublasLtCreate") == 2


def test_a_failed_probe_leaves_offer_with_a_clear_error():
    backend = CublasBackend(lambda: Driver(Home(devices=0).cuda))
    with pytest.raises(RuntimeError, match="no device"):
        backend.offer(problem())


def test_registered():
    """The entry point's module describes the backend."""
    (point,) = [x for x in importlib.metadata.entry_points(group="gemmhub") if x.name == "cublas"]
    (description,) = point.load().gemmhub_backends()
    assert (description.name, description.device_types, description.contract) == ("cublas", ("cuda",), 2)
    assert isinstance(description.load(), CublasBackend)


def test_describing_imports_nothing_heavy():
    code = (
        "import sys, gemmhub_cublas.plugin as p; p.gemmhub_backends(); print('gemmhub_cublas.backend' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
