"""The exported names of the package, and their kinds."""

from __future__ import annotations

import importlib
import inspect

import pytest

import gemmhub

EXPORTED = {
    "matmul", "plan", "pack", "PackedB", "Plan", "explain", "Decision", "backends", "use", "reload", "spot_check",
    "SpotCheck", "compare", "Comparison", "tune", "Backend", "BackendDescription", "Offer",
    "Candidate", "Kernel", "GemmProblem", "Device",
    "Ready", "Absent", "Refusal", "Copy", "hookimpl", "GemmhubError", "InputError", "ShapeError", "DTypeError",
    "OutputError", "DeviceError", "AllocationError", "ConfigError", "BackendError", "NoBackendError", "KernelError",
    "RecordError",
}  # fmt: skip

OPTIONS = {
    "out": None, "out_dtype": None, "alpha": 1, "beta": 0, "c": None, "bias": None, "scale_a": None,
    "scale_b": None, "scale_out": None, "pre_activation": None, "amax": None, "activation": None,
    "precision": None, "deterministic": False, "backend": None, "stream": None,
}  # fmt: skip


def test_the_exported_names_are_these():
    assert set(gemmhub.__all__) == EXPORTED
    assert len(gemmhub.__all__) == len(EXPORTED)
    assert set(dir(gemmhub)) >= EXPORTED


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_every_name_is_there_and_documented(name):
    value = getattr(gemmhub, name)
    assert value is getattr(gemmhub, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__.startswith("gemmhub")
        assert inspect.getdoc(value)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"gemmhub.*nothing"):
        _ = gemmhub.nothing


def test_lazy_names_are_in_their_stated_modules():
    for name, module in gemmhub._LAZY.items():
        assert getattr(importlib.import_module(f"gemmhub.{module}"), name) is getattr(gemmhub, name)


@pytest.mark.parametrize("name", ["matmul", "plan", "explain", "tune"])
def test_signatures_name_every_option(name):
    parameters = inspect.signature(getattr(gemmhub, name)).parameters
    assert [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY] == ["a", "b"]
    named = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert named == OPTIONS
    assert len(parameters) == 2 + len(OPTIONS)


def test_the_signature_of_matmul_is_documented():
    text = inspect.getdoc(gemmhub.matmul)
    assert all(name in text for name in ("a, b", *OPTIONS))
    assert all(error in text for error in ("ShapeError", "DTypeError", "OutputError", "DeviceError", "NoBackendError",
                                           "KernelError", "AllocationError"))  # fmt: skip
