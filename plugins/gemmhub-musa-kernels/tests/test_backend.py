"""The backend around the kernels: probing, refusals, candidates, copies, packing, streams."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gemmhub_musa import Array, from_numpy
from gemmhub_musa.runtime import ON_DEVICE
from gemmhub_musa.testing import (
    MusaMemory,
    Operands,
    interrupted,
    nested_products,
    per_thread_products,
    stream_of_its_own,
)
from gemmhub_musa_kernels import choose, copies, model, sources, tiles
from gemmhub_musa_kernels.backend import MusaKernelsBackend
from gemmhub_musa_kernels.library import NAME
from gemmhub_musa_kernels.lower import lowered
from gemmhub_musa_kernels.probe import Card
from simulator import problem, whole

import gemmhub
from conftest import INSTALLED
from gemmhub._base import timing
from gemmhub._measure import tune
from gemmhub.backend import Offer
from gemmhub.capability import Absent, Device, Ready, Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.errors import NoBackendError
from gemmhub.layout import MatrixLayout
from gemmhub.problem import Bias, Operand
from gemmhub.testing import Case, check
from gemmhub.testing.problems import unsigned_bytes

pytestmark = pytest.mark.skipif(INSTALLED, reason="needs the simulator")


@pytest.fixture(scope="module")
def backend():
    made = MusaKernelsBackend()
    assert isinstance(made.probe(), Ready)
    return made


# Probing


def test_ready(backend):
    found = backend.probe()
    assert found.devices == (Device("musa", 0), Device("musa", 1))
    assert found.features == ("musa:0 is mp_22", "musa:1 is mp_22")
    assert set(found.versions) >= {"musa-kernels", "mcc", "musa runtime"}


SAYS = """
from gemmhub.backend import Offer
from gemmhub.capability import Absent
from gemmhub_musa_kernels.backend import MusaKernelsBackend
found = MusaKernelsBackend().probe()
assert isinstance(found, Absent), found
print(found.reason, "|", found.remedy)
"""


def says(home, **variables):
    environment = {**os.environ, "MUSA_HOME": str(home), "PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run([sys.executable, "-c", SAYS], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("missing", "reason", "remedy"),
    [
        ("bin", "there is no MUSA compiler mcc", "install the MUSA toolkit"),
        ("include", "has no headers", "install the MUSA toolkit"),
    ],
)
def test_missing_parts_are_reported(home, tmp_path, missing, reason, remedy):
    copied = tmp_path / "home"
    shutil.copytree(home, copied, symlinks=True)
    shutil.rmtree(copied / missing)
    told = says(copied)
    assert reason in told
    assert remedy in told


def test_a_kernel_that_does_not_compile_is_passed_over(sim, monkeypatch, tmp_path):
    broken = tmp_path / "mcc"
    broken.write_text("#!/bin/sh\necho 'error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("GEMMHUB_MCC", str(broken))
    made = MusaKernelsBackend()
    asked = problem(8, 8, 8)
    assert isinstance(made.offer(asked), Offer)
    assert "out of order" in made.prepare(asked, made.offer(asked).first.name, 0).traceback


def test_a_kernel_that_is_wrong_is_refused(sim, monkeypatch):
    """Here: one that never writes."""
    made = MusaKernelsBackend()
    asked = problem(8, 8, 8)
    monkeypatch.setattr("gemmhub_musa_kernels.library.Library.gemm", lambda *arguments: None)
    assert "is wrong: NumPy has" in made.prepare(asked, made.offer(asked).first.name, 0).reason


# Refusals


def operand(dtype, rows, cols, **options):
    return Operand(as_dtype(dtype), MatrixLayout.contiguous(rows, cols), **options)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (problem(8, 8, 8, dtype="int8", out="int32"), "not int8 by int8 to int32"),
        *((asked, "by") for asked in unsigned_bytes(problem(8, 8, 8, dtype="int8", out="int32"))),
        (problem(8, 8, 8, dtype="float64"), "not float64 by float64"),
        (problem(8, 8, 8, dtype="float32"), "not float32 by float32"),
        (problem(8, 8, 8, b="row", out="float64"), "to float64"),
        (replace(problem(8, 8, 8), b=operand("bfloat16", 8, 8)), "not float16 by bfloat16"),
        (problem(8, 8, 8, c=operand("float64", 8, 8)), "c is float64"),
        (problem(8, 8, 8, bias=Bias(as_dtype("float64"), "n")), "bias is float64"),
        (replace(problem(8, 8, 8), a=operand("float16", 8, 8, alignment=1)), "the address of a is aligned to 1 bytes"),
        (replace(problem(8, 8, 8), device=Device("musa", 7)), "the operands are on musa:7"),
        (problem(2**31, 1, 1), "m is 2147483648"),
    ],
)
def test_refusals(backend, asked, reason):
    answer = backend.offer(asked)
    assert isinstance(answer, Refusal)
    assert reason in answer.reason
    assert answer.remedy
    assert backend.prepare(asked, "scalar", 0) == answer


def test_a_batch_of_too_many_uneven_dimensions(backend):
    batch = (2, 2, 2, 2, 2)
    asked = problem(4, 4, 4, batch=batch)
    uneven = replace(asked.a.layout, batch_strides=(1000, 610, 310, 100, 20))
    asked = replace(asked, a=replace(asked.a, layout=uneven))
    assert "the batch has 5 dimensions" in backend.offer(asked).reason


def test_mp_21_has_the_scalar_kernel_and_no_bfloat16(sim):
    sim.set(ARCH=21)
    made = MusaKernelsBackend()
    assert made.offer(problem(64, 64, 64)).names == ("scalar",)
    assert "mp_21 has no bfloat16" in made.offer(problem(64, 64, 64, dtype="bfloat16")).reason


def test_nothing_to_do(backend):
    asked = problem(0, 4, 4)
    first = backend.offer(asked).first
    assert first.copies == ()
    kernel = backend.prepare(asked, first.name, 0)
    kernel.run(0, 0, 0, 1, 0, 0)


def test_an_unknown_candidate(backend):
    assert "no candidate 'fast' here; allowed: pipelined" in backend.prepare(problem(8, 8, 8), "fast", 0).reason


# Candidates, copies, estimates


def test_large_products_get_large_tiles(backend):
    assert backend.offer(problem(256, 256, 64, a="col")).first.name == "pipelined-64x64x32-2x1warps"
    assert backend.offer(problem(4096, 4096, 64, a="col")).first.name == "pipelined-128x128x32-1x1warps"


def test_a_copy_is_reported_and_can_be_avoided(backend):
    asked = problem(1024, 1024, 1024, a="col", b="col", d="col")
    offer = backend.offer(asked)
    (copy,) = offer.first.copies
    assert (copy.operand, copy.nbytes) == ("b", 2 * 1024 * 1024)
    assert "transposed first" in copy.why
    assert offer.first.name.endswith("-copying")
    plain = offer.first.name.removesuffix("-copying")
    (without,) = (x for x in offer.candidates if x.name == plain)
    assert without.copies == ()
    assert "without copies" in offer.remark(plain)
    assert offer.first.seconds == pytest.approx(2 * 1024**3 / 53.6e12 + 2 * model.LAUNCH, rel=0.2)
    assert without.seconds == pytest.approx(offer.first.seconds - model.LAUNCH, rel=0.01)
    no = backend.prepare(asked, offer.first.name, 2**20)
    assert f"{2**21} bytes of workspace: {2**20} are allowed" in no.reason
    assert "workspace_mib" in no.remedy


def test_copies_name_the_operands_of_the_caller(backend):
    """In row-major order the transpose is computed: what is dense along k there is a."""
    assert [copy.operand for copy in backend.offer(problem(1024, 1024, 1024)).first.copies] == ["a"]
    assert [copy.operand for copy in backend.offer(problem(1024, 1024, 1024, b="col")).first.copies] == ["a", "b"]


@pytest.mark.parametrize(
    ("asked", "copied"),
    [
        (problem(1024, 1024, 1024, a="col"), ()),
        (problem(64, 1024, 1024, a="col", b="col"), ()),  # b is read once
        (problem(1023, 1023, 1023, a="col"), ("a", "b")),  # rows that no vector divides
        (problem(1024, 1024, 1024, b="col", batch=(2,)), ()),  # two matrices
        (problem(8192, 8192, 8192, a="col", b="col"), ()),  # 128 MiB
    ],
)
def test_when_operands_are_copied(asked, copied):
    assert copies.worthwhile(lowered(asked)) == copied


def test_operands_without_a_dense_dimension_are_copied_or_left_to_other_kernels(backend):
    asked = problem(1024, 1024, 1024, a="col")
    strided = replace(asked, b=replace(asked.b, layout=MatrixLayout(1024, 1024, 4096, 2)))
    names = backend.offer(strided).names
    assert names[0].endswith("-copying")
    assert all(x.endswith("-copying") for x in names if x.startswith("pipelined"))
    small = problem(32, 32, 32)
    small = replace(small, b=replace(small.b, layout=MatrixLayout(32, 32, 128, 2)))
    assert list(backend.offer(small).names) == ["wmma", "scalar"]


@pytest.mark.parametrize("name", ["128x128x64-2x2warps", "128x128x32-2x2warps-3stages", "256x128x32-2x1warps"])
def test_tiles_of_more_than_48_kib(backend, sim, name):
    """A kernel requests shared memory above 48 KiB; an S4000 has 72."""
    asked = problem(130, 136, 168, a="row", b="col")
    candidate = f"pipelined-{name}"
    assert candidate in backend.offer(asked).names
    kernel, operands = backend.prepare(asked, candidate, 0), Operands(asked)
    assert np.array_equal(operands.run(kernel.run), operands.wide.astype(np.float16))


def test_tiles_that_the_device_has_no_memory_for_are_no_candidates():
    gemm = lowered(problem(1024, 1024, 1024, a="col"))
    every = choose.candidates(gemm, "mp_22", 73728, ())
    fewer = choose.candidates(gemm, "mp_22", 40000, ())
    assert {x.name for x in every} - {x.name for x in fewer} == {
        "pipelined-128x128x32-2x2warps-3stages",
        "pipelined-128x128x64-2x2warps",
        "pipelined-256x128x32-2x1warps",
    }
    assert len({x.name for x in every}) == len(every)


def test_orders_of_addition(backend):
    """Tiles of one depth have one order; operands in another storage order, or exchanged, have others."""
    offer = backend.offer(problem(1024, 1024, 1024, a="row", b="row", d="row"))
    orders = {each.name: each.order for each in offer.candidates}
    assert orders.pop("scalar") == "scalar.chain"
    assert orders.pop("wmma") == "mma.16x16x16.arow.brow.k16"
    assert len(orders) == 2 * len(tiles.of(128))
    for name, order in orders.items():
        left, depth = "acol" if name.endswith("copying") else "arow", name.split("-")[1].split("x")[2]
        assert order == f"mma.32x32x16.{left}.brow.k{depth}"
    turned = backend.offer(problem(1024, 1024, 1024, a="row", b="row", d="col"))
    assert {x.order for x in turned.candidates}.isdisjoint(orders.values())


@pytest.mark.parametrize("name", [f"{sources.PIPELINED}-128x128x32-2x2warps", sources.WMMA, sources.SCALAR])
def test_an_order_gives_the_same_bits_for_any_m_n_and_batch(backend, name):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 150, 77), (2, 77, 140)))
    seen, whole = set(), None
    for batch, m, n in (((2,), 150, 140), ((), 150, 140), ((), 3, 140), ((), 150, 5), ((2,), 2, 2)):
        asked = problem(m, n, 77, out="float32", batch=batch)
        (candidate,) = (x for x in backend.offer(asked).candidates if x.name == name)
        seen.add(candidate.order)
        operands = [x if batch else x[0] for x in (a[:, :m], b[..., :n], np.zeros((2, m, n), np.float32))]
        places = [from_numpy(np.ascontiguousarray(x)) for x in operands]
        kernel = backend.prepare(asked, name, 0)
        kernel.run(*(x.data.ptr for x in places), 1, 0, 0)
        got = places[2].numpy().reshape(-1, m, n)
        whole = got if whole is None else whole
        assert np.array_equal(got, whole[: len(got), :m, :n])
    assert len(seen) == 1


def test_no_estimate_where_there_are_no_figures(sim):
    sim.set(ARCH=31)
    assert MusaKernelsBackend().offer(problem(64, 64, 64)).first.seconds is None


def test_the_published_structure_has_the_published_speed():
    """Others differ from it by what is counted."""
    usual, best = (
        2 * 32 * 32 * 16 * 56 * model.CLOCK / model.instruction_cycles(tile, 128)
        for tile in (tiles.USUAL[128], tiles.Tile(256, 128, 32, 2, 1))
    )
    assert usual == pytest.approx(model.PUBLISHED)
    assert model.PUBLISHED < best < 100e12
    gemm = lowered(problem(4096, 4096, 4096, a="col"))
    counted = {str(tile): model.cycles(tile, gemm, 128, 56) for tile in tiles.of(128)}
    assert min(counted, key=counted.get) == "128x128x32-1x1warps"


def test_the_tiles_that_a_multiprocessor_gets_are_counted():
    """A 57th tile costs as much as the first 56; whole tiles are computed."""
    tile = tiles.SMALL[128]
    one, all_, more = (model.cycles(tile, lowered(problem(64, 64 * n, 32)), 128, 56) for n in (1, 56, 57))
    assert one == all_ == more / 2
    assert one == model.cycles(tile, lowered(problem(3, 5, 1)), 128, 56)


def test_cards():
    card = Card("mp_22", 56, 73728)
    assert (card.arch, card.multiprocessors, card.shared_bytes) == ("mp_22", 56, 73728)


# Calls


def numbers(*shape, seed=0):
    return whole(np.random.default_rng(seed), *shape)


def product(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


def test_through_gemmhub(sim):
    a, b = numbers(70, 40), numbers(40, 50, seed=1)
    got = gemmhub.matmul(from_numpy(a), from_numpy(b), backend=NAME)
    assert isinstance(got, Array)
    assert np.array_equal(got.numpy(), product(a, b))
    assert gemmhub.explain(from_numpy(a), from_numpy(b))[NAME].order == "mma.32x32x16.arow.brow.k32"
    x = from_numpy(numbers(4, 4).astype(np.int8))
    with pytest.raises(NoBackendError, match="not int8 by int8"):
        gemmhub.matmul(x, x, backend=NAME)


def test_packed(sim):
    a, b, other = numbers(9, 40), numbers(30, 40, seed=1).T, numbers(40, 30, seed=2)
    there = from_numpy(np.ascontiguousarray(b))
    before = sim.rt.musaSimLive()
    packed = gemmhub.pack(there, backend=NAME)
    assert packed.payload.nbytes == 2 * 40 * 64
    MusaMemory().write(there, np.ascontiguousarray(other))
    for rows in (9, 1):
        got = gemmhub.matmul(from_numpy(a[:rows]), packed)
        assert np.array_equal(got.numpy(), product(a[:rows], b))
    del packed, got
    assert sim.rt.musaSimLive() == before


def test_packing_waits_and_is_waited_for(sim):
    """On streams that the default one does not order: of the operand that is packed, and of the product."""
    a, b = numbers(9, 40), numbers(40, 30, seed=1)
    left, there, written = from_numpy(a), from_numpy(np.zeros_like(b)), from_numpy(b)
    first = gemmhub.pack(there, backend=NAME)
    gemmhub.matmul(left, first)  # proofs copy on the default stream, which orders its work
    streams = [stream_of_its_own(sim.runtime) for _ in range(2)]
    sim.runtime.memcpy_async(there.data.ptr, written.data.ptr, b.nbytes, ON_DEVICE, streams[0])
    packed = gemmhub.pack(there, backend=NAME)
    got = gemmhub.matmul(left, packed, stream=streams[1])
    assert np.array_equal(got.numpy(), product(a, b))
    for stream in streams:
        sim.runtime.stream_destroy(stream)


def test_no_memory_to_pack(sim, backend):
    asked = problem(8, 64, 64)
    memory = MusaMemory()
    b = memory.empty(2 * 64 * 64)
    sim.inject("musaMalloc:1")
    with pytest.raises(MemoryError):
        backend.pack(b.data.ptr, asked)


def test_a_stack_cannot_be_packed(backend):
    assert "stack" in backend.pack(256, problem(8, 8, 8, batch=(2,))).reason


@pytest.fixture
def copying(monkeypatch):
    """A backend that copies what it can, however small."""
    monkeypatch.setattr(copies, "worthwhile", lambda gemm: tuple(x for x in "ab" if gemm.order(x) != "wide"))
    return MusaKernelsBackend()


def test_workspace_serves_all_streams(sim, copying):
    """Calls on several streams of several threads, each with other operands; work runs late and in any order."""
    asked = problem(40, 24, 32, a="row", b="col")
    kernel = copying.prepare(asked, copying.offer(asked).first.name, 2**20)
    assert kernel.workspace_bytes > 0
    runtime = sim.runtime
    results, streams = [], [runtime.stream_create() for _ in range(3)]

    def work(number):
        with runtime.device(0):
            for turn in range(3):
                a, b = numbers(40, 32, seed=10 * number + turn), numbers(32, 24, seed=100 + 10 * number + turn)
                places = [from_numpy(x) for x in (a, np.ascontiguousarray(b.T), np.zeros((40, 24), np.float16))]
                kernel.run(*(x.data.ptr for x in places), 1, 0, streams[number])
                results.append((places, product(a, b)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in reversed(streams):
        runtime.stream_synchronize(stream)
    for places, expected in results:
        assert np.array_equal(places[2].numpy(), expected)
    for stream in streams:
        runtime.stream_destroy(stream)


def test_a_nested_call_disturbs_nothing(sim, copying):
    """Between the copies of operands and the product that reads them."""
    asked = problem(40, 24, 32, b="col")
    kernel = copying.prepare(asked, copying.offer(asked).first.name, 2**20)
    nested_products(kernel.run, asked, kernel.run.__self__, "_copy")


def test_the_per_thread_stream(sim, copying):
    asked = problem(40, 24, 32, b="col")
    kernel = copying.prepare(asked, copying.offer(asked).first.name, 2**20)
    for seed in range(10):
        sim.set(SEED=seed)
        per_thread_products(kernel.run, asked)


def test_calls_allocate_nothing(sim, copying):
    """Nor do nested ones, in threads and on streams that are new."""
    asked = problem(40, 24, 32, b="col")
    kernel = copying.prepare(asked, copying.offer(asked).first.name, 2**20)
    sets = [Operands(asked, seed) for seed in range(2)]
    stream = sim.runtime.stream_create()
    before = sim.rt.musaSimLive()
    sim.inject("musaMalloc,musaEventCreate")
    with (
        ThreadPoolExecutor(1) as pool,
        interrupted(kernel.run.__self__, "_copy", lambda: sets[1].launch(kernel.run, stream=stream)),
    ):
        pool.submit(sets[0].launch, kernel.run, stream=stream).result()
    sim.inject("")
    assert sim.rt.musaSimLive() == before
    sim.runtime.stream_synchronize(stream)
    assert all(np.array_equal(operands.result(), operands.wide) for operands in sets)
    sim.runtime.stream_destroy(stream)


def test_the_second_device(sim):
    memory = MusaMemory(1)
    made = MusaKernelsBackend()
    made.probe()
    case = Case(m=33, n=40, k=20, a_dtype="float16", b_dtype="float16", out_dtype="float16", b="col", bias="n")
    assert check(made, case, memory).accepted
    assert sim.runtime.current_device == 0


def test_tuning_times_the_policies(sim, monkeypatch):
    monkeypatch.setattr(tiles, "OTHERS", {128: tiles.OTHERS[128][:1]})
    # How long each takes on the simulator is of no interest.
    monkeypatch.setattr(tune, "interleave", partial(timing.interleave, rounds=1, min_time=1e-6))
    a, b = from_numpy(numbers(64, 64)), from_numpy(numbers(64, 64, seed=1))
    tuned = gemmhub.tune(a, b, backend=NAME)
    assert {row.backend for row in tuned.rows} == {NAME}
    assert {"wmma", "scalar", "pipelined-64x64x32-2x1warps"} <= {row.candidate for row in tuned.rows}
    assert gemmhub.explain(a, b, backend=NAME)[NAME].source == "measured"


def test_absent_without_an_installation():
    told = MusaKernelsBackend(lambda: Absent("nothing here", "install it"))
    assert told.probe() == Absent("nothing here", "install it")
    with pytest.raises(RuntimeError, match="nothing here; install it"):
        told.offer(problem(4, 4, 4))
