"""What is offered while the fastest candidate is not compiled, and what a call of a new size costs."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from fake_cuda import FakeCuda
from fakes import Home
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import named, runnable
from gemmhub_hopper.cost import choose, model, shortlist
from gemmhub_hopper.cost.shortlist import MAX_COMPILED, NEARLY
from gemmhub_hopper.launches import launch
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import compiled, sources
from gemmhub_nvidia import nvrtc, tma
from gemmhub_nvidia.scratch import COUNTERS
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler
from problems import problem

from gemmhub.kit.native import cache

pytestmark = pytest.mark.emulator

LARGE = 2**30
PLAIN = problem(1000, 4096, 4096)


@pytest.fixture
def home(monkeypatch):
    """A machine with as many SMs as a card: nothing is launched."""
    monkeypatch.setattr(FakeCuda, "card", {**FakeCuda.card, 16: 132})
    return Home()


@pytest.fixture
def backend(home):
    return home.backend()


def timed(backend, asked):
    """Return estimates and candidates, the fastest first."""
    return choose.timed(lower.lowerings(asked), backend._card_of(0), backend.machine.gpus[0].default_workspace)


def code(backend, asked, choice):
    passes = (
        None if isinstance(choice, gemv.GemvChoice) else runnable(choice, backend.machine.gpus[0].default_workspace)
    )
    return shortlist.code(choice, passes, backend._card_of(0))


def load(backend, asked, choice):
    for what in code(backend, asked, choice):
        backend.machine.kernels.function(0, what)


def store(what):
    """Compile a kernel into the cache on disk, as another process does."""
    nvrtc.cubin(FakeCompiler(), compiled.source_of(what)[0])


def nth(backend, asked, least, most=9.0):
    """Return the first candidate whose estimate is from ``least`` to ``most`` times the fastest's."""
    every = timed(backend, asked)
    kernel = every[0][1].variant
    return next(x for x in every if least <= x[0] / every[0][0] <= most and x[1].variant != kernel)


def test_the_fastest_is_first_where_nothing_is_compiled(backend):
    names = list(backend.offer(PLAIN).names)
    assert names == [choice.name for _, choice in choose.distinct(timed(backend, PLAIN))[: len(names)]]
    assert "not compiled" not in backend.offer(PLAIN).remark(names[0])


@pytest.mark.parametrize("where", ["process", "disk"])
def test_a_compiled_candidate_that_is_nearly_as_fast_is_first(backend, where):
    seconds, choice = nth(backend, PLAIN, 1.03)
    fastest, best = timed(backend, PLAIN)[0]
    assert seconds < NEARLY * fastest
    assert backend.offer(PLAIN).first.name == best.name
    if where == "process":  # also a candidate of a product that was asked about before
        load(backend, PLAIN, choice)
    else:
        store(choice.variant)
        backend = Home().backend()
    names = list(backend.offer(PLAIN).names)
    assert names[:2] == [choice.name, best.name]
    every = list(backend.offer(replace(PLAIN, reproducible="run")).names)
    assert len(every) == shortlist.PROPOSED
    assert names[1:] == [name for name in every if name != choice.name], "records of each serve as before"
    assert backend.offer(PLAIN).first.seconds / seconds == pytest.approx(
        backend.offer(replace(PLAIN, reproducible="run")).first.seconds / fastest
    )
    words = re.search(
        rf"; {best.name} would be (\d+) % faster and is not compiled: tune, or", backend.offer(PLAIN).remark(names[0])
    )
    assert 0 <= int(words[1]) - 100 * (seconds / fastest - 1) < 1
    assert all("not compiled" not in backend.offer(PLAIN).remark(name) for name in names[1:])
    load(backend, PLAIN, best)  # tuning does so
    assert backend.offer(PLAIN).first.name == best.name
    assert "not compiled" not in backend.offer(PLAIN).remark(best.name)


def test_a_slower_one_is_not_first(backend):
    _, choice = nth(backend, PLAIN, NEARLY + 1e-9)
    load(backend, PLAIN, choice)
    assert backend.offer(PLAIN).first.name == timed(backend, PLAIN)[0][1].name


def test_a_compilation_that_many_calls_repay_is_made(backend):
    """A compiled candidate within the ratio, but slower by more than a ten-thousandth of a second, is not first."""
    asked = problem(16384, 16384, 16384)
    fastest, best = timed(backend, asked)[0]
    seconds, choice = nth(backend, asked, 1.0001, NEARLY)
    while seconds - fastest <= shortlist.WORTH:
        seconds, choice = nth(backend, asked, seconds / fastest + 1e-6, NEARLY)
    load(backend, asked, choice)
    assert backend.offer(asked).first.name == best.name


