"""The backend on the simulated home with fake MUTLASSes: what it runs, what it refuses, and what can go wrong."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace

import fake
import numpy as np
import pytest
from gemmhub_musa import runtime as musa
from gemmhub_musa.testing import Operands, bias, nested_products, operand, problem, strided
from gemmhub_mutlass import library
from gemmhub_mutlass.backend import MutlassBackend
from gemmhub_mutlass.installation import Mutlass
from gemmhub_mutlass.probe import Machine

from gemmhub.backend import Offer, answer
from gemmhub.capability import Absent, Device, Ready, Refusal
from gemmhub.errors import AllocationError, KernelError
from gemmhub.kit import native
from gemmhub.testing.answers import honest

pytestmark = pytest.mark.usefixtures("sim")
LIMIT = 2**26


@pytest.fixture(scope="module")
def backend():
    made = MutlassBackend()
    assert not isinstance(made.probe(), Absent)
    return made


@pytest.fixture
def other(checkouts):
    """``other(version, **options)``: a backend with another MUTLASS."""

    def make(version=(0, 1, 1), **options):
        return MutlassBackend(lambda: Machine(musa.machine(), Mutlass(checkouts(version, **options))))

    return make


def prepared(backend, asked, candidate=None, limit=LIMIT):
    offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    return backend.prepare(asked, candidate or offer.first.name, limit)


def refused(backend, asked, candidate, limit=LIMIT):
    """The text of a refusal by prepare."""
    found = backend.prepare(asked, candidate, limit)
    assert isinstance(found, Refusal)
    honest(found, "prepare()")
    return f"{found.reason}; {found.remedy}\n{found.traceback or ''}"


def right(backend, asked, **options):
    operands = Operands(asked)
    run = prepared(backend, asked).run
    got = operands.run(run, **options)
    return np.array_equal(got.astype(operands.wide.dtype), operands.wide)


# What it runs


@pytest.mark.parametrize(("dtype", "out", "precision"), [
    ("float16", "float16", "ieee"), ("float16", "float32", "ieee"), ("bfloat16", "bfloat16", "ieee"),
    ("float32", "float32", "ieee"), ("float32", "float32", "tf32"), ("int8", "int32", "ieee"),
])  # fmt: skip
def test_dtypes(backend, dtype, out, precision):
    assert right(backend, problem(32, 48, 64, dtype, out, precision=precision))


def test_candidates_are_tiles(backend):
    names = backend.offer(problem(dtype="float16")).names
    assert names[0] == "tensor_256x128x32"
    assert len(names) == 5
    assert backend.offer(problem()).first.name == "simt_128x128x4"
    both = backend.offer(problem(precision="tf32")).names
    assert both[0] == "tf32_256x128x16"
    assert both[-1].startswith("simt_")
    text = refused(backend, problem(dtype="float16"), "fastest")
    assert "no candidate 'fastest' here; allowed: tensor_256x128x32" in text


def test_description_of_a_kernel(backend):
    kernel = prepared(backend, problem(dtype="float16", n=5))
    assert kernel.description == "MUTLASS 0.1.1 float16 to float16 tensor_256x128x32 rr for mp_22, one element a load"
    assert kernel.workspace_bytes == 0


def test_float32_is_not_rounded_unless_that_is_allowed(backend):
    values = np.float32([[1 + 2**-12]])
    exact, rounded = values @ values, np.float32(1)
    for precision, expected in (("ieee", exact), ("tf32", rounded)):
        asked = problem(1, 1, 1, precision=precision)
        operands = Operands(asked)
        for x in (operands.a, operands.b):
            arrays = operands.arrays
            filled = arrays.from_host(np.ascontiguousarray(values).ravel())
            with arrays.runtime.device(0):
                arrays.runtime.memcpy(x[3], filled.data.ptr, 4, musa.ON_DEVICE)
        assert operands.run(prepared(backend, asked).run) == expected


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_no_products(backend, dtype):
    """k = 0, which would fault, and alpha = 0, which would let NaN through."""
    out = "int32" if dtype == "int8" else "float32"
    addend = strided(out, 40, 24, 32, 1, (3,), (40 * 32,))
    asked = problem(40, 24, 0, dtype, out, batch=(3,), c=addend)
    operands = Operands(asked)
    kernel = prepared(backend, asked)
    assert np.array_equal(operands.run(kernel.run, beta=2), 2 * operands.c[1])
    assert not operands.run(kernel.run).any()
    asked = problem(40, 24, 16, dtype, out, batch=(3,), d="row", c=addend, alpha_is_one=False)
    operands = Operands(asked)
    if dtype == "float16":
        arrays = operands.arrays
        with arrays.runtime.device(0):
            arrays.runtime.memset(operands.a[2].data.ptr, 0xFF, operands.a[0].nbytes)
    kernel = prepared(backend, asked)
    assert np.array_equal(operands.run(kernel.run, alpha=0, beta=3), 3 * operands.c[1])
    assert not operands.run(kernel.run, alpha=0).any()


def test_results_without_elements(backend):
    for asked in (problem(0, 4, 4), problem(4, 0, 4), problem(4, 4, 4, batch=(0,))):
        offer = backend.offer(asked)
        assert offer.names == ("nothing",)
        assert offer.first.seconds == 0
        backend.prepare(asked, "nothing", 0).run(0, 0, 0, 1, 0, 0)


def test_streams_and_threads(backend):
    """Kernels are shared; every thread has a stream of its own."""
    asked = problem(33, 20, 17, "float16", "float32")
    kernel = prepared(backend, asked)
    arrays = Operands(asked).arrays
    wrong = []

    def work(seed):
        operands = Operands(asked, seed)
        with arrays.runtime.device(0):
            stream = arrays.runtime.stream_create()
            for _ in range(5):
                operands.launch(kernel.run, stream=stream)
            arrays.runtime.stream_synchronize(stream)
            arrays.runtime.stream_destroy(stream)
        if not np.array_equal(operands.result(), operands.wide):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_call_leaves_no_memory_behind(backend, sim):
    asked = problem(33, 20, 17, "float16", c=operand("float16", 33, 20))
    operands, kernel = Operands(asked), prepared(backend, asked)
    before = sim.musaSimLive()
    for _ in range(3):
        operands.launch(kernel.run, beta=1)
    assert sim.musaSimLive() == before


def test_remarks_and_estimates(backend):
    def seconds(*sizes, **options):
        return backend.offer(problem(*sizes, dtype="float16", **options)).first.seconds

    asked = problem(4096, 4096, 4096, "float16")
    assert 1e-3 < seconds(4096, 4096, 4096) < 1e-2
    assert seconds() == pytest.approx(1e-5, rel=0.1)
    assert seconds(300, k=4096, n=4096) == pytest.approx(seconds(512, k=4096, n=4096), rel=0.1)
    times = {each.name: each.seconds for each in backend.offer(problem(300, 4096, 4096, "float16")).candidates}
    assert times["tensor_256x256x32"] > times["tensor_128x128x32"]  # of its own tiles, which m does not fill
    uneven = replace(problem(8, 8, 8, batch=(3,)), a=strided("float32", 8, 8, 8, 1, (3,), (-64,)))
    offer = backend.offer(uneven)
    assert "3 launches" in offer.remark(offer.first.name)
    fresh = MutlassBackend()
    assert "the first use compiles" in fresh.offer(asked).remark("tensor_256x128x32")
    assert "one element per load" in backend.offer(problem(3, 3, 3)).remark("simt_128x128x4")


# What it refuses


@pytest.mark.parametrize(("asked", "words"), [
    (problem(dtype="float64"), "not float64"), (problem(index=7), "the operands are on musa:7"),
    (replace(problem(), a=strided("float32", 16, 16, 32, 2)), "strides (32, 2)"),
])  # fmt: skip
def test_refusals(backend, asked, words):
    refusal = backend.offer(asked)
    assert words in refusal.reason
    assert refusal.remedy
    assert backend.prepare(asked, "simt_128x128x4", LIMIT) == refusal


@pytest.mark.parametrize("asked", [problem(bias=bias()), problem(activation="relu"), problem(activation="gelu")])
def test_epilogues_are_refused(backend, asked):
    refusal = answer(backend, asked)
    assert isinstance(refusal, Refusal)
    assert refusal.remedy


def test_mutlass_0_1_adds_up_in_one_order(backend, other):
    assert isinstance(backend.offer(problem(dtype="float16", reproducible="run")), Offer)
    later = other((0, 3, 0))
    assert "same bits" in later.offer(problem(dtype="float16", reproducible="run")).reason
    assert isinstance(later.offer(problem(dtype="int8", out="int32", reproducible="run")), Offer)


def test_times_of_another_device_are_refused(backend, tmp_path):
    refusal = backend.import_times(tmp_path / "profile.csv", Device("musa", 7))
    assert "on musa:7" in refusal.reason


def test_pack_is_refused(backend):
    assert isinstance(backend.pack(0, problem()), Refusal)


# Both spellings


@pytest.mark.parametrize("version", [(0, 1, 1), (0, 3, 0), None])
@pytest.mark.parametrize("arguments", [15, 13])
def test_spelling_of_the_builder(other, version, arguments):
    backend = other(version, BUILDER_ARGUMENTS=arguments)
    asked = problem(dtype="float16")
    if version is None or arguments == (15 if version == (0, 1, 1) else 13):
        assert right(backend, asked)
    else:
        text = refused(backend, asked, backend.offer(asked).first.name)
        assert re.search(r"gives no kernel for float16.*CollectiveBuilder|template argument", text)


def test_a_builder_of_neither_kind(other):
    backend = other(None, BUILDER_ARGUMENTS=0, MP31=1)
    (path,) = backend.machine.mutlass.include.glob("fake/builders.hpp")
    text = path.read_text()
    assert "#if FAKE_BUILDER_ARGUMENTS == 15" in text
    # Without 15 it has 13: take one away.
    broken = text.replace("class Stages, class Schedule, class Enable = void>\nstruct", "class Both>\nstruct")
    assert broken != text
    path.write_text(broken)
    try:
        said = refused(backend, problem(dtype="float16"), "tensor_256x128x32")
        assert "takes neither 13 nor 15 arguments" in said
        assert "version.h" in said
    finally:
        path.write_text(text)


# What can go wrong


def test_a_missing_header_is_named(tmp_path, monkeypatch):
    """In the first line of the error: what the compiler complains about first."""
    home = fake.make(tmp_path / "checkout")
    (home / "include" / "fake" / "tuples.hpp").unlink()
    monkeypatch.setenv("MUTLASS_HOME", str(home))
    backend = MutlassBackend()
    assert isinstance(backend.probe(), Ready)
    asked = problem(dtype="float16")
    first = refused(backend, asked, backend.offer(asked).first.name).splitlines()[0]
    assert "MUTLASS 0.1.1 gives no kernel for" in first
    assert "fake/tuples.hpp" in first
    assert "No such file" in first


def failing(tmp_path, monkeypatch, script):
    compiler = tmp_path / "mcc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("GEMMHUB_MCC", str(compiler))


def test_a_compiler_that_fails(other, tmp_path, monkeypatch):
    failing(tmp_path, monkeypatch, "echo 'gemm.h:1: error: out of registers' >&2; exit 1")
    backend = other()
    asked = problem(dtype="float16")
    assert isinstance(backend.offer(asked), Offer)
    for name in backend.offer(asked).names:
        assert "error: out of registers" in refused(backend, asked, name)
        if name == "tensor_256x128x32":  # the next one takes its place
            assert backend.offer(asked).first.name == "tensor_128x128x32"
    refusal = backend.offer(asked)
    assert "MUTLASS 0.1.1 gives no kernel for float16 to float16" in refusal.reason
    assert "out of registers" in refusal.reason
    assert "doctor" in refusal.remedy
    # Others are not concerned.
    assert isinstance(backend.offer(problem(dtype="bfloat16")), Offer)


def test_a_compiler_that_hangs(other, tmp_path, monkeypatch):
    failing(tmp_path, monkeypatch, '[ "$1" = --version ] || sleep 60')
    monkeypatch.setattr(library, "PATIENCE", 0.5)
    backend = other()
    assert "did not end within 0.5 s" in refused(backend, problem(dtype="float16"), "tensor_256x128x32")


def test_a_compiler_that_makes_something_else(other, tmp_path, monkeypatch):
    nothing = tmp_path / "nothing.cpp"
    nothing.write_text("int nothing() { return 0; }\n")
    failing(
        tmp_path, monkeypatch,
        f'for x; do [ "$last" = -o ] && out=$x; last=$x; done; exec c++ -shared -fPIC {nothing} -o "$out"',
    )  # fmt: skip
    text = refused(other(), problem(dtype="float16"), "tensor_256x128x32")
    assert re.search("is not a kernel: .*gemmhub_mutlass_check", text)


def test_concurrent_requests_compile_once(other, tmp_path, monkeypatch):
    """Two threads ask for one kernel, two for another: two compilations, one after the other."""
    mcc = os.path.join(os.environ["MUSA_HOME"], "bin", "mcc")
    log = tmp_path / "log"
    failing(tmp_path, monkeypatch, f'echo begin >> {log}; {mcc} "$@"; code=$?; echo end >> {log}; exit $code')
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "cache"))
    backend = other()
    identity = library.compilers.identity((str(tmp_path / "mcc"),))
    assert "mcc version" in identity
    monkeypatch.setattr(library, "device_flags", lambda sdk, arch: ("-Od3",))
    log.unlink()
    asked = [problem(dtype="float16", b=order) for order in ("row", "col") * 2]
    failures = []

    def ask(which):
        kernel = backend.prepare(which, "tensor_256x128x32", LIMIT)
        if isinstance(kernel, Refusal):
            failures.append(kernel)

    threads = [threading.Thread(target=ask, args=(which,)) for which in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert log.read_text().split() == ["begin", "end"] * 2


def test_kernels_are_compiled_with_flags_that_the_compiler_takes(backend, monkeypatch):
    seen = []

    def compile_mu(*_, **options):
        seen.append(options["flags"])
        return Refusal("nothing is compiled here", "")

    monkeypatch.setattr(library.compilers, "compile_mu", compile_mu)
    monkeypatch.setattr(library, "device_flags", lambda sdk, arch: (f"-D{arch}",))
    backend.machine.kernels._compile("", "mp_22", "kernel")
    assert seen == [("-Dmp_22",)]


@pytest.mark.parametrize(("options", "dtype", "words"), [
    ({"TF32_ALWAYS": 1}, "float32", "is wrong: "), ({"IGNORES_BATCH": 1}, "float16", "is wrong: "),
])  # fmt: skip
def test_a_kernel_that_is_wrong_is_refused(other, options, dtype, words):
    backend = other(**options)
    asked = problem(dtype=dtype)
    first = backend.offer(asked).first.name
    text = refused(backend, asked, first)
    assert "first product with everything" in text
    assert words in text
    assert "gemmhub doctor musa" in text
    assert first not in backend.offer(asked).names


def test_mutlass_s_own_check_is_asked(other):
    backend = other(REFUSES=1)
    text = refused(backend, problem(dtype="float16"), "tensor_256x128x32")
    assert re.search("can_implement does not take .*Invalid status", text)


def test_what_can_implement_refuses_is_refused(backend, monkeypatch):
    """Of a kernel that is proven: this problem alone is refused, and the kernel is still a candidate."""
    prepared(backend, problem(dtype="float16"), "tensor_256x128x32")
    monkeypatch.setattr(library.Library, "refused", lambda self, call: "Invalid status")
    asked = problem(32, dtype="float16")
    text = refused(backend, asked, "tensor_256x128x32")
    assert "can_implement does not take 32x16x16" in text
    assert "leave the candidate's name out" in text
    assert "tensor_256x128x32" in backend.offer(asked).names


def test_what_can_implement_refuses_is_never_launched(backend, sim):
    """Even where this plugin's own reading of a problem is wrong."""
    asked = problem(16, 16, 16, "float16")
    kernel = prepared(backend, asked)
    gemm = kernel.run.__self__
    gemm._call.k = 12
    with pytest.raises(KernelError, match="Invalid status"):
        Operands(asked).run(kernel.run)
    assert not musa.load().clear_error()


