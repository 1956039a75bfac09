"""Tensor maps, which describe matrices to TMA: their arguments are computed without a driver, then encoded by it."""

from __future__ import annotations

from collections import OrderedDict
from ctypes import addressof, c_char, c_uint32, c_uint64
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gemmhub._base.evicting import keep
from gemmhub.kit.cuda import Driver, DriverError
from gemmhub_hopper.config import Form, Variant

LINE_ROWS = 8
"""Rows of 16-bit elements that are one line of :func:`shifted_rows`."""
TMA_UNIT = 8
"""16-bit elements of the 16 bytes to which TMA aligns."""
NBYTES = 128
"""Bytes of a tensor map, which is aligned to 64 bytes."""
TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "split": 9, "f16x3": 6, "bf16x3": 9, "tf32": 11}
"""CUtensorMapDataType by the input or dtype. TMA rounds float32 to tf32 as it loads."""
_SWIZZLE = {16: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by its span in bytes."""
_PROMOTION = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B. With 256 bytes, rows that are not aligned to 256 are read slower."""


_MEMORY = c_char * (NBYTES + 64)
"""A map, wherever 64 bytes begin."""
_SIZES, _STRIDES, _BOX = c_uint64 * 3, c_uint64 * 2, c_uint32 * 3
_ELEMENT_STRIDES = _BOX(1, 1, 1)


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


class MapArguments(NamedTuple):
    """The arguments of cuTensorMapEncodeTiled without the address, innermost dimension first."""

    type: int
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    """Strides in bytes; that of the innermost dimension is implied."""
    box: tuple[int, int, int]
    swizzle: int


def operand(
    stored: Stored, form: Form, mn_major: bool, rows: int, multicast: int, registers: bool = False
) -> MapArguments:
    """Return the map of a or b, for tiles of ``rows`` along M (N) that ``multicast`` CTAs load together.

    K-major: a box has the stage's elements along K, for the rows of one CTA. MN-major: a box has 128 bytes along M (N)
    for a CTA's share of K in the stage; a tile may have several. The inner extent, 64 or 128 bytes, is the span of the
    swizzle. ``registers``: the operand is loaded as 32-bit elements, for registers.
    """
    k, kind = form.block_k, "float32" if registers and form.num_planes > 1 else form.input
    size = 4 if registers else form.input_bytes
    box = (128 // size, k // multicast, 1) if mn_major else (k, rows // multicast, 1)
    sizes, swizzle = (stored.inner, stored.outer, stored.count), _SWIZZLE[box[0] * size]
    return MapArguments(TYPES[kind], sizes, (stored.ld, stored.stride), box, swizzle)


def shifted_rows(stored: Stored, form: Form, rows: int) -> tuple[MapArguments, MapArguments]:
    """Return the maps of an a of shifted rows (kernels/shifted_rows.cuh), for tiles of ``rows`` rows.

    A line is eight rows. The first map has whole lines. The second differs where the number of rows is no multiple of
    eight: it has one line more, and each of its lines ends with the row that ends the matrix.
    """
    lines, last = divmod(stored.outer, LINE_ROWS)
    box = form.block_k + TMA_UNIT, rows // LINE_ROWS, 1
    ld = stored.ld // form.input_bytes

    def lines_of(some: int, count: int) -> MapArguments:
        sizes = (some - 1) * ld + stored.inner, count, 1
        strides = LINE_ROWS * stored.ld, LINE_ROWS * stored.ld * count
        return MapArguments(TYPES[form.input], sizes, strides, box, _SWIZZLE[TMA_UNIT * form.input_bytes])

    whole = lines_of(LINE_ROWS, lines)
    return whole, lines_of(last, lines + 1) if last else whole


def result(stored: Stored, variant: Variant) -> MapArguments:
    """Return the map of d: a box is a staging buffer, or half of one where d is transposed and float32."""
    size = variant.form.output_bytes
    box = (128 // size, variant.store_block_n, 1) if variant.form.transposed_d else (variant.store_block_n, 64, 1)
    swizzle = _SWIZZLE[size * box[0]]
    sizes = (stored.inner, stored.outer, stored.count)
    return MapArguments(TYPES[variant.form.output], sizes, (stored.ld, stored.stride), box, swizzle)


def encode(driver: Driver, arguments: MapArguments, address: int) -> bytes:
    """Return the map of a matrix at ``address``, a multiple of 16. Raises DriverError where the driver refuses it."""
    memory = _MEMORY()
    start = addressof(memory)
    place = start + -start % 64
    driver.call(
        "cuTensorMapEncodeTiled", place, arguments.type, 3, address, _SIZES(*arguments.sizes),
        _STRIDES(*arguments.strides), _BOX(*arguments.box), _ELEMENT_STRIDES, 0, arguments.swizzle, _PROMOTION, 0,
    )  # fmt: skip
    return memory.raw[place - start : place - start + NBYTES]


def address_word(driver: Driver, arguments: MapArguments) -> int | None:
    """Return the index of the 8-byte word of a map that is the address and nothing else; None where no word is.

    It is found by encoding the map for three addresses, at which no memory is needed.
    """
    addresses = (0x7000_0000_0010, 0x7A12_3456_7890, 0x7FED_CBA9_8770)
    try:
        rows = [memoryview(encode(driver, arguments, address)).cast("Q") for address in addresses]
    except DriverError:  # a driver that checks the addresses
        return None
    differing = [word for word in range(NBYTES // 8) if len({row[word] for row in rows}) > 1]
    if len(differing) == 1 and all(row[differing[0]] == address for row, address in zip(rows, addresses)):
        return differing[0]
    return None


_encoded: WeakKeyDictionary[Driver, OrderedDict[tuple[MapArguments, int], bytes]] = WeakKeyDictionary()


def encode_once(driver: Driver, arguments: MapArguments, address: int) -> bytes:
    """Return :func:`encode` of a map whose address stands for others: products of other sizes have some of the same."""
    encoded = _encoded.setdefault(driver, OrderedDict())
    key = arguments, address
    data = encoded.get(key)
    if data is None:
        data = encode(driver, arguments, address)
        keep(encoded, key, data, _KEPT)
    return data


_Kind = tuple[int, tuple[int, int, int], int]
_words: WeakKeyDictionary[Driver, OrderedDict[_Kind, int | None]] = WeakKeyDictionary()
"""For each driver, the words of :func:`address_word` by the type, the box and the swizzle of the map."""
_KEPT = 1024


def address_word_of(driver: Driver, arguments: MapArguments, data: bytes, address: int) -> int | None:
    """Return :func:`address_word` of a map that is encoded as ``data`` for ``address``.

    It is found once for maps of one type, box and swizzle, whatever their sizes. Of each map its content is checked.
    """
    words = _words.setdefault(driver, OrderedDict())
    kind = arguments.type, arguments.box, arguments.swizzle
    if kind not in words:
        keep(words, kind, address_word(driver, arguments), _KEPT)
    word = words[kind]
    return word if word is not None and memoryview(data).cast("Q")[word] == address else None
