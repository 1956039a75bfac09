"""What a prepared muBLAS product does beyond the conformance kit: streams, threads, handles, errors, copies."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_uint64
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_mublas import launch
from gemmhub_mublas.backend import MublasBackend
from gemmhub_mublas.handles import Handles
from gemmhub_mublas.launch import scalar
from gemmhub_mublas.pointers import TABLES, Pointers
from gemmhub_musa import workspace
from gemmhub_musa.runtime import MusaError
from gemmhub_musa.testing import Operands, nested_products, operand, per_thread_products, problem, strided
from gemmhub_musa.workspace import PER_THREAD_STREAM

from gemmhub.backend import Offer
from gemmhub.errors import AllocationError, KernelError

LIMIT = 64 * 2**20
NOT_SUPPORTED, LOST = 801, 719
UNEVEN = replace(problem(4, 5, 6, batch=(12,)), a=strided("float32", 4, 6, 6, 1, (12,), (-24,)))


@pytest.fixture(scope="module")
def backend():
    made = MublasBackend()
    made.probe()
    return made


@pytest.fixture
def runtime(backend):
    return backend.machine.runtime


@pytest.fixture
def stream(runtime):
    made = runtime.stream_create()
    yield made
    runtime.stream_destroy(made)


def prepared(backend, asked, candidate=None):
    return backend.prepare(asked, candidate or backend.offer(asked).first.name, LIMIT).run


def test_work_goes_on_the_callers_stream(backend, runtime, stream, sim):
    """Work of the simulator is done as late as its stream allows: other streams do not see it."""
    asked = problem()
    run, operands = prepared(backend, asked), Operands(asked)
    before = operands.result()
    operands.launch(run, stream=stream)
    other = runtime.stream_create()
    runtime.stream_synchronize(other)
    now = np.empty(before.nbytes, np.uint8)
    runtime.memcpy_async(now.ctypes.data, operands.out[3], now.nbytes, 2, other)
    runtime.stream_synchronize(other)
    runtime.stream_destroy(other)
    assert np.array_equal(now.view(np.float32).reshape(16, 16), before)
    runtime.stream_synchronize(stream)
    assert np.array_equal(operands.result(), operands.wide)


@pytest.mark.parametrize("candidate", ["sgemm", "ex"])
def test_copies_of_c_stay_in_order(backend, runtime, stream, candidate):
    asked = problem(5, 7, 3, c=strided("float32", 5, 7, 9, 1))
    run, operands = prepared(backend, asked, candidate), Operands(asked)
    expected = operands.wide - 3 * operands.c[1]
    operands.launch(run, beta=-3, stream=stream)
    runtime.stream_synchronize(stream)
    assert np.array_equal(operands.result(), expected)


def test_c_in_place_is_not_copied(backend, monkeypatch):
    asked = problem(c=operand("float32", 16, 16))
    run, operands = prepared(backend, asked), Operands(asked)
    monkeypatch.setattr("gemmhub_mublas.addend.Addend.copy", None)
    expected = operands.wide + 2 * operands.out[1]
    assert np.array_equal(operands.run(run, beta=2, in_place=True), expected)


@pytest.mark.parametrize(("c", "batch"), [
    (operand("float32", 4, 5, batch=(3,)), (3,)),
    (strided("float32", 4, 5, 5, 1, (3,), (0,)), (3,)),
    (strided("float32", 4, 5, 8, 1, (3,), (32,)), (3,)),
    (strided("float32", 4, 5, 8, 1, (3,), (50,)), (3,)),
    (strided("float32", 4, 5, 5, 1, (2, 3), (0, 20)), (2, 3)),
])  # fmt: skip
def test_every_c_is_copied(backend, c, batch):
    asked = problem(4, 5, 6, batch=batch, c=c)
    for candidate in backend.offer(asked).names:
        operands = Operands(asked)
        expected = operands.wide - operands.c[1]
        assert np.array_equal(operands.run(prepared(backend, asked, candidate), beta=-1), expected), candidate


def test_c_is_copied_between_gaps_of_the_result(backend):
    """The addend's matrices follow each other, the result's do not."""
    out = strided("float32", 4, 5, 5, 1, (3,), (32,))
    asked = replace(problem(4, 5, 6, batch=(3,), c=operand("float32", 4, 5, batch=(3,))), out=out)
    operands = Operands(asked)
    expected = operands.wide - operands.c[1]
    gaps = operands.out.memory.copy()
    assert np.array_equal(operands.run(prepared(backend, asked), beta=-1), expected)
    memory = operands.out.there.numpy()
    changed = np.flatnonzero(memory != gaps)
    assert set(changed % 32) <= set(range(20))


@pytest.mark.parametrize("alpha", [1, 0, np.inf, np.nan])
def test_no_inner_dimension(backend, alpha):
    asked = problem(5, 7, 0, alpha_is_one=alpha == 1, c=operand("float32", 5, 7))
    for candidate in backend.offer(asked).names:
        operands = Operands(asked)
        expected = -2 * operands.c[1]
        assert np.array_equal(operands.run(prepared(backend, asked, candidate), alpha=alpha, beta=-2), expected)


@pytest.mark.parametrize("asked", [problem(alpha_is_one=False), replace(UNEVEN, alpha_is_one=False)])
def test_alpha_zero_forgets_nan(backend, asked):
    for candidate in backend.offer(asked).names:
        operands = Operands(asked)
        operands.a[0][...] = np.nan
        operands.arrays.copy(operands.a[2], operands.arrays.from_host(operands.a[0]))
        run = prepared(backend, asked, candidate)
        assert not operands.run(run, alpha=0).any()
        assert np.isnan(operands.run(run, alpha=2)).all()


def test_addresses_follow_the_operands(backend, runtime, stream):
    """One kernel, several sets of operands in flight at once on one stream."""
    run = prepared(backend, UNEVEN, "sgemm_batched")
    sets = [Operands(UNEVEN, seed) for seed in range(6)]
    for _ in range(2):
        for operands in sets:
            operands.launch(run, stream=stream)
    runtime.stream_synchronize(stream)
    for operands in sets:
        assert np.array_equal(operands.result(), operands.wide)


def words(table):
    """The six addresses on the host's side of a table."""
    return list((c_uint64 * 6).from_address(table.source))


