"""The backend's refusals, estimates, remarks and candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import Home, bias, operand, problem
from gemmhub_cublas import model

import gemmhub
from gemmhub import config
from gemmhub._choice import decide, registry
from gemmhub.backend import Kernel, Offer, answer
from gemmhub.capability import CPU, Refusal
from gemmhub.kit.corrections import NOTE
from gemmhub.layout import MatrixLayout


@pytest.fixture
def home():
    return Home()


@pytest.fixture
def backend(home):
    return home.backend()


def test_host_operands(backend):
    assert "the operands are on cpu" in backend.offer(problem(device=CPU)).reason


@pytest.mark.parametrize(("dtype", "out", "sizes", "words"), [
    ("int8", "int32", {}, ["transpose of a contiguous (n, k) array", "multiples of 4"]),
    ("float8_e4m3fn", "bfloat16", {}, ["transpose of a contiguous (n, k) array", "multiples of 16"]),
])  # fmt: skip
def test_no_algorithm(backend, dtype, out, sizes, words):
    refusal = backend.offer(problem(dtype=dtype, out=out, **sizes))
    assert "cuBLASLt 13.1.0 has no algorithm for this on Fake H200, CUBLAS_STATUS_NOT_SUPPORTED (15)" in refusal.reason
    assert "leading dimension" in refusal.reason
    assert all(word in refusal.remedy for word in words)


def test_misaligned_fp8(backend):
    asked = problem(dtype="float8_e4m3fn", out="bfloat16", b="col")
    assert isinstance(backend.offer(asked), Offer)
    refusal = backend.offer(replace(asked, a=operand("float8_e4m3fn", 16, 16, alignment=1)))
    assert "aligned to 1 bytes" in refusal.reason
    assert "aligned to 16 bytes" in refusal.remedy


@pytest.mark.parametrize("sizes", [{"m": 0}, {"n": 0}, {"batch": (0,)}, {"m": 0, "k": 0}])
def test_nothing_to_do(home, backend, sizes):
    asked = problem(**sizes)
    offer = backend.offer(asked)
    assert offer.first.seconds > 0
    assert offer.remark(offer.first.name) == ""
    kernel = backend.prepare(asked, offer.first.name, 0)
    kernel.run(1, 2, 3, 1, 0, 0)
    assert home.lt.products == []
    assert "cublasLtMatmulAlgoGetHeuristic" not in home.lt.calls
    assert isinstance(backend.offer(problem(dtype="uint8", **sizes)), Refusal)


def test_what_is_refused_cannot_be_prepared(backend):
    asked = problem(dtype="uint8")
    assert "no product of uint8 by uint8" in backend.prepare(asked, "default", 0).reason
    assert backend.prepare(asked, "default", 0) == backend.offer(asked)


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "gelu", "silu", "swiglu"])
def test_activations(backend, activation):
    """The library's GELU is the tanh form, so the erf form is refused."""
    found = answer(backend, problem(dtype="float16", activation=activation))
    if activation in ("relu", "gelu_tanh"):
        assert isinstance(found, Offer)
    else:
        assert f"no activation {activation}" in found.reason
        assert found.remedy


@pytest.mark.parametrize("options", [
    {"activation": "relu"}, {"activation": "gelu_tanh"}, {"alpha_is_one": False, "activation": "relu"},
    {"c": operand("float16", 64, 64)},
], ids=str)  # fmt: skip
def test_a_bias_with_what_only_algorithms_for_hopper_compute(backend, options):
    """They are used for a bias at any address, for which the library proposes only others."""
    asked = problem(64, 64, 64, "float16", bias=bias("float16"), **options)
    offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    assert offer.first.name.startswith("66.")
    assert isinstance(backend.prepare(asked, offer.first.name, 2**26), Kernel)


def test_remarks(backend):
    asked = problem(dtype="float16", bias=bias("float16"), activation="gelu_tanh")
    name = backend.offer(asked).first.name
    assert backend.offer(asked).remark(name) == f"algorithm {name}, epilogue fused, {NOTE}"
    asked = problem(batch=(3,))
    asked = replace(asked, a=replace(asked.a, layout=MatrixLayout(16, 16, 16, 1, (3,), (-256,))))
    assert "3 launches" in backend.offer(asked).remark(backend.offer(asked).first.name)


