"""The backend's answers, and its launches: addresses, streams, threads, batches, workspace."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_cuda import lower
from problems import bias, operand, problem

from gemmhub.capability import Device, Refusal
from gemmhub.errors import KernelError
from gemmhub.kit.cuda_scratch import COUNTERS
from gemmhub.layout import MatrixLayout

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
        call(*(x.ctypes.data for x in (*self.places, self.out)), None, None, 1, 0, stream)

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
    names = backend.candidates(asked)
    assert 1 < len(set(names)) == len(names) <= 8
    assert backend.supports(asked) is None
    assert backend.estimate(asked) > 0
    for name in names:
        assert backend.remark(asked, name).startswith("tile ")
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
        with pytest.raises(ValueError, match="no kernel called"):
            backend.prepare(asked, name, LIMIT)
    with pytest.raises(ValueError, match="float32"):
        backend.prepare(asked, "mma64x64x64x4w4", LIMIT)
    with pytest.raises(ValueError, match="registers"):
        backend.prepare(problem(65, 67, 69), "128x128x8t128", LIMIT)


def test_narrow_operands_are_reported(backend):
    asked = problem(65, 67, 69)
    assert "operands loaded 4 bytes at a time" in backend.remark(asked, backend.candidates(asked)[0])


def test_a_workspace_too_small_for_split_k(backend):
    kernel = backend.prepare(problem(64, 72, 1024), NAME + "/4", 1000)
    assert kernel.workspace_bytes == 0
    assert "workspace" in kernel.description
    roomy = backend.prepare(problem(64, 72, 1024), NAME + "/4", LIMIT)
    assert roomy.workspace_bytes == COUNTERS + 2 * 4 * 64 * 64 * 4


def test_nothing_to_do(backend):
    empty = problem(0, 64, 64)
    assert backend.supports(empty) is None
    assert backend.candidates(empty) == ("nothing",)
    backend.prepare(empty, "nothing", LIMIT).run(0, 0, 0, None, None, 1, 0, 0)


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
    refusal = backend.supports(asked)
    assert isinstance(refusal, Refusal)
    assert words in refusal.reason
    assert refusal.remedy
    with pytest.raises(ValueError, match=re.escape(refusal.reason)):
        backend.prepare(asked, NAME, LIMIT)


def test_an_old_card():
    """On older cards float32 runs, and 16-bit operands are refused."""
    backend = Home(attributes={75: 7, 76: 5, 97: 65536, 81: 65536, 39: 1024}).backend()
    assert backend.supports(problem()) is None
    refusal = backend.supports(problem(dtype="bfloat16"))
    assert "7.5" in refusal.reason