def test_pending_addresses_are_not_overwritten(runtime, stream, sim):
    """Host memory that a copy may still read is left alone; where there is none left, the oldest copy is awaited."""
    pointers = Pointers(runtime, 0, [(0, 0, 0), (8, 16, 32)])
    sim.musaSimInject(b"musaMalloc,musaMallocHost")
    for turn in range(TABLES + 1):
        base = 1000 * turn
        before = {table: words(table) for table in pointers._free if table.used}
        with pointers.lease((base, base + 1, base + 2), stream) as starts:
            pass
        assert starts[1:] == (starts[0] + 16, starts[0] + 32)
        kept = [table for table in before if words(table) == before[table]]
        assert len(kept) == min(turn, TABLES - 1)
    assert words(pointers._free[-1]) == [base, base + 8, base + 1, base + 17, base + 2, base + 34]
    with pointers.lease((base, base + 1, base + 2), stream) as again:  # nothing to copy
        assert again == starts
    assert sim.musaPeekAtLastError() == 0


@pytest.mark.parametrize("where", ["guard", "library"])
@pytest.mark.parametrize(("asked", "candidate"), [(problem(), "sgemm"), (UNEVEN, "sgemm_batched"), (UNEVEN, "sgemm")])
def test_a_nested_call_disturbs_nothing(backend, asked, candidate, where):
    """Between any two steps of a call: it has a handle and address arrays of its own."""
    run = prepared(backend, asked, candidate)
    target, name = {"guard": (backend.machine.guard, "before"), "library": (backend.machine.library, "set_up")}[where]
    nested_products(run, asked, target, name)


def test_the_per_thread_stream(backend, sim):
    """In many orders that the streams of two threads allow."""
    run = prepared(backend, UNEVEN, "sgemm_batched")
    try:
        for seed in range(30):
            sim.musaSimSetOption(b"SEED", seed)
            per_thread_products(run, UNEVEN)
    finally:
        sim.musaSimSetOption(b"SEED", 0)


@pytest.mark.parametrize("candidate", ["sgemm", "sgemm_batched"])
def test_calls_allocate_nothing(backend, sim, runtime, candidate):
    """On a stream and in a thread that are new, with operands that are."""
    run, sets = prepared(backend, UNEVEN, candidate), [Operands(UNEVEN, seed) for seed in range(6)]
    stream = runtime.stream_create()
    sim.musaSimInject(b"musaMalloc,musaMallocHost,musaEventCreate,mublasCreate")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: [operands.launch(run, stream=stream) for operands in sets]).result()
    sim.musaSimInject(b"")
    runtime.stream_synchronize(stream)
    assert all(np.array_equal(operands.result(), operands.wide) for operands in sets)
    runtime.stream_destroy(stream)


