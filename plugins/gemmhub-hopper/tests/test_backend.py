"""The backend's answers, and its launches: addresses, streams, threads, workspace."""

from __future__ import annotations

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_hopper.backend import MARGIN
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import named, runnable
from gemmhub_hopper.cost import choose, corrections, shortlist
from gemmhub_hopper.launches import pdl
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape
from gemmhub_nvidia import tma
from gemmhub_nvidia.scratch import COUNTERS
from problems import H200, problem
from products import Product, stored

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Copy, Device, Refusal
from gemmhub.errors import AllocationError, KernelError
from gemmhub.kit.corrections import NOTE, UNMEASURED
from gemmhub.lowering import fold_batch

pytestmark = pytest.mark.emulator

LIMIT = 64 * 2**20
SHAPE = Shape(64, 64, 3, consumers=1)


@pytest.fixture(scope="module")
def home():
    return Home()


@pytest.fixture
def backend(home):
    return home.backend()


class Call:
    """A product's operands at fresh addresses."""

    def __init__(self, home, product, seed=0):
        self.product, self.values = product, product.data(seed)
        self.exact = product.exact(*self.values)
        memory = FakeMemory(home)
        self.buffers = [memory.empty(max(256, x.nbytes)) for x in self.values[:2]]
        for buffer, x in zip(self.buffers, self.values):
            buffer[: x.nbytes] = stored(x, "row")
        self.out = memory.empty(self.exact.size * product.problem.out.dtype.itemsize)

    def run(self, call, stream=0):
        self.out[:] = 0xFF
        call(*(x.ctypes.data for x in (*self.buffers, self.out)), 1, 0, stream)

    @property
    def right(self):
        p = self.product
        result = self.out.view(p.problem.out.dtype).reshape(p.m, p.n)
        return not p.wrong(result, self.exact).any()


PLAIN = Product(SHAPE, 64, 64, 64)
SPLIT = Product(SHAPE, 72, 136, 520, splits=3)


@pytest.mark.parametrize("product", [PLAIN, SPLIT], ids=str)
def test_addresses_may_change(home, backend, product):
    launch = product.launch(backend)
    calls = [Call(home, product, seed) for seed in range(3)]
    for call in (*calls, calls[0]):
        call.run(launch.run)
        assert call.right


def test_maps_that_must_be_encoded_again(home, backend, monkeypatch):
    monkeypatch.setattr(tma, "address_word", lambda driver, arguments: None)
    launch = PLAIN.launch(backend)
    assert launch.run == launch._run
    for seed in range(3):
        call = Call(home, PLAIN, seed)
        call.run(launch.run)
        assert call.right


def test_a_plain_call_is_one_call_of_the_driver(home, backend):
    launch, call = PLAIN.launch(backend), Call(home, PLAIN)
    call.run(launch.run)
    home.cuda.calls.clear()
    call.run(launch.run, stream=7)
    assert home.cuda.calls == ["cuLaunchKernelEx"]
    assert home.cuda.launches[-1][2] == 7


def test_threads(home, backend):
    launch = SPLIT.launch(backend)
    calls = [Call(home, SPLIT, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: pair[1].run(launch.run, pair[0] + 1), enumerate(calls)))
    assert all(call.right for call in calls)


PLANES = Product(Shape(64, 64, 3, consumers=1), 70, 73, 100, dtype="float32")
SLABS = Product(Shape(64, 64, 3, consumers=1), 70, 73, 330, dtype="tf32", limit=COUNTERS + 2**16)


@pytest.mark.parametrize("context", [None, 0x2000], ids=["none", "another"])
@pytest.mark.parametrize("product", [PLAIN, SPLIT, PLANES], ids=str)
def test_a_thread_whose_context_is_not_the_devices(home, backend, product, context):
    """A kernel that was prepared in another thread runs without a context of this one, which stays as it is."""
    launch, call = product.launch(backend), Call(home, product)
    call.run(launch.run)
    assert call.right

    def work():
        home.cuda.stack.extend([context] if context else [])
        call.run(launch.run, stream=7)
        return home.cuda.stack

    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == ([context] if context else [])
        assert call.right
    assert home.cuda.complaints == []


@pytest.mark.parametrize("product", [PLAIN, SPLIT, PLANES, SLABS], ids=str)
def test_nested_calls(home, backend, product):
    """Calls nested before each kernel of a call, on its stream, share no parameters and no scratch memory with it."""
    launch, outer = product.launch(backend), Call(home, product)
    before = len(home.cuda.launches)
    outer.run(launch.run, stream=7)
    kernels, finished = len(home.cuda.launches) - before, []
    assert kernels == {PLAIN: 1, SPLIT: 1, PLANES: 2}.get(product, kernels)
    assert product is not SLABS or kernels > 2
    for at in range(kernels):
        interrupt(home, at, launch.run, Call(home, product, 1 + at), finished)
        outer.run(launch.run, stream=7)
        assert len(finished) == 1 + at
        assert outer.right, at
        assert finished[-1].right, at
    assert home.cuda.complaints == []


