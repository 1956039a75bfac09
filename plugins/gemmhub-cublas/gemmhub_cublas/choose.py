"""Algorithms: what the library proposes for a form, and rebuilding one from its configuration.

A configuration is nine numbers in one word, "66.29.1.0.1.1.35.0.3": the algorithm's id, its tile, the parts that
k is split into, the reduction of their sums, swizzling of thread blocks, custom option, stages, inner shape,
cluster shape. It means the same in every process that has the same version of the library and the same card.

Partial sums of a split k may only be added in the accumulator's type, in a fixed order: sums in the result's type
would break the error bound. And the parts must be all of k (:func:`_covers_k`), which the library does not ensure.
"""

from __future__ import annotations

import ctypes
import re
import struct
from ctypes import addressof, byref, c_char, c_float, c_int, c_size_t
from dataclasses import dataclass
from typing import Any

from gemmhub_cublas.descriptors import Descriptors, Object
from gemmhub_cublas.library import Library
from gemmhub_cublas.lower import COMPUTE, GELU, ITEMSIZE, RELU, TYPE, Form

WANTED = 16
"""Algorithms to ask for. The library gave 8 at most."""

_INTEGER = re.compile(r"-?[0-9]{1,10}")
_FIELDS = "iIiIIIIHH"
"""The C types of a configuration's numbers, in the order of cublasLtMatmulAlgoConfigAttributes."""
_ID, _SPLIT, _REDUCTION, _SWIZZLE = 0, 2, 3, 4
HOPPER = 66
"""The id of the algorithms for Hopper."""
_HALVES = (TYPE["float16"], TYPE["bfloat16"])
_NO_REDUCTION, _REDUCTION_IN_COMPUTE_TYPE = 0, 2
_MAX_WORKSPACE, _REDUCTION_MASK, _MIN_ALIGNMENTS, _IMPLEMENTATIONS = 1, 3, (5, 6, 7, 8), 12
_ANY_BUT_GAUSSIAN = 2**64 - 1 - 2**32
"""Not the way to multiply complex numbers by three real products: its error is beyond the bound."""
_ALGO_BYTES = 64
_STEP = 128
"""Bytes of k."""


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", c_char * _ALGO_BYTES),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, configured for one form."""

    config: str
    data: bytes
    """cublasLtMatmulAlgo_t."""
    workspace: int
    """Bytes."""


def parse(config: str) -> tuple[int, ...]:
    """The nine numbers. ValueError for anything else."""
    words = config.split(".")
    if len(words) != len(_FIELDS) or not all(_INTEGER.fullmatch(word) for word in words):
        raise ValueError(f"{config!r} is no configuration: nine numbers with dots between them")
    numbers = tuple(map(int, words))
    for number, width in zip(numbers, _FIELDS):
        try:
            struct.pack(width, number)
        except struct.error:
            raise ValueError(f"{config!r} is no configuration: {number} is out of range") from None
    return numbers


def text(numbers: tuple[int, ...]) -> str:
    """The inverse of :func:`parse`."""
    return ".".join(map(str, numbers))


