"""The kernels of the wheel: with them, nothing is compiled for plain products of any size."""

from __future__ import annotations

import random
from functools import cache

import pytest
from fake_cuda import FakeCuda
from fakes import Home
from gemmhub_cuda import backend as cuda
from gemmhub_cuda import shipped
from gemmhub_cuda.compiled import uniform
from gemmhub_cuda.cost import corrections
from gemmhub_cuda.lower import lowered
from gemmhub_nvidia import probe
from gemmhub_nvidia.cubins import Entry, packed
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler
from problems import problem

LIMIT = 64 * 2**20


@cache
def archive(architecture):
    """An archive of all kernels of the wheel, by the fake compiler."""
    sources = shipped.sources(architecture)
    return packed((Entry(x.name, x.digest, FakeCompiler().compile(x).cubin) for x in sources), "12.6")


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """A function: a machine with a card of an architecture, and a plugin with the kernels of the wheel."""

    def of(architecture):
        major, minor = architecture.removeprefix("sm_")
        shared = shipped.SHARED[architecture]
        card = {**FakeCuda.card, 16: 108, 75: int(major), 76: int(minor), 97: shared, 81: shared + 1024}
        monkeypatch.setattr(FakeCuda, "card", card)
        monkeypatch.setattr(probe, "cubins_of", lambda package: tmp_path)
        (tmp_path / f"{architecture}.cubins").write_bytes(archive(architecture))
        return Home().backend()

    return of


@pytest.mark.parametrize("architecture", shipped.ARCHITECTURES)
def test_plain_products_of_any_size_compile_nothing(wheel, architecture):
    """The draw is the same each time: whether all of 200 others are within the limit is a matter of luck."""
    backend, rng = wheel(architecture), random.Random(architecture)
    for _ in range(200):
        m, n, k = (int(2 ** rng.uniform(0, 13)) for _ in range(3))
        orders = {name: rng.choice(["row", "col"]) for name in "ab"}
        asked = problem(m, n, k, rng.choice(["bfloat16", "float16", "float32"]), **orders)
        backend.prepare(asked, backend.offer(asked).first.name, LIMIT)
    loads = backend.machine.images.loads
    assert loads.compiled == loads.cached == 0
    assert loads.shipped > 30
    first = backend.offer(asked).first.name
    assert f"; kernels loaded: {loads.shipped} from the wheel" in backend.offer(asked).remark(first)
    assert any(f"kernels for {architecture} in the wheel" in x for x in backend.probe().features)


def test_an_architecture_without_kernels(wheel):
    backend = wheel("sm_80")
    assert not backend.machine.images.count("sm_90")
    asked = problem(100, 100, 100, activation="relu")
    backend.prepare(asked, backend.offer(asked).first.name, LIMIT)
    assert backend.machine.images.loads.compiled == 1, "it is no plain product"


def test_the_narrower_load_serves_both_operands(wheel):
    """Rows of a are aligned to 16 bytes, and those of b to 4."""
    backend = wheel("sm_80")
    asked = problem(1024, 1025, 1024)
    choice = _timed(backend, asked)[0][1]
    assert (choice.variant.form.a_alignment, choice.variant.form.b_alignment) == (16, 4)
    name = backend.offer(asked).first.name
    backend.prepare(asked, name, LIMIT)
    (loaded,) = backend.machine.kernels._functions
    assert uniform(loaded[1]).form.a_alignment == 4
    module = next(x for x in backend.machine.driver.cuda._modules.values() if isinstance(x, dict))
    assert (module["macros"]["A_BYTES_ALIGNED"], module["macros"]["B_BYTES_ALIGNED"]) == (4, 4)


def test_a_compiled_kernel_is_preferred_to_narrower_loads(wheel):
    backend = wheel("sm_80")
    asked = problem(1024, 1025, 1024)
    choice = _timed(backend, asked)[0][1]
    source = cuda.probe.sources.source(choice.variant, (8, 0))
    probe.Images(FakeCompiler(), probe.cubins_of("")).load(source)
    backend.prepare(asked, choice.name, LIMIT)
    assert backend.machine.images.loads.cached == 1


def test_a_slower_one_of_the_wheel_goes_first(wheel, monkeypatch):
    backend = wheel("sm_80")
    asked = problem(1000, 1000, 1000)
    (fastest, best), *others = _timed(backend, asked)
    seconds, slow = next((t, x) for t, x in others if 1 < t / fastest < cuda.SHIPPED and x.variant != best.variant)
    kernels = backend.machine.kernels
    monkeypatch.setattr(kernels, "ready", lambda index, variant: False)
    monkeypatch.setattr(kernels, "shipped", lambda index, variant: variant == uniform(slow.variant))
    first = backend.offer(asked).first.name
    assert first == slow.name
    assert f"; {best.name} would be" in backend.offer(asked).remark(first)
    pinned = problem(1000, 1000, 1000, reproducible="run")
    assert "would be" not in backend.offer(pinned).remark(backend.offer(pinned).first.name)
    monkeypatch.setattr(cuda, "SHIPPED", seconds / fastest - 1e-6)
    assert backend.offer(asked).first.name == best.name
    monkeypatch.setattr(cuda, "SHIPPED", 3.0)
    monkeypatch.setattr(kernels, "ready", lambda index, variant: True)
    assert backend.offer(asked).first.name == best.name


def _timed(backend, asked):
    card = backend.machine.cards[0]
    lowering = lowered(asked, card.capability)
    return corrections.ranked(lowering, card, LIMIT)


def test_the_list():
    """Every kernel exists, is listed once, and is found again in the text of the list."""
    every = shipped.variants()
    assert len(set(every)) == len(every) < 600
    assert all(uniform(x) == x for x in every)
    listed = [x for x in every if x.form.input != "float16"]
    assert (shipped.resources.files("gemmhub_cuda") / "data" / "shipped.json").read_text() == shipped.encoded(listed)
    for architecture, limit in shipped.SHARED.items():
        sources = shipped.sources(architecture)
        assert len({x.digest for x in sources}) == len(sources) == sum(x.refusal(limit) is None for x in every)
        assert {x.architecture for x in sources} == {architecture}
