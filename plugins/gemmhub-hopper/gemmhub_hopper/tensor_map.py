"""Tensor maps: how TMA is told of a matrix. What goes into one is computed here without a driver."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_char, c_uint32, c_uint64
from dataclasses import dataclass

from gemmhub.kit.cuda import Driver, DriverError
from gemmhub_hopper.config import Form, Variant

NBYTES = 128
"""Size of a tensor map; it lies at a multiple of 64."""
TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "split": 9, "tf32": 11}
"""CUtensorMapDataType. TMA rounds float32 to tf32 as it loads."""
_SWIZZLE = {16: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by the bytes that it spans."""
_PROMOTION = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B. With 256 bytes, rows that begin anywhere else are read up to a sixth slower."""


@dataclass(frozen=True)
class Stored:
    """A stack of matrices in memory: ``inner`` neighbours, ``outer`` rows of them, ``count`` matrices.

    ``ld`` and ``stride`` are bytes from row to row and from matrix to matrix, multiples of 16.
    """

    inner: int
    outer: int
    count: int
    ld: int
    stride: int


@dataclass(frozen=True)
class MapArguments:
    """The arguments of cuTensorMapEncodeTiled but for the address. Innermost dimension first."""

    type: int
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    """Bytes; that of the innermost dimension is implied."""
    box: tuple[int, int, int]
    swizzle: int


def operand(stored: Stored, form: Form, mn_major: bool, rows: int, parts: int, registers: bool = False) -> MapArguments:
    """Of a or b, for tiles of ``rows`` along m (n), of which each of ``parts`` blocks loads one part.

    K-major: a box is the stage's k by the rows. MN-major: 128 bytes along m (n) by the stage's k, of which there may
    be several. What is inside, 64 or 128 bytes, is the span of the swizzle. ``registers``: it is read by registers, as
    32-bit elements.
    """
    k, kind = form.block_k, "float32" if registers and form.input == "split" else form.input
    size = 4 if registers else form.input_bytes
    box = (128 // size, k // parts, 1) if mn_major else (k, rows // parts, 1)
    sizes, swizzle = (stored.inner, stored.outer, stored.count), _SWIZZLE[box[0] * size]
    return MapArguments(TYPES[kind], sizes, (stored.ld, stored.stride), box, swizzle)


def result(stored: Stored, variant: Variant) -> MapArguments:
    """Of d: a box is a staging buffer of the kernel, or half of one where it is transposed and float32."""
    size = variant.form.output_bytes
    box = (128 // size, variant.chunk, 1) if variant.form.transposed else (variant.chunk, 64, 1)
    swizzle = _SWIZZLE[size * box[0]]
    sizes = (stored.inner, stored.outer, stored.count)
    return MapArguments(TYPES[variant.form.output], sizes, (stored.ld, stored.stride), box, swizzle)


def encode(driver: Driver, arguments: MapArguments, address: int) -> bytes:
    """The map of a matrix at ``address`` (a multiple of 16). DriverError where the driver does not take it."""
    memory = ctypes.create_string_buffer(NBYTES + 64)
    start = -addressof(memory) % 64
    place = (c_char * NBYTES).from_buffer(memory, start)
    driver.call(
        "cuTensorMapEncodeTiled", addressof(place), arguments.type, 3, address, (c_uint64 * 3)(*arguments.sizes),
        (c_uint64 * 2)(*arguments.strides), (c_uint32 * 3)(*arguments.box), (c_uint32 * 3)(1, 1, 1), 0,
        arguments.swizzle, _PROMOTION, 0,
    )  # fmt: skip
    return bytes(place)


def address_word(driver: Driver, arguments: MapArguments) -> int | None:
    """Which 8-byte word of a map is the address and nothing else; None where no word is.

    Found by encoding the map for three addresses: nothing is there to read, a map is only numbers.
    """
    addresses = (0x7000_0000_0010, 0x7A12_3456_7890, 0x7FED_CBA9_8770)
    try:
        rows = [memoryview(encode(driver, arguments, address)).cast("Q") for address in addresses]
    except DriverError:  # a driver that asks what lies there
        return None
    differing = [word for word in range(NBYTES // 8) if len({row[word] for row in rows}) > 1]
    if len(differing) == 1 and all(row[differing[0]] == address for row, address in zip(rows, addresses)):
        return differing[0]
    return None
