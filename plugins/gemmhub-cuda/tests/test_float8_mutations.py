"""Faults put into the kernel's code for 8-bit floats one at a time: each is detected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_cuda.variants.batch import Shape
from mma_product import Launch, Product
from mutations import Mutation, check_without_faults, every, products
from test_float8_kernel import LONG, WHOLE, floats

pytestmark = pytest.mark.emulator

SHAPE = Shape(32, 32, 64, 1, 3, 2, promoted=True)
PLAIN = floats(SHAPE, 30, 28, 300, batch=3)
BLOCKS = floats(SHAPE, 48, 160, 300, batch=3, scales=("each x 128", "blocks x 128"))
COLUMNS = replace(BLOCKS, scales=("tensor x 128", "each x 128"), n=48)
PAIRED = replace(BLOCKS, a="m", b="n", scales=("each x 128", "each x 128"))
GROUPS = floats(SHAPE, 90, 40, 20, batch=3)
RESULTS = floats(SHAPE, 30, 28, 140, batch=3, scales=("each", "each"), out="float32")

# fmt: off
MUTATIONS = {
    # Sums of a block.
    "the last block is not promoted": (PLAIN, "% PROMOTED == 0 || k + TILE_K >= p.k)", "% PROMOTED == 0)"),
    "sums are promoted twice": (PLAIN, "++i) part[i] = Sum(0);", "++i) part[i] = part[i];"),
    "blocks are promoted early": (BLOCKS, "(k + TILE_K) % PROMOTED == 0", "k % PROMOTED == 0"),
    # Scales of blocks of k.
    "scales of the next block": (BLOCKS, "present.column, k / PROMOTED)", "present.column, (k + TILE_K) / PROMOTED)"),
    "scales of the first matrix": (BLOCKS, "static_cast<int>(present.matrix)", "0"),
    "scales of the tile's first row": (BLOCKS, "row + 16 * (i / 2) + row_of(i % 2)", "row"),
    "scales of the first 16 rows": (BLOCKS, "row + 16 * (i / 2) + row_of(i % 2)", "row + row_of(i % 2)"),
    "scales of the first tile's columns": (BLOCKS, "column + column_of(j, one)", "column_of(j, one)"),
    "one scale for a pair of columns": (COLUMNS, "column + column_of(j, one)", "column + column_of(j, 0)"),
    "columns that are not paired": (PAIRED, "OperandB::PAIRED ? 8 * (j", "false ? 8 * (j"),
    "columns in the order of blocks": (PAIRED, "2 * one + j % 2 :", "2 * (j % 2) + one :"),
    "scales of rows alone": (COLUMNS, "rows[i / 2][i % 2] * of_column", "rows[i / 2][i % 2]"),
    "scales beyond the last row": (replace(BLOCKS, m=30), "element < end ? element : end - 1", "element"),
    # The tiles of a group of rows.
    "the first row of tiles of a group": (GROUPS, "(first + rest % height) * TILE_M", "first * TILE_M"),
    "the last group as high as the others": (GROUPS, "left < p.group ? left : p.group", "p.group"),
    "the first group alone": (GROUPS, "number / in_group * p.group", "0"),
    # Scales of results.
    "no scales of results": (RESULTS, "epilogue.cuh", "v[i] *= of_row * factor(p.column_scales, column + i);", ""),
    "results' scales of the first matrix": (RESULTS, "epilogue.cuh", "element, 0, matrix)", "element, 0, 0)"),
    "results' scales of the first column": (RESULTS, "epilogue.cuh", "_scales, column + i", "_scales, column"),
}
# fmt: on


@every(MUTATIONS)
def test_mutation(mutation):
    mutation.check()


@products(MUTATIONS)
def test_without_faults(product):
    check_without_faults(product)


EQUAL = floats(LONG, 32, 64, 4096, out="float32")
NEVER = ("batch.cu", "(k + TILE_K) % PROMOTED == 0 || k", "k")


def test_sums_that_are_not_promoted():
    """Random terms would seldom show it: equal ones are truncated more and more as the sum before them grows."""
    mutation = Mutation(EQUAL, (NEVER,))
    mutation.build()
    launch = Launch(EQUAL, changes=mutation.changes)
    for name in "ab":
        launch.values[name][:] = 1.375
    launch.set(launch.values["a"], launch.values["b"], None, None)
    assert (launch.reference.ratio(launch()[0]) > 1).any()


STEPS = Product(WHOLE, 32, 16, 300, dtype="float8_e4m3fn", out="float32")


def test_steps_of_zeros_change_bits():
    """The steps beyond K are left out: their number depends on the shape, and each truncates the sum."""
    mutation = Mutation(STEPS, (("batch.cu", "if (FLOAT8 && STEP_K * step >= deep) break;", ""),))
    mutation.build()
    assert (Launch(STEPS)()[0] != Launch(STEPS, changes=mutation.changes)()[0]).any()