@pytest.mark.parametrize(("dtype", "out", "order"), [("int8", "int32", "exact"), ("float16", None, None)])
def test_only_sums_of_integers_have_an_order(backend, dtype, out, order):
    """How the library adds the products of floating-point numbers is not documented."""
    offer = backend.offer(problem(64, 64, 64, dtype, out=out, b="col"))
    assert {candidate.order for candidate in offer.candidates} == {order}


def test_only_the_first_choice_has_an_estimate(backend):
    """It is one of cuBLASLt in general, not of an algorithm."""
    first, *others = backend.offer(problem(64, 64, 64)).candidates
    assert first.seconds > 0
    assert {candidate.seconds for candidate in others} == {None}


def test_estimates(backend):
    large = {"m": 8192, "n": 8192, "k": 8192}
    half = backend.offer(problem(dtype="float16", **large)).first.seconds
    assert 1e-3 < half < 2e-3  # an H200 takes 1.6 ms
    tf32 = backend.offer(problem(precision="tf32", **large)).first.seconds
    single = backend.offer(problem(**large)).first.seconds
    assert half < tf32 < single < backend.offer(problem(dtype="complex64", **large)).first.seconds
    row = backend.offer(problem(dtype="float16", m=1, n=8192, k=8192)).first.seconds
    assert 2**27 / 4.9e12 < row < 2 * 2**27 / 4.9e12
    assert backend.offer(problem(m=1, n=1, k=1)).first.seconds < 2 * model.LAUNCH


@pytest.mark.parametrize("attribute", [13, 36, 37, 16], ids=["clock", "memory clock", "bus", "multiprocessors"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_estimate_without_rates_from_the_driver(attribute, dtype):
    backend = Home(attributes={attribute: 0}).backend()
    for asked in (problem(256, 512, 1024, dtype), problem(m=0, dtype=dtype)):
        assert backend.offer(asked).first.seconds is None


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0), (6, 1)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_estimates_for_every_card(backend, capability, dtype):
    (gpu,) = backend.machine.gpus
    gpu.capability = capability
    asked = problem(m=512, n=512, k=512, dtype=dtype, out="int32" if dtype == "int8" else None, b="col")
    assert 0 < backend.offer(asked).first.seconds < 1


def test_a_size_of_a_known_bucket_is_checked_and_nothing_is_proposed(home, backend):
    ranked = problem(dtype="float16", m=64)
    name = backend.offer(ranked).first.name
    home.lt.calls.clear()
    kernel = backend.prepare(problem(dtype="float16", m=61), name, 2**26)
    assert name in kernel.description
    assert "cublasLtMatmulAlgoCheck" in home.lt.calls
    assert "cublasLtMatmulAlgoGetHeuristic" not in home.lt.calls
    home.lt.faults["cublasLtMatmulAlgoCheck"] = 15
    other = "66.20.9.0.0.0.35.0.3"
    refusal = backend.prepare(problem(dtype="float16", m=59), other, 2**26)
    assert f"cuBLASLt 13.1.0 does not run algorithm {other}" in refusal.reason


def test_a_small_workspace_runs_another_candidate(backend, monkeypatch):
    """gemmhub takes the first that is not refused, and reports why."""
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "1")
    description = gemmhub.BackendDescription("cublas", lambda: backend, "", device_types=("cuda",), contract=2)
    monkeypatch.setattr(
        registry.Registry, "_discover", lambda found: found.add(description, "cublas", "gemmhub-cublas")
    )
    gemmhub.reload()
    asked = problem(512, 512, 512, "float16")
    first = backend.offer(asked).first.name
    for ranked in (None, asked):
        winner = decide.resolve(asked, config.current(), ranked=ranked)
        assert winner.kernel.workspace_bytes == 0
        assert "algorithm 66.20.1.0.0.0.35.0.3" in winner.kernel.description
        remark = winner.decision["cublas"].remark
        assert f"{first} is refused: algorithm {first} needs 4194304 bytes of workspace, 1048576 are allowed" in remark
