"""What the kit does not see: answers before a call, memory, a second device, proofs that fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_mudnn import proof
from gemmhub_mudnn.backend import MudnnBackend
from gemmhub_mudnn.library import Library, MudnnError
from gemmhub_mudnn.lower import Tensor
from gemmhub_musa import workspace
from gemmhub_musa.testing import MusaMemory, bias, nested_products, operand, per_thread_products, strided
from gemmhub_musa.testing import problem as musa_problem
from problems import problem

from conftest import GENERATION
from gemmhub.backend import Kernel, Offer, answer
from gemmhub.capability import Device, Ready, Refusal
from gemmhub.errors import AllocationError, KernelError
from gemmhub.testing.cases import Case
from gemmhub.testing.check import check
from gemmhub.testing.operands import Operands

LIMIT = 64 * 2**20
C_API = GENERATION.endswith("-c")
sim = pytest.importorskip("gemmhub_musa_sim.runtime").loaded_runtime


@pytest.fixture
def backend():
    made = MudnnBackend()
    made.probe()
    return made


@pytest.fixture(autouse=True)
def _nothing_injected(home):
    yield
    sim().musaSimInject(b"")
    sim().musaSimLimit(0)


def prepared(backend, case, memory=None, limit=LIMIT):
    """(kernel, filled operands) of ``case``."""
    operands = Operands(case, memory or MusaMemory())
    operands.fill(case.seed)
    assert isinstance(backend.offer(operands.problem), Offer)
    return backend.prepare(operands.problem, "default", limit), operands


def right(operands):
    return bool((operands.expected().ratio(operands.out.read()[0]) <= 1).all())


def test_ready(backend):
    found = backend.probe()
    assert isinstance(found, Ready)
    assert found.devices == (Device("musa", 0), Device("musa", 1))
    assert found.versions["device"].startswith("Simulated")
    api = "C API" if C_API else "C++ API"
    assert api in found.versions["mudnn"]
    header = "<mudnncxx/mudnn.h>" if GENERATION == "5.1" else "<mudnn.h>"
    assert header in found.features[0]


def counted(monkeypatch):
    """Return the list of proofs from now on, each as the arguments of :func:`proof.prove`."""
    prove, proven = proof.prove, []

    def noted(*arguments):
        proven.append(arguments)
        return prove(*arguments)

    monkeypatch.setattr(proof, "prove", noted)
    return proven


def test_a_second_device(backend, monkeypatch):
    case = Case(m=21, n=34, k=55, bias="n", beta=1.5, c="row", alpha=0.5)
    proven = counted(monkeypatch)
    assert check(backend, case, MusaMemory(1)).accepted
    assert {engine.index for engine, _ in proven} == {1}
    assert "musa:2" in backend.offer(problem(index=2)).reason
    assert "on cpu" in backend.offer(replace(problem(), device=Device())).reason


def test_remarks_and_estimates(backend):
    assert backend.offer(problem()).remark("default") == "MatMul, no TF32"
    assert backend.offer(problem(precision="tf32")).remark("default") == "MatMul, TF32"
    assert backend.offer(problem(dtype="float16", batch=(3,))).remark("default") == "BatchMatMul"
    reversed_batch = replace(problem(batch=(3,)), b=operand("float32", 8, 24, batch=(3,), batch_strides=(-192,)))
    assert "3 launches" in backend.offer(reversed_batch).remark("default")
    big = problem(4096, 4096, 4096)
    half = problem(4096, 4096, 4096, dtype="float16")
    times = [backend.offer(asked).first.seconds for asked in (half, replace(big, precision="tf32"), big)]
    assert 1e-5 < times[0] < times[1] < times[2] < 1
    assert backend.offer(problem(0, 3, 5)).first.seconds == 0


def test_descriptions_of_kernels(backend):
    kernel, _ = prepared(backend, Case(m=16, n=24, k=64))
    assert kernel.description == "muDNN MatMul, no TF32"
    assert kernel.workspace_bytes > 0
    nothing = backend.prepare(problem(0, 3, 5), "nothing", LIMIT)
    nothing.run(0, 0, 0, 1, 0, 0)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_are_refused(backend, activation):
    """muDNN's are operations of their own, on a result that is rounded before."""
    assert answer(backend, problem(activation=activation)).reason == f"it has no activation {activation}"


def test_what_prepare_refuses(backend):
    assert "mublas" in backend.prepare(problem(dtype="float64"), "default", LIMIT).remedy
    assert "no candidate 'other' here; allowed: default" in backend.prepare(problem(), "other", LIMIT).reason


