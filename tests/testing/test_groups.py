"""The grouped cases of the conformance kit: a right kernel passes them, and each fault of a kernel is found."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from grouped_kernel import FAULTS, GroupedKernel, product

from gemmhub.backend import BASIC, Backend, Candidate, Kernel, Offer
from gemmhub.capability import Device, Ready, Refusal
from gemmhub.epilogues import EPILOGUES
from gemmhub.testing import ConformanceSuite, GroupedCase, Memory, check_groups, grouped_cases, matrix
from gemmhub.testing.groups import spans

CUDA = Device("cuda", 0)


class HostMemory(Memory):
    """Host memory that passes for a device's."""

    device = CUDA
    stream = 7


MEMORY = HostMemory()


class Right(Backend):
    """Every grouped product, in float64."""

    name = "right"
    layout_sensitive = True
    takes: ClassVar = {
        **BASIC, "activation": frozenset(EPILOGUES), "bias": frozenset({"n", "batch n"}), "scale_a": None,
        "scale_b": None, "reproducible": frozenset({"run", "batch"}), "groups": frozenset({"m", "k", "n"}),
    }  # fmt: skip

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault

    def probe(self) -> Ready:
        return Ready((CUDA,))

    def offer(self, problem) -> Offer | Refusal:
        if problem.groups is None and not problem.pinned:
            return Refusal("only groups here", "pass offsets")
        return Offer((Candidate("first", 1e-6, order="float64.numpy"),))

    def prepare(self, problem, candidate, workspace_limit) -> Kernel:
        if problem.groups is not None:
            return Kernel(GroupedKernel(problem, self.fault).run, candidate)

        def run(a, b, out, alpha, beta, stream) -> None:
            assert stream == 7
            out[...] = product(a.astype(np.float64), b.astype(np.float64))

        return Kernel(run, candidate)


class TestRight(ConformanceSuite):
    backend = Right
    memory = MEMORY
    cases = tuple(case for case in matrix() if case.reproducible == "batch")[:1]
    random_problems = 0


def finds(fault: str, divides: str) -> str:
    """The error of the first case that finds a fault; empty where none does."""
    for case in grouped_cases():
        if case.divides == divides:
            try:
                check_groups(Right(fault), case, MEMORY)
            except AssertionError as error:
                return str(error)
    return ""


_ELSEWHERE = {
    "no zeros beyond the end": "k", "the epilogue beyond the end": "kn", "sums beyond the end": "mn",
    "an empty group keeps what it had": "mn", "the first bias for all groups": "n",
    "a tile of 16 rows is stored whole": "kn", "c beyond the end": "k",
}  # fmt: skip
"""Divided dimensions where a kernel cannot have a fault."""


@pytest.mark.parametrize(
    ("fault", "divides"), [(x, y) for x in FAULTS for y in "mkn" if y not in _ELSEWHERE.get(x, "")]
)
def test_each_fault_is_found(fault: str, divides: str) -> None:
    assert finds(fault, divides).startswith("GroupedCase(")


def test_a_fault_is_named() -> None:
    case = GroupedCase("m", (3, 3, 9), m=12, out_dtype="float32", bias="n")
    with pytest.raises(AssertionError, match=r"m = 9 is beyond the last end, 9, and has .*, not 0"):
        check_groups(Right("the epilogue beyond the end"), case, MEMORY)
    with pytest.raises(AssertionError, match=r"wrong result of group [0-2] \(m from \d+ to \d+\)\n.*elements are off"):
        check_groups(Right("two groups exchanged"), case, MEMORY)


def test_a_write_beside_the_result_and_a_changed_input_are_found() -> None:
    case = GroupedCase("m", (3, 9), m=12, out="row_padded")

    class Beside(Right):
        def prepare(self, problem, candidate, workspace_limit) -> Kernel:
            kernel = super().prepare(problem, candidate, workspace_limit)

            def run(a, b, out, *rest, offsets, **others) -> None:
                kernel.run(a, b, out, *rest, offsets=offsets, **others)
                if self.fault == "beside":
                    out.base[-1] = 0
                else:
                    offsets[0] = 0

            return Kernel(run, candidate)

    with pytest.raises(AssertionError, match="wrote 1 bytes outside the result"):
        check_groups(Beside("beside"), case, MEMORY)
    with pytest.raises(AssertionError, match="changed its input offsets"):
        check_groups(Beside("offsets"), case, MEMORY)


def test_bits_of_other_orders_are_found() -> None:
    """Each group has the bits of its own product, where that is promised."""

    class Other(Right):
        def prepare(self, problem, candidate, workspace_limit) -> Kernel:
            kernel = super().prepare(problem, candidate, workspace_limit)

            def run(a, b, out, *rest, **others) -> None:
                kernel.run(a, b, out, *rest, **others)
                if problem.groups is None:
                    out.flat[0] = np.nextafter(out.flat[0], np.inf)

            return Kernel(run, candidate)

    (case,) = [x for x in grouped_cases() if x.reproducible == "batch" and x.divides == "m"]
    case = replace(case, out_dtype="float32")
    assert check_groups(Right(), case, MEMORY).accepted
    with pytest.raises(AssertionError, match="its bits differ from those of its own product"):
        check_groups(Other(), case, MEMORY)


def test_the_ends_of_groups() -> None:
    given = {(3, 3, 8): [(0, 3), (3, 3), (3, 8)], (5, 2, 99): [(0, 5), (5, 5), (5, 8)], (-4, 1): [(0, 0), (0, 1)]}
    for ends, expected in given.items():
        assert [(x.start, x.stop) for x in spans(ends, 8)] == expected


def test_cases() -> None:
    cases = grouped_cases()
    assert len({str(x) for x in cases}) == len(cases)
    assert Counter(x.divides for x in cases) > Counter({"m": 30, "k": 25, "n": 25})
    for case in cases[::7]:
        assert eval(repr(case)) == case
    assert not check_groups(NoGroups(), cases[0], MEMORY).accepted


class NoGroups(Right):
    takes: ClassVar = {name: forms for name, forms in Right.takes.items() if name != "groups"}