def interrupt(home, at, run, inner, finished):
    """The next call's launch number ``at`` will be interrupted by another call."""
    count = itertools.count()

    def interrupts():
        if next(count) == at:
            home.cuda.interrupt = None
            inner.run(run, stream=7)
            finished.append(inner)

    home.cuda.interrupt = interrupts


def test_a_call_that_ends_half_done(home, backend):
    """After KeyboardInterrupt, with some addresses written and none noted, the next call writes them all."""
    launch, first, second = PLAIN.launch(backend), Call(home, PLAIN), Call(home, PLAIN, 1)
    first.run(launch._run)
    gemm, place = launch.gemm, launch.gemm.place

    def half(slot, a, b, d):
        place(slot, a, b, d)
        slot.a, slot.b, slot.d = (x.ctypes.data for x in (*first.buffers, first.out))
        raise KeyboardInterrupt

    gemm.place = half
    with pytest.raises(KeyboardInterrupt):
        second.run(launch._run)
    del gemm.place
    first.run(launch.run)
    assert first.right


@pytest.mark.parametrize(("value", "attributes"), [(None, 1), ("on", 1), ("off", 0)])
def test_early_starts_may_be_switched_off(home, backend, monkeypatch, value, attributes):
    """PDL can be turned off for every kernel, for programs whose other kernels break its rules."""
    if value is not None:
        monkeypatch.setenv(pdl.VARIABLE, value)
        pdl.allowed.cache_clear()
    launch, staged = PLAIN.launch(backend), PLANES.launch(backend)
    vectors = backend.gemv(0, gemv.choices(lower.lowerings(problem(1, 64, 64)))[0])
    monkeypatch.setenv(pdl.VARIABLE, "anything")  # not read again
    copiers = staged._copiers.values()
    for function in (launch.gemm, *staged._gemms, *copiers, vectors._function):
        assert function.slot()._config.count == attributes
    call = Call(home, PLAIN)
    call.run(launch.run)
    assert call.right


def test_a_failed_launch(home, backend):
    launch, call = PLAIN.launch(backend), Call(home, PLAIN)
    home.cuda.faults["cuLaunchKernelEx"] = 719
    try:
        with pytest.raises(KernelError, match="unspecified launch failure"):
            call.run(launch.run)
    finally:
        home.cuda.faults.clear()
    call.run(launch.run)
    assert call.right


def test_two_devices():
    home = Home(devices=2)
    backend = home.backend()
    call = Call(home, PLAIN)
    call.run(PLAIN.launch(backend).run)
    assert call.right
    assert home.cuda.stack == []


def test_kernels_are_compiled_once(home, backend, monkeypatch):
    asked = problem(64, 64, 64)
    name = backend.offer(asked).first.name
    kernel = backend.prepare(asked, name, LIMIT)
    assert kernel.workspace_bytes == 0
    assert "tile" in kernel.description
    loads = home.cuda.calls.count("cuModuleLoadData")
    backend.prepare(replace(asked, m=60, a=problem(60).a, out=problem(60).out), name, LIMIT)
    assert home.cuda.calls.count("cuModuleLoadData") == loads


def test_every_candidate_is_prepared(backend):
    asked = problem(64, 72, 1024)
    offer = backend.offer(asked)
    assert 1 < len(offer.names) <= 8
    for name in offer.names:
        assert offer.remark(name).startswith("tile ")
        assert offer.remark(name).startswith(backend.prepare(asked, name, LIMIT).description)


def test_each_candidate_has_its_own_estimate_and_copies(backend):
    asked = problem(1000, 4096, 4096, "float32")
    offer, lowerings = backend.offer(asked), lower.lowerings(asked)
    assert offer.workspace == backend.machine.gpus[0].default_workspace
    seconds = [candidate.seconds for candidate in offer.candidates]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(seconds)
    timed = {choice.name: t for t, choice in choose.timed(lowerings, backend._card_of(0), offer.workspace)}
    copies = {}
    for candidate in offer.candidates:
        assert candidate.seconds == MARGIN * timed[candidate.name]
        lowering = named(lowerings, candidate.name).lowering
        copies[candidate.name] = [x.operand for x in candidate.copies]
        assert copies[candidate.name] == [x.name for x in lowering.copied]
        assert all(isinstance(copy, Copy) and copy.nbytes > 0 and copy.why for copy in candidate.copies)
    assert len({*map(tuple, copies.values())}) > 1


