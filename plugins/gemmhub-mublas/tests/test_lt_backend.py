"""muBLASLt: its calls through the glue, headers that lack names, and runs."""

from __future__ import annotations

import gc
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_mublas.library import LibraryError
from gemmhub_mublas.lower import lowered
from gemmhub_mublas.lt import library, lower, probe
from gemmhub_mublas.lt.backend import MublasLtBackend
from gemmhub_mublas.lt.library import Glue
from gemmhub_mublas.lt.probe import Machine
from gemmhub_musa import from_numpy, runtime, sdk, workspace
from gemmhub_musa.testing import Operands, bias, nested_products, operand, per_thread_products, problem, strided

import gemmhub
from gemmhub import accuracy
from gemmhub.backend import Offer, answer
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.dtypes import PRECISIONS
from gemmhub.errors import AllocationError, KernelError
from gemmhub.testing.answers import honest
from gemmhub.testing.problems import unsigned_bytes

LIMIT = 64 * 2**20


@pytest.fixture(scope="module")
def backend():
    made = MublasLtBackend()
    found = made.probe()
    if isinstance(found, Absent) and not sdk.find().has_header("mublasLt.h"):
        pytest.skip("this SDK has no muBLASLt")
    assert isinstance(found, Ready), found
    return made


def with_names(has):
    """A backend over the installed library that takes the header for one with fewer names."""
    found = runtime.machine()
    real = library.load(found.sdk, str)
    return MublasLtBackend(lambda: Machine(found, Glue(library._built(found.sdk, has), has, real.words)))


def refused(backend, asked):
    found = answer(backend, asked)
    assert isinstance(found, Refusal), found
    honest(found, "offer()")
    return f"{found.reason}; {found.remedy}"


def prepared(backend, asked, candidate=None, limit=LIMIT):
    return backend.prepare(asked, candidate or backend.offer(asked).first.name, limit)


def test_ready(backend):
    found = backend.probe()
    assert set(found.versions) == {"mublasLt", "musa runtime", "musa driver", "device", "multiprocessors"}
    assert "libmublasLt" in found.features[0]
    assert "bias" in found.features[1]


def test_candidates(backend):
    assert list(backend.offer(problem()).names) == ["proposed-0", "proposed-1", "library"]
    assert "algo = NULL" in backend.offer(problem()).remark("library")


def test_the_library_may_propose_nothing(backend, monkeypatch):
    """Then it chooses when it is called."""
    monkeypatch.setenv("MUSA_SIM_LT_HEURISTIC", "0")
    asked = problem(17, 18, 19)
    assert list(backend.offer(asked).names) == ["library"]
    operands = Operands(asked)
    assert np.array_equal(operands.run(prepared(backend, asked).run), operands.wide)


@pytest.mark.parametrize("candidate", ["proposed-0", "proposed-1", "library"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_candidates_are_right(backend, candidate, dtype):
    asked = problem(33, 17, 20, dtype, c=operand(dtype, 33, 17), alpha_is_one=False)
    kernel, operands = prepared(backend, asked, candidate), Operands(asked)
    expected = (2 * operands.wide - operands.c[1].astype(np.float32)).astype(asked.out.dtype)
    assert np.array_equal(operands.run(kernel.run, alpha=2, beta=-1), expected)


def test_workspace(backend):
    """An algorithm that needs more than is allowed is refused, and no other takes its place."""
    asked = problem(64, 64, 64)
    large = prepared(backend, asked, "proposed-0")
    assert large.workspace_bytes > 0
    no = prepared(backend, asked, "proposed-0", limit=large.workspace_bytes - 1)
    assert f"proposed-0 needs {large.workspace_bytes} bytes of workspace" in no.reason
    assert "raise the setting workspace_mib, or leave the candidate's name out" in no.remedy
    small = prepared(backend, asked, "library", limit=large.workspace_bytes - 1)
    assert small.workspace_bytes == 0
    for kernel in (large, small):
        operands = Operands(asked)
        assert np.array_equal(operands.run(kernel.run), operands.wide)


def test_another_candidate_runs_where_the_usual_one_has_no_workspace(backend, monkeypatch):
    sizes = 700, 600, 4
    assert prepared(backend, problem(*sizes), "proposed-0").workspace_bytes > 2**20
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "1")
    gemmhub.reload()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((700, 4), (4, 600)))
    got = gemmhub.matmul(from_numpy(a), from_numpy(b), backend="mublaslt")
    assert np.array_equal(got.numpy(), a @ b)
    monkeypatch.undo()
    gemmhub.reload()


