"""The kit (its problems are small, so the size gates are open): here, with no helpful unit, with every one."""

import dataclasses

import pytest
from gemmhub_cpu import probe
from gemmhub_cpu.backend import CpuBackend

from gemmhub.testing import ConformanceSuite


class TestHere(ConformanceSuite):
    backend = staticmethod(lambda: CpuBackend(by_cost=False))


class TestNoUnits(ConformanceSuite):
    """As on a CPU without AMX, VNNI, or numkong."""

    backend = staticmethod(lambda: CpuBackend(probe.Machine(cores=2), by_cost=False))
    random_problems = 20


def _open_gates() -> CpuBackend:
    here = probe.look()
    if not here.numkong:
        pytest.skip(here.why_no_numkong)
    units = frozenset((*probe.BF16_UNITS, *probe.INT8_UNITS))
    machine = probe.Machine(here.cores, units, here.numkong, versions=here.versions)
    return CpuBackend(machine, by_cost=False)


class TestThroughNumkong(ConformanceSuite):
    """Every bfloat16 and int8 problem through numkong, whatever units this CPU has and however small it is."""

    backend = staticmethod(_open_gates)


def _own_kernels() -> CpuBackend:
    here = probe.look()
    if not here.vnni:
        pytest.skip(here.why_no_vnni)
    return CpuBackend(probe.Machine(here.cores, vnni=True), by_cost=False)


class TestThroughVnni(ConformanceSuite):
    """Every int8 problem through our own kernels, however small it is."""

    backend = staticmethod(_own_kernels)


class TestWithoutVnni(ConformanceSuite):
    """As on a CPU without AVX-512, or without a compiler: numkong, where it is, or conversion."""

    backend = staticmethod(
        lambda: CpuBackend(dataclasses.replace(probe.look(), vnni=False, why_no_vnni="masked"), by_cost=False)
    )
    random_problems = 20
