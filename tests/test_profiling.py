"""Ranges of profilers around kernels."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from products import F16, F32, I8, draw

import gemmhub
from gemmhub import Backend, Candidate, Device, Kernel, Offer, Ready
from gemmhub._call.profiling import range_name, ranged
from gemmhub.errors import ConfigError, KernelError

NAME = "gemmhub numpy/default order=unknown"


@pytest.fixture
def opened(monkeypatch):
    """The names of the ranges that a stub library of NVTX opened; those that are still open."""
    names, still = [], []

    @contextmanager
    def annotate(name, domain):
        assert domain == "gemmhub"
        names.append(name)
        still.append(name)
        try:
            yield
        finally:
            still.remove(name)

    module = ModuleType("nvtx")
    module.annotate = annotate
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield names
    assert still == []


@pytest.mark.parametrize("dtype", [F16, F32, I8], ids=str)
@pytest.mark.parametrize("options", [{}, {"alpha": 2.0}], ids=str)
def test_each_call_has_a_range(opened, dtype, options, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    expected = gemmhub.matmul(a, b, **options)
    name = range_name(gemmhub.explain(a, b, **options))
    for _ in range(2):  # what was decided without ranges, and with them
        gemmhub.matmul(a, b, **options)
        assert opened == []
        with gemmhub.use(profile=True):
            for _ in range(4):
                assert np.array_equal(gemmhub.matmul(a, b, **options), expected)
            gemmhub.matmul(a[:3], b, **options)
        assert opened == [name] * 5
        opened.clear()


def test_stacks_epilogues_and_out(opened, rng):
    a, b = draw(rng, (2, 5, 6), F32), draw(rng, (6, 7), F32)
    out = np.empty((2, 5, 7), F32)
    with gemmhub.use(profile=True):
        for _ in range(3):
            gemmhub.matmul(a, b, out=out, bias=b[0], activation="relu")
    assert opened == [NAME] * 3


def test_a_plan_keeps_its_ranges(opened, rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    plain = gemmhub.plan(a, b)
    with gemmhub.use(profile=True):
        ranged = gemmhub.plan(a, b)
        plain(a, b)
    assert opened == []
    ranged(a, b), ranged(a, b, np.empty((5, 7), F32))
    assert opened == [NAME] * 2


@pytest.mark.parametrize("source", ["environment", "file"])
def test_the_setting_has_every_source(opened, source, monkeypatch, tmp_path):
    if source == "environment":
        monkeypatch.setenv("GEMMHUB_PROFILE", "1")
    else:
        (tmp_path / "gemmhub.toml").write_text("profile = true\n")
        monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "gemmhub.toml"))
    gemmhub.reload()
    a = np.ones((3, 3))
    gemmhub.matmul(a, a)
    assert opened == [NAME]
    with gemmhub.use(profile=False):
        gemmhub.matmul(a, a)
    assert opened == [NAME]
    assert "profile" in gemmhub.explain(a, a).settings
    with pytest.raises(ConfigError, match="profile = 'perhaps' is not valid; allowed: true or false"):
        gemmhub.use(profile="perhaps")


def test_torch_that_is_loaded_later_has_ranges(monkeypatch):
    """A call that was decided before torch was there opens a range once it is."""
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    decision = gemmhub.explain(np.ones((3, 3)), np.ones((3, 3)))
    kernel = ranged(Kernel(np.add, "a sum"), decision)
    assert kernel.run(1, 2) == 3
    names = []
    torch = SimpleNamespace(profiler=SimpleNamespace(record_function=lambda name: nullcontext(names.append(name))))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert kernel.run(1, 2) == 3
    assert [name.partition("/")[0] for name in names] == ["gemmhub numpy"]


def test_without_the_setting_kernels_are_those_of_the_backend(opened):
    """A warm call tests no setting: what it runs has no range."""

    def run(a, b, out, alpha, beta, stream):
        np.matmul(a, b, out=out)

    class Fast(Backend):
        name = "fast"

        def probe(self):
            return Ready((Device(),))

        def offer(self, problem):
            return Offer((Candidate("tile", order="chain.k4"),))

        def prepare(self, problem, candidate, workspace_limit):
            return Kernel(run, "a product")

    gemmhub.register(Fast())
    try:
        a = np.ones((3, 3))
        with gemmhub.use(backend="fast"):
            assert gemmhub.plan(a, a).kernel.run is run
            gemmhub.matmul(a, a)
            assert opened == []
            with gemmhub.use(profile=True):
                gemmhub.matmul(a, a)
        assert opened == ["gemmhub fast/tile order=chain.k4"]
    finally:
        gemmhub.unregister("fast")


def test_a_range_ends_where_a_kernel_raises(opened):
    class Broken(Backend):
        name = "broken"

        def probe(self):
            return Ready((Device(),))

        def offer(self, problem):
            return Offer()

        def prepare(self, problem, candidate, workspace_limit):
            def run(*arguments):
                raise RuntimeError("no")

            return Kernel(run, "nothing")

    gemmhub.register(Broken())
    try:
        a = np.ones((3, 3))
        with gemmhub.use(backend="broken", profile=True), pytest.raises(KernelError):
            gemmhub.matmul(a, a)
        assert opened == ["gemmhub broken/default order=unknown"]
    finally:
        gemmhub.unregister("broken")