@pytest.mark.parametrize("function", [b"mutlassRun", b"mutlassInitialize"])
def test_launches_that_fail(backend, sim, function):
    asked = problem(dtype="float16")
    kernel, operands = prepared(backend, asked), Operands(asked)
    sim.musaSimInject(function)
    with pytest.raises(KernelError, match="Error Internal"):
        operands.launch(kernel.run)
    sim.musaSimInject(b"")
    assert np.array_equal(operands.run(kernel.run).astype(np.float32), operands.wide)


def test_errors_of_others_are_cleared_and_named(backend, sim):
    asked = problem(dtype="float16")
    kernel, operands = prepared(backend, asked), Operands(asked)
    sim.musaSimSetSticky(801)
    assert np.array_equal(operands.run(kernel.run).astype(np.float32), operands.wide)
    assert "cleared musaErrorNotSupported that other work had left" in backend.offer(asked).remark("tensor_256x128x32")
    assert not musa.load().clear_error()


def test_no_memory_for_a_proof_decides_nothing(other, sim):
    backend = other()
    asked = problem(dtype="float16")
    sim.musaSimInject(b"musaMalloc")
    with pytest.raises(AllocationError):
        backend.prepare(asked, "tensor_256x128x32", LIMIT)
    sim.musaSimInject(b"")
    assert right(backend, asked)


