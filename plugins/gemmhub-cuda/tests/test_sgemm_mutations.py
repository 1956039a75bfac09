"""Faults put into the float32 kernel, and into what the kernels share, one at a time: each is detected."""

from __future__ import annotations

import pytest
from gemmhub_cuda.variants.sgemm import SHAPES
from mutations import check_without_faults, every, products
from sgemm_product import Single

pytestmark = pytest.mark.emulator

SHAPE = next(shape for shape in SHAPES if (shape.m, shape.n) == (64, 64))
PLAIN = Single(SHAPE, 136, 148, 87, "k", "n", batch=2)
ACROSS = Single(SHAPE, 136, 148, 87, "m", "k", batch=2)
NARROW = Single(SHAPE, 67, 70, 38, "k", "n", (8, 8), d_offset=1)
FULL = Single(SHAPE, 72, 76, 36, "k", "n", scaled=True, alpha=2.0, beta=-1.5, bias="m", activation="relu", d_pad=4)
SPLIT = Single(SHAPE, 72, 132, 165, "k", "n", splits=3)

# fmt: off
MUTATIONS = {
    # The loop.
    "no barrier for each tile": (PLAIN, "sgemm.cu", "        block_sync();\n        a_at", "        a_at"),
    "no barrier before the first tile": (PLAIN, "sgemm.cu", "    block_sync();\n    u32 a_at", "    u32 a_at"),
    "one stage for everything": (PLAIN, "sgemm.cu", "stage = 2 * shared + STAGE - stage;", ""),
    "a stage of b on top of a's": (
        PLAIN, "sgemm.cu",
        "b.store(stage + LoaderA::BYTES);\n        block_sync",
        "b.store(stage);\n        block_sync"),
    "the first step of the tile before": (
        PLAIN, "sgemm.cu",
        "        a_at = stage + 4 * origin.row, b_at = stage + LoaderA::BYTES + 4 * origin.column;\n"
        "        fragment[0]",
        "        fragment[0]"),
    "the last step of a tile is forgotten": (PLAIN, "sgemm.cu", "        multiply(sums, fragment[1]);\n", ""),
    "the fragment that is being loaded": (
        PLAIN, "sgemm.cu",
        "multiply(sums, fragment[k % 2]);\n        }",
        "multiply(sums, fragment[(k + 1) % 2]);\n        }"),
    "a tile too few": (PLAIN, "sgemm.cu", "tile < rest", "tile + 1 < rest"),
    "the tail's tile twice": (PLAIN, "sgemm.cu", "a.fetch_part(rest,", "a.fetch_part(0,"),
    # Loading.
    "no zeros beyond k": (PLAIN, "sgemm.cu", "mine(i) && k < deep", "mine(i)"),
    "a row of k too many": (ACROSS, "sgemm.cu", "k < deep", "k <= deep"),
    "rows beyond m are read": (PLAIN, "sgemm.cu", "clamped = side < last ? side : last", "clamped = side"),
    "the last row but one for those beyond": (
        PLAIN, "sgemm.cu", "size - first - (mn ? WIDE : 1)", "size - first - (mn ? WIDE : 2)"),
    "no step from tile to tile": (PLAIN, "sgemm.cu", "tile += step;", ""),
    "the step of the other order": (ACROSS, "sgemm.cu", "mn ? TILE_K * ld : TILE_K;", "TILE_K;"),
    "the same matrix for the whole batch": (PLAIN, "sgemm.cu", "(p.a) + matrix * p.a_batch", "(p.a)"),
    "the tile is not transposed": (
        PLAIN, "sgemm.cu", "at(inner(i)) + j * ROW + outer(i)", "at(inner(i)) + j + outer(i)"),
    "two elements for one": (NARROW, "sgemm.cu", "v[1] = __uint_as_float(both.y)", "v[1] = __uint_as_float(both.x)"),
    # Places.
    "two lanes with the same rows": (PLAIN, "sgemm.cu", "(lane >> 3 & 2) :", "(lane >> 2 & 2) :"),
    "warps in the wrong order": (PLAIN, "sgemm.cu", "warp % (TILE_N / WARP_N)", "warp / (TILE_N / WARP_N)"),
    "runs next to each other": (PLAIN, "sgemm.cu", "i * LANES_M * 4 + r,", "i * 4 + r,"),
    # The epilogue.
    "alpha after the addend": (FULL, "epilogue.cuh", "fmaf(p.beta,", "fmaf(p.alpha * p.beta,"),
    "no beta": (FULL, "epilogue.cuh", "fmaf(p.beta,", "fmaf(1.0f,"),
    "c with the rows of d": (FULL, "epilogue.cuh", "row * p.c_ld", "row * p.d_ld"),
    "the bias of the other side": (
        FULL, "epilogue.cuh", "BIAS == 1 ? row : column + i", "BIAS == 1 ? column + i : row"),
    "no activation": (FULL, "epilogue.cuh", "v[i] = activated<ACTIVATION>(v[i]);", ""),
    "wide stores everywhere": (NARROW, "epilogue.cuh", "run > 1 && wide &&", "run > 1 &&"),
    "stores beyond n": (NARROW, "epilogue.cuh", "if (column + i < p.n) store", "store"),
    "stores beyond m": (PLAIN, "epilogue.cuh", "row >= p.m ||", ""),
    "all of the batch in one place": (PLAIN, "epilogue.cuh", "(p.d) + matrix * p.d_batch", "(p.d) + 0 * p.d_batch"),
    # Split-K.
    "one part is forgotten": (SPLIT, "split.cuh", "part + j < p.splits", "part + j + 1 < p.splits"),
    "a part that there is not": (SPLIT, "split.cuh", "part + j < p.splits", "part >= 0"),
    "the counter stays": (SPLIT, "split.cuh", "if (last) store_global(p.counters + piece.tile, 0u);", ""),
    "the last but one adds the parts": (SPLIT, "split.cuh", "(p.splits) - 1", "(p.splits) - 2"),
    "parts are counted before they are written": (
        SPLIT, "split.cuh",
        "    device_fence();\n    block_sync();\n    if (threadIdx",
        "    block_sync();\n    if (threadIdx"),
    "no barrier before counting": (
        SPLIT, "split.cuh",
        "    device_fence();\n    block_sync();\n    if (threadIdx",
        "    device_fence();\n    if (threadIdx"),
    "parts of one tile in another's place": (
        SPLIT, "split.cuh",
        "piece.tile * static_cast<long long>(p.splits)",
        "piece.split * static_cast<long long>(p.splits)"),
}
# fmt: on


@every(MUTATIONS)
def test_mutation(mutation):
    mutation.check()


@products(MUTATIONS)
def test_without_faults(product):
    check_without_faults(product)
