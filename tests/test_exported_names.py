"""The exported names of the package, and their kinds."""

from __future__ import annotations

import importlib
import inspect

import pytest

import gemmhub
from gemmhub._call.options import DEFAULTS


def test_exported_names_are_those_without_an_underscore():
    """A name that is imported for a user's sake is exported, and nothing is exported twice."""
    assert len(set(gemmhub.__all__)) == len(gemmhub.__all__)
    assert set(gemmhub.__all__) <= set(dir(gemmhub))
    ours = {
        name
        for name in dir(gemmhub)
        if not name.startswith("_") and getattr(getattr(gemmhub, name), "__module__", "").startswith("gemmhub")
    }
    assert ours == set(gemmhub.__all__) - {"hookimpl"}  # an object of pluggy


@pytest.mark.parametrize("name", gemmhub.__all__)
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
    assert named == {"out": None, **DEFAULTS}
    assert len(parameters) == 2 + len(named)


def test_the_signature_of_matmul_is_documented():
    text = inspect.getdoc(gemmhub.matmul)
    assert all(name in text for name in ("a, b", "out", *DEFAULTS))
    assert all(error in text for error in ("ShapeError", "DTypeError", "OutputError", "DeviceError", "NoBackendError",
                                           "KernelError", "AllocationError"))  # fmt: skip
