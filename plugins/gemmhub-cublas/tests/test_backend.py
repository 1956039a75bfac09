"""The backend's refusals, estimates, remarks and candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import Home, bias, operand, problem
from gemmhub_cublas import model

from gemmhub.capability import CPU
from gemmhub.kit import machine as module
from gemmhub.kit.corrections import NOTE
from gemmhub.layout import MatrixLayout


@pytest.fixture
def home():
    return Home()


@pytest.fixture
def backend(home):
    return home.backend()


def test_host_operands(backend):
    assert "the operands are on cpu" in backend.supports(problem(device=CPU)).reason


@pytest.mark.parametrize(("dtype", "out", "sizes", "words"), [
    ("int8", "int32", {}, ["transpose of a contiguous (n, k) array", "multiples of 4"]),
    ("float8_e4m3fn", "bfloat16", {}, ["transpose of a contiguous (n, k) array", "multiples of 16"]),
])  # fmt: skip
def test_no_algorithm(backend, dtype, out, sizes, words):
    refusal = backend.supports(problem(dtype=dtype, out=out, **sizes))
    assert "cuBLASLt 13.1.0 has no algorithm for this on Fake H200, CUBLAS_STATUS_NOT_SUPPORTED (15)" in refusal.reason
    assert "leading dimension" in refusal.reason
    assert all(word in refusal.remedy for word in words)


def test_misaligned_fp8(backend):
    asked = problem(dtype="float8_e4m3fn", out="bfloat16", b="col")
    assert backend.supports(asked) is None
    refusal = backend.supports(replace(asked, a=operand("float8_e4m3fn", 16, 16, alignment=1)))
    assert "aligned to 1 bytes" in refusal.reason
    assert "aligned to 16 bytes" in refusal.remedy


@pytest.mark.parametrize("sizes", [{"m": 0}, {"n": 0}, {"batch": (0,)}, {"m": 0, "k": 0}])
def test_nothing_to_do(home, backend, sizes):
    asked = problem(**sizes)
    assert backend.supports(asked) is None
    assert backend.estimate(asked) > 0
    assert backend.remark(asked, backend.candidates(asked)[0]) == ""
    kernel = backend.prepare(asked, backend.candidates(asked)[0], 0)
    kernel.run(1, 2, 3, None, None, 1, 0, 0)
    assert home.lt.products == []
    assert "cublasLtMatmulAlgoGetHeuristic" not in home.lt.calls
    assert backend.supports(problem(dtype="uint8", **sizes)) is not None


def test_what_is_refused_cannot_be_prepared(backend):
    with pytest.raises(ValueError, match="no product of uint8 by uint8"):
        backend.prepare(problem(dtype="uint8"), "default", 0)


def test_remarks(backend):
    asked = problem(dtype="float16", bias=bias("float16"), activation="gelu")
    assert backend.remark(asked, "66.20.1.0.0.0.35.0.3") == f"algorithm 66.20.1.0.0.0.35.0.3, epilogue fused, {NOTE}"
    asked = problem(batch=(3,))
    asked = replace(asked, a=replace(asked.a, layout=MatrixLayout(16, 16, 16, 1, (3,), (-256,))))
    assert "3 launches" in backend.remark(asked, backend.candidates(asked)[0])


def test_remembering_is_bounded(backend, monkeypatch):
    monkeypatch.setattr(module.MachineBackend, "most_analyses", 4)
    for m in range(1, 12):
        assert backend.supports(problem(m=m)) is None
    assert len(backend._analyses) <= 4


def test_estimates(backend):
    large = {"m": 8192, "n": 8192, "k": 8192}
    half = backend.estimate(problem(dtype="float16", **large))
    assert 1e-3 < half < 2e-3  # an H200 takes 1.6 ms
    tf32 = backend.estimate(problem(precision="tf32", **large))
    single = backend.estimate(problem(**large))
    assert half < tf32 < single < backend.estimate(problem(dtype="complex64", **large))
    row = backend.estimate(problem(dtype="float16", m=1, n=8192, k=8192))
    assert 2**27 / 4.9e12 < row < 2 * 2**27 / 4.9e12
    assert backend.estimate(problem(m=1, n=1, k=1)) < 2 * model.LAUNCH


@pytest.mark.parametrize("attribute", [13, 36, 37, 16], ids=["clock", "memory clock", "bus", "multiprocessors"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_estimate_without_rates_from_the_driver(attribute, dtype):
    backend = Home(attributes={attribute: 0}).backend()
    for asked in (problem(256, 512, 1024, dtype), problem(m=0, dtype=dtype)):
        assert backend.supports(asked) is None
        assert backend.candidates(asked)
        assert backend.estimate(asked) is None


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0), (6, 1)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_estimates_for_every_card(backend, capability, dtype):
    (gpu,) = backend.machine.gpus
    gpu.capability = capability
    asked = problem(m=512, n=512, k=512, dtype=dtype, out="int32" if dtype == "int8" else None)
    assert 0 < backend.estimate(asked) < 1


def test_a_size_of_a_known_bucket_is_checked_and_nothing_is_proposed(home, backend):
    ranked = problem(dtype="float16", m=64)
    name = backend.candidates(ranked)[0]
    home.lt.calls.clear()
    kernel = backend.prepare(problem(dtype="float16", m=61), name, 2**26)
    assert name in kernel.description
    assert "cublasLtMatmulAlgoCheck" in home.lt.calls
    assert "cublasLtMatmulAlgoGetHeuristic" not in home.lt.calls
    home.lt.faults["cublasLtMatmulAlgoCheck"] = 15
    other = "66.20.9.0.0.0.35.0.3"
    with pytest.raises(ValueError, match=f"cuBLASLt does not run algorithm {other}"):
        backend.prepare(problem(dtype="float16", m=59), other, 2**26)