def test_each_proposal_is_the_one_that_was_named(backend):
    """Also where there is no inner dimension, and the library multiplies zeros."""
    for asked in (problem(), problem(k=0), problem(alpha_is_one=False)):
        for name in ("proposed-0", "proposed-1"):
            gemm = prepared(backend, asked, name).run.__self__
            assert f"proposed-{gemm._choice.algorithm}" == name
            assert gemm._zero_choice == gemm._choice or asked.k


def test_an_unknown_candidate(backend):
    no = backend.prepare(problem(), "proposed-7", LIMIT)
    assert "no candidate 'proposed-7' here; allowed: proposed-0, proposed-1, library" in no.reason
    assert no.remedy


def test_unaligned_operands_get_no_proposals(backend):
    """Where the header cannot pass alignments to the library, it must see the addresses."""
    if lower.ALIGNMENTS[-1] in backend.machine.glue.has:
        pytest.skip("this header has one")
    assert list(backend.offer(odd()).names) == ["library"]


def odd():
    return replace(problem(), a=operand("float32", 16, 16, alignment=4))


@pytest.mark.parametrize(("asked", "words"), [
    (problem(dtype="complex64"), "no product of complex64"), (problem(activation="silu"), "no activation silu"),
    (problem(activation="gelu"), "no activation gelu"),
    (problem(dtype="float16", out="bfloat16"), "give out_dtype= one of float16, float32"),
    (problem(bias=bias("float64")), "convert the bias to float32"), (problem(bias=bias(stride=2)), "stride of 2"),
    (problem(bias=bias(axis="m")), "column-major results only"), (problem(2**31), "allows 2147483647"),
    (problem(dtype="int8", out="int32"), "b as the transpose of a contiguous (n, k) array"),
    (problem(dtype="int8", out="int32", b="col", bias=bias("int32")), "accumulated in int32"),
    (problem(index=7), "musa:7"),
])  # fmt: skip
def test_refusals(backend, asked, words):
    assert words in refused(backend, asked)


def test_types_that_the_card_lacks(backend, sim):
    """The library's own no, found out by a small product."""
    text = refused(backend, problem(dtype="bfloat16", out="float32"))
    assert "does not run bfloat16 by bfloat16 with a result of float32 on this device" in text
    assert "MUBLAS_STATUS_NOT_IMPLEMENTED" in text


def test_int8(backend):
    asked = problem(5, 6, 7, "int8", "int32", b="col", c=operand("int32", 5, 6))
    assert list(backend.offer(asked).names) == ["library"]
    operands = Operands(asked)
    assert np.array_equal(operands.run(prepared(backend, asked).run, beta=3), operands.wide + 3 * operands.c[1])


def test_reduced_precision_is_no_duty(backend):
    """Where the library has no tf32, full float32 is used."""
    asked = problem(precision="tf32")
    operands = Operands(asked)
    assert np.array_equal(operands.run(prepared(backend, asked).run), operands.wide)


def test_float32_is_rounded_only_where_tf32_is_allowed():
    types = {
        precision: lower.compute(lowered(problem(precision=precision), True).main, frozenset(lower.COMPUTES))
        for precision in PRECISIONS
    }
    full = lower.COMPUTE["float32"]
    assert types == {"ieee": full, "bf16x3": full, "tf32": lower.FAST_TF32, "bf16": lower.FAST_TF32}


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh"])
@pytest.mark.parametrize("fused_bias", [True, False])
def test_epilogues(backend, activation, fused_bias):
    asked = problem(6, 7, 8, activation=activation, bias=bias() if fused_bias else None)
    name = lower.EPILOGUES[lower.epilogue(lowered(asked, True).main)]
    if name not in backend.machine.glue.has | {lower.EPILOGUES[0]}:
        text = refused(backend, asked)
        assert f"the installed mublasLt.h has no {name}" in text
        assert "afterwards" in text
        return
    operands = Operands(asked)
    expected = accuracy.reference(
        operands.a.values, operands.b.values, model=accuracy.problem_model(asked), activation=activation,
        bias=operands.bias.values if fused_bias else None, out_dtype=asked.out.dtype,
    )  # fmt: skip
    assert (expected.ratio(operands.run(prepared(backend, asked).run)) <= 1).all()
    if name != lower.EPILOGUES[0]:
        assert "epilogue fused" in backend.offer(asked).remark("library")


def test_biases_from_many_threads(backend):
    """The address of the bias is part of the descriptor that threads share."""
    asked = problem(8, 12, 16, bias=bias())
    run = prepared(backend, asked).run
    sets = [Operands(asked, seed) for seed in range(6)]

    def work(operands):
        for _ in range(30):
            operands.launch(run)
        return np.array_equal(operands.result(), operands.wide + operands.bias[1])

    with ThreadPoolExecutor(6) as pool:
        for _ in range(8):
            assert all(pool.map(work, sets))


