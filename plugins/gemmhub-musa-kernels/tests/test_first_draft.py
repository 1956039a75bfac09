"""Sixteen mistakes that a first draft of the pipelined kernel makes (kernels/first_draft.mu), and ours does not.

Each test shows the draft failing, and our kernel right in the same situation.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemmhub_musa import workspace
from gemmhub_musa.compile import compile_mu
from gemmhub_musa.guard import Cleared
from gemmhub_musa.runtime import TO_DEVICE, MusaError
from gemmhub_musa_kernels.choose import Candidate, defines
from gemmhub_musa_kernels.launch import Product
from gemmhub_musa_kernels.library import Library
from gemmhub_musa_kernels.lower import lowered
from gemmhub_musa_kernels.sources import KERNELS, PIPELINED, text
from gemmhub_musa_kernels.tiles import Tile
from simulator import FAILED, Bench, problem, stored, whole

from gemmhub.capability import Device, Refusal
from gemmhub.errors import KernelError

DRAFT = Path(__file__).parent / "kernels" / "first_draft.mu"
OURS = Candidate(PIPELINED, Tile(128, 128, 32, 2, 2))
TURNING = replace(OURS, transposed=("b",))
"""The draft transposes B first."""


class Draft:
    """The draft, loaded again: its static variables are as at the start of a program."""

    def __init__(self, sim, sdk, tmp_path, *flags, source=None):
        built = compile_mu(source or DRAFT, sdk, "mp_22", name="first_draft", flags=flags)
        assert not isinstance(built, Refusal), built.traceback
        copy = tmp_path / f"draft-{len(list(tmp_path.iterdir()))}.so"
        copy.write_bytes(built.read_bytes())
        self.sim = sim
        self.call = ctypes.CDLL(str(copy)).draft_gemm
        self.call.restype = None
        self.call.argtypes = (*[ctypes.c_void_p] * 3, *[ctypes.c_int] * 3)

    def run_for(self, m, n, k):
        """Run the draft with the signature of a kernel's ``run``."""

        def run(a, b, out, alpha, beta, stream):
            self.call(a, b, out, m, n, k)

        return run


@pytest.fixture
def draft(sim, plain_sdk, tmp_path):
    return lambda *flags: Draft(sim, plain_sdk, tmp_path, *flags)


@pytest.fixture
def bench(sim, plain_sdk):
    return Bench(sim, plain_sdk)


def columns(m, n, k, **options):
    return problem(m, n, k, a="col", b="col", d="col", **options)


def wrong_of_draft(bench, made, m, n, k):
    return bench.wrong(columns(m, n, k), OURS, run=made.run_for(m, n, k))


def wrong_of_ours(bench, m, n, k, **options):
    counts = [bench.wrong(columns(m, n, k, **options), way) for way in (OURS, TURNING) if k or way is OURS]
    return max(counts, key=abs)


def test_the_draft_is_right_where_benchmarks_look(bench, draft, sim):
    sim.set(LOCKSTEP=1)
    for size in [(256, 256, 64), (128, 512, 128)]:
        assert wrong_of_draft(bench, draft(), *size) == 0


SIZES = [
    ("1: a group of tiles that is narrower", (256, 640, 64), ("-DSLACK=4194304",), 128 * 128),
    ("2: an odd number of steps", (128, 128, 32), (), 128 * 128),
    ("2: an odd number of steps, more of them", (128, 128, 96), (), None),
    ("3: a step that ends outside", (128, 128, 48), (), FAILED),
    ("3: one that ends far outside", (128, 128, 1), (), FAILED),
    ("4: no step at all", (128, 128, 0), (), FAILED),
    ("5: rows outside", (136, 128, 64), (), FAILED),
    ("5: columns outside", (128, 136, 64), (), FAILED),
    ("5: hardly anything inside", (8, 8, 64), (), FAILED),
    ("6: rows that no vector divides", (130, 128, 64), (), FAILED),
    ("6: columns that no vector divides", (128, 129, 64), (), FAILED),
    ("6: one element", (1, 1, 64), (), FAILED),
]