def test_a_remark_is_written_without_ranking(backend, monkeypatch):
    offer = backend.offer(MATRIX)
    for module, function in ((choose, "timed"), (choose, "ranked"), (lower, "lowerings"), (lower, "one_by_one")):
        monkeypatch.setattr(module, function, None)
    assert all(offer.remark(name).startswith("tile ") for name in offer.names)


def measured(monkeypatch, *kinds):
    """Ships corrections by a factor of 1 for the given kinds and any card."""
    correction = SimpleNamespace(factors=lambda rows, handled=(): np.ones(len(rows)))
    monkeypatch.setattr(corrections, "find", lambda kind, card: correction if kind in kinds else None)


VECTOR, MATRIX = problem(1, 4096, 8192, b="col"), problem(256, 4096, 4096)


def test_margins_on_estimates(backend, monkeypatch):
    """The least of all candidates' by a margin, and by another one where nothing was measured on the card."""
    for asked in (VECTOR, MATRIX):
        lowerings, card, first = lower.lowerings(asked), backend._card_of(0), backend.offer(asked).first
        found = [
            *choose.vectors(lowerings, card),
            *choose.choices(lowerings, card, backend.machine.gpus[0].default_workspace),
        ]
        seconds, choice = min(found, key=lambda x: x[0])
        assert first.name == choice.name
        assert first.seconds == pytest.approx(MARGIN * UNMEASURED * seconds)
        with monkeypatch.context() as patch:
            measured(patch, "vectors", "half")
            assert Home().backend().offer(asked).first.seconds == pytest.approx(MARGIN * seconds)


def test_unmeasured_candidates_are_remarked(monkeypatch):
    backend = Home(attributes={16: 132}).backend()
    for kinds in ((), ("vectors",)):
        measured(monkeypatch, *kinds)
        offers = [backend.offer(asked) for asked in (VECTOR, MATRIX)]
        names = {name: offer.remark(name).endswith(f", {NOTE}") for offer in offers for name in offer.names}
        assert {True} == {noted for name, noted in names.items() if not name.startswith("gemv")}
        assert {not kinds} == {noted for name, noted in names.items() if name.startswith("gemv")}


def test_unmeasured_candidates_stand_behind(monkeypatch):
    """Candidates of a kind without a correction get the same factor next to measured ones."""
    lowerings = lower.lowerings(VECTOR)
    plain = {choice.name: t for t, choice in choose.timed(lowerings, H200, LIMIT)}
    measured(monkeypatch, "half")
    assert {choice.name: t for t, choice in choose.timed(lowerings, H200, LIMIT)} == pytest.approx(
        {name: t if name.startswith("gemv") else t / UNMEASURED for name, t in plain.items()}
    )


def test_candidates_by_name(backend):
    """Candidates from a tuning record are prepared by name, also those that are not proposed here."""
    asked = problem(64, 72, 1024)
    for name, words in {
        "64x64x12": "tile 64x64, 12 stages",
        "64x64x12t/4": "tile 64x64, 12 stages, operands swapped, split-K of 4",
        "128x256x4c2x1": "tile 128x256, 4 stages, cluster 2x1",
        "64x64x12c2x1k4": "tile 64x64, 12 stages, cluster 2x1, K shared by 4 CTAs",
    }.items():
        assert backend.prepare(asked, name, LIMIT).description == words
    for name in ("64x64x5", "nonsense", "64x64x12/", "64x64x12/0", "192x192x4c2x1", "gemv7", "gemv8x4", "nothing"):
        refusal = backend.prepare(asked, name, LIMIT)
        assert refusal == Refusal(f"there is no kernel called {name} for this problem", "name another candidate")


def test_a_workspace_too_small_for_split_k(backend):
    """Nothing is substituted: without split-K the bits would be others."""
    refusal = backend.prepare(problem(64, 72, 1024), "64x64x12/4", 1000)
    assert re.fullmatch(r"64x64x12/4 does not run in 1000 bytes of workspace: it needs \d+ bytes .*", refusal.reason)
    assert refusal.remedy == "raise the setting workspace_mib, or name another candidate"


