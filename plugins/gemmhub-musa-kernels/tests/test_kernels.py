"""The kernels themselves: every storage order, odd sizes, and schedules that a card might choose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gemmhub_musa.testing import Operands
from gemmhub_musa_kernels import tiles
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.lower import lowered
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WARP, WMMA
from gemmhub_musa_kernels.tiles import SMALL, USUAL, Tile
from simulator import Bench, problem

from gemmhub.errors import KernelError

SCHEDULES = [
    {"SEED": seed, "ASYNC": asynchronous, "LAYOUT": layout}
    for seed, asynchronous, layout in ((0, 1, 0), (1, 1, 1), (2, 0, 0), (3, 2, 1))
]
SIZES = [(1, 1, 1), (17, 1, 5), (1, 130, 33), (129, 127, 31), (130, 136, 97), (257, 70, 64)]
LARGE = {arch: Candidate(PIPELINED, USUAL[warp]) for arch, warp in (("mp_22", 128), ("mp_31", 32))}
ORDERS = list(itertools.product(("row", "col"), repeat=3))


@pytest.fixture(params=["mp_22", "mp_31"])
def bench(request, sim, plain_sdk):
    sim.set(ARCH=int(request.param[3:]))
    return Bench(sim, plain_sdk, request.param)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules(bench, sim, schedule):
    sim.set(**schedule)
    for number, size in enumerate(SIZES):
        a, b, d = ORDERS[number % 8]
        assert bench.wrong(problem(*size, a=a, b=b, d=d), LARGE[bench.arch]) == 0, size


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kernel", [PIPELINED, WMMA, SCALAR])
def test_storage_orders(bench, kernel, dtype):
    way = LARGE[bench.arch] if kernel == PIPELINED else Candidate(kernel)
    for number, (a, b, d) in enumerate(ORDERS):
        out = ("float16", "bfloat16", "float32")[number % 3]
        for size in ((40, 24, 48), (37, 29, 19)):
            assert bench.wrong(problem(*size, dtype, out, a, b, d), way) == 0, (a, b, d, size)


@pytest.mark.parametrize("granule", [8, 4, 2, 1])
def test_rows_of_every_alignment(bench, granule):
    """Copies of 16, 8 and 4 bytes, and elements."""
    size = 96 + granule
    for a, b in itertools.product(("row", "col"), repeat=2):
        assert bench.wrong(problem(size, size, size, a=a, b=b), LARGE[bench.arch]) == 0


def test_every_tile(bench):
    for tile in tiles.of(WARP[bench.arch]):
        for a, b in (("row", "row"), ("col", "col")):
            asked = problem(tile.m + 5, tile.n + 8, 3 * tile.k + 7, a=a, b=b)
            assert bench.wrong(asked, Candidate(PIPELINED, tile)) == 0, tile
        deep = (False, True)
        library = bench.library(PIPELINED, flags_of(bench, tile))
        for pair in itertools.product(deep, repeat=2):
            assert library.shared_bytes(*pair) == tile.shared_bytes(WARP[bench.arch], *pair)


def flags_of(bench, tile):
    from gemmhub_musa_kernels.choose import defines

    from gemmhub.dtypes import as_dtype

    return defines(Candidate(PIPELINED, tile), bench.arch, as_dtype("float16"), as_dtype("float16"))


def test_two_blocks_of_the_usual_tile_fit_into_a_multiprocessor():
    """Shared memory: 72 KiB on an S4000, as far as is public."""
    for deep in itertools.product((False, True), repeat=2):
        assert 2 * USUAL[128].shared_bytes(128, *deep) <= 73728


@pytest.mark.parametrize("group", [1, 2, 4, 5])
def test_every_tile_of_the_result_has_its_block(sim, plain_sdk, group):
    """Grids of every shape up to groups of different widths."""
    bench = Bench(sim, plain_sdk)
    way = Candidate(PIPELINED, Tile(64, 64, 32, 2, 1, group=group))
    for rows, columns in ((1, 1), (2, 3), (3, 5), (5, 4), (2, 9)):
        assert bench.wrong(problem(64 * rows - 3, 64 * columns, 32), way) == 0


def test_more_matrices_than_a_grid_has_room_for(sim, plain_sdk):
    asked = problem(1, 1, 2, batch=(32768 + 3,))
    assert Bench(sim, plain_sdk).wrong(asked, Candidate(SCALAR)) == 0


@pytest.mark.parametrize("part", [1, 2])
def test_a_part_that_cannot_be_launched_is_an_error(sim, plain_sdk, part):
    bench, asked = Bench(sim, plain_sdk), problem(1, 1, 2, batch=(32768 + 3,))
    operands, product = Operands(asked), bench.product(asked, Candidate(SCALAR))
    sim.inject(f"musaLaunchKernel:{part}")
    with pytest.raises(KernelError, match="musaErrorLaunchOutOfResources"):
        operands.launch(product.run)
    assert bench.runtime.clear_error() == ""
    assert np.array_equal(operands.run(product.run), operands.wide)


def test_a_negative_size_is_no_product(sim, plain_sdk):
    from gemmhub_musa_kernels.parameters import parameters

    bench = Bench(sim, plain_sdk)
    asked = problem(4, 4, 4)
    call = parameters(lowered(asked), asked)
    call.m = -1
    with pytest.raises(KernelError, match="musaErrorInvalidValue"):
        bench.library(SCALAR, flags_of(bench, SMALL[128])).gemm(call, False, False, 0)
