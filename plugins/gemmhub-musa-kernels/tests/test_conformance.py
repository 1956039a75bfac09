"""The backend against gemmhub's promises: each kernel, on cards with warps of 128 threads and of 32."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from gemmhub_musa.testing import MusaMemory
from gemmhub_musa_kernels import backend as module
from gemmhub_musa_kernels.backend import MusaKernelsBackend
from gemmhub_musa_kernels.copies import worthwhile
from gemmhub_musa_kernels.lower import OPERANDS
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WMMA

from conftest import INSTALLED
from gemmhub.capability import Refusal
from gemmhub.testing import ConformanceSuite
from gemmhub.testing.cases import edges, matrix

EVERY = 1 if os.environ.get("GEMMHUB_TEST_ALL") or INSTALLED else 3
"""Number of cases that are skipped between two that run; GEMMHUB_TEST_ALL=1 runs all of them."""


def _chosen(step):
    """Cases with the kernels' dtypes, every step-th; with step 1 also all edges, and one of each other combination."""
    seen, count = set(), 0
    if step == 1:
        yield from (case for case in edges() if case.a_dtype in OPERANDS)
    for case in matrix():
        if case in edges():
            continue
        dtypes = (case.a_dtype, case.b_dtype, case.out_dtype)
        if dtypes[0] == dtypes[1] and dtypes[0] in OPERANDS:
            count += 1
            # To prove every tile takes seconds, so all of them are seen on one card only.
            if count % (step * EVERY) == 0 and (step * EVERY <= 3 or not case.every_candidate):
                yield case
        elif dtypes not in seen and step == 1:
            seen.add(dtypes)
            yield case


class Restricted(MusaKernelsBackend):
    """Only candidates whose names begin with ``start``, if there are such."""

    start = ""

    def offer(self, problem):
        found = super().offer(problem)
        if isinstance(found, Refusal):
            return found
        chosen = [each for each in found.candidates if each.name.startswith(self.start)]
        return replace(found, candidates=chosen or found.candidates)


def only(start):
    return staticmethod(type(f"Only_{start}", (Restricted,), {"start": start}))


class OnDevice(ConformanceSuite):
    __test__ = False
    arch = 22
    random_problems = 4
    memory = MusaMemory()

    @pytest.fixture(autouse=True)
    def _card(self, request):
        if not INSTALLED:
            request.getfixturevalue("sim").set(ARCH=self.arch)
        yield
        assert self.memory.arrays.runtime.clear_error() == ""


class TestDefault(OnDevice):
    __test__ = True
    backend = MusaKernelsBackend
    cases = tuple(_chosen(1))
    random_problems = 15


class TestWarpsOf32(OnDevice):
    __test__ = not INSTALLED
    arch = 31
    backend = staticmethod(type("OnMp31", (MusaKernelsBackend,), {}))
    cases = tuple(_chosen(3))


class TestSquads(OnDevice):
    """The kernel of squads, for products of any size, where it takes them; the others elsewhere."""

    __test__ = not INSTALLED
    arch = 31
    backend = staticmethod(type("Squads", (MusaKernelsBackend,), {}))
    cases = tuple(_chosen(4))

    @pytest.fixture(autouse=True)
    def _always(self, monkeypatch):
        monkeypatch.setattr(module.sqmma, "_MIN_FLOPS", 0.0)


class TestMp21(OnDevice):
    """It has no public matrix instructions, and no bfloat16."""

    __test__ = not INSTALLED
    arch = 21
    backend = staticmethod(type("OnMp21", (MusaKernelsBackend,), {}))
    cases = tuple(_chosen(8))


class TestLargeTile(OnDevice):
    __test__ = True
    backend = only(f"{PIPELINED}-128x128x32-2x2warps")
    cases = tuple(_chosen(4))


class TestLargeWarp(OnDevice):
    """The first choice for large products: one warp has 128x128 sums."""

    __test__ = True
    backend = only(f"{PIPELINED}-128x128x32-1x1warps")
    cases = tuple(_chosen(8))


class TestWmma(OnDevice):
    __test__ = True
    backend = only(WMMA)
    cases = tuple(_chosen(6))


class TestScalar(OnDevice):
    __test__ = True
    backend = only(SCALAR)
    cases = tuple(_chosen(6))


class TestCopiedOperands(OnDevice):
    """Copied first wherever that is possible, however small."""

    __test__ = True
    backend = staticmethod(type("Copying", (MusaKernelsBackend,), {}))
    cases = tuple(_chosen(4))

    @pytest.fixture(autouse=True)
    def _always(self, monkeypatch):
        def possible(gemm):
            single = gemm.batch_count == 1
            return tuple(x for x in "ab" if gemm.order(x) != "wide" and gemm.k and (single or gemm.shared(x)))

        assert worthwhile is module.copies.worthwhile
        monkeypatch.setattr(module.copies, "worthwhile", possible)