def test_batches(backend):
    asked = problem(4, 5, 6, batch=(2, 3))
    operands = Operands(asked)
    assert np.array_equal(operands.run(prepared(backend, asked).run), operands.wide)
    launches = "6 launches" in backend.offer(asked).remark("library")
    assert launches != backend.machine.glue.has.issuperset(lower.BATCH)


@pytest.mark.parametrize("candidate", ["proposed-0", "proposed-1", "library"])
def test_alpha_zero_forgets_nan(backend, candidate):
    asked = problem(9, 8, 7, alpha_is_one=False, bias=bias())
    run, operands = prepared(backend, asked, candidate).run, Operands(asked)
    operands.a[0][...] = np.nan
    operands.arrays.copy(operands.a[2], operands.arrays.from_host(operands.a[0]))
    assert np.array_equal(operands.run(run, alpha=0), np.broadcast_to(operands.bias[1], (9, 8)))
    assert np.isnan(operands.run(run, alpha=2)).all()


@pytest.mark.parametrize("alpha", [0, 1, np.nan])
def test_no_inner_dimension(backend, alpha):
    asked = problem(5, 7, 0, alpha_is_one=alpha == 1, c=operand("float32", 5, 7), bias=bias())
    for candidate in backend.offer(asked).names:
        operands = Operands(asked)
        expected = operands.bias[1] - 2 * operands.c[1]
        assert np.array_equal(operands.run(prepared(backend, asked, candidate).run, alpha=alpha, beta=-2), expected)


def test_c_planned_and_beta_zero(backend):
    """c is then not handed over, whatever its layout."""
    asked = problem(6, 8, 4, c=strided("float32", 6, 8, 20, 1))
    for candidate in backend.offer(asked).names:
        operands = Operands(asked)
        assert np.array_equal(operands.run(prepared(backend, asked, candidate).run, beta=0), operands.wide)


def test_several_streams(backend):
    """Each has scratch memory of its own."""
    asked = problem(40, 40, 40)
    rt = backend.machine.runtime
    kernel = prepared(backend, asked, "proposed-0")
    assert kernel.workspace_bytes
    streams = [rt.stream_create() for _ in range(3)]
    sets = [(Operands(asked, seed), streams[seed % 3]) for seed in range(6)]
    for operands, stream in sets:
        operands.launch(kernel.run, stream=stream)
    for operands, stream in reversed(sets):
        rt.stream_synchronize(stream)
        assert np.array_equal(operands.result(), operands.wide)
    for stream in streams:
        rt.stream_destroy(stream)


def test_a_header_without_batches(backend):
    few = with_names(backend.machine.glue.has - set(lower.BATCH))
    asked = problem(4, 5, 6, batch=(3,))
    assert "3 launches" in few.offer(asked).remark("library")
    operands = Operands(asked)
    assert np.array_equal(operands.run(prepared(few, asked).run), operands.wide)


@pytest.mark.parametrize(("name", "asked"), [
    ("MUSA_R_16BF", problem(dtype="bfloat16")), ("MUBLASLT_EPILOGUE_BIAS", problem(bias=bias())),
    ("MUBLASLT_MATMUL_DESC_BIAS_POINTER", problem(bias=bias())),
    ("MUBLAS_COMPUTE_32I", problem(dtype="int8", out="int32", b="col")),
])  # fmt: skip
def test_headers_that_lack_a_name(backend, name, asked):
    few = with_names(backend.machine.glue.has - {name})
    assert f"the installed mublasLt.h has no {name}" in refused(few, asked)
    assert isinstance(few.offer(problem()), Offer)


@pytest.mark.parametrize("function", ["mublasLtMatmul", "mublasLtMatmulAlgoGetHeuristic", "mublasLtMatmulDescCreate"])
def test_failing_functions(backend, sim, function):
    asked = problem(21, 22, 23)
    run, operands = prepared(backend, asked).run, Operands(asked)
    sim.musaSimInject(function.encode())
    if function == "mublasLtMatmul":
        with pytest.raises(KernelError, match=r"'mublaslt': mublasLtMatmul: status \d+ \(MUBLAS_STATUS_"):
            operands.launch(run)
    elif function.endswith("Heuristic"):
        assert list(backend.offer(problem(24, 25, 26)).names) == ["library"]
    else:
        assert "mublasLt descriptors: status" in refused(backend, problem(27, 28, 29))
    sim.musaSimInject(b"")
    assert np.array_equal(operands.run(run), operands.wide)


