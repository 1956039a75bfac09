"""Candidates for a few vectors times a matrix (GEMV), by kernels/gemv_kernel.cu: the products that it can run.

The kernel reads the matrix once, without a copy. The product is bound by the memory's bandwidth, so neither TMA nor
tensor cores would help.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.lowering.operands import FROM_BF16, FROM_F16, OperandAccess
from gemmhub_hopper.variants.config import ACTIVATIONS, EIGHT_BIT_DTYPES, F16X3, FLOAT8_RESULTS
from gemmhub_hopper.variants.gemv_kernel import (
    MAX_LOAD_BYTES,
    MAX_VECTORS,
    VECTORS,
    GemvKernel,
    kernels,
    staged_kernels,
)

_STAGED = ((16, 1), (32, 1), (64, 1), (32, 8))
"""Threads and CTAs that share K in staged kernels: on an H100 others were hardly ever faster than these."""
_LONGEST = 2**30
_MAX_CTAS = 2**31
_WIDENED = {FROM_BF16: "bfloat16", FROM_F16: "float16"}
"""Dtype of a 16-bit operand that is multiplied by a float32 one, by ``OperandAccess.source_format``."""


@dataclass(frozen=True)
class GemvChoice:
    """A lowering and a kernel: one candidate for a product of a few vectors."""

    lowering: Lowering
    kernel: GemvKernel

    @property
    def name(self) -> str:
        """The name of the candidate."""
        return self.kernel.name

    @cached_property
    def strips(self) -> int:
        """CTAs, or clusters, for each matrix of the batch."""
        return -(-self.lowering.n // self.kernel.block_n)

    @property
    def grid(self) -> int:
        """CTAs of the launch."""
        return self.strips * self.kernel.cluster_size * self.lowering.batch

    @property
    def steps(self) -> int:
        """The number of times that a thread waits for memory."""
        kernel = self.kernel
        return -(-self.lowering.k // (kernel.threads_per_result * kernel.k_per_step))

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes that the kernel reads and writes."""
        lowering = self.lowering
        operands = lowering.a.elements * lowering.a.size + lowering.b.elements * lowering.b.size
        return operands + lowering.results * (lowering.form.output_bytes + lowering.form.addend_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that a CTA reads at once."""
        kernel = self.kernel
        return (
            kernel.block_n if kernel.n_major else kernel.split_threads * kernel.load_elements
        ) * self.lowering.b.size

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next."""
        w = self.lowering.b
        return w.strides[1 if self.kernel.n_major else 0] * w.size

    copied: ClassVar[tuple[()]] = ()
    """The operands that a pre-pass copies: none."""
    order: ClassVar[None] = None
    """The order of the products of an element has no name: it depends on the threads and on the width of loads."""


class _Family(NamedTuple):
    """The properties of a product by which kernels exist for it."""

    input: str
    vectors: int
    n_major: bool
    load_bytes: int
    strided_x: bool
    x_input: str
    block_scales: bool
    staged: tuple[tuple[int, int], ...]
    """Threads and CTAs that share K in the staged kernels that there are for it."""
    added: str | None
    """The activation that its kernels are compiled with beside those of all kernels; None where there is none."""


@lru_cache(maxsize=256)
def _kernels_of(family: _Family) -> dict[str, GemvKernel]:
    """Return the kernels by name."""
    input_type, vectors, n_major, load = family[:4]
    family_kernels = [
        replace(kernel, strided_x=family.strided_x, x_input=family.x_input, block_scales=family.block_scales)
        for kernel in kernels(input_type, vectors, n_major, load)
        if vectors <= VECTORS[-1]
    ]
    family_kernels += staged_kernels(vectors, n_major, family.staged)
    return {kernel.name: replace(kernel, added=family.added) for kernel in family_kernels}


def choices(lowerings: Iterable[Lowering]) -> list[GemvChoice]:
    """Return the choices for a problem; none where it has many rows and columns, or would need a copy."""
    read = _readable(lowerings)
    if read is None:
        return []
    every = [GemvChoice(read[0], kernel) for kernel in _kernels_of(read[1]).values()]
    return [choice for choice in every if choice.grid < _MAX_CTAS]


def named(lowerings: Iterable[Lowering], name: str) -> GemvChoice | None:
    """Return the one of :func:`choices` that is called ``name``; None where there is none."""
    read = _readable(lowerings)
    kernel = None if read is None else _kernels_of(read[1]).get(name)
    if read is None or kernel is None:
        return None
    choice = GemvChoice(read[0], kernel)
    return choice if choice.grid < _MAX_CTAS else None


def _readable(lowerings: Iterable[Lowering]) -> tuple[Lowering, _Family] | None:
    """Return the lowering that the kernels read, and their family; None where they do not take the product."""
    lowering = _taken(lowerings)
    if lowering is None or not lowering.form.one_by_one or max(lowering.n, lowering.k) >= _LONGEST:
        return None
    w, x, size = lowering.b, lowering.a, lowering.b.size
    k_major = lowering.k == 1 or w.strides[1] == 1
    if not (k_major or lowering.n == 1 or w.strides[0] == 1):
        return None
    strided_x = k_major and lowering.k > 1 and x.strides[1] != 1
    blocks = lowering.form.scales == "blocks"
    if size == 1 and (strided_x or (blocks and not k_major)):
        return None
    inner, outer, ld = (lowering.k, lowering.n, w.strides[0]) if k_major else (lowering.n, lowering.k, w.strides[1])
    units = [w.alignment, inner * size, w.strides[2] * size, ld * size if outer > 1 else 0]
    if k_major and not strided_x:
        # In elements, times the size of those of w.
        units += [x.alignment // x.size * size, x.strides[2] * size, x.strides[0] * size if lowering.m > 1 else 0]
    vectors = 1 << (lowering.m - 1).bit_length()
    # An element of strided vectors takes a register of its own.
    crowded = strided_x and vectors > 2 and size == 2
    # A load of x has as many elements as one of w, and at most as many bytes.
    wide_x = k_major and x.size > size
    # Of 8 bits a load has twice as many elements: sums of as many columns, or vectors that are converted.
    of_vectors = vectors == VECTORS[-1] and lowering.form.float8
    crowded = crowded or (size == 1 and (of_vectors if k_major else vectors > 2))
    load = math.gcd(MAX_LOAD_BYTES // 2 if crowded or wide_x else MAX_LOAD_BYTES, *units)
    if load < size:
        return None
    input_type, type_of_x = _dtype(lowering, w), _dtype(lowering, x)
    x_input = type_of_x if type_of_x != input_type else ""
    staged = input_type == "float32" and not x_input and load == MAX_LOAD_BYTES and _stageable(x, lowering.k)
    divisions, activation = _STAGED if staged else (), lowering.form.activation
    added = None if activation in ACTIVATIONS else activation
    return lowering, _Family(input_type, vectors, not k_major, load, strided_x, x_input, blocks, divisions, added)


def _taken(lowerings: Iterable[Lowering]) -> Lowering | None:
    """Return the first lowering of a few vectors that the kernels read, and one of at most eight if there is any."""
    more = None
    for x in lowerings:
        if x.m > MAX_VECTORS or not _is_taken(x):
            continue
        if x.m <= VECTORS[-1]:
            return x
        more = more or x
    return more


def _is_taken(lowering: Lowering) -> bool:
    """Return whether the kernel reads the operands of ``lowering`` by their strides, in place.

    Operands of two dtypes have lowerings by planes only: their accesses have the same strides. Nothing is mirrored.
    """
    if lowering.form.symmetric or lowering.form.output in FLOAT8_RESULTS:
        return False
    if lowering.a.source_format in _WIDENED or lowering.b.source_format in _WIDENED:
        return True
    return not lowering.form.registers_a and lowering.form.input != F16X3


def _dtype(lowering: Lowering, operand: OperandAccess) -> str:
    """Return the dtype of an operand: a key of :data:`INPUTS`."""
    if lowering.form.input_bytes == 1:
        a, b = lowering.form.input.split(".")
        return EIGHT_BIT_DTYPES[a if operand is lowering.a else b]
    widened = _WIDENED.get(operand.source_format)
    return widened or ("float32" if operand.size == 4 else lowering.form.input)


def _stageable(x: OperandAccess, k: int) -> bool:
    """Return whether all vectors of ``k`` elements are contiguous and consist of aligned units of 16 bytes."""
    units = (x.alignment, k * x.size, x.strides[0] * x.size, x.strides[2] * x.size)
    return x.strides[1] == 1 and math.gcd(MAX_LOAD_BYTES, *units) == MAX_LOAD_BYTES