@pytest.mark.parametrize(("size", "flags", "failing"), [x[1:] for x in SIZES], ids=[x[0] for x in SIZES])
def test_sizes(bench, draft, sim, size, flags, failing):
    sim.set(LOCKSTEP=1)  # so that nothing else is wrong with the draft
    wrong = wrong_of_draft(bench, draft(*flags), *size)
    assert wrong == failing if failing is not None else wrong > 0
    sim.set(LOCKSTEP=0)
    assert wrong_of_ours(bench, *size) == 0


def test_6_reports_misalignment(bench, draft, sim):
    made = draft()
    places = [bench.put(np.zeros(65536, np.float16)) for _ in range(3)]
    made.call(*places, 130, 128, 64)
    with pytest.raises(MusaError, match="musaErrorMisalignedAddress"):
        bench.runtime.synchronize()
    sim.rt.musaSimReset()
    bench.free(*places)


def test_7_a_vector_stored_to_a_column_that_is_not_aligned(sim, checking_sdk, tmp_path):
    """Copies that look where they read, so that the store is reached."""
    bench = Bench(sim, checking_sdk)
    sim.set(LOCKSTEP=1)
    made = Draft(sim, checking_sdk, tmp_path, "-DCAREFUL_COPIES", "-DSLACK=4096")
    lines = DRAFT.read_text().splitlines()
    store = 1 + next(i for i, line in enumerate(lines) if "reinterpret_cast<uint4*>(&c[" in line)
    assert wrong_of_draft(bench, made, 133, 128, 64) == FAILED
    assert ("misaligned access", f"first_draft.mu:{store}") in {(x.kind, x.place) for x in sim.findings()}
    sim.rt.musaSimClear()
    assert wrong_of_ours(bench, 133, 128, 64) == 0
    assert sim.findings() == []


def test_8_lanes_read_what_others_store(bench, draft, sim):
    made = draft()
    assert wrong_of_draft(bench, made, 128, 128, 64) > 0
    sim.set(LOCKSTEP=1)
    assert wrong_of_draft(bench, made, 128, 128, 64) == 0
    for lockstep in (0, 1):
        sim.set(LOCKSTEP=lockstep)
        assert wrong_of_ours(bench, 128, 128, 64) == 0


def test_8_is_a_race(sim, checking_sdk, tmp_path):
    bench = Bench(sim, checking_sdk)
    wrong_of_draft(bench, Draft(sim, checking_sdk, tmp_path), 128, 128, 64)
    assert {x.kind for x in sim.findings()} >= {"read-after-write race", "write-after-read race"}
    sim.rt.musaSimClear()
    assert wrong_of_ours(bench, 128, 128, 64) == 0
    assert sim.findings() == []


# What a launcher keeps between calls

M, N, K = 128, 128, 64


class Matrices:
    """Operands on the device, and calls of the draft or of ours on them."""

    def __init__(self, bench, seed=0):
        self.bench, rng = bench, np.random.default_rng(seed)
        self.a, self.b, self.other = whole(rng, M, K), whole(rng, K, N), whole(rng, K, N)
        self.place_a, self.place_b = (bench.put(stored(x, "col")) for x in (self.a, self.b))
        self.out = np.full((N, M), np.nan, np.float16)
        self.place_out = bench.put(self.out)

    def right(self, call, b, *, stream=0):
        call(self.place_a, self.place_b, self.place_out, 1, 0, stream)
        self.bench.runtime.synchronize()
        return self.is_product(b)

    def is_product(self, b):
        got = self.bench.get(self.place_out, self.out)
        return bool(np.array_equal(got.T, (self.a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)))

    def free(self):
        self.bench.free(self.place_a, self.place_b, self.place_out)


@pytest.fixture
def matrices(bench, sim):
    sim.set(LOCKSTEP=1)
    made = Matrices(bench)
    yield made
    made.free()


@pytest.fixture(params=["as it lies", "transposed first"])
def ours(bench, request):
    return bench.product(columns(M, N, K), OURS if request.param == "as it lies" else TURNING).run