def test_sizes_alone_decide_where_bits_are_pinned(backend):
    _, choice = nth(backend, PLAIN, 1.03)
    load(backend, PLAIN, choice)
    pinned = replace(PLAIN, reproducible="run")
    assert backend.offer(pinned).first.name == timed(backend, pinned)[0][1].name
    assert "not compiled" not in backend.offer(pinned).remark(backend.offer(pinned).first.name)


def test_copies_are_those_of_the_first(backend):
    asked = problem(1000, 4096, 4096, "float32")
    fastest, best = timed(backend, asked)[0]
    other = next(x for t, x in timed(backend, asked) if len(x.copied) != len(best.copied) and t < NEARLY * fastest)
    assert len(backend.offer(asked).first.copies) == len(best.copied)
    load(backend, asked, other)
    assert len(backend.offer(asked).first.copies) == len(other.copied)


def test_the_disk_is_asked_once(backend, monkeypatch):
    """Only names of kernels of a shape that is there are computed: that takes a fraction of a millisecond."""
    _, choice = nth(backend, PLAIN, 1.03)
    store(choice.variant)
    listed, computed = [], []
    stored, name = cache.stored, nvrtc.file_name
    monkeypatch.setattr(cache, "stored", lambda: listed.append(0) or stored())
    monkeypatch.setattr(nvrtc, "file_name", lambda *given: computed.append(given[1].name) or name(*given))
    backend = Home().backend()
    for m in (1000, 1000, 999, 2000):
        backend.offer(problem(m, 4096, 4096))
    assert listed == [0]
    assert set(computed) == {f"hopper-{choice.shape.name}"}
    assert len(computed) <= 4  # of two orientations, with split-K and without


@pytest.mark.parametrize(
    "file", ["hopper-64x16x12.cubin", "hopper-64x16x12-0123456789abcdef01234567.cubin", "notes.txt", "x.0123.cubin"]
)
def test_other_files_in_the_cache(backend, file):
    (cache.folder().path / file).write_text("anything")
    assert not cache.stored() & {"hopper-64x16x12.cubin", "notes.txt"}
    assert backend.offer(PLAIN).first.name == timed(backend, PLAIN)[0][1].name


