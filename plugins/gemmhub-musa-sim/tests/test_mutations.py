"""The checker, checked: each barrier and each wait of the test kernels is taken out, and must be missed."""

import ctypes
import re

import numpy as np
import pytest
from gemmhub_musa_sim import checks
from simulated import KERNELS, Card, compiled, exact, gemm

SYNCHRONISATION = re.compile(r"^(\s*)(__syncthreads\(\);|__pipeline_wait_prior\(\d\);)", re.MULTILINE)


def mutable(name):
    """The kernel's source with each synchronisation under a condition: one compilation serves all mutants."""
    text = (KERNELS / f"{name}.mu").read_text()
    places = [match[2] for match in SYNCHRONISATION.finditer(text)]
    numbers = iter(range(len(places)))
    changed = SYNCHRONISATION.sub(lambda match: f"{match[1]}if (mutant != {next(numbers)}) {match[2]}", text)
    return 'extern "C" int mutant;\n#line 1\n' + changed + '\nextern "C" { int mutant = -1; }\n', places


def load(name, *, checks):
    library = compiled(mutable(name)[0], checks=checks)
    return library, ctypes.c_int.in_dll(library, "mutant")


CASES = {
    "gemm_tiled": ("gemm_tiled_f32", np.float32),
    "gemm_wmma": ("gemm_wmma_f16", np.float16),
}
MUTANTS = [(name, number) for name in CASES for number in range(len(mutable(name)[1]))]
SIZE = (70, 66, 104)  # partial tiles in each dimension, and a depth of four steps
SCHEDULES = [{"SEED": seed, "ASYNC": 1, "LAYOUT": seed % 2} for seed in range(1, 5)]
# Between reading the scratch tile and the next store_matrix_sync to it: that function waits for all lanes before it
# stores, so results stay right here. It promises no order of memory, which is what the checker goes by.
SHOWN_BY_NO_SCHEDULE = {("gemm_wmma", 4)}


def run(card, launch, dtype):
    """Return whether the product is right."""
    m, n, k = SIZE
    rng = np.random.default_rng(3)
    a, b = exact(rng, (m, k), dtype), exact(rng, (k, n), dtype)
    product, error = gemm(card, launch, a, b)
    return not error and np.array_equal(product, a.astype(np.float32) @ b.astype(np.float32))


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1):
        yield card
        card.reset()


def test_there_is_something_to_take_out():
    assert [places for _, places in map(mutable, CASES)] == [
        ["__syncthreads();"] * 2,
        ["__pipeline_wait_prior(1);"] + ["__syncthreads();"] * 4,
    ]


@pytest.mark.parametrize(("name", "number"), MUTANTS)
def test_the_checker_reports_what_is_missing(card, name, number):
    library, mutant = load(name, checks=True)
    mutant.value = number
    run(card, getattr(library, CASES[name][0]), CASES[name][1])
    assert checks.findings(card.rt), f"{mutable(name)[1][number]} was not missed"


@pytest.mark.parametrize(("name", "number"), MUTANTS)
def test_some_schedule_gives_a_wrong_product(card, name, number):
    library, mutant = load(name, checks=False)
    mutant.value = number
    right = []
    for schedule in SCHEDULES:
        with card.options(**schedule):
            right.append(run(card, getattr(library, CASES[name][0]), CASES[name][1]))
    assert all(right) == ((name, number) in SHOWN_BY_NO_SCHEDULE)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("schedule", [*SCHEDULES, {"ASYNC": 0}, {"ASYNC": 2, "SEED": 9}])
def test_nothing_is_reported_of_the_kernels_as_they_are(card, name, schedule):
    for with_checks in (True, False):
        library, mutant = load(name, checks=with_checks)
        mutant.value = -1
        with card.options(**schedule):
            assert run(card, getattr(library, CASES[name][0]), CASES[name][1]), card.message()
    assert [str(finding) for finding in checks.findings(card.rt)] == []
