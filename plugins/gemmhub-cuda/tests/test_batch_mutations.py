"""Faults put into the kernel for batches one at a time: each is detected."""

from __future__ import annotations

import pytest
from gemmhub_cuda.variants.batch import Shape
from mma_product import Product
from mutations import check_without_faults, every, products

pytestmark = pytest.mark.emulator

SHAPE, BYTES = Shape(32, 32, 16, 2, 3, 2), Shape(32, 32, 32, 1, 3, 2)
PLAIN = Product(SHAPE, 30, 28, 40, batch=7)
ACROSS = Product(SHAPE, 24, 40, 40, "m", "n", batch=7)
TILES = Product(SHAPE, 70, 40, 20, batch=3)
NARROW = Product(BYTES, 30, 30, 75, dtype="int8", out="int32", batch=7, d_pad=2)
INTEGERS = Product(BYTES, 30, 28, 75, dtype="int8", out="int32", batch=7)
PAIRED = Product(BYTES, 32, 48, 75, "m", "n", dtype="int8", out="int32", batch=7)
SINGLE = Product(BYTES, 29, 27, 75, aligned=(1, 1), dtype="int8", out="int32", batch=7)

# fmt: off
MUTATIONS = {
    # The ring, and the tiles of a warp.
    "stages are read before they are there": (PLAIN, "copy_wait<STAGES - 2>()", "copy_wait<STAGES - 1>()"),
    "other lanes' copies are not waited for": (PLAIN, "            warp_sync();  // all", "            // all"),
    "the next block is not asked for": (PLAIN, "            load_next(writing);", "            copy_commit();"),
    "always the same stage": (PLAIN, "writing = reading;", ""),
    "the ring is one stage shorter for readers": (PLAIN, "+ STAGE == results ?", "+ 2 * STAGE == results ?"),
    "a block too many": (Product(SHAPE, 32, 32, 32, batch=7), "while (k < p.k)", "while (k <= p.k)"),
    "the next tile's operands a block early": (PLAIN, "loading_k >= p.k)", "loading_k + TILE_K >= p.k)"),
    "addresses of the tile before": (TILES, "if (loading_k == 0)", "if (loading_k < 0)"),
    "every second tile": (PLAIN, "step(gridDim.x * WARPS)", "step(2 * gridDim.x * WARPS)"),
    "as many tiles as matrices": (TILES, "end(p.tiles_m * p.tiles_n * p.batch)", "end(p.batch)"),
    "the same row of tiles": (TILES, "row = number / p.tiles_n * TILE_M", "row = 0"),
    "the same column of tiles": (TILES, "column = number % p.tiles_n * TILE_N", "column = 0"),
    "all warps have the first one's memory": (PLAIN, "+ warp * WARP_BYTES", ""),
    # What is outside of the matrices.
    "rows beyond m are read": (PLAIN, "i * STEP < inside ?", "true ?"),
    "no zeros beyond k": (PLAIN, "clamped(deep - column(), PER_CHUNK)", "PER_CHUNK"),
    "a row of k too many": (ACROSS, "row() + i * STEP < deep", "row() + i * STEP <= deep"),
    "columns beyond m are read": (ACROSS, "clamped(size - first - column(), PER_CHUNK)", "PER_CHUNK"),
    "the same matrix for all": (PLAIN, "base + matrix * matrix_step", "base"),
    "results of the same matrix": (PLAIN, "result(p, 4, matrix)", "result(p, 4, 0)"),
    "integers beyond n are stored": (NARROW, "result.wide && column + 4 <= p.n", "result.wide"),
    "integers beyond m are stored": (INTEGERS, "row >= p.m || column >= p.n", "column >= p.n"),
    "one byte too many": (SINGLE, "chunks.cuh", "SIZE * i < valid", "SIZE * i <= valid"),
    "bytes in the wrong places": (SINGLE, "chunks.cuh", "8 * (SIZE * i % 4)", "8 * (SIZE * i % 2)"),
    # Fragments.
    "the wrong 8 of k": (PLAIN, "2 * step + next_k", "2 * step + next_side"),
    "not transposed": (ACROSS, "load_matrices_transposed(word[i]", "load_matrices(word[i]"),
    "the wrong pair of k": (PAIRED, "4 * (r / 2) + 2 * one", "4 * (r / 2) + 2 * two"),
    "even and odd exchanged in a": (PAIRED, "even[1] : odd[0]", "even[1] : even[1]"),
    "rows 8 apart where they are adjacent": (PAIRED, "OperandA::PAIRED ? 2 * group + half", "false ? 0"),
    "columns in the order of pairs": (PAIRED, "bits_of(two[0]), bits_of(one[1])", "bits_of(one[1]), bits_of(two[0])"),
    # Results.
    "results are read before they are written": (
        PLAIN, "        stage_sums(sums, part, i);\n        warp_sync();", "        stage_sums(sums, part, i);"),
    "results are overwritten before they are read": (
        PLAIN, "        warp_sync();\n        stage_sums(sums, part, i);", "        stage_sums(sums, part, i);"),
    "the first 16 rows alone": (PLAIN, "i > 0 && row + 16 * i >= p.m", "i > 0"),
}
# fmt: on


@every(MUTATIONS)
def test_mutation(mutation):
    mutation.check()


@products(MUTATIONS)
def test_without_faults(product):
    check_without_faults(product)
