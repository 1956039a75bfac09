"""Faults put into the kernel for quantization one at a time: each is detected."""

from __future__ import annotations

from dataclasses import dataclass

import emulated
import numpy as np
import pytest
from gemmhub_cuda.quantize import MAIN, plan
from quantizing import Emulated, dtype, halfway, hard_numbers, reference

pytestmark = pytest.mark.emulator

SEEDS = 12
"""Interleavings and numbers that are tried for a fault; the first that detects it ends the test."""
CODES = "narrow.cuh"


@dataclass(frozen=True)
class Task:
    """A task of fresh numbers."""

    granularity: str
    shape: tuple[int, ...]
    name: str = "bfloat16"
    target: str = "float8_e4m3fn"
    factor: float | None = None
    """Factor of the caller's scales on those that would be computed."""
    scale: float | None = None
    """A scale of the caller's for all elements, whose quotients are beside the middle of codes."""

    def drawn(self, rng, changes=()):
        """A launch with numbers of moderate size among NaN, infinities and zeros, or with any numbers."""
        if self.scale is not None:
            scale = np.array(self.scale * rng.uniform(1, 2), np.float32)
            x = halfway(rng, self.shape, self.name, self.target, scale)
            return Emulated(x, self.target, "tensor", scale, changes=changes)
        x = hard_numbers(rng, self.shape, self.name)
        if rng.random() < 0.7:
            x = rng.standard_normal(self.shape) * 2.0 ** rng.integers(-9, 9, self.shape)
            x[..., :1, :], x[..., 1:2, :] = 0, 1e-39 * x[..., 1:2, :]
            special = rng.choice([np.nan, np.inf, -np.inf, -0.0], self.shape)
            x = np.where(rng.random(self.shape) < 0.01, special, x).astype(dtype(self.name))
        scale = None
        if self.factor is not None:
            scale = reference(x, self.target, self.granularity)[1] * np.float32(self.factor)
        return Emulated(x, self.target, self.granularity, scale, changes=changes)


WHOLE = Task("tensor", (500, 130))
COLUMN = Task("column", (3, 500, 130), "float32")
ROW = Task("row", (40, 300))
LONG = Task("row", (3, 5000))
BLOCK = Task("128x128", (2, 150, 200))
ROWS = Task("128x1", (2, 150, 200), "float32")
COLUMNS = Task("1x128", (2, 70, 200))
INTEGERS = Task("1x128", (70, 200), "float32", "int8")
WIDE = Task("1x128", (70, 200), "float32", "float8_e5m2")
LONGEST = Task("row", (4, 40000))
GIVEN = Task("128x1", (150, 200), factor=0.4)
GIVEN_ROWS = Task("1x128", (150, 200), factor=0.4)
NEGATIVE = Task("128x128", (150, 200), factor=-1)
FLAT = Task("tensor", (501, 131))
SMALL = Task("tensor", (150, 200), "float32", scale=1e-40)
HALFWAY = Task("tensor", (150, 200), "float32", "int8", scale=1.0)

