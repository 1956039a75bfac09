"""The arguments of the tensor maps of operands and result, which gemmhub_nvidia.tma encodes."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub_nvidia import tma
from gemmhub_nvidia.tma import SWIZZLE, MapArguments

from gemmhub_hopper.variants.config import BF16X3, F16X3, FLOAT8, FLOAT8_RESULTS, INT8, INT32, Form, Variant

TMA_UNIT = 16
"""Bytes to which TMA aligns."""
TYPES = {
    **tma.TYPES, "split": 9, F16X3: 6, BF16X3: 9, **dict.fromkeys((*FLOAT8, *FLOAT8_RESULTS, INT8), 0), INT32: 3,
}  # fmt: skip
"""CUtensorMapDataType by the input or dtype."""


@dataclass(frozen=True)
class Stored:
    """A stack of ``count`` matrices in memory, each of ``outer`` rows of ``inner`` contiguous elements.

    ``ld`` and ``stride`` are the bytes from row to row and from matrix to matrix, multiples of 16 except of shifted
    rows.
    """

    inner: int
    outer: int
    count: int
    ld: int
    stride: int


def operand(
    stored: Stored, form: Form, mn_major: bool, rows: int, multicast: int, registers: bool = False
) -> MapArguments:
    """Return the map of a or b, for tiles of ``rows`` along M (N) that ``multicast`` CTAs load together.

    K-major: a box has the stage's elements along K, for the rows of one CTA. MN-major: a box has 128 bytes along M (N)
    for a CTA's share of K in the stage; a tile may have several. The inner extent, 64 or 128 bytes, is the span of the
    swizzle. ``registers``: the operand is loaded as 32-bit elements, for registers.
    """
    k, element_type = form.block_k, "float32" if registers and form.num_planes > 1 else form.input
    size = 4 if registers else form.input_bytes
    box = (128 // size, k // multicast, 1) if mn_major else (k, rows // multicast, 1)
    sizes, swizzle = (stored.inner, stored.outer, stored.count), SWIZZLE[box[0] * size]
    return MapArguments(TYPES[element_type], sizes, (stored.ld, stored.stride), box, swizzle)


def shifted(stored: Stored, form: Form, rows: int) -> tuple[MapArguments, MapArguments]:
    """Return the maps of an a of shifted rows or columns (kernels/shifted_rows.cuh), for tiles of ``rows`` rows of a.

    A line is eight rows of ``stored``, or four of tf32. The first map has whole lines. The second differs where the
    number of rows is no multiple of those of a line: it has one line more, and each of its lines ends with the row that
    ends the matrix.
    """
    line_rows = TMA_UNIT // form.input_bytes  # those that begin at a multiple of 16 bytes are so many apart
    lines, last = divmod(stored.outer, line_rows)
    if form.shifted_columns:
        box = 64 + 8, form.block_k // line_rows, 1  # of 64 rows of a
    else:
        box = form.block_k + TMA_UNIT // form.input_bytes, rows // line_rows, 1
    ld = stored.ld // form.input_bytes

    def lines_of(some: int, count: int) -> MapArguments:
        sizes = (some - 1) * ld + stored.inner, count, 1
        strides = line_rows * stored.ld, line_rows * stored.ld * count
        return MapArguments(TYPES[form.input], sizes, strides, box, SWIZZLE[TMA_UNIT])

    lines_map = lines_of(line_rows, lines)
    return lines_map, lines_of(last, lines + 1) if last else lines_map


def result(stored: Stored, variant: Variant) -> MapArguments:
    """Return the map of d: a box is a staging buffer, or half of one where d is transposed and float32."""
    size = variant.form.output_bytes
    line, columns = min(64, 128 // size), variant.store_block_n
    box = (line, columns, 1) if variant.form.transposed_d else (columns, 64, 1)
    swizzle = SWIZZLE[size * box[0]]
    sizes = (stored.inner, stored.outer, stored.count)
    return MapArguments(TYPES[variant.form.output], sizes, (stored.ld, stored.stride), box, swizzle)
