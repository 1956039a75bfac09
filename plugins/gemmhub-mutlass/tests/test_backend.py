"""The backend on the simulated home with fake MUTLASSes: what it runs, what it refuses, and what can go wrong."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import fake
import numpy as np
import pytest
from gemmhub_musa import runtime as musa
from gemmhub_musa.testing import Operands, bias, nested_products, operand, problem, strided
from gemmhub_mutlass import library
from gemmhub_mutlass.backend import CompileError, MutlassBackend
from gemmhub_mutlass.installation import Mutlass
from gemmhub_mutlass.launch import NotImplementableError
from gemmhub_mutlass.probe import Machine

from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.errors import AllocationError, KernelError
from gemmhub.kit import native

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
    assert backend.supports(asked) is None
    return backend.prepare(asked, candidate or backend.candidates(asked)[0], limit)


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
    names = backend.candidates(problem(dtype="float16"))
    assert names[0] == "tensor_256x128x32"
    assert len(names) == 5
    assert backend.candidates(problem())[0] == "simt_128x128x4"
    both = backend.candidates(problem(precision="tf32"))
    assert both[0] == "tf32_256x128x16"
    assert both[-1].startswith("simt_")
    with pytest.raises(ValueError, match="no candidate 'fastest' here; allowed: tensor_256x128x32"):
        backend.prepare(problem(dtype="float16"), "fastest", LIMIT)


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
    asked = replace(problem(40, 24, 0, dtype, out, batch=(3,)), c=addend)
    operands = Operands(asked)
    kernel = prepared(backend, asked)
    assert np.array_equal(operands.run(kernel.run, beta=2), 2 * operands.c[1])
    assert not operands.run(kernel.run).any()
    asked = replace(problem(40, 24, 16, dtype, out, batch=(3,), d="row"), c=addend, alpha_is_one=False)
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
        assert backend.supports(asked) is None
        assert backend.candidates(asked) == ("nothing",)
        backend.prepare(asked, "nothing", 0).run(0, 0, 0, None, None, 1, 0, 0)
        assert backend.estimate(asked) == 0


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
    asked = problem(4096, 4096, 4096, "float16")
    large, small = backend.estimate(asked), backend.estimate(problem(dtype="float16"))
    assert 1e-3 < large < 1e-2
    assert small == pytest.approx(1e-5, rel=0.1)
    assert backend.estimate(problem(300, dtype="float16", k=4096, n=4096)) == pytest.approx(
        backend.estimate(problem(512, dtype="float16", k=4096, n=4096)), rel=0.1
    )
    uneven = replace(problem(8, 8, 8, batch=(3,)), a=strided("float32", 8, 8, 8, 1, (3,), (-64,)))
    assert "3 launches" in backend.remark(uneven, backend.candidates(uneven)[0])
    fresh = MutlassBackend()
    assert "the first use compiles" in fresh.remark(asked, "tensor_256x128x32")
    assert "one element per load" in backend.remark(problem(3, 3, 3), "simt_128x128x4")
    assert backend.remark(problem(dtype="float64"), "simt_128x128x4") == ""


# What it refuses


@pytest.mark.parametrize(("asked", "words"), [
    (problem(dtype="float64"), "not float64"), (problem(index=7), "the operands are on musa:7"),
    (problem(bias=bias()), "no epilogue with a bias"), (problem(activation="relu"), "no epilogue with relu"),
    (replace(problem(), a=strided("float32", 16, 16, 32, 2)), "strides (32, 2)"),
])  # fmt: skip
def test_refusals(backend, asked, words):
    refusal = backend.supports(asked)
    assert words in refusal.reason
    assert refusal.remedy
    with pytest.raises(ValueError, match="; "):
        backend.prepare(asked, "simt_128x128x4", LIMIT)


def test_mutlass_0_1_adds_up_in_one_order(backend, other):
    assert backend.supports(problem(dtype="float16", deterministic=True)) is None
    later = other((0, 3, 0))
    assert "same bits" in later.supports(problem(dtype="float16", deterministic=True)).reason
    assert later.supports(problem(dtype="int8", out="int32", deterministic=True)) is None


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
        assert backend.supports(asked) is None
        with pytest.raises(CompileError, match=r"gives no kernel for float16.*CollectiveBuilder|template argument"):
            backend.prepare(asked, backend.candidates(asked)[0], LIMIT)


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
        with pytest.raises(CompileError, match=r"takes neither 13 nor 15 arguments(.|\n)*version\.h"):
            backend.prepare(problem(dtype="float16"), "tensor_256x128x32", LIMIT)
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
    with pytest.raises(CompileError) as raised:
        backend.prepare(asked, backend.candidates(asked)[0], LIMIT)
    first = str(raised.value).splitlines()[0]
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
    assert backend.supports(asked) is None
    for name in backend.candidates(asked):
        with pytest.raises(CompileError, match="error: out of registers"):
            backend.prepare(asked, name, LIMIT)
        if name == "tensor_256x128x32":  # the next one takes its place
            assert backend.candidates(asked)[0] == "tensor_128x128x32"
            assert backend.supports(asked) is None
    refusal = backend.supports(asked)
    assert "MUTLASS 0.1.1 gives no kernel for float16 to float16" in refusal.reason
    assert "out of registers" in refusal.reason
    assert "doctor" in refusal.remedy
    assert backend.estimate(asked) is None
    # Others are not concerned.
    assert backend.supports(problem(dtype="bfloat16")) is None


def test_a_compiler_that_hangs(other, tmp_path, monkeypatch):
    failing(tmp_path, monkeypatch, '[ "$1" = --version ] || sleep 60')
    monkeypatch.setattr(library, "PATIENCE", 0.5)
    backend = other()
    with pytest.raises(CompileError, match=r"did not end within 0\.5 s"):
        backend.prepare(problem(dtype="float16"), "tensor_256x128x32", LIMIT)


def test_a_compiler_that_makes_something_else(other, tmp_path, monkeypatch):
    nothing = tmp_path / "nothing.cpp"
    nothing.write_text("int nothing() { return 0; }\n")
    failing(
        tmp_path, monkeypatch,
        f'for x; do [ "$last" = -o ] && out=$x; last=$x; done; exec c++ -shared -fPIC {nothing} -o "$out"',
    )  # fmt: skip
    with pytest.raises(CompileError, match=r"is not a kernel: .*gemmhub_mutlass_check"):
        other().prepare(problem(dtype="float16"), "tensor_256x128x32", LIMIT)


def test_concurrent_requests_compile_once(other, tmp_path, monkeypatch):
    """Two threads ask for one kernel, two for another: two compilations, one after the other."""
    mcc = os.path.join(os.environ["MUSA_HOME"], "bin", "mcc")
    log = tmp_path / "log"
    failing(tmp_path, monkeypatch, f'echo begin >> {log}; {mcc} "$@"; code=$?; echo end >> {log}; exit $code')
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "cache"))
    backend = other()
    identity = library.compilers.identity((str(tmp_path / "mcc"),))
    assert "mcc version" in identity
    log.unlink()
    asked = [problem(dtype="float16", b=order) for order in ("row", "col") * 2]
    failures = []

    def ask(which):
        try:
            backend.prepare(which, "tensor_256x128x32", LIMIT)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(which,)) for which in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert log.read_text().split() == ["begin", "end"] * 2


@pytest.mark.parametrize(("options", "dtype", "words"), [
    ({"TF32_ALWAYS": 1}, "float32", "is wrong: "), ({"IGNORES_BATCH": 1}, "float16", "is wrong: "),
])  # fmt: skip
def test_a_kernel_that_is_wrong_is_refused(other, options, dtype, words):
    backend = other(**options)
    asked = problem(dtype=dtype)
    first = backend.candidates(asked)[0]
    with pytest.raises(CompileError, match="first product with everything") as caught:
        backend.prepare(asked, first, LIMIT)
    assert words in str(caught.value)
    assert "gemmhub doctor musa" in str(caught.value)
    assert first not in backend.candidates(asked)


def test_mutlass_s_own_check_is_asked(other):
    backend = other(REFUSES=1)
    with pytest.raises((CompileError, NotImplementableError), match=r"can_implement does not take .*Invalid status"):
        backend.prepare(problem(dtype="float16"), "tensor_256x128x32", LIMIT)


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
    assert "cleared musaErrorNotSupported that other work had left" in backend.remark(asked, "tensor_256x128x32")
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
    with pytest.raises(ValueError, match="needs 4096 bytes of workspace"):
        backend.prepare(asked, "tensor_256x128x32", 4095)
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
    with pytest.raises(CompileError):
        backend.prepare(asked, "tensor_256x128x32", LIMIT)
    monkeypatch.delenv("GEMMHUB_MCC")
    native.forget()
    with pytest.raises(CompileError):
        backend.prepare(asked, "tensor_256x128x32", LIMIT)
    assert right(other(), asked)
