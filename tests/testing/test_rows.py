"""The conformance kit passes a backend that keeps the bits of rows, and catches each wrong one."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import row_backends as backends
from row_backends import Array, Chains

from gemmhub.backend import Backend
from gemmhub.capability import Device
from gemmhub.problem import GemmProblem
from gemmhub.testing import Case, Memory, check, draw, matrix
from gemmhub.testing.memory import HOST, Unrepresentable

PINNED = sorted((case for case in matrix() if case.reproducible == "batch"), key=lambda case: (-case.threads, case.k))
"""The cases of rows, those of several threads first: few faults are seen in them alone."""


class FakeDevice(Memory):
    """Host memory that passes for a device's."""

    device = Device("cuda", 1)
    stream = 7


def first_failure(backend: Backend, memory: Memory = HOST, step: int = 1) -> str:
    for case in PINNED[::step]:
        try:
            check(backend, case, memory)
        except Unrepresentable:
            continue
        except AssertionError as error:
            return str(error)
    return "no failure"


@pytest.mark.parametrize("case", PINNED, ids=str)
def test_chains_of_sums_pass(case: Case) -> None:
    outcome = check(Chains(), case)
    assert outcome.accepted or case.activation not in (None, "relu") or "reversed" in (case.a, case.b)


def test_random_problems_with_pinned_bits_pass() -> None:
    seed = int(np.random.default_rng().integers(2**31))
    rng = np.random.default_rng(seed)
    for _ in range(10):
        case = replace(draw(rng, Chains.takes), reproducible="batch", packed=False)
        try:
            check(Chains(), case)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("SplitsManyRows", r"\d+ rows, candidate 'rows' of mul.add, run\(\): .* have other bits than the same rows"),
        ("OtherSumOfOneRow", "1 rows, candidate .*: 1 of 1 rows have other bits"),
        ("OrderByPosition", "have other bits"),
        ("RoundsByLargest", "have other bits"),
        ("OrderByMatrix", "rows in a stack.*have other bits"),
        ("OrderByLayoutOfA", "rows of a column-major a.*have other bits"),
        ("OrderByLayoutOfB", "rows of a column-major b.*have other bits"),
        ("OrderByLayoutOfResult", "rows of a column-major, padded result.*have other bits"),
        ("OrderByLeadingDimension", "rows? of a padded, unaligned a.*have other bits"),
        ("OrderByCallers", r"3 threads at once, run\(\).*have other bits"),
        ("FalseOrderOfSecond", "candidate 'columns' of mul.add.*have other bits"),
        ("RefusesFewRows", r"accepts \['.* rows'\] and refuses \['1 rows'\]: the number of rows is no reason"),
        ("RefusesCanonical", "the first order of 1024 x 1024 x 1024, which decides for all sizes, is None"),
        ("OrderOfSize", "the first order of 1024 x 1024 x 1024, which decides for all sizes, is add.mul, and that"),
        ("OrderOfRows", "the first order of .* rows is add.mul, and that of the case is mul.add"),
        ("PackedBackwards", "packed b, candidate.*have other bits"),
        ("EpilogueByRows", "bias=.*[12] rows, .*have other bits"),
        ("DirectBackwards", r"direct\(a, b, out\).*have other bits"),
        ("DirectEpilogueByRows", r"1 rows, .*direct_epilogue\(..., out=None\).*have other bits"),
        ("KernelOfFirstSizes", r"run\(\), by the kernel of other sizes: .*have other bits"),
    ],
)
def test_catches(backend: str, message: str) -> None:
    failure = first_failure(getattr(backends, backend)())
    assert re.search(message, failure, re.DOTALL), failure
    assert failure.startswith("Case(m=")


def test_catches_a_sum_that_depends_on_the_largest_number_of_other_rows() -> None:
    """Rows of one distribution may have one largest element."""

    class RoundsHuge(backends.RoundsByLargest):
        def sums(self, problem: GemmProblem, a: Array, b: Array, candidate: str) -> Array:
            huge = a.dtype.kind == "f" and not np.max(np.abs(a), initial=0) < 2**14
            return super().sums(problem, a, b, candidate) if huge else backends.chain(a, b)

    assert re.search("rows among huge ones and NaN.*have other bits", first_failure(RoundsHuge()))


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one processor, or no affinity"
)
def test_catches_an_order_that_depends_on_the_number_of_processors() -> None:
    before = os.sched_getaffinity(0)
    assert re.search(r"3 threads at once, run\(\).*have other bits", first_failure(backends.OrderByProcessors()))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("WithRowsBackwards", "by the kernel of other rows.*have other bits"),
        ("OrderByAlignment", "of a padded, unaligned a.*have other bits"),
    ],
)
def test_catches_on_devices(backend: str, message: str) -> None:
    assert re.search(message, first_failure(getattr(backends, backend)(), FakeDevice()))
    assert first_failure(backends.OnDevice(), FakeDevice(), step=8) == "no failure"


def test_a_backend_that_refuses_the_promise_passes() -> None:
    class Refuses(Chains):
        takes: ClassVar = {**Chains.takes, "reproducible": frozenset({"run"})}

    assert not any(check(Refuses(), case).accepted for case in PINNED[::9])
