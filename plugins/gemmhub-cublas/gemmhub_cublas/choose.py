"""The algorithms that the library proposes for a form, and their reconstruction from a configuration.

A configuration is nine numbers in one word, "66.29.1.0.1.1.35.0.3": the algorithm's id, its tile, the splits of
split-K, the reduction of partial sums, CTA swizzling, custom option, stages, inner shape and cluster shape. It has the
same meaning in every process with the same version of the library and the same card.

Split-K must add partial sums in the accumulator's type and in a fixed order: sums in the result's type would break the
error bound. The splits must also cover all of K (:func:`_covers_k`), which the library does not ensure. With
quantization scales each algorithm is proved on the card as well (:mod:`gemmhub_cublas.algorithm_proof`).
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from ctypes import addressof, byref, c_int, c_size_t
from functools import lru_cache
from typing import Any, NamedTuple

from gemmhub_cublas.descriptors import ALGO_BYTES, CONFIG, KEPT, HeuristicResult, Object
from gemmhub_cublas.library import StatusError
from gemmhub_cublas.lower import COMPUTE, GELU, ITEMSIZE, RELU, TYPE, Form
from gemmhub_cublas.probe import Machine

WORKSPACE = 64 * 2**20
"""Bytes of workspace that candidates may need: gemmhub's default limit."""
WANTED = 16
"""Number of algorithms to request. The library returns at most 8."""
_USUAL_WORKSPACE = 32 * 2**20
"""Bytes of workspace for which the library first proposes algorithms, as torch.matmul does.

With more it ranks slower ones first: 2 % of random products lost more than 3 %, up to 37 %.
"""
_ANSWERS = (0, 7, 8, 15)
"""Statuses that depend on the problem only: success, INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED."""
_LARGEST = 2**33
"""Largest number of elements of a result for which algorithms are checked that the library did not propose.

Above it, the library's check crashes where the number of tiles overflows.
"""

_INTEGER = re.compile(r"-?[0-9]{1,10}")
_ID, _SPLIT, _REDUCTION, _SWIZZLE = 0, 2, 3, 4
HOPPER = 66
"""The id of the algorithms for Hopper."""
_HALVES = (TYPE["float16"], TYPE["bfloat16"])
_NO_REDUCTION, _REDUCTION_IN_COMPUTE_TYPE = 0, 2
_MAX_WORKSPACE, _REDUCTION_MASK, _MIN_ALIGNMENTS, _IMPLEMENTATIONS = 1, 3, (5, 6, 7, 8), 12
_ANY_BUT_GAUSSIAN = 2**64 - 1 - 2**32
"""The implementations without Gaussian complex products, three real ones, whose error exceeds the bound."""
_STEP = 128
"""Bytes along K of one stage of the algorithms for Hopper."""


class Algorithm(NamedTuple):
    """An algorithm, configured for one form."""

    config: str
    """The configuration in one word; the name of the candidate."""
    data: bytes
    """The bytes of its cublasLtMatmulAlgo_t."""
    workspace: int
    """Bytes of workspace that it needs."""


@lru_cache(KEPT)
def parse(config: str) -> tuple[int, ...]:
    """Return the nine numbers of a configuration. Raises ValueError for anything else."""
    words = config.split(".")
    if len(words) != len(CONFIG) or not all(_INTEGER.fullmatch(word) for word in words):
        raise ValueError(f"{config!r} is no configuration, which is nine numbers separated by dots")
    numbers = tuple(map(int, words))
    for number, width in zip(numbers, CONFIG):
        try:
            struct.pack(width, number)
        except struct.error:
            raise ValueError(f"{config!r} is no configuration: {number} is out of range") from None
    return numbers


def text(numbers: tuple[int, ...]) -> str:
    """Return the configuration of ``numbers``, the inverse of :func:`parse`."""
    return ".".join(map(str, numbers))