def test_9_new_contents_at_the_same_address(matrices, draft, ours):
    of_draft = draft().run_for(M, N, K)
    for call, right in ((of_draft, False), (ours, True)):
        for b, expected in ((matrices.b, True), (matrices.other, right)):
            contents = stored(b, "col")
            matrices.bench.runtime.memcpy(matrices.place_b, contents.ctypes.data, contents.nbytes, TO_DEVICE)
            assert matrices.right(call, b) == expected


def test_10_another_matrix_at_the_same_address(matrices, draft, ours):
    of_draft = draft().run_for(M, N, K)
    for call, right in ((of_draft, False), (ours, True)):
        for b, expected in ((matrices.b, True), (matrices.other, right)):
            before = matrices.place_b
            matrices.bench.free(matrices.place_b)
            matrices.place_b = matrices.bench.put(stored(b, "col"))
            assert matrices.place_b == before, "the allocator must reuse the address for this test to say anything"
            assert matrices.right(call, b) == expected


def test_11_no_memory_for_the_transposed_operand(matrices, draft, sim, bench):
    workspace.of.cache_clear()  # as in a process that has reserved nothing
    of_draft = draft().run_for(M, N, K)
    sim.inject("musaMalloc:1")
    for _ in range(2):  # memory is there again at the second call
        with pytest.raises(MusaError):
            matrices.right(of_draft, matrices.b)
        sim.rt.musaSimReset()
    sim.inject("musaMalloc:1")
    with pytest.raises(MemoryError, match="device memory"):
        bench.product(columns(M, N, K), TURNING)
    assert matrices.right(bench.product(columns(M, N, K), TURNING).run, matrices.b)


def test_12_a_launch_that_fails(matrices, draft, sim, ours):
    of_draft = draft().run_for(M, N, K)
    assert matrices.right(of_draft, matrices.b)
    matrices.bench.runtime.memset(matrices.place_out, 0xFF, matrices.out.nbytes)
    sim.inject("musaLaunchKernel")
    assert not matrices.right(of_draft, matrices.b)  # and no error was reported
    with pytest.raises(KernelError, match="musaErrorLaunchOutOfResources"):
        ours(matrices.place_a, matrices.place_b, matrices.place_out, 1, 0, 0)
    assert matrices.bench.runtime.clear_error() == ""
    sim.inject("")
    assert matrices.right(ours, matrices.b)


def test_12_errors_of_others_are_not_ours(matrices, sim, bench, ours):
    sim.rt.musaSimSetSticky(801)  # as some libraries leave it behind
    assert matrices.right(ours, matrices.b)
    assert (bench.libraries.cleared.count, bench.libraries.cleared.last) == (1, "musaErrorNotSupported")


def test_13_the_callers_stream(matrices, draft, sim, ours):
    """B gets its contents on a stream that does not wait for the default one."""
    runtime, nbytes = matrices.bench.runtime, 2 * K * N
    of_draft = draft().run_for(M, N, K)
    new = matrices.bench.put(stored(matrices.other, "col"))
    stream = ctypes.c_void_p()
    assert sim.rt.musaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    for call, right in ((of_draft, False), (ours, True)):
        runtime.memset(matrices.place_b, 0, nbytes)
        runtime.synchronize()
        runtime.memcpy_async(matrices.place_b, new, nbytes, 3, stream.value)
        call(matrices.place_a, matrices.place_b, matrices.place_out, 1, 0, stream.value)
        # Work runs late: what is waited for first runs first, as far as the order of streams allows.
        assert sim.rt.musaStreamSynchronize(None) == 0
        runtime.synchronize()
        assert matrices.is_product(matrices.other) == right
    runtime.stream_destroy(stream.value)
    matrices.bench.free(new)


