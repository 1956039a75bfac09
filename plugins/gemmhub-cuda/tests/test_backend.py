"""The backend's answers, and its launches: addresses, streams, threads, batches, workspace."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_cuda import lower
from gemmhub_cuda.cost import model
from gemmhub_nvidia.scratch import COUNTERS
from problems import bias, operand, problem

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Device, Refusal
from gemmhub.errors import KernelError
from gemmhub.layout import MatrixLayout

pytestmark = pytest.mark.emulator

LIMIT = 64 * 2**20
NAME = "64x64x16t128"


@pytest.fixture(scope="module")
def home():
    return Home()


@pytest.fixture
def backend(home):
    return home.backend()


class Call:
    """Operands of small integers, whose products are exact, at fresh addresses."""

    def __init__(self, home, m=64, n=64, k=64, batch=(), seed=0):
        rng = np.random.default_rng(seed)
        self.a, self.b = (rng.integers(-2, 3, (*batch, *size)).astype(np.float32) for size in ((m, k), (k, n)))
        self.exact, memory = self.a @ self.b, FakeMemory(home)
        self.out = memory.empty(self.exact.nbytes).view(np.float32).reshape(self.exact.shape)
        self.places = [memory.empty(x.nbytes) for x in (self.a, self.b)]
        for place, x in zip(self.places, (self.a, self.b)):
            place[:] = x.reshape(-1).view(np.uint8)

    def run(self, call, stream=0):
        self.out[:] = np.nan
        call(*(x.ctypes.data for x in (*self.places, self.out)), 1, 0, stream)

    @property
    def right(self):
        return bool((self.out == self.exact).all())


@pytest.mark.parametrize("parts", ["", "/3"])
def test_addresses_may_change(home, backend, parts):
    kernel = backend.prepare(problem(72, 136, 200), NAME + parts, LIMIT)
    calls = [Call(home, 72, 136, 200, seed=seed) for seed in range(3)]
    for call in (*calls, calls[0]):
        call.run(kernel.run)
        assert call.right


def test_a_plain_call_is_one_call_of_the_driver(home, backend):
    kernel, call = backend.prepare(problem(), NAME, LIMIT), Call(home)
    call.run(kernel.run)
    home.cuda.calls.clear()
    call.run(kernel.run, stream=7)
    assert home.cuda.calls == ["cuLaunchKernelEx"]
    assert home.cuda.launches[-1][2] == 7


def test_threads(home, backend):
    kernel = backend.prepare(problem(72, 136, 200), NAME + "/3", LIMIT)
    calls = [Call(home, 72, 136, 200, seed=seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: pair[1].run(kernel.run, pair[0] + 1), enumerate(calls)))
    assert all(call.right for call in calls)


@pytest.mark.parametrize("context", [None, 0x2000], ids=["none", "another"])
@pytest.mark.parametrize("parts", ["", "/3"])
def test_a_thread_whose_context_is_not_the_devices(home, backend, parts, context):
    """A kernel that was prepared in another thread runs without a context of this one, which stays as it is."""
    kernel, call = backend.prepare(problem(72, 136, 200), NAME + parts, LIMIT), Call(home, 72, 136, 200)
    call.run(kernel.run)

    def work():
        home.cuda.stack.extend([context] if context else [])
        call.run(kernel.run, stream=7)
        return home.cuda.stack

    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == ([context] if context else [])
        assert call.right
    assert home.cuda.complaints == []


@pytest.mark.parametrize("parts", ["", "/3"])
def test_nested_calls(home, backend, parts):
    """A nested call on the same stream shares no parameters and no scratch memory with the outer one."""
    kernel, outer = backend.prepare(problem(72, 136, 200), NAME + parts, LIMIT), Call(home, 72, 136, 200)
    inner = Call(home, 72, 136, 200, seed=1)

    def interrupt():
        home.cuda.interrupt = None
        inner.run(kernel.run, stream=7)

    for _ in range(2):
        home.cuda.interrupt = interrupt
        outer.run(kernel.run, stream=7)
        assert home.cuda.interrupt is None
        assert outer.right
        assert inner.right
    assert home.cuda.complaints == []


def test_a_batch_is_one_launch(home, backend):
    call = Call(home, 64, 64, 32, batch=(3,))
    before = len(home.cuda.launches)
    call.run(backend.prepare(problem(64, 64, 32, batch=(3,)), NAME, LIMIT).run)
    assert call.right
    assert [grid for _, grid, _ in home.cuda.launches[before:]] == [(1, 1, 3)]


def test_a_batch_that_needs_several(home, backend, monkeypatch):
    """A batch of two dimensions that are not evenly spaced, and a batch larger than a grid take several launches."""
    monkeypatch.setattr(lower, "MAX_BATCH", 2)
    call = Call(home, 64, 64, 32, batch=(2, 3))
    asked = problem(64, 64, 32, batch=(2, 3))
    shared = replace(asked.b, layout=MatrixLayout(32, 64, 64, 1, (2, 3), (0, 32 * 64)))
    asked = replace(asked, b=shared)
    call.exact = call.a @ call.b[0]
    before = len(home.cuda.launches)
    kernel = backend.prepare(asked, NAME, LIMIT)
    assert "launches" in kernel.description
    call.run(kernel.run)
    assert call.right
    assert [grid[2] for _, grid, _ in home.cuda.launches[before:]] == [2, 1, 2, 1]


def test_a_failed_launch(home, backend):
    kernel, call = backend.prepare(problem(), NAME, LIMIT), Call(home)
    home.cuda.faults["cuLaunchKernelEx"] = 719
    try:
        with pytest.raises(KernelError, match="unspecified launch failure"):
            call.run(kernel.run)
    finally:
        home.cuda.faults.clear()
    call.run(kernel.run)
    assert call.right


def test_two_devices():
    home = Home(devices=2)
    call = Call(home)
    call.run(home.backend().prepare(problem(), NAME, LIMIT).run)
    assert call.right
    assert home.cuda.stack == []


def test_kernels_are_compiled_once(home, backend):
    kernel = backend.prepare(problem(), NAME, LIMIT)
    assert kernel.workspace_bytes == 0
    assert kernel.description == "tile 64x64x16, 128 threads"
    loads = home.cuda.calls.count("cuModuleLoadData")
    backend.prepare(problem(60, 64, 64), NAME, LIMIT)
    assert home.cuda.calls.count("cuModuleLoadData") == loads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_candidates(backend, dtype):
    asked = problem(64, 72, 1024, dtype)
    offer = backend.offer(asked)
    assert 1 < len(set(offer.names)) == len(offer.names) <= 8
    seconds = [candidate.seconds for candidate in offer.candidates]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    for name in offer.names:
        assert offer.remark(name).startswith("tile ")
        assert name.startswith("mma") == (dtype == "bfloat16")


def test_candidates_by_name(backend):
    """Candidates from a tuning record are prepared by name, also those that are not proposed here."""
    asked = problem(64, 72, 1024)
    for name, words in {
        "128x128x8t256": "tile 128x128x8, 256 threads",
        "16x128x16t128/4": "tile 16x128x16, 128 threads, split-K of 4",
    }.items():
        assert backend.prepare(asked, name, LIMIT).description == words
    for name in ("64x64x5", "nonsense", f"{NAME}/", f"{NAME}/0", "nothing"):
        refusal = backend.prepare(asked, name, LIMIT)
        assert refusal == Refusal(f"there is no kernel called {name}", "name another candidate")
    for size, name, words in (
        ((64, 72, 1024), "mma64x64x64x4w4", "float32"),
        ((65, 67, 69), "128x128x8t128", "registers"),
    ):
        refusal = backend.prepare(problem(*size), name, LIMIT)
        assert words in refusal.reason
        assert refusal.remedy == "name another candidate"


def test_narrow_operands_are_reported(backend):
    offer = backend.offer(problem(65, 67, 69))
    assert "operands loaded 4 bytes at a time" in offer.remark(offer.first.name)


def test_a_workspace_too_small_for_split_k(backend):
    """Nothing is substituted: without split-K the bits would be others."""
    refusal = backend.prepare(problem(64, 72, 1024), NAME + "/4", 1000)
    assert re.fullmatch(rf"{NAME}/4 does not run .*: it needs \d+ bytes of workspace: 1000 are allowed", refusal.reason)
    assert refusal.remedy == "raise the setting workspace_mib, or name another candidate"
    refusal = backend.prepare(problem(64, 72, 64), NAME + "/5", 1000)
    assert refusal.remedy == "name another candidate", "no workspace would be enough"
    roomy = backend.prepare(problem(64, 72, 1024), NAME + "/4", LIMIT)
    assert roomy.workspace_bytes == COUNTERS + 2 * 4 * 64 * 64 * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("size", [(64, 64, 65536), (16, 16, 16384), (1024, 1024, 1024), (3, 5, 7)])
def test_one_of_the_candidates_needs_no_workspace(backend, dtype, size):
    """It is the last where each of the fastest has split-K."""
    asked = problem(*size, dtype, "int32" if dtype == "int8" else None)
    names = backend.offer(asked).names
    kernels = [backend.prepare(asked, name, 0) for name in names]
    assert any(isinstance(kernel, Kernel) for kernel in kernels)
    assert [isinstance(kernel, Kernel) for kernel in kernels] == ["/" not in name for name in names]
    card, lowering = backend.machine.cards[0], lower.lowered(asked, backend.machine.cards[0].capability)
    fastest = [choice for _, choice in model.choices(lowering, card, LIMIT)[: len(names)]]
    if all(choice.splits > 1 for choice in fastest):
        assert names[:-1] == tuple(choice.name for choice in fastest[:-1])
        assert size[2] >= 16384
    else:
        assert names == tuple(choice.name for choice in fastest)


def test_orders(backend):
    """Sums of int8 are exact; others depend on the instruction, on the steps along K, and on the splits."""
    assert {x.order for x in backend.offer(problem(64, 64, 64, "int8", "int32")).candidates} == {"exact"}
    for dtype, pattern in (("float32", r"fma\.r(8|16)"), ("bfloat16", r"mma\.k16\.r(32|64)")):
        for candidate in backend.offer(problem(64, 72, 1024, dtype)).candidates:
            step = re.search(r"\d+x\d+x(\d+)", candidate.name)[1]
            splits = candidate.name.partition("/")[2]
            assert re.fullmatch(pattern + (f"/s{splits}" if splits else ""), candidate.order), candidate
            assert f".r{step}" in candidate.order
    batch = backend.offer(problem(16, 16, 16, "bfloat16", batch=(1000,))).candidates
    assert {x.order for x in batch if not x.name.startswith("mma")} == {None}


def test_nothing_to_do(backend):
    empty = problem(0, 64, 64)
    assert backend.offer(empty).names == ("nothing",)
    backend.prepare(empty, "nothing", LIMIT).run(0, 0, 0, 1, 0, 0)


def with_a(layout):
    return replace(problem(), a=replace(operand("float32", 64, 64), layout=layout))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (replace(problem(), device=Device("cuda", 3)), "for which there are no kernels"),
        (problem(dtype="float64"), "no kernel for float64"),
        (problem(out="float64"), "a result of float64"),
        (problem(c=operand("float16", 64, 64)), "c is float16"),
        (problem(bias=bias("float64")), "the bias is float64"),
        (problem(bias=bias(stride=2)), "a stride of 2"),
        (problem(c=operand("float32", 64, 64, "col")), "different storage orders"),
        (with_a(MatrixLayout(64, 64, 128, 2)), "dense dimension"),
        (with_a(MatrixLayout(64, 64, 2**30, 1)), "leading dimension of 1073741824 elements"),
        (problem(2**31 - 100, 1, 1), "a side is longer"),
    ],
)
def test_refusals(backend, asked, words):
    refusal = backend.offer(asked)
    assert isinstance(refusal, Refusal)
    assert words in refusal.reason
    assert refusal.remedy
    assert backend.prepare(asked, NAME, LIMIT) == refusal


def test_an_old_card():
    """On older cards float32 runs, and 16-bit operands are refused."""
    backend = Home(attributes={75: 7, 76: 5, 97: 65536, 81: 65536, 39: 1024}).backend()
    assert isinstance(backend.offer(problem()), Offer)
    refusal = backend.offer(problem(dtype="bfloat16"))
    assert "7.5" in refusal.reason
