"""The exported names of the package, and their kinds."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

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


def test_dir_lists_what_there_is_and_nothing_else():
    names = dir(gemmhub)
    assert not {"annotations", "Any", "TYPE_CHECKING", "traced", "api"} & set(names)
    modules = {name for name in names if inspect.ismodule(getattr(gemmhub, name))}
    assert set(names) == {*gemmhub.__all__, "__version__"} | modules
    assert modules >= {"numpy", "distributed", "errors", "testing"}
    assert [name for name, _ in inspect.getmembers(gemmhub)] == names
    for module in (gemmhub.numpy, gemmhub.distributed, gemmhub.testing):
        assert dir(module) == sorted(module.__all__)


def run(script):
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_modules_are_imported_at_first_use():
    run(
        "import sys, gemmhub\n"
        "assert not {f'gemmhub.{x}' for x in ('torch', 'jax', 'numpy', 'distributed', 'testing')} & set(sys.modules)\n"
        "assert gemmhub.numpy.asarray([1.0]).shape == (1,)\n"
        "assert gemmhub.distributed.predict(8, 8, 8, 2, rate=1e9).devices == 2\n"
        "assert callable(gemmhub.testing.check)"
    )


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [("torch", "torch", "torch"), ("jax", "jax", "jax"), ("distributed.store", "dask", "dask"),
     ("distributed.measure", "torch", "torch")],
)  # fmt: skip
def test_a_library_that_is_missing_is_named_with_its_extra(name, library, extra):
    run(
        f"import sys\nsys.modules[{library!r}] = None\nimport gemmhub\n"
        f"try:\n    gemmhub.{name}\n"
        "except ImportError as error:\n"
        "    assert isinstance(error, gemmhub.DependencyError)\n"
        f"    assert 'gemmhub.{name} needs {library}, which is not installed: pip install ' in str(error), str(error)\n"
        f"    assert '[{extra}]' in str(error)\n"
        "else:\n    raise AssertionError\n"
        f"assert {name!r} not in dir(gemmhub)"
    )


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


@pytest.mark.parametrize("name", ["matmul", "plan", "explain"])
def test_signatures_name_every_option(name):
    parameters = inspect.signature(getattr(gemmhub, name)).parameters
    assert [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY] == ["a", "b"]
    named = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert named == {"out": None, **DEFAULTS}
    assert len(parameters) == 2 + len(named)


@pytest.mark.parametrize("name", ["einsum", "tensordot", "vecdot"])
def test_signatures_of_contractions_name_their_options(name):
    named = [p for p in inspect.signature(getattr(gemmhub, name)).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options = ["out_dtype", "precision", "reproducible", "backend"]
    assert [p.name for p in named if p.name != "axis"] == options
    assert all(p.default == DEFAULTS[p.name] for p in named if p.name != "axis")
    assert all(x in inspect.getdoc(getattr(gemmhub, name)) for x in options)


def test_the_signature_of_matmul_is_documented():
    text = inspect.getdoc(gemmhub.matmul)
    assert all(name in text for name in ("a, b", "out", *DEFAULTS))
    assert all(error in text for error in ("ShapeError", "DTypeError", "OutputError", "DeviceError", "NoBackendError",
                                           "KernelError", "AllocationError"))  # fmt: skip
