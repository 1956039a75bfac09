"""Scratch memory: bounded, and leased to one call at a time under any interruption."""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from products import BF16, F16, F32, F64, I8, draw

import gemmhub
from gemmhub._call import describe
from gemmhub._call.options import request
from gemmhub.numpy_backend import blocked, scratch
from gemmhub.numpy_backend.blocked import BlockedGemm
from gemmhub.numpy_backend.scratch import Scratch

LEASING = {blocked.__file__, scratch.__file__}


@pytest.fixture
def memory():
    return Scratch()


def address(x):
    return x.__array_interface__["data"][0]


# Leases


def test_a_lease_gives_distinct_aligned_arrays(memory):
    with memory.lease(1000) as lease:
        first, second = lease.take((10,), F32), lease.take((3, 5), F64)
        assert not np.may_share_memory(first, second)
        assert address(first) % 64 == address(second) % 64 == 0
        assert lease.take((0, 3), F32).shape == (0, 3)
        assert lease.take((1000,), F64).shape == (1000,)  # more than was asked for: memory of its own


def test_the_buffer_is_kept_and_grows(memory):
    with memory.lease(1000) as lease:
        first = address(lease.take((10,), F32))
    with memory.lease(500) as lease:
        assert address(lease.take((10,), F32)) == first
    with memory.lease(5000) as lease:
        assert lease.take((1250,), F32).base is not None
    assert [x.size for x in memory.kept] == [5000]


def test_nested_leases_share_nothing_and_one_buffer_is_kept(memory):
    def nested(depth):
        with memory.lease(1000) as lease:
            taken = lease.take((250,), F32)
            inner = nested(depth - 1) if depth else []
            assert not any(np.may_share_memory(taken, other) for other in inner)
            return [*inner, taken]

    for depth in (0, 1, 2, 5):
        arrays_of_all = nested(depth)
        assert len(memory.kept) == 1
        assert np.may_share_memory(memory.kept[0], arrays_of_all[-1])  # that of the outermost


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_frees_the_buffer(memory, kind):
    seen = []

    def fails():
        with memory.lease(1000) as lease:
            seen.append(weakref.ref(lease.take((10,), F32).base))
            raise kind

    with pytest.raises(kind) as raised:
        fails()
    assert not memory.kept
    del raised
    assert seen[0]() is None
    with memory.lease(1000):
        pass
    assert len(memory.kept) == 1


def test_a_failed_allocation_leaves_nothing(memory, monkeypatch):
    with memory.lease(100):
        pass

    def none(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(scratch.np, "empty", none)
        with pytest.raises(MemoryError), memory.lease(1000):
            pass
    assert not memory.kept
    with memory.lease(1000) as lease:
        assert lease.take((250,), F32).size == 250


def test_every_thread_has_a_separate_buffer(memory):
    together = threading.Barrier(4)

    def use(_):
        with memory.lease(1000) as lease:
            together.wait(60)
            return address(lease.take((10,), F32))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(use, range(4)))) == 4


# Products that are interrupted by products


class Product:
    """A product in several blocks along every dimension, and its right result."""

    def __init__(self, rng, dtype, size=(70, 66, 300), limit=3 * 64 * 64 * 4, **options):
        m, n, k = size
        self.a, self.b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
        self.problem, self.limit = describe.describe(self.a, self.b, None, request(options)).problem, limit
        self.gemm = BlockedGemm(self.problem, limit)
        self.out = np.empty((m, n), self.problem.out.dtype)
        self.c = draw(rng, (m, n), self.problem.out.dtype) if "c" in options else None
        self.expected = self()

    def __call__(self):
        self.out[...] = 0
        more = {} if self.c is None else {"c": self.c}
        self.gemm(self.a, self.b, self.out, 1, 2 if more else 0, **more)
        return self.out.copy()

    def right(self):
        return np.array_equal(self.out, self.expected)


def each_opcode(run, interrupt):
    """``run()``, with ``interrupt(i)`` before the i-th bytecode of the modules that lease."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in LEASING:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            interrupt(count)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("dtype", [F16, BF16, I8], ids=str)
@pytest.mark.parametrize("with_c", [False, True])
def test_a_product_between_any_two_bytecodes_of_another(dtype, with_c, rng):
    options = {"c": np.zeros((70, 66), np.int32 if dtype == I8 else dtype), "beta": 2} if with_c else {}
    outer = Product(rng, dtype, **options)
    inner = Product(rng, dtype, (5, 6, 7), activation="relu")
    wrong = []
    count = each_opcode(outer, lambda i: np.array_equal(inner(), inner.expected) or wrong.append(i))
    assert count > 500
    assert not wrong
    assert outer.right()


def test_interrupts_of_interrupts(rng):
    """A profiler that multiplies through an operand's library, which is profiled itself."""
    outer, middle, inner = (Product(rng, F16, size) for size in ((70, 66, 300), (9, 70, 8), (5, 6, 7)))
    wrong = []

    def nested(*_):
        inner()
        wrong.extend([] if inner.right() else ["inner"])

    def profile(*_):
        sys.setprofile(nested)
        middle()
        sys.setprofile(None)
        wrong.extend([] if middle.right() else ["middle"])
        sys.setprofile(profile)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        outer()
    finally:
        sys.setprofile(before)
    assert not wrong
    assert outer.right()
    assert len(blocked.scratch.kept) == 1


def test_an_exception_between_any_two_bytecodes(rng):
    """After it the next two products (one within the other) are correct and share no memory."""
    broken, inner = Product(rng, F16, (3, 4, 5), 2**20, activation="relu"), Product(rng, F16, (5, 6, 7))
    outer = Product(rng, F16, (8, 9, 10))

    def stop(at):
        def interrupt(i):
            if i == at:
                raise KeyboardInterrupt

        return interrupt

    total = each_opcode(broken, lambda i: None)
    for at in range(1, total + 1):
        with pytest.raises(KeyboardInterrupt):
            each_opcode(broken, stop(at))
        assert len(blocked.scratch.kept) <= 1, at
        with blocked.scratch.lease(1000) as first, blocked.scratch.lease(1000) as second:
            assert not np.may_share_memory(first.take((9,), F32), second.take((9,), F32)), at
    each_opcode(outer, lambda i: inner())
    assert outer.right()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
def test_a_signal_handler_that_multiplies():
    a, s = np.ones((400, 400), F16), np.zeros((16, 16), F16)
    expected = gemmhub.matmul(a, a)
    gemmhub.matmul(s, s)
    handled = 0

    def handler(*_):
        nonlocal handled
        handled += 1
        gemmhub.matmul(s, s)
        signal.setitimer(signal.ITIMER_REAL, 0.001)  # one more after this one: a slow machine makes progress

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        results = [gemmhub.matmul(a, a) for _ in range(50)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handled
    assert all(np.array_equal(x, expected) for x in results)


def test_a_finalizer_that_multiplies(rng):
    """In the middle of a product, where an array of its operand's library is collected."""
    outer, inner = Product(rng, F16), Product(rng, F16, (5, 6, 7))

    class Multiplies:
        def __del__(self):
            inner()

    def copy(target, source, casting):
        Multiplies()
        np.copyto(target, source, casting=casting)

    outer.gemm = BlockedGemm(outer.problem, outer.limit, copy)
    outer()
    assert outer.right()
    assert inner.right()