class Chooser:
    """The algorithms for one form on one device; ``handle`` is the library's for that device, made current."""

    def __init__(self, library: Library, handle: int, form: Form) -> None:
        self._lt: Any = library.lt
        self._library = library
        self._handle = handle
        self._form = form
        self._descriptors = Descriptors(library, form)

    def proposed(self, limit: int) -> tuple[list[Algorithm], int]:
        """(the library's proposals with at most ``limit`` bytes of workspace, best first; its status)."""
        preference = Object(self._library, "MatmulPreference")
        preference.set(_MAX_WORKSPACE, "Q", limit)
        preference.set(_REDUCTION_MASK, "I", _REDUCTION_IN_COMPUTE_TYPE)
        preference.set(_IMPLEMENTATIONS, "Q", _ANY_BUT_GAUSSIAN)
        form = self._form
        for attribute, matrix in zip(_MIN_ALIGNMENTS, (form.a, form.b, form.c, form.d)):
            preference.set(attribute, "I", matrix.alignment)
        results, count = (_Result * WANTED)(), c_int()
        status = self._lt.cublasLtMatmulAlgoGetHeuristic(
            self._handle, *self._descriptors.handles, preference.handle, WANTED, results, byref(count)
        )
        found: dict[str, Algorithm] = {}
        for result in results[: 0 if status else count.value]:
            data = _bytes(result)
            numbers = self._config(data)
            if result.state == 0 and result.workspace <= limit and _keeps_the_bound(numbers, self._form):
                found.setdefault(text(numbers), Algorithm(text(numbers), data, result.workspace))
        return list(found.values()), status

    def rebuilt(self, config: str) -> Algorithm | None:
        """The algorithm of that configuration; None where the library does not run it on this form."""
        numbers, form = parse(config), self._form
        algo = ctypes.create_string_buffer(_ALGO_BYTES)
        types = (form.compute, form.scale, form.a.type, form.b.type, form.c.type, form.d.type)
        if not _keeps_the_bound(numbers, form) or self._lt.cublasLtMatmulAlgoInit(
            self._handle, *types, numbers[0], algo
        ):
            return None
        for attribute, (number, width) in enumerate(zip(numbers, _FIELDS)):
            value = struct.pack(width, number)
            # The id is set by now; attributes that a library does not know may stay at their default, 0.
            refused = attribute and self._lt.cublasLtMatmulAlgoConfigSetAttribute(algo, attribute, value, len(value))
            if refused and number:
                return None
        return self._checked(config, algo)

    def swizzled(self, algorithm: Algorithm) -> Algorithm | None:
        """The same with its swizzling of thread blocks switched over; None where it has no such variant."""
        numbers = list(parse(algorithm.config))
        numbers[_SWIZZLE] = 0 if numbers[_SWIZZLE] else 1
        algo = ctypes.create_string_buffer(algorithm.data, _ALGO_BYTES)
        value = struct.pack(_FIELDS[_SWIZZLE], numbers[_SWIZZLE])
        if self._lt.cublasLtMatmulAlgoConfigSetAttribute(algo, _SWIZZLE, value, len(value)):
            return None
        return self._checked(text(tuple(numbers)), algo)

    def _checked(self, config: str, algo: Any) -> Algorithm | None:
        result = _Result()
        if self._lt.cublasLtMatmulAlgoCheck(self._handle, *self._descriptors.handles, algo, byref(result)):
            return None
        return Algorithm(config, bytes(algo), result.workspace)

    def _config(self, data: bytes) -> tuple[int, ...]:
        numbers = []
        algo, written = ctypes.create_string_buffer(data, _ALGO_BYTES), c_size_t()
        for attribute, width in enumerate(_FIELDS):
            value = ctypes.create_string_buffer(struct.calcsize(width))
            status = self._lt.cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, value, len(value), byref(written))
            numbers.append(0 if status else struct.unpack(width, value.raw)[0])
        return tuple(numbers)


def _bytes(result: Any) -> bytes:
    # The field itself would be cut off at the first zero byte.
    return ctypes.string_at(addressof(result), _ALGO_BYTES)


def _keeps_the_bound(numbers: tuple[int, ...], form: Form) -> bool:
    """Whether everything is added in the accumulator's type, in a fixed order, and rounded once.

    Algorithms older than Hopper's were seen to add a bias to sums already rounded to a 16-bit result, when k was split
    or there was an addend, too; and to make 0 of NaN by relu. All were seen to be off by 2**-18 in gelu, which a result
    of 16 bits hides, as do factors of fewer bits than that.
    """
    if numbers[_REDUCTION] not in (_NO_REDUCTION, _REDUCTION_IN_COMPUTE_TYPE) or not _covers_k(numbers, form):
        return False
    halves = form.d.type in _HALVES
    wide_factors = form.a.type in (*_HALVES, TYPE["float32"]) and form.compute == COMPUTE["float32"]
    if form.epilogue & GELU and not halves and wide_factors:
        return False
    if numbers[_ID] == HOPPER:
        return True
    if form.epilogue & RELU:
        return False
    return not (halves and form.bias_type is not None and (numbers[_SPLIT] != 1 or form.addend))


def _covers_k(numbers: tuple[int, ...], form: Form) -> bool:
    """Whether all of k is in one of the parts that it is cut into.

    Algorithms for Hopper make each floor(k / parts) elements, up to a whole step of 128 bytes. Where that is a whole
    step already, and parts do not divide k, nobody adds the rest: cuBLASLt 13 was seen to leave out the last 8 of 21128
    products in ten parts, and torch.matmul, which called it so, with it. Of some 70 000 algorithms for random products
    of 16 bits, all to which this applies were wrong and no other; of float32 all were right, and none are Hopper's
    (benchmarks/run/cublas_parts.py).
    """
    parts, step = numbers[_SPLIT], _STEP // ITEMSIZE[form.a.type]
    return numbers[_ID] != HOPPER or parts < 2 or -(-(form.k // parts) // step) * step * parts >= form.k