class Chooser:
    """The algorithms for one form on the device ``index``, which is current."""

    def __init__(self, machine: Machine, index: int, form: Form) -> None:
        """Raises StatusError where a descriptor or the library's handle cannot be created."""
        self._lt = machine.library.lt
        self._objects = machine.objects
        self._proofs = machine.proofs
        self._index = index
        self._handle = machine.handle(index)
        self._form = form
        self.wrong: set[str] = set()
        """Configurations whose proof failed."""
        self._descriptors = machine.objects.descriptors(form)  # keeps what the handles are of
        self._handles = self._descriptors.handles

    def candidates(self, limit: int) -> tuple[list[Algorithm], int]:
        """Return the algorithms that are offered, the library's first choice first, and the status of the library.

        They need at most ``limit`` bytes of workspace, and one of them none, where the library has such a one.
        """
        algorithms, status = self.proposed(min(_USUAL_WORKSPACE, limit))
        _add(algorithms, self.proposed(limit)[0])
        if algorithms and all(algorithm.workspace for algorithm in algorithms):
            _add(algorithms, self.proposed(0)[0][:1])
        _add(algorithms, [x for x in map(self.swizzled, algorithms) if x is not None and x.workspace <= limit])
        return [algorithm for algorithm in algorithms if self._proved(algorithm)], status

    def first(self, limit: int) -> tuple[Algorithm | None, int]:
        """Return the library's first choice within ``limit`` bytes of workspace, or None, and the library's status."""
        status = 0
        for nbytes in (_USUAL_WORKSPACE, min(WORKSPACE, limit)):
            algorithms, status = self.proposed(nbytes)
            for algorithm in algorithms:
                if algorithm.workspace <= limit and self._proved(algorithm):
                    return algorithm, status
        return None, status

    def named(self, config: str) -> Algorithm | None:
        """Return the algorithm of that configuration; None where the library does not run it on this form.

        Raises ValueError for what is no configuration.
        """
        numbers, form = parse(config), self._form
        if not self._allowed(numbers):
            return None
        if not self._checkable:
            proposed = [x for nbytes in (_USUAL_WORKSPACE, WORKSPACE, 0) for x in self.proposed(nbytes)[0]]
            return next((x for x in proposed if x.config == config and self._proved(x)), None)
        types = form.compute, form.scale, form.a.type, form.b.type, form.c.type, form.d.type
        data = self._objects.algorithm(self._handle, types, numbers)
        checked = None if data is None else self.checked(config, data)
        return checked if checked is None or self._proved(checked) else None

    def _allowed(self, numbers: tuple[int, ...]) -> bool:
        return _keeps_the_bound(numbers, self._form)

    def _proved(self, algorithm: Algorithm) -> bool:
        splits = parse(algorithm.config)[_SPLIT]
        if self._proofs.holds(self._index, self._handle, self._form, algorithm.data, splits):
            return True
        self.wrong.add(algorithm.config)
        return False

    def proposed(self, limit: int) -> tuple[list[Algorithm], int]:
        """Return the library's proposals within ``limit`` bytes of workspace, the best first, and its status.

        Raises StatusError for a status that does not depend on the form alone.
        """
        preference = Object(self._objects.preferences)
        preference.set(_MAX_WORKSPACE, "Q", limit)
        preference.set(_REDUCTION_MASK, "I", _REDUCTION_IN_COMPUTE_TYPE)
        preference.set(_IMPLEMENTATIONS, "Q", _ANY_BUT_GAUSSIAN)
        form = self._form
        for attribute, matrix in zip(_MIN_ALIGNMENTS, (form.a, form.b, form.c, form.d)):
            preference.set(attribute, "I", matrix.alignment)
        results, count = (HeuristicResult * WANTED)(), c_int()
        status = self._lt.cublasLtMatmulAlgoGetHeuristic(
            self._handle, *self._handles, preference.handle, WANTED, results, byref(count)
        )
        if status not in _ANSWERS:
            raise StatusError("cublasLtMatmulAlgoGetHeuristic", status)
        algorithms: dict[str, Algorithm] = {}
        for result in results[: 0 if status else count.value]:
            data = _bytes(result)
            numbers = self._config(data)
            if result.state == 0 and result.workspace <= limit and self._allowed(numbers):
                algorithms.setdefault(text(numbers), Algorithm(text(numbers), data, result.workspace))
        return list(algorithms.values()), status

    def swizzled(self, algorithm: Algorithm) -> Algorithm | None:
        """Return the algorithm with the other CTA swizzling; None where there is no such variant."""
        numbers = list(parse(algorithm.config))
        numbers[_SWIZZLE] = 0 if numbers[_SWIZZLE] else 1
        algo = ctypes.create_string_buffer(algorithm.data, ALGO_BYTES)
        value = struct.pack(CONFIG[_SWIZZLE], numbers[_SWIZZLE])
        if self._lt.cublasLtMatmulAlgoConfigSetAttribute(algo, _SWIZZLE, value, len(value)):
            return None
        return self.checked(text(tuple(numbers)), bytes(algo))

    @property
    def _checkable(self) -> bool:
        return self._form.d.rows * self._form.d.cols <= _LARGEST

    def checked(self, config: str, data: bytes) -> Algorithm | None:
        """Return the algorithm of the bytes ``data``; None where the library does not run it on this form, or the
        result is too large for its check.
        """
        result = HeuristicResult()
        if not self._checkable or self._lt.cublasLtMatmulAlgoCheck(self._handle, *self._handles, data, byref(result)):
            return None
        return Algorithm(config, data, result.workspace)

    def _config(self, data: bytes) -> tuple[int, ...]:
        numbers = []
        algo, written = ctypes.create_string_buffer(data, ALGO_BYTES), c_size_t()
        for attribute, width in enumerate(CONFIG):
            value = ctypes.create_string_buffer(struct.calcsize(width))
            status = self._lt.cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, value, len(value), byref(written))
            numbers.append(0 if status else struct.unpack(width, value.raw)[0])
        return tuple(numbers)