def test_a_product_that_the_library_does_not_take(backend, monkeypatch):
    """Though it takes its kind: other products go on."""
    original = Library.plan

    def plan(self, handle, form, addend):
        if form.d.rows == 100:
            raise MudnnError("status 3")
        return original(self, handle, form, addend)

    monkeypatch.setattr(Library, "plan", plan)
    no = backend.prepare(problem(100), "default", LIMIT)
    assert "not this one: status 3" in no.reason
    assert "use another backend" in no.remedy
    assert isinstance(backend.prepare(problem(99), "default", LIMIT), Kernel)


def test_after_prepare_a_call_allocates_nothing(backend):
    """Whatever its stream."""
    kernel, operands = prepared(backend, Case(m=16, n=24, k=64))
    others = [Operands(Case(m=16, n=24, k=64), MusaMemory()) for _ in range(3)]
    for each in others:
        each.fill(1)
    sim().musaSimInject(b"musaMalloc,musaEventCreate")
    for each in (operands, operands, *others):
        each.run(kernel)
        assert right(each)


def test_a_nested_call_disturbs_nothing(backend):
    """Between the launches of a call, which share the handle and nothing else."""
    asked = musa_problem(16, 16, 16, batch=(2, 3), a="col")
    asked = replace(asked, a=strided("float32", 16, 16, 1, 16, (2, 3), (1024, 256)))
    assert isinstance(backend.offer(asked), Offer)
    kernel = backend.prepare(asked, "default", LIMIT)
    nested_products(kernel.run, asked, backend.machine.engine(0).guard, "before")


def test_the_per_thread_stream(backend):
    asked = musa_problem(16, 16, 16)
    assert isinstance(backend.offer(asked), Offer)
    per_thread_products(backend.prepare(asked, "default", LIMIT).run, asked)


def test_alpha_zero_allocates_nothing_either(backend):
    case = Case(m=16, n=24, k=64, alpha=0, beta=2, c="row", data="nonfinite")
    kernel, operands = prepared(backend, replace(case, data="normal"))
    sim().musaSimInject(b"musaMalloc")
    operands.run(kernel)
    assert right(operands)


def test_streams_do_not_share_a_workspace(backend):
    """Work of both streams is pending at the same time, and either may come first."""
    kernel, first = prepared(backend, Case(m=33, n=65, k=70))
    second = Operands(Case(m=33, n=65, k=70, seed=9), MusaMemory())
    second.fill(9)
    for each in (first, second):
        kernel.run(each.a.array, each.b.array, each.out.array, 1, 0, each.memory.stream)
    for each in (second, first):
        each.memory.synchronize()
        assert right(each)


def test_the_workspace_limit_holds(backend):
    p = problem(64, 64, 64)
    assert isinstance(backend.offer(p), Offer)
    no = backend.prepare(p, "default", 1000)
    assert "1000 are allowed" in no.reason
    assert "raise the setting workspace_mib" in no.remedy


def test_no_memory_for_the_workspace():
    workspace.of.cache_clear()  # as in a process that has reserved nothing
    backend = MudnnBackend()
    backend.probe()
    p = problem(64, 64, 64)
    assert isinstance(backend.offer(p), Offer)
    sim().musaSimInject(b"musaMalloc")
    with pytest.raises(AllocationError):
        backend.prepare(p, "default", LIMIT)
    sim().musaSimInject(b"")
    assert backend.prepare(p, "default", LIMIT).workspace_bytes >= 64 * 64 * 4


def test_no_memory_for_the_proof_decides_nothing(backend):
    sim().musaSimInject(b"musaMalloc")
    refusal = backend.offer(problem())
    assert "no memory" in refusal.reason
    sim().musaSimInject(b"")
    assert isinstance(backend.offer(problem()), Offer)


def test_no_handle(backend):
    sim().musaSimInject(b"mudnnCreate:1" if C_API else b"Handle.Handle:1")
    assert "muDNN makes no handle" in backend.offer(problem()).reason
    assert isinstance(backend.offer(problem()), Offer)


def test_a_failed_run_is_reported_and_the_next_one_is_right(backend):
    kernel, operands = prepared(backend, Case(m=16, n=24, k=64))
    sim().musaSimInject(b"mudnnBatchMatMulBias:1" if C_API else b"MatMul.Run:1")
    with pytest.raises(KernelError, match="mudnnBatchMatMulBias: status" if C_API else "Run: INTERNAL_ERROR"):
        operands.run(kernel)
    operands.run(kernel)
    assert right(operands)


