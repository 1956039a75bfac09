"""The kit (its problems are small, so the size gates are open): here, with no helpful unit, with every one.

With TEST_MASKS in the environment (``make test-all``) under every mask of units, too, and all cases under each.
"""

import dataclasses
import functools
import itertools
import os
import re

import pytest
from gemmhub_cpu import probe
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.units import UNITS

from gemmhub.testing import ConformanceSuite
from gemmhub.testing.cases import matrix

CASES = matrix() if os.environ.get("TEST_MASKS") else matrix()[::3]
"""Every third case, or all: the machine as it is has them all in any case."""


class TestHere(ConformanceSuite):
    backend = staticmethod(lambda: CpuBackend(by_cost=False))


class TestNoUnits(ConformanceSuite):
    """As on a CPU without AVX2 or NEON."""

    cases = CASES
    backend = staticmethod(lambda: CpuBackend(probe.Machine(cores=2), by_cost=False))
    random_problems = 20


def _masked(*kept: str) -> CpuBackend:
    """Every problem that the units whose names contain one of ``kept`` take, however small, through them."""
    here = probe.look()
    names = frozenset(name for name in here.native if any(word in name for word in kept))
    if not names:
        pytest.skip(here.why_no_native or f"no unit of {', '.join(kept)} here")
    return CpuBackend(probe.Machine(here.cores, native=names), by_cost=False)


class TestOnAvx512(ConformanceSuite):
    """VNNI, AVX512_BF16 and float32."""

    cases = CASES
    backend = staticmethod(lambda: _masked("AVX-512", "AVX512"))


class TestOnAvx2(ConformanceSuite):
    backend = staticmethod(lambda: _masked("AVX2"))


class TestOnAmx(ConformanceSuite):
    cases = CASES
    backend = staticmethod(lambda: _masked("AMX"))


class TestWithoutOwnKernels(ConformanceSuite):
    """As without a compiler: conversion."""

    cases = CASES
    backend = staticmethod(
        lambda: CpuBackend(dataclasses.replace(probe.look(), native=frozenset(), why_no_native="masked"), by_cost=False)
    )
    random_problems = 20


def _with(names: tuple[str, ...]) -> CpuBackend:
    here = dataclasses.replace(probe.look(), native=frozenset(names), why_no_native="masked")
    return CpuBackend(here, by_cost=False)


SEVERAL = ("int8", "bfloat16", "float")
"""Pairs of dtypes that several units multiply."""


def masks() -> list[tuple[str, ...]]:
    """Every choice of the unit, or of none, for each pair of dtypes that has several: other masks hide nothing more."""
    here = probe.look().native
    pairs = [[(), *((u.name,) for u in UNITS if u.pair == pair and u.name in here)] for pair in SEVERAL]
    return [sum(names, ()) for names in itertools.product(*pairs)]


if os.environ.get("TEST_MASKS"):
    for _mask in masks():
        _name = "TestOnly" + "".join(re.sub(r"\W", "", unit.title()) for unit in _mask)
        globals()[_name] = type(_name, (ConformanceSuite,), {"backend": staticmethod(functools.partial(_with, _mask))})


def test_masks_choose_every_unit() -> None:
    here = probe.look().native
    if not here:
        pytest.skip("no kernels of its own here")
    assert set().union(*masks()) == {u.name for u in UNITS if u.name in here and u.pair in SEVERAL}
    assert () in masks()
    assert len(masks()) == len(set(masks()))
