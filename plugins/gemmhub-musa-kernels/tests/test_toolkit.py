"""Toolkits that lack what the pipelined kernel prefers: other copies, fewer flags, and right all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from gemmhub_musa_kernels import library, toolkit
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR
from gemmhub_musa_kernels.tiles import Tile
from simulator import Bench, problem

from gemmhub.capability import Refusal
from gemmhub.kit import native

FUNCTIONS = Path(__file__).parent / "kernels" / "compiler_copies.h"
REFUSES = """#!/bin/sh
case "$*" in *-Od3*) echo "error: unknown argument: '-Od3'" >&2; exit 1;; esac
case "$*" in *GEMMHUB_COPIES=[012]*) echo "error: use of undeclared identifier" >&2; exit 1;; esac
if grep -qs "^  return musaFuncSetSharedMemConfig" "$3"; then echo "error: undeclared" >&2; exit 1; fi
exec {mcc} "$@"
"""


def test_the_simulated_toolkit_has_everything(sim, plain_sdk):
    flags = toolkit.flags(plain_sdk, "mp_22", PIPELINED)
    assert flags == ("-Od3", "-DGEMMHUB_COPIES=0", "-DGEMMHUB_BANKS=1")
    assert toolkit.flags(plain_sdk, "mp_22", SCALAR) == ("-Od3",)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("copies", [1, 2, toolkit.THROUGH_REGISTERS])
def test_other_copies(sim, checking_sdk, monkeypatch, copies, stages):
    """Late copies and early ones: a wait that is missing shows."""
    monkeypatch.setattr(toolkit, "copies", lambda sdk, arch: copies)
    functions = ("-include", str(FUNCTIONS)) if copies in toolkit.COPIES else ()
    monkeypatch.setattr(toolkit, "device_flags", lambda sdk, arch: functions)
    bench, small = Bench(sim, checking_sdk), Candidate(PIPELINED, Tile(64, 64, 32, 2, 1, stages))
    for asynchronous in (0, 1):
        sim.set(ASYNC=asynchronous)
        for size, a in (((70, 66, 200), "row"), ((67, 65, 37), "col"), ((64, 64, 128), "row"), ((12, 20, 4), "col")):
            assert bench.wrong(problem(*size, a=a), small) == 0, size
    assert [str(finding) for finding in sim.findings()] == []


def test_a_toolkit_that_has_nothing_of_it(sim, plain_sdk, tmp_path, monkeypatch):
    mcc = tmp_path / "mcc"
    mcc.write_text(REFUSES.format(mcc=plain_sdk.mcc))
    mcc.chmod(0o755)
    monkeypatch.setenv("GEMMHUB_MCC", str(mcc))
    native.forget()
    flags = toolkit.flags(plain_sdk, "mp_22", PIPELINED)
    assert flags == (f"-DGEMMHUB_COPIES={toolkit.THROUGH_REGISTERS}", "-DGEMMHUB_BANKS=0")
    small = Candidate(PIPELINED, Tile(64, 64, 32, 2, 1))
    assert Bench(sim, plain_sdk).wrong(problem(70, 66, 100), small) == 0


def test_kernels_are_compiled_with_the_toolkits_flags(sim, plain_sdk, monkeypatch):
    """And again where a header of the kernels has changed."""
    seen = []

    def compile_mu(*_, **options):
        seen.append(options)
        return Refusal("nothing is compiled here", "")

    monkeypatch.setattr(library, "compile_mu", compile_mu)
    monkeypatch.setattr(toolkit, "flags", lambda sdk, arch, file: (f"-D{file}_{arch}",))
    library.Libraries(plain_sdk, sim.runtime).build(PIPELINED, "mp_22", ("-DX",))
    (options,) = seen
    assert options["flags"] == ("-Dpipelined_mp_22", "-DX")
    assert {path.name for path in options["depends"]} == {"copies.h", "gemm.h"}
