"""The conformance kit compares what a call allocates with what its backend declares."""

from __future__ import annotations

import tracemalloc

import conformance_backends as backends
import numpy as np
import pytest

from gemmhub.capability import Device
from gemmhub.testing import Case, Memory, check_allocations
from gemmhub.testing.allocations import SIZE, UNCOUNTED, large
from gemmhub.testing.memory import HOST
from gemmhub.testing.operands import Operands

pytest_plugins = ("pytester",)


def case(**changes: str) -> Case:
    return Case(SIZE, SIZE, SIZE, **changes)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_hidden_workspace_is_caught(dtype: str) -> None:
    wide = case(a_dtype=dtype, b_dtype=dtype, out_dtype=dtype)
    with pytest.raises(AssertionError, match=r"a call allocates \d{6,} bytes, .* 0 bytes of workspace and copies of 0"):
        check_allocations(backends.HiddenWorkspace(), wide)
    assert check_allocations(backends.RightBackend(), wide)


def test_a_hidden_copy_is_caught() -> None:
    with pytest.raises(
        AssertionError, match=r"Case\(.*b='col'.*\n  candidate 'default': a call allocates 10\d{5} bytes"
    ):
        check_allocations(backends.HiddenCopy(), case(b="col"))
    assert check_allocations(backends.CopiesColumnMajor(), case(b="col"))
    assert check_allocations(backends.HiddenCopy(), case())


def test_the_suite_catches_both(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from gemmhub.testing import ConformanceSuite, matrix
        from conformance_backends import HiddenCopy, HiddenWorkspace

        class TestWorkspace(ConformanceSuite):
            backend = HiddenWorkspace
            cases = matrix()[:1]

        class TestCopy(ConformanceSuite):
            backend = HiddenCopy
            cases = matrix()[:1]
        """
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-k", "allocations and float32")
    failed = [line for line in result.outlines if line.startswith("FAILED")]
    assert any("TestWorkspace" in line for line in failed)
    assert [line.partition("[")[2].partition("]")[0] for line in failed if "TestCopy" in line] == [str(case(b="col"))]


def test_each_matrix_exceeds_what_needs_no_declaration() -> None:
    assert all(min(x.nbytes for x in written_and_read(case)) > UNCOUNTED for case in large())
    assert 3 * np.getbufsize() * 8 < UNCOUNTED


def written_and_read(case: Case) -> list[np.ndarray]:
    operands = Operands(case)
    return [operands.a.values, operands.b.values, operands.out.values]


def test_a_refusal_and_a_device_observe_nothing() -> None:
    class FakeDevice(Memory):
        device = Device("cuda")

    assert not check_allocations(backends.CopiesColumnMajor(), case(out_dtype="float64"))
    assert FakeDevice().allocated(lambda: None) is None
    assert not check_allocations(backends.HiddenWorkspace(), case(), FakeDevice())


def test_memory_that_is_freed_counts_and_tracing_stays_as_it_was() -> None:
    def work() -> None:
        for _ in range(2):
            np.ones(10**6, np.uint8)

    assert 10**6 <= HOST.allocated(work) < 1.1e6
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        assert 10**6 <= HOST.allocated(work) < 1.1e6
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