def _add(algorithms: list[Algorithm], others: Sequence[Algorithm]) -> None:
    """Append the algorithms that are new, each once."""
    configs = {algorithm.config for algorithm in algorithms}
    algorithms += {algorithm.config: algorithm for algorithm in others if algorithm.config not in configs}.values()


def _bytes(result: Any) -> bytes:
    # Reading the field itself would stop at the first zero byte.
    return ctypes.string_at(addressof(result), ALGO_BYTES)


def _keeps_the_bound(numbers: tuple[int, ...], form: Form) -> bool:
    """Return whether all is added in the accumulator's type, in a fixed order, and rounded once.

    Observed: algorithms older than Hopper's add a bias to sums already rounded to a 16-bit result, with split-K or with
    an addend, and their relu turns NaN into 0. The GELU of all has an error of 2**-18, which results of 16 bits hide,
    and so do operands of fewer bits.
    """
    if numbers[_REDUCTION] not in (_NO_REDUCTION, _REDUCTION_IN_COMPUTE_TYPE) or not _covers_k(numbers, form):
        return False
    halves = form.d.type in _HALVES
    wide_operands = form.a.type in (*_HALVES, TYPE["float32"]) and form.compute == COMPUTE["float32"]
    if form.epilogue & GELU and not halves and wide_operands:
        return False
    if numbers[_ID] == HOPPER:
        return True
    if form.epilogue & RELU:
        return False
    return not (halves and form.bias_type is not None and (numbers[_SPLIT] != 1 or form.addend))


def _covers_k(numbers: tuple[int, ...], form: Form) -> bool:
    """Return whether the splits of split-K cover all of K.

    Algorithms for Hopper give each split floor(K / splits) elements, rounded up to a step of 128 bytes. Where that is a
    whole step already, and the splits do not divide K, the K remainder is left out: cuBLASLt 13 omits the last 8 of
    21128 elements with ten splits, and so does torch.matmul, which calls it. Of some 70 000 algorithms for random
    products of 16 bits, exactly those to which this applies were wrong; of float32 all were right, and none are
    Hopper's (benchmarks/run/cublas_parts.py).
    """
    splits, step = numbers[_SPLIT], _STEP // ITEMSIZE[form.a.type]
    return numbers[_ID] != HOPPER or splits < 2 or -(-(form.k // splits) // step) * step * splits >= form.k