# Workspace


def test_workspace(other, sim):
    """No workspace is allocated in a call, whatever its stream; a nested call has its own."""
    backend = other(WORKSPACE=4096)
    asked = problem(20, 24, 40, "float16", "float32")
    kernel = prepared(backend, asked)
    assert kernel.workspace_bytes == 4096
    assert "needs 4096 bytes of workspace" in refused(backend, asked, "tensor_256x128x32", 4095)
    operands = Operands(asked)
    runtime = operands.arrays.runtime
    with runtime.device(0):
        streams = [runtime.stream_create() for _ in range(3)]
        before = sim.musaSimLive()
        operands.launch(kernel.run, stream=streams[0])
        operands.launch(kernel.run, stream=streams[0])
        for stream in streams:
            operands.launch(kernel.run, stream=stream)
        assert sim.musaSimLive() == before
        runtime.synchronize()
        for stream in streams:
            runtime.stream_destroy(stream)
    assert np.array_equal(operands.result(), operands.wide)
    nested_products(kernel.run, asked, kernel.run.__self__, "_launch")
    zero = replace(asked, k=0, a=operand("float16", 20, 0), b=operand("float16", 0, 24))
    assert prepared(backend, zero).workspace_bytes == 0


def test_failed_builds_are_tried_again_in_another_process_only(other, tmp_path, monkeypatch):
    failing(tmp_path, monkeypatch, "exit 1")
    backend = other()
    asked = problem(dtype="float16")
    text = refused(backend, asked, "tensor_256x128x32")
    monkeypatch.delenv("GEMMHUB_MCC")
    native.forget()
    assert refused(backend, asked, "tensor_256x128x32") == text
    assert right(other(), asked)