def test_14_state_that_all_calls_share(matrices, draft, sim, bench):
    workspace.of.cache_clear()  # as in a process that has reserved nothing
    before = sim.rt.musaSimLive()
    of_draft = draft().run_for(M, N, K)
    assert matrices.right(of_draft, matrices.b)
    assert sim.rt.musaSimLive() == before + 1  # and nothing can free it
    product = bench.product(columns(M, N, K), TURNING)
    reserved = sim.rt.musaSimLive()
    assert reserved == before + 1 + workspace.RESERVED
    assert matrices.right(product.run, matrices.b)
    again = bench.product(columns(M, N, K), TURNING)  # all products share what was reserved
    assert matrices.right(again.run, matrices.b)
    assert sim.rt.musaSimLive() == reserved


def test_14_another_device(draft, sim, bench, matrices):
    """The draft's transposed B stays on the device of the first call."""
    of_draft = draft().run_for(M, N, K)
    assert matrices.right(of_draft, matrices.b)
    with bench.runtime.device(1):
        there = Matrices(bench)
        extent_of = sim.rt.musaSimDeviceOf
        extent_of.argtypes = [ctypes.c_void_p]
        assert extent_of(there.place_b) == 1
        with lost_or_wrong(sim):
            assert there.right(of_draft, there.b)
        product = bench.product(columns(M, N, K, device=Device("musa", 1)), TURNING)
        assert there.right(product.run, there.b)
        there.free()


@contextmanager
def lost_or_wrong(sim):
    """The block must fail, by a wrong result or by an error of the device."""
    try:
        yield
    except (AssertionError, MusaError):
        sim.rt.musaSimReset()
        return
    pytest.fail("the draft was expected to fail here")


def test_15_an_array_that_is_less_aligned_than_it_is_read(sim, checking_sdk, tmp_path):
    """A compiler may put an array of halves at any even address: here it is made to."""
    sim.set(LOCKSTEP=1)
    bench = Bench(sim, checking_sdk)
    draft_text = DRAFT.read_text()
    shifted = "struct { half before, values[8]; } moved; half (&rounded)[8] = moved.values;"
    assert draft_text.count("half rounded[8];") == 1
    made = Draft(sim, checking_sdk, tmp_path, source=draft_text.replace("half rounded[8];", f"__align__(16) {shifted}"))
    assert wrong_of_draft(bench, made, 128, 128, 64) == FAILED
    assert {x.kind for x in sim.findings()} == {"misaligned access"}
    sim.rt.musaSimClear()
    # The same with every array of ours: its alignment is part of what it is.
    ours, count = re.subn(
        r"__align__\(16\) (\w) (\w+)\[(\w+)\];",
        r"struct { \1 before; __align__(16) \1 at[\3]; } moved_\2; \1 (&\2)[\3] = moved_\2.at;",
        (KERNELS / "gemm.h").read_text(),
    )
    assert count == 2
    (tmp_path / "gemm.h").write_text(ours)
    asked = columns(128, 128, 64)
    built = compile_mu(
        text(PIPELINED), checking_sdk, "mp_22", name="shifted", include=(tmp_path, KERNELS),
        flags=defines(OURS, "mp_22", asked.a.dtype, asked.out.dtype), depends=(tmp_path / "gemm.h",),
    )  # fmt: skip
    assert not isinstance(built, Refusal), built.traceback
    library = Library(ctypes.CDLL(str(built)), PIPELINED, sim.runtime, Cleared())
    product = Product(sim.runtime, asked, lowered(asked), OURS, library, None)
    assert bench.wrong(asked, OURS, run=product.run) == 0
    assert sim.findings() == []


def test_16_more_than_one_kind_of_product(bench):
    """Float results, other orders, batches: the draft's six arguments cannot express them (the kit has epilogues)."""
    for asked in (
        columns(72, 40, 56, out="float32"),
        columns(72, 40, 56, dtype="bfloat16"),
        problem(72, 40, 56, b="col"),
        problem(72, 40, 56, batch=(3,)),
    ):
        assert bench.wrong(asked, OURS) == 0


def test_16_names_stay_at_home():
    """Macros and using-directives of a header reach whoever includes it."""
    macros = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
    assert "BM" in macros.findall(DRAFT.read_text())
    assert macros.findall((KERNELS / "gemm.h").read_text()) == []
    assert "using namespace" not in (KERNELS / "gemm.h").read_text()