def test_no_memory_for_the_workspace(sim):
    workspace.of.cache_clear()  # as in a process that has reserved nothing
    backend, asked = MublasLtBackend(), problem(300, 200, 10)
    assert isinstance(backend.offer(asked), Offer)
    sim.musaSimInject(b"musaMalloc")
    with pytest.raises(AllocationError):
        prepared(backend, asked, "proposed-0")
    sim.musaSimInject(b"")
    run, operands = prepared(backend, asked, "proposed-0").run, Operands(asked)
    assert np.array_equal(operands.run(run), operands.wide)


def test_calls_allocate_nothing(backend, sim):
    """On a stream and in a thread that are new."""
    asked = problem(100, 100, 10)
    kernel, operands = prepared(backend, asked, "proposed-0"), Operands(asked)
    assert kernel.workspace_bytes > 0
    stream = backend.machine.runtime.stream_create()
    sim.musaSimInject(b"musaMalloc,musaEventCreate,mublasLtCreate")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(operands.launch, kernel.run, stream=stream).result()
    sim.musaSimInject(b"")
    assert np.array_equal(operands.result(), operands.wide)
    backend.machine.runtime.stream_destroy(stream)


def test_a_nested_call_disturbs_nothing(backend):
    asked = problem(16, 16, 16, batch=(2,), a="col")
    kernel = prepared(backend, asked, "proposed-0")
    assert kernel.workspace_bytes > 0
    nested_products(kernel.run, asked, backend.machine.guard, "before")


def test_the_per_thread_stream(backend):
    asked = problem(16, 16, 16)
    per_thread_products(prepared(backend, asked, "proposed-0").run, asked)


def test_descriptors_live_as_long_as_the_kernel(backend):
    run = prepared(backend, problem(alpha_is_one=False, bias=bias())).run
    gc.collect()
    asked = problem(alpha_is_one=False, bias=bias())
    operands = Operands(asked)
    assert np.array_equal(operands.run(run, alpha=2), 2 * operands.wide + operands.bias[1])


def test_glue_numbers_what_the_python_side_does(backend):
    """Types, compute types and epilogues stand in the glue in the order of lower."""
    text = library._SOURCE.read_text()
    for names in (tuple(lower.TYPE.values()), lower.COMPUTES, lower.EPILOGUES):
        for place, name in enumerate(names):
            found = text.find(f"#ifdef HAS_{name}\n    case {place}:")
            assert found >= 0 or name == lower.EPILOGUES[0], name


@pytest.fixture
def copied(home, tmp_path):
    """A copy of the home whose parts can be taken away; its libraries are loaded already."""
    if home is None:
        pytest.skip("not the simulator")
    path = tmp_path / "home"
    shutil.copytree(home, path, symlinks=True)
    return replace(sdk.find(), home=path, include=path / "include", _loaded={})


def test_no_header(backend, copied):
    (copied.include / "mublasLt.h").unlink()
    with pytest.raises(LibraryError, match=r"only in its header: .* has no mublasLt.h"):
        library.load(copied, str)


def test_a_header_that_is_none(backend, copied):
    (copied.include / "mublasLt.h").write_text("#error no\n")
    with pytest.raises(LibraryError, match=r"only in its header: the values of mublasLt.h"):
        library.load(copied, str)


def test_a_header_without_what_is_needed(backend, copied):
    header = copied.include / "mublasLt.h"
    header.write_text(header.read_text().replace("MUBLASLT_MATMUL_DESC_TRANSA", "MUBLASLT_SOMETHING_ELSE"))
    with pytest.raises(LibraryError, match=r"has no MUBLASLT_MATMUL_DESC_TRANSA"):
        library.load(copied, str)


def test_a_compiler_that_fails(backend, copied, monkeypatch):
    header = copied.include / "mublasLt.h"
    header.write_text(header.read_text() + "// another header: nothing in the cache is for it\n")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(LibraryError, match=r"only in its header: the values of mublasLt.h"):
        library.load(copied, str)


def test_no_compiler(backend, copied, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LibraryError, match="no C\\+\\+ compiler") as raised:
        library.load(copied, str)
    assert "install g++" in raised.value.remedy


def test_a_handle_that_cannot_be_made(backend, sim):
    sim.musaSimInject(b"mublasLtCreate")
    found = probe.look()
    assert isinstance(found, Absent)
    assert "muBLASLt cannot be set up: mublasLtCreate: status" in found.reason


def test_unsigned_bytes_are_refused(backend):
    for asked in unsigned_bytes(problem(16, 16, 16, "int8", "int32", b="col")):
        assert "no product of" in refused(backend, asked)
