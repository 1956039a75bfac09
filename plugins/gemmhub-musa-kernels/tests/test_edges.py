"""Faults at the edges of what kernels move at once: each shows in an edge case of the conformance kit, or of ours."""

from __future__ import annotations

import pytest
from gemmhub_musa.testing import MusaMemory
from gemmhub_musa_kernels.backend import MusaKernelsBackend
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.sources import PIPELINED
from gemmhub_musa_kernels.tiles import SMALL
from simulator import FAILED, Bench, problem

from gemmhub.testing import Case, check
from gemmhub.testing.cases import edges

HALVES = dict.fromkeys(("a_dtype", "b_dtype", "out_dtype"), "float16")
OURS = [
    Case(64, 63, 64, out="row_padded", **HALVES),  # rows of 64: the last vector has a gap's element
    Case(64, 64, 64, offset=4, **HALVES),  # at half a vector
    Case(64, 72, 64, **HALVES),  # whole tiles but along one dimension
    Case(72, 64, 64, **HALVES),
    Case(64, 64, 72, **HALVES),
    Case(64, 64, 64, c="row_odd", beta=1, **HALVES),  # only the addend's rows are not aligned
    Case(136, 64, 64, bias="m", **HALVES),  # vectors of the result beyond the first tile's rows
    Case(17, 16, 24, batch=(2, 2), b_batch="outer", **HALVES),  # nothing merges them; coprime sizes would hide a fault
]
"""Cases of products that are nearly of whole tiles of 64x64x32, or nearly aligned, or of several tiles or matrices."""
CASES = [*(case for case in edges() if case.a_dtype == case.out_dtype == "float16"), *OURS]

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
    "a vector of the result ends in the gap": (
        "gemm.h", "column + kCount > p.n)", "column + kCount > p.n + 1)", lambda case: case.n == 63),
    "half a vector is taken for aligned": (
        "gemm.h", "size_t(address) % 16 == 0 && row % by", "size_t(address) % 8 == 0 && row % by",
        lambda case: case.offset == 4),
    "the addend is taken for aligned": (
        "gemm.h", "(!p.c || in_vectors(p, p.c, size_of(p.c_type), p.c_row, p.c_col, p.batch_c))", "true",
        lambda case: case.c == "row_odd"),
    "every tile has the bias of the first rows": (
        "gemm.h", "p.bias_type, row * p.bias_step)", "p.bias_type, row % 64 * p.bias_step)",
        lambda case: case.m == 136),
    "inner dimensions of a batch count for outer ones": (
        "gemm.h", "    rest /= p.batch_size[dim];\n", "", lambda case: case.batch == (2, 2)),
    "m does not count for whole tiles": (
        "pipelined.mu", "p.m % Policy::kM == 0 && ", "", lambda case: case.m == 72),
    "k does not count for whole tiles": (
        "pipelined.mu", " && p.k % Policy::kK == 0", "", lambda case: case.k == 72),
}
READS = {
    "a step beyond the last is copied": (
        "pipelined.mu", "if (k_left > kAhead)", "if (k_left >= kAhead)", problem(64, 64, 64)),
    "n does not count for whole tiles": ("pipelined.mu", " && p.n % Policy::kN == 0", "", problem(64, 72, 64)),
    "a tile of A but for one vector is copied whole": (
        "pipelined.mu", "readable >= kExtent &&", "readable >= kExtent - 8 &&", problem(56, 64, 32, a="col")),
    "a tile of B but for one vector is copied whole": (
        "pipelined.mu", "readable >= kExtent &&", "readable >= kExtent - 8 &&", problem(64, 56, 32)),
}
"""Faults that only read beyond an operand, and use nothing of it, with a product that shows them."""
# fmt: on


@pytest.fixture
def backend():
    made = MusaKernelsBackend()
    assert made.probe()
    return made


@pytest.mark.parametrize("case", OURS, ids=str)
def test_a_case_is_right(sim, backend, case):
    assert check(backend, case, MusaMemory()).accepted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_case_fails(fault, sim, backend, planted, monkeypatch):
    *change, shows = FAULTS[fault]
    planted(*change)
    # The backend's own proof sees some of the faults, and so hides whether the cases do.
    monkeypatch.setattr(MusaKernelsBackend, "_proof", lambda self, problem, candidate: None)
    failed = []
    for case in filter(shows, CASES):
        try:
            refusal = check(backend, case, MusaMemory()).refusal
        except AssertionError:
            failed.append(case)
            sim.rt.musaSimReset()
        else:
            assert refusal is None
    assert failed, "no case shows it"


@pytest.mark.parametrize("fault", READS, ids=lambda name: name.replace(" ", "-"))
def test_a_read_beyond_an_operand_fails(fault, sim, plain_sdk, planted):
    """Each operand ends where its memory does."""
    *change, asked = READS[fault]
    small = Candidate(PIPELINED, SMALL[128])
    assert Bench(sim, plain_sdk).wrong(asked, small) == 0
    planted(*change)
    assert Bench(sim, plain_sdk).wrong(asked, small) == FAILED