# fmt: off
MUTATIONS = {
    # Scales.
    "infinities count": (COLUMNS, CODES, "return bits < 0x7f800000u ? bits : 0;", "return bits;"),
    "NaN does not count for int8": (
        INTEGERS, CODES, "return bits == 0x7f800000u ? 0 : bits;", "return bits < 0x7f800000u ? bits : 0;"),
    "signs count": (COLUMNS, CODES, "__float_as_uint(x) & 0x7fffffffu;\n    if", "__float_as_uint(x);\n    if"),
    "the scale of zeros is 0": (COLUMNS, CODES, "largest == 0 ? 1.0f :", "largest == 0 ? 0.0f :"),
    "scales are subnormal": (WIDE, CODES, "scale < 0x1p-126f ? 0x1p-126f : scale", "scale"),
    "another largest number": (WIDE, CODES, "57344.0f", "49152.0f"),
    "scales are products": (
        COLUMNS, CODES, "__uint_as_float(largest) / LARGEST", "__uint_as_float(largest) * (1.0f / LARGEST)"),
    # Quotients and codes.
    "products with the reciprocal": (HALFWAY, CODES, "fmaf(fmaf(-first, scale, z), inverse, first)", "z * inverse"),
    "nothing saturates": (GIVEN, CODES, "-max_or_nan(-max_or_nan(y, -limit), -limit)", "y"),
    "small scales underflow": (SMALL, CODES, "if (size < 0x1p-80f)", "if (false)"),
    "the sign of the scale is lost": (NEGATIVE, CODES, "(__float_as_uint(given) & 0x80000000u)", "0"),
    "zeros have no sign": (COLUMNS, CODES, "(__float_as_uint(z) & 0x80000000u)", "0"),
    "codes are truncated": (COLUMNS, CODES, "size + (1u << (DROPPED - 1)) - 1 + (size >> DROPPED & 1)", "size"),
    "codes round half up": (COLUMNS, CODES, "- 1 + (size >> DROPPED & 1)", ""),
    "no code is subnormal": (COLUMNS, CODES, "127 + 1 - BIAS) << 23 ? subnormal", "127 + 1 - BIAS) << 23 ? 0"),
    "NaN of int8 is a number": (INTEGERS, CODES, "x != x ? 0 :", "x != x ? 1 :"),
    "NaN has no code": (COLUMNS, CODES, "return 0x7f;", "return 0;"),
    "codes of adjacent elements change places": (
        COLUMNS, CODES, "float8_code(low) | float8_code(high) << 8", "float8_code(high) | float8_code(low) << 8"),
    # Elements.
    "the other half of a word": (
        COLUMNS, CODES, "i % 2 ? word & 0xffff0000u : word << 16", "i % 2 ? word << 16 : word & 0xffff0000u"),
    "an element too many is read": (
        COLUMNS, CODES, "if (i >= valid) continue;\n            if constexpr",
        "if (i > valid) continue;\n            if constexpr"),
    "a code too many is stored": (COLUMNS, CODES, "if (i < valid) store", "if (i <= valid) store"),
    "wide beyond the end": (
        FLAT, CODES, "if (wide && valid >= PER) {\n        if constexpr",
        "if (wide && valid > 0) {\n        if constexpr"),
    # Groups.
    "lanes of two rows share a scale": (COLUMNS, "max_of_lanes<LANES>", "max_of_lanes<32>"),
    "half of the lanes": (COLUMNS, "max_of_lanes<LANES>", "max_of_lanes<LANES / 2>"),
    "a warp's numbers alone": (BLOCK, "all = larger(all, load_shared<u32>(base + 4 * warp));", "all = warp_max;"),
    "warps are not waited for": (
        BLOCK, "store_shared(to, warp_max);\n    block_sync();",
        "store_shared(to, warp_max);"),
    "columns are read before they are there": (
        ROWS, "const u32 base = dynamic_shared(), column = threadIdx.x;\n    block_sync();",
        "const u32 base = dynamic_shared(), column = threadIdx.x;"),
    "columns are read before they are compared": (
        ROWS, "    }\n    block_sync();\n#pragma unroll\n    for (int i = 0; i < PER; i += 4) {",
        "    }\n#pragma unroll\n    for (int i = 0; i < PER; i += 4) {"),
    "a line of columns is left out": (ROWS, "line < lines;", "line < lines - 1;"),
    "scales of a column beyond the end": (ROWS, "if (part.column + i < part.p.columns)\n            store", "store"),
    "a scale of the row of tiles before": (ROWS, "GROUP_ROWS == 128 ? row / 128", "GROUP_ROWS == 128 ? row / 256"),
    "every matrix has the first one's scales": (BLOCK, "scale(matrix * p.scale_batch)", "scale(0)"),
    "every matrix has the first one's codes": (BLOCK, "q(matrix * p.q_batch),", "q(0),"),
    "rows beyond the end": (BLOCK, "row_of(i) < p.rows ? p.last : 0", "p.last"),
    # Rows.
    "the end of a long row is not compared": (
        LONGEST, "largest = larger(largest, magnitude(load_run(p.x, x + column",
        "largest = larger(0, magnitude(load_run(p.x, x + column"),
    "the end of a long row is not stored": (LONGEST, "store(column, load_run", "if (false) store(column, load_run"),
    "only the first run is compared": (LONG, "i < HELD; ++i) largest = larger(", "i < 1; ++i) largest = larger("),
    "every row is the first": (ROW, "row = number % p.rows,", "row = 0,"),
    "one lane asks for its warp": (
        BLOCK, "const u32 to = base + 4 * warp_id();  // all lanes take part in warp_id\n    if (lane_id() == 0)",
        "u32 to = 0;\n    if (lane_id() == 0) store_shared(base + 4 * warp_id(), warp_max + to);\n    if (false)"),
    # Two launches.
    "the flat array's last row is whole": (
        FLAT, "row_of(i) < p.rows - 1 ? p.columns", "row_of(i) < p.rows ? p.columns"),
    "the first part's largest number for all": (WHOLE, "i < p.parts; i += THREADS", "i < 1; i += THREADS"),
    "a part of a column is left out": (COLUMN, "part < p.parts; part += SOME", "part < p.parts - 1; part += SOME"),
    "maxima of another column of tiles": (COLUMN, "static_cast<long long>(column) * p.parts * TILE_COLUMNS", "0"),
    "tiles of a column are left out": (COLUMN, "tile += p.parts)", "tile += 2 * p.parts)"),
    "a tile is converted twice, another not": (WHOLE, "last_first ? tiles - 1 - i : i", "last_first ? tiles / 2 : i"),
    "the maxima are not stored": (
        WHOLE, "if (threadIdx.x == 0) store_global(p.maxima", "if (false) store_global(p.maxima"),
    # Scales of the caller.
    "scales of the first column for all": (
        GIVEN, "load_global(part.scale_at(part.row, part.column + i))",
        "load_global(part.scale_at(part.row, part.column))"),
    "the first row's scale for all": (
        GIVEN_ROWS, "load_global(part.scale_at(part.row_of(i), part.column))",
        "load_global(part.scale_at(part.row, part.column))"),
}
# fmt: on


def given(fault):
    """The task and the changes of a row of the table."""
    task, *texts = fault
    return task, (tuple(texts) if len(texts) == 3 else (MAIN, *texts),)


@pytest.mark.parametrize("fault", MUTATIONS)
def test_mutation(fault):
    task, changes = given(MUTATIONS[fault])
    rng = np.random.default_rng()
    first = task.drawn(rng)
    for variant, _ in plan(first.task()[0], first.sms).launches:
        # A text that is not there, or a kernel that does not compile, is not a detected fault.
        emulated.built(MAIN, {**variant.macros, "ENTRY": "quantize"}, changes)
    for seed in range(SEEDS):
        try:
            task.drawn(rng, changes).check(seed)
        except AssertionError:
            return
    pytest.fail("not detected by the emulator or by a comparison of bits")


@pytest.mark.parametrize("task", dict.fromkeys(task for task, *_ in MUTATIONS.values()), ids=str)
def test_without_faults(task):
    rng = np.random.default_rng()
    for seed in range(3):
        task.drawn(rng).check(seed)
