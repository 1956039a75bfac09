"""The simulator's checker finds nothing in the kernels, and misses every barrier and every wait that is taken out."""

from __future__ import annotations

import ctypes
import re

import pytest
from gemmhub_musa.compile import compile_mu
from gemmhub_musa.guard import Cleared
from gemmhub_musa_kernels.choose import Candidate, defines
from gemmhub_musa_kernels.launch import Product
from gemmhub_musa_kernels.library import Library
from gemmhub_musa_kernels.lower import lowered
from gemmhub_musa_kernels.sources import KERNELS, PIPELINED, SCALAR, WMMA, text
from gemmhub_musa_kernels.tiles import USUAL, Tile
from simulator import Bench, problem

from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype

ORDERS = [("row", "row", "row"), ("col", "col", "row"), ("row", "col", "col"), ("col", "row", "row")]
TINY = Tile(64, 64, 32, 2, 1)
HALF = as_dtype("float16")


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("schedule", [{"SEED": 5, "ASYNC": 1}, {"SEED": 6, "ASYNC": 2, "LAYOUT": 1}], ids=str)
def test_nothing_is_found(sim, checking_sdk, order, schedule):
    bench = Bench(sim, checking_sdk)
    a, b, d = order
    sim.set(**schedule)
    for way in (Candidate(PIPELINED, TINY), Candidate(PIPELINED, TINY, ("a", "b")), Candidate(WMMA), Candidate(SCALAR)):
        for size in ((70, 66, 100), (33, 72, 129)):
            assert bench.wrong(problem(*size, a=a, b=b, d=d), way) == 0
    assert [str(finding) for finding in sim.findings()] == []


@pytest.mark.parametrize(("arch", "warp"), [(22, 128), (31, 32)])
def test_nothing_is_found_in_the_usual_tile(sim, checking_sdk, arch, warp):
    sim.set(ARCH=arch, SEED=7)
    bench = Bench(sim, checking_sdk, f"mp_{arch}")
    assert bench.wrong(problem(130, 136, 70, a="col"), Candidate(PIPELINED, USUAL[warp])) == 0
    assert [str(finding) for finding in sim.findings()] == []


# Mutations

SYNCHRONISATION = re.compile(r"^(\s*)(__syncthreads\(\);|__pipeline_wait_prior\([^;]*\);)", re.MULTILINE)
KERNELS_WITH_BARRIERS = (PIPELINED, WMMA, "transpose")


def mutable(name):
    """The kernel's source with each synchronisation under a condition: one compilation serves all mutants."""
    kernel = text(name)
    places = [match[2] for match in SYNCHRONISATION.finditer(kernel)]
    numbers = iter(range(len(places)))
    changed = SYNCHRONISATION.sub(lambda match: f"{match[1]}if (mutant != {next(numbers)}) {match[2]}", kernel)
    return 'extern "C" { int mutant = -1; }\n' + changed, places


def compiled(name, sdk, tile):
    way = Candidate(PIPELINED, tile)
    flags = () if name == "transpose" else defines(way, "mp_22", HALF, HALF)
    built = compile_mu(mutable(name)[0], sdk, "mp_22", name=f"mutable_{name}", flags=flags, include=(KERNELS,))
    assert not isinstance(built, Refusal), built.traceback
    return ctypes.CDLL(str(built))


MUTANTS = [(name, number) for name in KERNELS_WITH_BARRIERS for number in range(len(mutable(name)[1]))]


def test_there_is_something_to_take_out():
    counts = {name: [x[: x.index("(")] for x in mutable(name)[1]] for name in KERNELS_WITH_BARRIERS}
    assert counts == {
        PIPELINED: ["__pipeline_wait_prior", "__syncthreads"] * 2 + ["__syncthreads"] * 2,
        WMMA: ["__syncthreads"] * 3,
        "transpose": ["__syncthreads"],
    }


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(("name", "number"), MUTANTS)
def test_the_checker_misses_what_is_taken_out(sim, checking_sdk, name, number, stages):
    if stages == 3 and name != PIPELINED:
        pytest.skip("has no stages")
    tile = Tile(64, 64, 32, 2, 1, stages)
    cdll = compiled(name, checking_sdk, tile)
    mutant = ctypes.c_int.in_dll(cdll, "mutant")
    library = Library(cdll, name, sim.runtime, Cleared())
    bench = Bench(sim, checking_sdk)
    asked = problem(70, 66, 136, a="col", b="row")
    way = Candidate(name, tile if name == PIPELINED else None)
    copier = None
    if name == "transpose":
        asked, way, copier = problem(70, 66, 40), Candidate(WMMA, None, ("a",)), library
        library = bench.library(WMMA, defines(way, "mp_22", HALF, HALF))
    product = Product(sim.runtime, asked, lowered(asked), way, library, copier)
    for chosen in (-1, number):
        mutant.value = chosen
        for seed in (3, 4):
            sim.set(SEED=seed)
            bench.wrong(asked, way, run=product.run)
        found = [str(finding) for finding in sim.findings()]
        assert bool(found) == (chosen >= 0), found or f"{mutable(name)[1][number]} was not missed"