def test_one_kernel_on_several_streams(backend, runtime):
    run = prepared(backend, UNEVEN, "sgemm_batched")
    streams = [runtime.stream_create() for _ in range(3)]
    sets = [(Operands(UNEVEN, seed), streams[seed % 3]) for seed in range(9)]
    for operands, stream in sets:
        operands.launch(run, stream=stream)
    for operands, stream in reversed(sets):
        runtime.stream_synchronize(stream)
        assert np.array_equal(operands.result(), operands.wide)
    for stream in streams:
        runtime.stream_destroy(stream)


@pytest.mark.parametrize("asked", [problem(8, 9, 10, c=operand("float32", 8, 9)), UNEVEN])
def test_many_threads(backend, asked):
    for candidate in backend.offer(asked).names:
        run = prepared(backend, asked, candidate)
        beta = 1 if asked.c else 0

        def work(seed, run=run, beta=beta):
            operands = Operands(asked, seed)
            expected = operands.wide + (beta * operands.c[1] if beta else 0)
            return all(np.array_equal(operands.run(run, beta=beta), expected) for _ in range(5))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(8))), candidate


def test_a_handle_for_each_call():
    made = []

    def create():
        made.append(len(made) + 1)
        return made[-1]

    handles = Handles(create)
    handles.reserve(0)
    handles.reserve(0)
    outer = handles.take(0, 7)
    assert made == [outer]
    nested = handles.take(0, 7)
    assert nested != outer
    handles.give(0, 7, nested)
    handles.give(0, 7, outer)
    assert {handles.take(0, 7), handles.take(0, 7)} == {outer, nested}
    # Those of other streams and devices are others: the calls that one serves run in one order.
    other = {handles.take(0, 8), handles.take(1, 7)}
    assert len(other | {outer, nested}) == 4
    mine = handles.take(0, PER_THREAD_STREAM)
    handles.give(0, PER_THREAD_STREAM, mine)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handles.take, 0, PER_THREAD_STREAM).result() != mine
    assert handles.take(0, PER_THREAD_STREAM) == mine


def test_settings_are_made_before_each_use(backend):
    """Somebody else may have changed them on the handle."""
    machine, asked = backend.machine, problem()
    run, operands = prepared(backend, asked), Operands(asked)
    handle = machine.handles.take(0, 0)
    machine.library.lib.mublasSetPointerMode(handle, 1)
    machine.handles.give(0, 0, handle)
    assert np.array_equal(operands.run(run), operands.wide)


def test_a_failed_launch(backend, sim):
    asked = problem()
    run, operands = prepared(backend, asked, "sgemm"), Operands(asked)
    sim.musaSimInject(b"mublasSgemm")
    with pytest.raises(KernelError, match=r"'mublas': mublasSgemm: status \d+ \(MUBLAS_STATUS_"):
        operands.launch(run)
    sim.musaSimInject(b"")
    assert np.array_equal(operands.run(run), operands.wide)


def test_a_failed_copy_of_c(backend, sim):
    asked = problem(c=operand("float32", 16, 16))
    run, operands = prepared(backend, asked), Operands(asked)
    sim.musaSimInject(b"musaMemcpyAsync,musaMemcpy2DAsync")
    with pytest.raises(MusaError, match="musaMemcpy"):
        operands.launch(run, beta=1)
    sim.musaSimInject(b"")
    assert np.array_equal(operands.run(run, beta=1), operands.wide + operands.c[1])


@pytest.mark.parametrize("function", ["musaMalloc", "musaMallocHost"])
def test_no_memory_for_addresses(backend, sim, function):
    assert "sgemm_batched" in backend.offer(UNEVEN).names
    sim.musaSimInject(function.encode())
    with pytest.raises(AllocationError):
        prepared(backend, UNEVEN, "sgemm_batched")
    sim.musaSimInject(b"")
    run, operands = prepared(backend, UNEVEN, "sgemm_batched"), Operands(UNEVEN)
    assert np.array_equal(operands.run(run), operands.wide)