def test_errors_that_a_call_leaves_behind_are_reported(backend, monkeypatch):
    """An error that muDNN does not notice is reported by the runtime."""
    kernel, operands = prepared(backend, Case(m=16, n=24, k=8))
    monkeypatch.setenv("MUSA_SIM_BLAS_STICKY", "1")
    with pytest.raises(KernelError, match="reports musaErrorInvalidValue"):
        operands.run(kernel)
    monkeypatch.setenv("MUSA_SIM_BLAS_STICKY", "801")  # what libraries of the vendor leave behind, though all is well
    operands.run(kernel)
    assert right(operands)
    assert backend.machine.musa.runtime.clear_error() == ""


def test_an_error_of_somebody_else_is_left_to_him(backend):
    kernel, operands = prepared(backend, Case(m=16, n=24, k=8))
    operands.memory.synchronize()
    sim().musaSimSetSticky(1)
    operands.run(kernel)
    assert backend.machine.musa.runtime.clear_error() == "musaErrorInvalidValue"
    assert right(operands)


def test_determinism_needs_a_documented_switch(backend):
    refusal = backend.offer(problem(reproducible="run"))
    assert isinstance(refusal, Refusal) == C_API


def changed_plan(monkeypatch, **changes):
    """A library that computes something else is refused."""
    original = Library.plan

    def plan(self, handle, form, addend):
        return original(self, handle, replace(form, **changes), addend)

    monkeypatch.setattr(Library, "plan", plan)


def test_tf32_where_ieee_was_asked_for_is_found_out(backend, monkeypatch):
    changed_plan(monkeypatch, tensor_math=True)
    refusal = backend.offer(problem())
    assert "is wrong (float32 to float32 by scalar math" in refusal.reason
    assert "instead of" in refusal.reason
    assert "allowed" in refusal.reason
    assert isinstance(backend.offer(problem(precision="tf32")), Offer)
    assert isinstance(backend.offer(problem(dtype="float16")), Offer)


def test_wrong_layouts_are_found_out(backend, monkeypatch):
    original = Library.plan

    def plan(self, handle, form, addend):
        if form.trans_a:  # read as if it were row-major
            a = Tensor(1, form.a.cols, form.a.rows, form.a.rows, form.a.rows * form.a.cols)
            form = replace(form, trans_a=False, a=a)
        return original(self, handle, form, addend)

    monkeypatch.setattr(Library, "plan", plan)
    refusal = backend.offer(problem())
    assert "the first product" in refusal.reason
    assert "is wrong: NumPy has" in refusal.reason
    monkeypatch.undo()
    assert backend.offer(problem()) == refusal  # remembered


def test_a_lost_bias_is_found_out_and_products_without_one_go_on(backend, monkeypatch):
    changed_plan(monkeypatch, bias=False)
    refusal = backend.offer(problem(bias=bias()))
    assert "is wrong" in refusal.reason
    assert "with a bias" in refusal.reason
    assert isinstance(backend.offer(problem()), Offer)


@pytest.mark.parametrize("which", ["Run", "RunWithBiasAdd"])
def test_a_kind_that_is_not_taken_is_refused_and_others_go_on(backend, which):
    if C_API:
        pytest.skip("one function serves all kinds")
    assert isinstance(backend.offer(problem()), Offer)
    sim().musaSimInject(f"BatchMatMul.{which}".encode())
    kind = problem(batch=(3,), bias=bias() if which == "RunWithBiasAdd" else None)
    refusal = backend.offer(kind)
    assert f"does not take products of this kind (float32 to float32 by scalar math, {proof.M}x" in refusal.reason
    assert f"{which}: INTERNAL_ERROR" in refusal.reason
    assert refusal.remedy
    assert isinstance(backend.offer(problem(16, 25, 8)), Offer)


def test_the_first_use_of_a_kind_costs_little(backend, monkeypatch):
    proven = counted(monkeypatch)
    assert isinstance(backend.offer(problem()), Offer)
    before = len(proven)
    assert before > 0
    assert isinstance(backend.offer(problem(100, 200, 300)), Offer)
    assert len(proven) == before  # the same kind


def test_proofs_leave_no_memory_behind(backend):
    for kind in (problem(batch=(3,), bias=bias()), problem(batch=(3,))):  # have the largest workspace of them all
        assert isinstance(backend.offer(kind), Offer)
    before = sim().musaSimLive()
    for kind in (problem(a="col"), problem(b="col"), problem(batch=(3,), a="col"), problem(bias=bias())):
        assert isinstance(backend.offer(kind), Offer)
    assert sim().musaSimLive() == before
