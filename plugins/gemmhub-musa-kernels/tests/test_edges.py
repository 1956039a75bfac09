"""Faults at the edges of what kernels move at once: each shows in one of the conformance kit's edge cases."""

from __future__ import annotations

import shutil

import pytest
from gemmhub_musa.testing import MusaMemory
from gemmhub_musa_kernels import sources
from gemmhub_musa_kernels.backend import MusaKernelsBackend

from gemmhub.testing import check
from gemmhub.testing.cases import edges

CASES = [case for case in edges() if case.a_dtype == case.out_dtype == "float16"]

# fmt: off
FAULTS = {
    "a line beyond k is copied": (
        "pipelined.mu", "k_left >= P::kK)", "k_left >= P::kK - 1)", lambda case: case.k % 32 == 31 and case.a == "col"),
    "an element beyond k is copied": (
        "pipelined.mu", "inside >= kUnit)", "inside + 1 >= kUnit)", lambda case: case.a == "row_padded"),
    "batch strides do not count": (
        "gemm.h", "line % elements == 0 && all_divisible(p, steps, elements))", "line % elements == 0)",
        lambda case: case.batch == (8,)),
    "the bias is taken for aligned": (
        "gemm.h", "(p.bias_step == 1 && size_t(p.bias) % 16 == 0)", "p.bias_step == 1",
        lambda case: case.bias_offset and case.bias == "n"),
    "alpha of 0 reads the operands": (
        "gemm.h", "if (p.alpha == 0.0f) p.k = 0;", "", lambda case: case.alpha == 0),
}
# fmt: on


@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_case_fails(fault, sim, monkeypatch, tmp_path):
    file, old, new, shows = FAULTS[fault]
    folder = shutil.copytree(sources.KERNELS, tmp_path / "kernels")
    text = (folder / file).read_text()
    assert text.count(old) == 1
    (folder / file).write_text(text.replace(old, new))
    monkeypatch.setattr(sources, "KERNELS", folder)
    monkeypatch.setattr(sources, "HEADER", folder / "gemm.h")
    # The backend's own proof sees some of the faults, and so hides whether the cases do.
    monkeypatch.setattr(MusaKernelsBackend, "_proof", lambda self, problem, candidate: None)
    backend, failed = MusaKernelsBackend(), []
    assert backend.probe()
    for case in filter(shows, CASES):
        try:
            refusal = check(backend, case, MusaMemory()).refusal
        except AssertionError:
            failed.append(case)
            sim.rt.musaSimReset()
        else:
            assert refusal is None
    assert failed, "no case shows it"
