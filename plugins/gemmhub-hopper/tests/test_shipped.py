"""The kernels of the wheel: with them, nothing is compiled for plain products of any size."""

from __future__ import annotations

import random
from functools import cache

import pytest
from fake_cuda import FakeCuda
from fakes import Home
from gemmhub_hopper import grouped_proof, shipped
from gemmhub_hopper.cost import shortlist
from gemmhub_hopper.cost.shortlist import NEARLY
from gemmhub_hopper.variants.compiled import source_of
from gemmhub_hopper.variants.config import Variant
from gemmhub_nvidia import build_cubins, nvrtc, probe
from gemmhub_nvidia.cubins import Archive, Entry, packed
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler
from problems import problem

KINDS = [("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "ieee"), ("float32", "tf32")]
LARGE = 2**40


@cache
def archive():
    """An archive of all kernels of the wheel, by the fake compiler."""
    sources = [source_of(what)[0] for what in shipped.codes()]
    return packed((Entry(x.name, x.digest, FakeCompiler().compile(x).cubin) for x in sources), "12.4")


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """A machine as large as a card, whose plugin has the kernels of the wheel; nothing is launched."""
    monkeypatch.setattr(FakeCuda, "card", {**FakeCuda.card, 16: 132})
    monkeypatch.setattr(probe, "cubins_of", lambda package: tmp_path)
    (tmp_path / "sm_90a.cubins").write_bytes(archive())
    return Home()


def ragged(rng, dtype, precision):
    """A product of sizes that are multiples of nothing."""
    m, n, k = (int(2 ** rng.uniform(0, 13)) for _ in range(3))
    orders = {name: rng.choice(["row", "col"]) for name in "ab"}
    return problem(m, n, k, dtype, precision=precision, **orders)


@pytest.mark.parametrize(("dtype", "precision"), KINDS)
def test_plain_products_of_any_size_compile_nothing(wheel, dtype, precision):
    """The draw is the same each time: whether all of 50 others are within the limit is a matter of luck."""
    backend, rng = wheel.backend(), random.Random(f"{dtype} {precision}")
    for _ in range(50):
        asked = ragged(rng, dtype, precision)
        first = backend.offer(asked).first
        backend.prepare(asked, first.name, LARGE)
    loads = backend.machine.images.loads
    assert loads.compiled == loads.cached == 0
    assert loads.shipped > 10
    assert f"; kernels loaded: {loads.shipped} from the wheel, 0 from the cache, 0 compiled" in backend.offer(
        asked
    ).remark(first.name)


def test_without_them_each_is_compiled(monkeypatch):
    monkeypatch.setattr(FakeCuda, "card", {**FakeCuda.card, 16: 132})
    backend = Home().backend()
    asked = problem(1000, 1000, 1000)
    backend.prepare(asked, backend.offer(asked).first.name, LARGE)
    assert backend.machine.images.loads.compiled == 1
    assert any("no kernels for sm_90a from the wheel" in x for x in backend.probe().features)


def test_a_truncated_archive_is_a_warning(wheel, tmp_path):
    path = tmp_path / "sm_90a.cubins"
    path.write_bytes(archive()[:-1])
    ready = wheel.backend().probe()
    (warning,) = ready.warnings
    assert str(path) in warning
    assert "install its distribution again" in warning
    path.write_bytes(archive())
    assert not wheel.backend().probe().warnings


def test_a_slower_one_of_the_wheel_goes_first(wheel, monkeypatch):
    """Beyond the limit for compiled kernels, and whatever else is compiled; not where sizes alone decide."""
    backend = wheel.backend()
    asked = problem(1000, 4096, 4096)
    names = {choice.name: (t, choice) for t, choice in _timed(backend, asked)}
    fastest = min(t for t, _ in names.values())
    slow = next((t, x) for t, x in names.values() if NEARLY < t / fastest < shortlist.SHIPPED)
    kernels = backend.machine.kernels
    monkeypatch.setattr(kernels, "compiled", lambda what: what == slow[1].variant)
    monkeypatch.setattr(kernels, "shipped", lambda what: what == slow[1].variant)
    first = backend.offer(asked).first.name
    assert first == slow[1].name
    assert "is not compiled: tune, or gemmhub build" in backend.offer(asked).remark(first)
    pinned = problem(1000, 4096, 4096, reproducible="run")
    assert backend.offer(pinned).first.name != first
    monkeypatch.setattr(kernels, "shipped", lambda what: False)
    assert backend.offer(asked).first.name != first
    monkeypatch.setattr(kernels, "shipped", lambda what: True)
    monkeypatch.setattr(shortlist, "SHIPPED", slow[0] / fastest - 1e-6)
    assert backend.offer(asked).first.name != first


def _timed(backend, asked):
    from gemmhub_hopper.cost import choose
    from gemmhub_hopper.lowering import lower

    return choose.timed(lower.lowerings(asked), backend._card_of(0), backend.machine.gpus[0].default_workspace)


def test_the_list():
    """Every kernel can be compiled, is listed once, and is found again in the text of the list."""
    codes = shipped.codes()
    assert len(set(codes)) == len(codes) < 2000
    assert all(x.refusal is None for x in codes if isinstance(x, Variant))
    listed = [x for x in codes if not isinstance(x, int) and shipped._input(x) != "float16"]
    assert (shipped.resources.files("gemmhub_hopper") / "data" / "shipped.json").read_text() == shipped.encoded(listed)
    assert {shipped.as_float16(x) for x in listed if shipped.half(x)} < set(codes)


def test_the_proof_of_groups_needs_no_compiler():
    """Grouped products are few kernels, for bfloat16 alone."""
    grouped = {x for x in shipped.codes() if isinstance(x, Variant) and x.form.divided}
    assert len(grouped) <= 12
    assert {x.form.input for x in grouped} == {"bfloat16"}
    assert {x.choice(0).variant for x in grouped_proof.trials(grouped_proof.GROUPS, None)} <= grouped


def test_names_and_digests_differ():
    sources = shipped.sources("sm_90a")
    assert len({x.digest for x in sources}) == len(sources)
    assert {x.architecture for x in sources} == {"sm_90a"}


@pytest.mark.compiler
def test_few_are_built_and_loaded(tmp_path, monkeypatch):
    """By the NVRTC of this environment: the wheel's build takes the oldest one."""
    compiler = nvrtc.load()
    path, some = build_cubins.Path(compiler.where), build_cubins.some(shipped.sources("sm_90a"), 3)
    content = build_cubins.archive(some, path, 2)
    assert content == build_cubins.archive(some, path, 1), "the same bytes, whoever compiles which"
    (tmp_path / "sm_90a.cubins").write_bytes(content)
    opened = Archive(tmp_path / "sm_90a.cubins")
    assert opened.compiler == "{}.{}".format(*compiler.version)
    for source in some:
        assert opened.read(source.digest) == compiler.compile(source).cubin