def test_no_memory_for_zeros(sim):
    workspace.of.cache_clear()  # as in a process that has reserved nothing
    backend = MublasBackend()
    asked = problem(40, 50, 60, alpha_is_one=False)
    assert isinstance(backend.offer(asked), Offer)
    sim.musaSimInject(b"musaMalloc")
    with pytest.raises(AllocationError):
        backend.prepare(asked, "sgemm", LIMIT)


def test_harmless_errors_are_cleared_and_reported(backend, sim, monkeypatch):
    """Some SDKs leave musaErrorNotSupported behind: the user's next call must not find it."""
    asked = problem()
    run, operands = prepared(backend, asked), Operands(asked)
    cleared = backend.machine.guard.cleared
    monkeypatch.setenv("MUSA_SIM_BLAS_STICKY", str(NOT_SUPPORTED))
    operands.launch(run)
    monkeypatch.delenv("MUSA_SIM_BLAS_STICKY")
    assert sim.musaPeekAtLastError() == 0
    assert backend.machine.guard.cleared == cleared + 1
    assert f"left musaErrorNotSupported behind {cleared + 1} times" in backend.offer(asked).remark("sgemm")
    assert np.array_equal(operands.result(), operands.wide)


def test_other_errors_are_raised(backend, sim, monkeypatch):
    asked = problem()
    run, operands = prepared(backend, asked), Operands(asked)
    monkeypatch.setenv("MUSA_SIM_BLAS_STICKY", "1")
    with pytest.raises(KernelError, match="succeeded, but the runtime then reports musaErrorInvalidValue"):
        operands.launch(run)
    assert sim.musaPeekAtLastError() == 0


def test_pending_errors_of_others_stay(backend, sim):
    asked = problem()
    run, operands = prepared(backend, asked), Operands(asked)
    sim.musaSimSetSticky(1)
    operands.launch(run)
    assert sim.musaPeekAtLastError() == 1
    sim.musaSimInject(b"mublasSgemm")
    with pytest.raises(KernelError, match="before it, musaErrorInvalidValue was pending"):
        operands.launch(run)
    assert sim.musaGetLastError() == 1


def test_a_lost_device(backend, sim):
    """A kernel's fault loses the device: every product reports it, and the process lives."""
    asked = problem()
    run, operands = prepared(backend, asked), Operands(asked)
    sim.musaSimSetSticky(LOST)
    with pytest.raises((KernelError, MusaError), match="musaErrorLaunchFailure"):
        operands.launch(run)
    sim.musaSimReset()
    assert np.array_equal(operands.run(run), operands.wide)


def test_operands_that_are_not_on_the_device(backend, sim):
    asked = problem()
    run, operands = prepared(backend, asked), Operands(asked)
    host = np.zeros((16, 16), np.float32)
    with pytest.raises(KernelError, match="MUBLAS_STATUS_INVALID"):
        run(host.ctypes.data, operands.b[3], operands.out[3], 1, 0, 0)


def test_kernels_outlive_what_made_them():
    asked = problem()
    run = prepared(MublasBackend(), asked)
    gc.collect()
    operands = Operands(asked)
    assert np.array_equal(operands.run(run), operands.wide)


def test_nothing_is_leaked(backend, sim):
    asked = problem(6, 7, 8, alpha_is_one=False, c=operand("float32", 6, 7))
    run = prepared(backend, asked)
    Operands(asked).run(run, alpha=0, beta=1)
    gc.collect()
    live = sim.musaSimLive()
    for seed in range(3):
        Operands(asked, seed).run(run, alpha=seed, beta=1)
        gc.collect()
    assert sim.musaSimLive() == live


@pytest.mark.parametrize(("value", "compute", "expected"), [
    (2.5, "float32", 2.5), (1e300, "float32", np.inf), (2.5, "float64", 2.5), (-7, "int32", -7), (3.0, "int32", 3),
])  # fmt: skip
def test_scalars(value, compute, expected):
    assert scalar(value, compute).value == expected


def test_complex_scalars():
    assert tuple(scalar(0.5 - 2j, "complex64")) == (0.5, -2.0)
    assert tuple(scalar(3, "complex128")) == (3.0, 0.0)


def test_each_matrix_of_a_batch():
    from gemmhub_mublas.lower import lowered

    found = lowered(problem(2, 3, 4, batch=(3,)), fused=False)
    assert launch.each_matrix(found, found.main) == [(48 * i, 32 * i, 24 * i) for i in range(3)]
