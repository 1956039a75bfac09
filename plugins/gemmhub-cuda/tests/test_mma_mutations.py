"""Faults put into the tensor-core kernel one at a time, which a card might hide for long: each is detected."""

from __future__ import annotations

import pytest
from gemmhub_cuda.variants.mma import Shape
from mma_product import Product
from mutations import check_without_faults, every, products

pytestmark = pytest.mark.emulator

SHAPE = Shape(64, 64, 32, 3, 32, 32)
PLAIN = Product(SHAPE, 140, 150, 171, batch=2)
ACROSS = Product(SHAPE, 136, 152, 171, a="m", b="n", batch=2)
SPLIT = Product(SHAPE, 70, 150, 363, splits=3)

# fmt: off
MUTATIONS = {
    # The ring.
    "copies are not waited for": (
        PLAIN, "                copy_wait<STAGES - 2>();\n", ""),
    "the first tile is not waited for": (
        PLAIN, "    copy_wait<STAGES - 2>();\n    block_sync();\n    if (tiles", "    block_sync();\n    if (tiles"),
    "too few copies waited for": (PLAIN, "copy_wait<STAGES - 2>", "copy_wait<STAGES - 1>"),
    "no barrier for each tile": (PLAIN, "                block_sync();\n", ""),
    "no barrier before the first tile": (PLAIN, "    block_sync();\n    if (tiles", "    if (tiles"),
    "no group where nothing is copied": (
        PLAIN, "copy_commit();  //", "if (tile + STAGES - 1 < tiles) copy_commit();  //"),
    "a stage is written that is still read": (
        PLAIN, "writing = ring + (STAGES - 1) * STAGE;", "writing = ring + (STAGES - 2) * STAGE;"),
    "the ring is one stage longer than the memory": (
        PLAIN, "stage == ring + RING - STAGE", "stage == ring + RING"),
    "the ring is one stage shorter for readers": (
        PLAIN, "next_stage(reading, ring)", "reading == ring + RING - 2 * STAGE ? ring : reading + STAGE"),
    "more tiles than there are": (PLAIN, "if (tile + STAGES - 1 < tiles) load", "if (tile + STAGES - 2 < tiles) load"),
    "tiles beyond a short k": (Product(SHAPE, 64, 64, 20), "if (stage < tiles) load", "load"),
    "a's first tile is not the last of k": (PLAIN, "a.load_last(ring, tiles - 1,", "a.load_last(ring, 0,"),
    "it has no step along k": (ACROSS, "mn ? 2 * TILE_K * ld : 2 * TILE_K", "2 * TILE_K"),
    # What is outside of the matrices.
    "rows beyond m are read": (PLAIN, "if (i * STEP >= inside) return 0;", ""),
    "no zeros beyond k": (PLAIN, "2 * clamped(deep - 8 * chunk, 8)", "16"),
    "a row of k too many": (ACROSS, "row + i * STEP >= deep", "row + i * STEP > deep"),
    "one chunk too many along m": (
        ACROSS, "clamped(size - first - 8 * chunk, 8)", "clamped(size - first - 8 * chunk + 1, 8)"),
    "one too many by plain loads": (
        Product(SHAPE, 70, 70, 75, aligned=(2, 2)), "chunks.cuh", "SIZE * i < valid", "SIZE * i <= valid"),
    "a chunk's parts all as long as the first": (
        Product(SHAPE, 70, 70, 75, aligned=(8, 4)), "chunks.cuh", "left = valid - at", "left = valid"),
    "the same matrix for the whole batch": (PLAIN, "(p.a) + matrix * p.a_batch", "(p.a)"),
    # Shared memory and fragments.
    "copies and fragments disagree on the swizzle": (
        PLAIN, "Layout::at(row, chunk) +", "16 * (row * CHUNKS + (chunk ^ row % 4)) +"),
    "the wrong 8 rows in a fragment": (PLAIN, "warp_first + 8 * next_side + r", "warp_first + 8 * next_k + r"),
    "b's matrices in a's order": (
        PLAIN, "WARP_N, B_N_MAJOR, B_BYTES_ALIGNED, true>", "WARP_N, B_N_MAJOR, B_BYTES_ALIGNED, false>"),
    "the first chunk for the next 16 rows, too": (ACROSS, "16 * (2 * i % 8)", "16 * (i % 8)"),
    "not turned around": (ACROSS, "load_matrices_transposed(", "load_matrices("),
    "always the first step": (PLAIN, "16 * 2 * step", "16 * 2 * 0"),
    "always the first step of rows": (ACROSS, "16 * CHUNKS * 16 * step", "0 * step"),
    "the fragments of the step before": (
        PLAIN, "multiply(sums, fragments[step % 2])", "multiply(sums, fragments[(step + 1) % 2])"),
    "b0 and b1 exchanged": (PLAIN, "b[0], b[1]", "b[1], b[0]"),
    "the wrong rows of a on the way back": (PLAIN, "f.a[turned]", "f.a[i]"),
    # Results.
    "results go where others still read": (
        Product(SHAPE, 64, 64, 200), "    block_sync();  // no thread", "    // no thread"),
    "the stage after the last tile is read": (
        Product(SHAPE, 64, 64, 20), "if (tile + 1 < tiles) reading =", "reading ="),
    "rows of results 4 apart": (PLAIN, "(lane / 4 + 8 * half) * RESULT_ROW", "(lane / 4 + 4 * half) * RESULT_ROW"),
    "results are read before they are written": (
        PLAIN, "        warp_sync();\n#pragma unroll 2", "#pragma unroll 2"),
    "results are overwritten before they are read": (PLAIN, "if (i > 0) warp_sync();", ""),
    "all warps have the first one's part": (PLAIN, "shared + warp * RESULT_BYTES", "shared"),
    # The order of tiles and split-K.
    "the last group is as high as the others": (
        PLAIN, "tile.cuh", "p.tiles_m - first < p.group ? p.tiles_m - first : p.group", "p.group"),
    "the last part goes on beyond k": (SPLIT, "tile.cuh", "end * TILE_K < p.k ? end * TILE_K : p.k", "end * TILE_K"),
    "parts are not fenced": (SPLIT, "split.cuh", "    device_fence();\n    block_sync();", "    block_sync();"),
    "one thread's part is enough": (
        SPLIT, "split.cuh", "    device_fence();\n    block_sync();", "    device_fence();"),
    "the flag is read at once": (SPLIT, "split.cuh", "    block_sync();\n    if (!load", "    if (!load"),
    "the flag is where results go": (SPLIT, "ring + FLAG_AT", "ring"),
    "its own part counts twice": (SPLIT, "split.cuh", "acc[i] = 0.0f", "acc[i] = acc[i]"),
}
# fmt: on


@every(MUTATIONS)
def test_mutation(mutation):
    mutation.check()


@products(MUTATIONS)
def test_without_faults(product):
    check_without_faults(product)