def test_a_small_workspace(backend):
    """A candidate runs in more K passes or is refused; one of those that are proposed runs."""
    asked, limit = problem(2048, 2048, 2048, "float32"), 2**20
    names = backend.offer(asked).names
    lowerings = lower.lowerings(asked)
    small = [x for x in names if not isinstance(runnable(named(lowerings, x), limit), str)]
    assert 0 < len(small) < len(names)
    for name in names:
        description = backend.prepare(asked, name, LIMIT).description
        if name in small:
            kernel = backend.prepare(asked, name, limit)
            assert kernel.workspace_bytes <= limit
            assert kernel.description.startswith(description)
        else:
            refusal = backend.prepare(asked, name, limit)
            assert refusal.reason.startswith(f"{name} does not run in {limit} bytes of workspace: ")
            assert refusal.remedy.startswith("raise the setting workspace_mib")
    several = backend.prepare(problem(300, 500, 3000, "float32", precision="tf32", b="row"), "64x64x12", limit)
    assert several.description.endswith("K passes for a small workspace")


def test_one_of_the_candidates_runs_in_the_least_workspace(backend):
    """It is the last where none of the fastest does."""
    asked = problem(4096, 4096, 4096, "float32")
    distinct = choose.distinct(choose.timed(lower.lowerings(asked), backend._card_of(0), 2**28))
    fastest = [choice.name for _, choice in distinct[: shortlist.PROPOSED]]
    assert all(isinstance(runnable(choice, shortlist.SMALL), str) for _, choice in distinct[: shortlist.PROPOSED])
    names = list(backend.offer(asked).names)
    assert names[:-1] == fastest[:-1]
    assert names[-1] not in fastest
    assert isinstance(backend.prepare(asked, names[-1], shortlist.SMALL), Kernel)


def test_workspace_is_there_before_the_call():
    """Preparing fails without device memory, so that another backend can be chosen."""
    home, asked = Home(memory=COUNTERS), problem(64, 72, 1024)
    backend = home.backend()
    with pytest.raises(AllocationError):
        backend.prepare(asked, "64x64x12/4", LIMIT)
    home.cuda.memory = 2**30
    kernel = backend.prepare(asked, "64x64x12/4", LIMIT)
    assert kernel.workspace_bytes in [nbytes for _, nbytes, _ in home.cuda.allocated]


def test_a_batch_that_folds_into_too_many_rows(backend):
    """A batch that does not fold is multiplied as a batch."""
    asked = replace(problem(2**20, 8, 8, batch=(4096,)), b=problem(2**20, 8, 8).b)
    assert fold_batch(asked) is not None
    assert isinstance(backend.offer(asked), Offer)


def test_k_passes_too_short_for_a_cluster_that_shares_k(backend):
    """Four CTAs cannot share the last K pass, which has three blocks of K; in a larger workspace there is one pass."""
    asked = problem(70, 73, 330, "float32", precision="tf32")
    refusal = backend.prepare(asked, "64x64x12k4", COUNTERS + 80 * 2**10)
    assert refusal.reason.endswith("the last K pass has 3 blocks of K: fewer than the 4 CTAs that share them")
    assert refusal.remedy.startswith("raise the setting workspace_mib")
    refusal = backend.prepare(problem(64, 64, 64), "64x64x12k4", LIMIT)
    assert refusal.remedy == "name another candidate", "no workspace would be enough"
    assert "K shared by 4 CTAs" in backend.prepare(asked, "64x64x12k4", LIMIT).description


def test_nothing_to_do(backend):
    empty = problem(0, 64, 64)
    assert backend.offer(empty).names == ("nothing",)
    backend.prepare(empty, "nothing", LIMIT).run(0, 0, 0, 1, 0, 0)


def test_refusals(backend):
    refusal = backend.offer(replace(problem(), device=Device("cuda", 3)))
    assert isinstance(refusal, Refusal)
    assert "no Hopper GPU" in refusal.reason
    asked = problem(32768, 32768, 8191, dtype="float32", out="bfloat16")
    refusal = backend.offer(asked)
    assert "need at least" in refusal.reason
    assert "float32 result" in refusal.remedy
    refusal = backend.prepare(problem(70, 73, 330, "float32", precision="tf32"), "64x64x12", 2**16)
    assert refusal.remedy.startswith("raise the setting workspace_mib")
    for asked in (problem(dtype="float64"), replace(problem(), device=Device("cuda", 3)), problem(0, dtype="float64")):
        refusal = backend.offer(asked)
        assert isinstance(refusal, Refusal)
        assert backend.prepare(asked, "64x64x12", LIMIT) == refusal


def test_a_thread_without_a_context_prepares(backend):
    """The second time too, when nothing has to be loaded."""
    asked = problem(256, 512, 512)
    prepared = []
    for _ in range(2):
        worker = threading.Thread(
            target=lambda: prepared.append(backend.prepare(asked, backend.offer(asked).first.name, LIMIT))
        )
        worker.start()
        worker.join()
    assert len(prepared) == 2
