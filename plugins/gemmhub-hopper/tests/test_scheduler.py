"""tile_scheduler.cuh and pipeline.cuh, compiled for the host: every work tile once, all of K, groups that share tiles;
places in the ring.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess

import fake_cuda
import numpy as np
import pytest
from gemmhub_hopper.candidates import symmetric
from gemmhub_hopper.launches.tile_schedule import _divisor, schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmhub.testing.host_kernels import COMPILER

pytestmark = pytest.mark.emulator

_PROGRAM = """
#include "machine.hpp"
#include "pipeline.cuh"
#include "tile_scheduler.cuh"
extern "C" void work_tiles(const TileSchedule* schedule, int ranks, int* out) {
    for (int i = 0; i < schedule->work_tiles * ranks; ++i) {
        const WorkTile x = ranks == 4         ? work_tile_at<4, false>(*schedule, i / 4, i % 4)
                        : schedule->splits == 1 ? work_tile_at<1, false>(*schedule, i, 0)
                                            : work_tile_at<1, true>(*schedule, i, 0);
        const int values[] = {x.tile, x.m_tile, x.n_tile, x.split, x.batch, x.first_k_block, x.k_blocks};
        memcpy(out + 7 * i, values, sizeof(values));
    }
}
template <int height, int width>
void symmetric_tiles(const TileSchedule& schedule, int* out) {
    for (int i = 0; i < schedule.work_tiles; ++i) {
        const WorkTile x = schedule.splits == 1 ? work_tile_at<1, false, height, width>(schedule, i, 0)
                                                : work_tile_at<1, true, height, width>(schedule, i, 0);
        const int values[] = {x.tile, x.m_tile, x.n_tile, x.split, x.batch};
        memcpy(out + 5 * i, values, sizeof(values));
    }
}
extern "C" void symmetric(const TileSchedule* schedule, int which, int* out) {
    if (which == 0) symmetric_tiles<128, 128>(*schedule, out);
    if (which == 1) symmetric_tiles<128, 256>(*schedule, out);
    if (which == 2) symmetric_tiles<256, 96>(*schedule, out);
    if (which == 3) symmetric_tiles<64, 144>(*schedule, out);
    if (which == 4) symmetric_tiles<512, 16>(*schedule, out);
}
extern "C" void far(const TileSchedule* schedule, int index, int* out) {
    const WorkTile x = work_tile_at<1, false, 128, 256>(*schedule, index, 0);
    out[0] = x.m_tile, out[1] = x.n_tile;
}
extern "C" void quotients(const Divisor* by, const int* values, int count, int* out) {
    for (int i = 0; i < count; ++i) out[i] = divided(values[i], *by);
}
extern "C" void positions(const int* steps, int count, int skip, u32* out) {
    PipelineState<5> at;
    for (int i = 0; i < count; ++i) {
        if (skip)
            at.skip(steps[i]);
        else
            for (int step = 0; step < steps[i]; ++step) at.advance();
        out[2 * i] = at.stage, out[2 * i + 1] = at.parity;
    }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scheduler")
    (folder / "work_tiles.cpp").write_text(_PROGRAM)
    command = [*COMPILER, "-shared", f"-I{fake_cuda.KERNELS.sources()}", str(folder / "work_tiles.cpp")]
    subprocess.run([*command, "-o", str(folder / "work_tiles.so")], check=True)
    return ctypes.CDLL(str(folder / "work_tiles.so"))


def work_tiles(library, tiles, batch=1, group=1, k_blocks=1, splits=1, ranks=1):
    made = schedule(tiles, batch, group, k_blocks, splits, ranks)
    out = (ctypes.c_int * (7 * ranks * made.work_tiles))()
    library.work_tiles(ctypes.byref(made), ranks, out)
    return [tuple(out[7 * i : 7 * i + 7]) for i in range(ranks * made.work_tiles)]


@settings(deadline=None, max_examples=60)
@given(
    tiles_m=st.integers(1, 9), tiles_n=st.integers(1, 9), splits=st.integers(1, 4), more=st.integers(0, 9),
    group=st.integers(1, 12), ranks=st.sampled_from([1, 4]), batch=st.integers(1, 3),
)  # fmt: skip
def test_every_work_tile_once(library, tiles_m, tiles_n, splits, more, group, ranks, batch):
    splits = 1 if ranks > 1 else splits
    k_blocks = splits * ranks + more
    found = work_tiles(library, (tiles_m, tiles_n), batch, group, k_blocks, splits, ranks)
    covered = {}
    for i, (tile, row, column, split, matrix, first, blocks) in enumerate(found):
        assert 0 <= row < tiles_m
        assert 0 <= column < tiles_n
        assert 0 <= tile < tiles_m * tiles_n
        assert matrix == i // (ranks * tiles_m * tiles_n * splits)
        assert blocks >= 1
        assert covered.setdefault(("tile", row, column), tile) == tile, "the number of a tile says which it is"
        covered[matrix, row, column, split * ranks + i % ranks] = range(first, first + blocks)
    for place in itertools.product(range(batch), range(tiles_m), range(tiles_n)):
        parts = [covered[(*place, part)] for part in range(splits * ranks)]
        assert [k for part in parts for k in part] == list(range(k_blocks))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(deadline=None, max_examples=300)
@given(by=st.integers(1, 2**31 - 1) | st.integers(1, 300), near=st.integers(0, 2**31 - 1))
def test_division(library, by, near):
    """Also just above and below multiples, where a factor that is a little off shows first."""
    multiple = near // by * by
    values = [x for x in (0, 1, near, multiple, multiple - 1, multiple + by - 1, 2**31 - 1) if 0 <= x < 2**31]
    divisor, out = _divisor(by), (ctypes.c_int * len(values))()
    library.quotients(ctypes.byref(divisor), (ctypes.c_int * len(values))(*values), len(values), out)
    assert list(out) == [x // by for x in values]


SYMMETRIC = ((128, 128), (128, 256), (256, 96), (64, 144), (512, 16))
"""The cluster tiles that the program has schedules of symmetric products for."""


@settings(deadline=None, max_examples=80)
@given(
    which=st.integers(0, 4), n=st.integers(1, 3000), group=st.integers(1, 20), splits=st.integers(1, 3),
    batch=st.integers(1, 3),
)  # fmt: skip
def test_symmetric_products_have_the_lower_tiles_once(library, which, n, group, splits, batch):
    height, width = SYMMETRIC[which]
    tiles = -(-n // height), -(-n // width)
    lower = {(i, j) for i in range(tiles[0]) for j in range(tiles[1]) if min((i + 1) * height, n) > j * width}
    assert len(lower) == symmetric.tiles(*tiles, height, width)
    made = schedule(tiles, batch, symmetric.band(group, height, width), splits, splits, 1, len(lower))
    assert made.work_tiles == len(lower) * splits * batch
    out = (ctypes.c_int * (5 * made.work_tiles))()
    library.symmetric(ctypes.byref(made), which, out)
    found = [tuple(out[5 * i : 5 * i + 5]) for i in range(made.work_tiles)]
    places = {(batch, split, row, column) for _, row, column, split, batch in found}
    assert len(places) == len(found)
    assert {x[2:] for x in places} == lower
    assert {x[:2] for x in places} == set(itertools.product(range(batch), range(splits)))
    assert len({(tile, row, column) for tile, row, column, *_ in found}) == len(lower)


def test_symmetric_products_of_many_tiles(library):
    """Where a root in float32 is not exact: the numbers of the tiles around the first ones of bands."""
    rows, group = 2**15, 16
    tiles = rows, rows // 2
    made = schedule(tiles, 1, symmetric.band(group, 128, 256), 1, 1, 1, symmetric.tiles(*tiles, 128, 256))
    out = (ctypes.c_int * 2)()
    for band in (1, 2, 1000, 2047):
        first = symmetric.tiles(band * group, tiles[1], 128, 256)
        for index, place in ((first - 1, (band * group - 1, band * group // 2 - 1)), (first, (band * group, 0))):
            library.far(ctypes.byref(made), index, out)
            assert tuple(out) == place


def test_symmetric_tiles_of_arrays():
    sides = np.array([[5, 3, 128, 256], [9, 9, 64, 64], [1, 7, 512, 16]])
    assert symmetric.tiles(*sides.T).tolist() == [symmetric.tiles(*x) for x in sides.tolist()]


def test_order(library):
    """Groups of two rows, walked column by column; the last group is lower."""
    found = work_tiles(library, (3, 3), group=2)
    places = [(row, column) for _, row, column, *_ in found]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0), (2, 1), (2, 2)]


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_skipping_stages(library, steps):
    """As if they were passed one after the other: in a ring of 5, with the parity of the pass."""
    count = len(steps)
    found = [(ctypes.c_uint * (2 * count))() for _ in range(2)]
    for skip, out in enumerate(found):
        library.positions((ctypes.c_int * count)(*steps), count, skip, out)
    passed = [sum(steps[: i + 1]) for i in range(count)]
    assert list(found[0]) == list(found[1]) == [x for n in passed for x in (n % 5, n // 5 % 2)]
