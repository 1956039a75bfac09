"""Tensor maps, which describe matrices to TMA (compute capability 9.0 and later), encoded by the driver."""

from __future__ import annotations

from collections import OrderedDict
from ctypes import addressof, c_char, c_int, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from gemmhub._base.evicting import keep
from gemmhub_nvidia.driver import Driver, DriverError

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
    ),
}  # fmt: skip
"""Functions of the driver that are called, with their argument types."""
NBYTES = 128
"""Bytes of a tensor map, which is aligned to 64 bytes."""
TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "tf32": 11}
"""CUtensorMapDataType by dtype. TMA rounds float32 to tf32 as it loads."""
SWIZZLE = {16: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by its span in bytes."""
_PROMOTION = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B. With 256 bytes, rows that are not aligned to 256 are read slower."""

_MEMORY = c_char * (NBYTES + 64)
"""A map, wherever 64 bytes begin."""
_SIZES, _STRIDES, _BOX = c_uint64 * 3, c_uint64 * 2, c_uint32 * 3
_ELEMENT_STRIDES = _BOX(1, 1, 1)


class MapArguments(NamedTuple):
    """The arguments of cuTensorMapEncodeTiled without the address, innermost dimension first."""

    type: int
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    """Strides in bytes; that of the innermost dimension is implied."""
    box: tuple[int, int, int]
    swizzle: int


def encode(driver: Driver, arguments: MapArguments, address: int) -> bytes:
    """Return the map of a matrix at ``address``, a multiple of 16. Raises DriverError where the driver refuses it."""
    memory = _MEMORY()
    start = addressof(memory)
    aligned = start + -start % 64
    driver.call(
        "cuTensorMapEncodeTiled", aligned, arguments.type, 3, address, _SIZES(*arguments.sizes),
        _STRIDES(*arguments.strides), _BOX(*arguments.box), _ELEMENT_STRIDES, 0, arguments.swizzle, _PROMOTION, 0,
    )  # fmt: skip
    return memory.raw[aligned - start : aligned - start + NBYTES]


def address_word(driver: Driver, arguments: MapArguments) -> int | None:
    """Return the index of the 8-byte word of a map that is the address and nothing else; None where no word is.

    The map is encoded for three addresses, at which no memory is needed.
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


_WordKey = tuple[int, tuple[int, int, int], int]
_words: WeakKeyDictionary[Driver, OrderedDict[_WordKey, int | None]] = WeakKeyDictionary()
"""For each driver, the words of :func:`address_word` by the type, the box and the swizzle of the map."""
_KEPT = 1024


def address_word_of(driver: Driver, arguments: MapArguments, data: bytes, address: int) -> int | None:
    """Return :func:`address_word` of a map that is encoded as ``data`` for ``address``.

    It is determined once for maps of one type, box and swizzle, of any sizes. The content of each map is checked.
    """
    words = _words.setdefault(driver, OrderedDict())
    key = arguments.type, arguments.box, arguments.swizzle
    if key not in words:
        keep(words, key, address_word(driver, arguments), _KEPT)
    word = words[key]
    return word if word is not None and memoryview(data).cast("Q")[word] == address else None