def edge(m):
    """Return the upper edge of the bucket of ``m``, at which gemmhub asks."""
    size = 2 ** max(0, (m - 1).bit_length() - 5)
    return -(-m // size) * size


@pytest.mark.parametrize(
    ("n", "k", "more"),
    [(4096, 4096, {}), (512, 256, {}), (4096, 4096, {"dtype": "float32"}), (4096, 11008, {"dtype": "float32"}),
     (768, 3072, {"dtype": "float32", "precision": "tf32", "activation": "relu"})],
)  # fmt: skip
def test_m_alone_compiles_few_kernels(backend, n, k, more, monkeypatch):
    kernels, compiler = backend.machine.kernels, backend.machine.compiler
    built = []
    monkeypatch.setattr(FakeCompiler, "compile", counting(built, FakeCompiler.compile))
    draw = random.Random(7)
    winners = set()
    for m in sorted({edge(draw.randint(1, 4096)) for _ in range(150)}, key=lambda m: draw.random()):
        asked = problem(m, n, k, **more)
        first = backend.offer(asked).first
        fastest, best = timed(backend, asked)[0]
        winners.add(best.name)
        seconds = first.seconds / backend.offer(replace(asked, reproducible="run")).first.seconds * fastest
        assert seconds <= NEARLY * fastest or len(main(built)) >= MAX_COMPILED
        for what in code(backend, asked, named_(asked, first.name)):
            kernels.function(0, what)
    assert len(winners) > 6
    assert 3 <= len(main(built)) <= MAX_COMPILED + 1  # the last candidate may have two kernels
    assert compiler is backend.machine.compiler


def counting(built, compile_):
    def counted(self, source, verbose=False):
        built.append(source.name)
        return compile_(self, source, verbose)

    return counted


def main(built):
    """Without pre-passes."""
    return [name for name in built if "prepass" not in name]


def named_(asked, name):
    lowerings = lower.lowerings(asked)
    return gemv.named(lowerings, name) or named(lowerings, name)


def test_after_the_limit_the_fastest_compiled_one_runs(backend, monkeypatch):
    """Whatever its estimate, also where it is not among the candidates of which corrected estimates are made."""
    monkeypatch.setattr(shortlist, "MAX_COMPILED", 1)
    monkeypatch.setattr(choose.corrections, "CORRECTED", 4)
    large, small, another = (problem(m, n, 4096) for m, n in ((4096, 4096), (64, 4096), (64, 4104)))
    first = backend.offer(large).first.name
    before = backend.offer(small).first.name
    load(backend, large, named_(large, first))
    name = backend.offer(small).first.name
    assert name != before
    assert set(code(backend, small, named_(small, name))) <= {what for _, what in backend.machine.kernels._functions}
    assert backend.offer(small).first.seconds > NEARLY * backend.offer(replace(small, reproducible="run")).first.seconds
    assert f"; {before} would be" in backend.offer(small).remark(name)
    assert backend.offer(replace(small, reproducible="run")).first.name == before
    assert backend.offer(another).first.name == timed(backend, another)[0][1].name, (
        "of another family nothing is compiled"
    )


def test_where_nothing_compiled_runs_it_is_compiled(backend, monkeypatch):
    """Kernels for vectors do not multiply matrices."""
    monkeypatch.setattr(shortlist, "MAX_COMPILED", 1)
    one = problem(1, 4096, 4096)
    load(backend, one, named_(one, backend.offer(one).first.name))
    assert backend.offer(PLAIN).first.name == timed(backend, PLAIN)[0][1].name


CASES = {
    "128x96x6": ({}, LARGE),
    "128x128x6pt": ({}, LARGE),
    "64x64x12/4": ({}, LARGE),
    "64x64x9": ({"dtype": "float32"}, LARGE),
    "64x48x8rs": ({"dtype": "float32"}, LARGE),
    "128x96x7ht": ({"dtype": "float32"}, LARGE),
    "128x64x8hr": ({"dtype": "float32"}, LARGE),
    "128x64x8h": ({"dtype": "float32", "m": 640}, COUNTERS + 2**22),
    "128x96x6x": ({"dtype": "float32", "precision": "bf16x3"}, LARGE),
    "64x64x12c2x1k4": ({"dtype": "float32", "precision": "tf32", "b": "row"}, LARGE),
    "64x64x12": ({"dtype": "float32", "precision": "tf32", "b": "row", "out": "bfloat16"}, COUNTERS + 2**22),
    "gemv64": ({"m": 1}, LARGE),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_compiled_is_what_preparing_loads(backend, name):
    more, limit = CASES[name]
    asked = problem(**{"m": 512, "n": 640, "k": 4096, **more})
    choice = named_(asked, name)
    passes = None if name.startswith("gemv") else runnable(choice, limit)
    kernel = backend.prepare(asked, name, limit)
    assert ("K passes" in kernel.description) == (limit < LARGE)
    expected = shortlist.code(choice, passes, backend._card_of(0))
    assert set(expected) == {what for _, what in backend.machine.kernels._functions}


NEVER = [
    (choose, "timed"), (choose, "ranked"), (choose, "vectors"), (model, "works"), (model, "seconds_of"),
    (lower, "lowerings"), (gemv, "kernels"), (gemv, "choices"), (tma, "address_word"), (nvrtc, "cubin"),
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_new_size_is_prepared_without_ranking(backend, name, monkeypatch):
    """Neither estimates are made, nor every candidate to find one, nor is anything compiled."""
    more, limit = CASES[name]
    given = {"m": 512, "n": 640, "k": 4096, **more}
    first = backend.prepare(problem(**given), name, limit)
    for module, function in NEVER:
        monkeypatch.setattr(module, function, lambda *_, function=function, **__: pytest.fail(f"{function} was called"))
    made = []
    real = lower.Lowering
    monkeypatch.setattr(lower, "Lowering", lambda *fields, **more: made.append(fields) or real(*fields, **more))
    given = {**given, "n": 632} if given["m"] == 1 else {**given, "m": given["m"] - 8}
    assert backend.prepare(problem(**given), name, limit).description == first.description
    assert len(made) == 1


def test_the_address_is_checked_in_each_map(backend, monkeypatch):
    """Where one of a kind that was found to have its address in one word has not, it is encoded for each address."""
    asked = problem(512, 640, 4096)
    backend.prepare(asked, "128x96x6", LARGE)
    real = tma.encode
    monkeypatch.setattr(tma, "encode", lambda *given: real(*given)[::-1])
    choice = named_(problem(520, 656, 4104), "128x96x6")  # each map is another one
    assert isinstance(backend.launch(0, choice, LARGE), launch.Launch)
    assert not backend.launch(0, choice, LARGE).gemm.patched
    monkeypatch.undo()
    assert sources.PREPASSES["bfloat16"] not in {what for _, what in backend.machine.kernels._functions}
