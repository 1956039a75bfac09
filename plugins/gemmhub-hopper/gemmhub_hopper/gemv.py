"""Candidates for a few vectors times a matrix (GEMV), by kernels/gemv_kernel.cu: its macros, and what it can run.

The kernel reads the matrix once, without a copy. The product is bound by the memory's bandwidth, so neither TMA nor
tensor cores would help.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

from gemmhub_hopper import f16_planes
from gemmhub_hopper.lower import Lowering
from gemmhub_hopper.operands import FROM_BF16, FROM_F16, Reading

PREFIX = "gemv"
"""The beginning of the names of these candidates."""
THREADS = 256
"""Threads of a CTA."""
INPUTS = {"bfloat16": 0, "float16": 1, "float32": 2}
"""Number of each dtype of the operands. tf32 products are computed in float32."""
_NUM_ROWS = 4
"""``kNumRows`` of the kernel."""
VECTORS = (1, 2, 4, 8)
"""Numbers of vectors that kernels are compiled for."""
MAX_LOAD_BYTES = 16
"""Largest number of bytes of a load."""
_LINE = 128
"""Bytes of a row that neighbouring lanes read together; more for many columns, fewer for few columns and a long K."""
_CLUSTERS = (1, 2, 4, 8)
_STAGED = ((16, 1), (32, 1), (64, 1), (32, 2), (64, 2), (16, 8), (32, 8))
"""Threads and CTAs that share K in staged kernels: on an H100 others were hardly ever faster than these."""
_STAGED_UNITS = 1024
"""Units of 16 bytes of the vectors that a buffer holds at least, as in the kernel."""
_LONGEST = 2**30
_MOST_CTAS = 2**31
_WIDENED = {FROM_BF16: "bfloat16", FROM_F16: "float16"}
"""Dtype of a 16-bit operand that is multiplied by a float32 one, by ``Reading.source_kind``."""


@dataclass(frozen=True)
class GemvKernel:
    """One compilation of the kernel."""

    input: str
    """The dtype of the matrix: a key of :data:`INPUTS`."""
    vectors: int
    """Rows of results: 1, 2, 4 or 8."""
    n_major: bool
    """Whether the matrix is contiguous along N; else along K."""
    load_bytes: int
    """Bytes of a load."""
    split_threads: int
    """Threads of a CTA that share the K of a result."""
    cluster_size: int
    """CTAs of a cluster, which share the K of a result."""
    strided_x: bool = False
    """Whether the vectors are not contiguous along K."""
    cp_async: bool = False
    """Whether loads go to shared memory by cp.async, so that some are under way at all times; several vectors too."""
    x_input: str = ""
    """The dtype of the vectors where it is not that of the matrix; else empty."""

    @property
    def name(self) -> str:
        """The name of the candidate: in "gemv64", 64 threads of one or more CTAs share the K of a result.

        In "gemv8x4" they are 8 threads of each of 4 CTAs: so are named kernels with a cluster whose CTAs read wider
        rows than usual, or that are staged. A suffix "a" marks loads by cp.async.
        """
        wide = self.n_major and self.split_threads < _usual(self.load_bytes)
        shared = self.cluster_size > 1 and (wide or self.staged)
        threads = f"{self.split_threads}x{self.cluster_size}" if shared else str(self.threads_per_result)
        return f"{PREFIX}{threads}{'a' if self.cp_async else ''}"

    @property
    def threads_per_result(self) -> int:
        """Threads, of one or more CTAs, that share the K of a result."""
        return self.split_threads * self.cluster_size

    @property
    def load_elements(self) -> int:
        """Elements of a load."""
        return self.load_bytes // (4 if self.input == "float32" else 2)

    @property
    def unroll(self) -> int:
        """Loads that a thread has under way: ``kUnroll`` of the kernel."""
        return 8 if self.vectors < 8 or self.staged else 4

    @property
    def staged(self) -> bool:
        """Whether the vectors go through shared memory: ``kStaged`` of the kernel."""
        return self.cp_async and self.vectors > 1

    @property
    def k_per_step(self) -> int:
        """Elements along K that a thread waits for at once."""
        return self.unroll if self.n_major else self.unroll // _NUM_ROWS * self.load_elements

    @property
    def block_n(self) -> int:
        """Columns of results of a CTA: ``BLOCK_N`` of the kernel."""
        return THREADS // self.split_threads * (self.load_elements if self.n_major else _NUM_ROWS)

    @property
    def min_ctas_per_sm(self) -> int:
        """CTAs per SM that registers allow: with loads to registers fewer."""
        return 4 if self.cp_async and not self.staged else 2

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a launch."""
        warps = THREADS // 32 if self.n_major else max(1, self.split_threads // 32)
        sums = 4 * warps * self.vectors * self.block_n
        of_ctas = 4 * self.cluster_size * self.vectors * self.block_n if self.cluster_size > 1 else 0
        loaded = self.unroll * THREADS * self.load_bytes if self.cp_async else 0
        if not self.staged:
            return loaded + sums + of_ctas
        units = self.vectors * self.split_threads
        blocks = max(self.unroll // _NUM_ROWS, _STAGED_UNITS // units)
        return max(loaded + 2 * MAX_LOAD_BYTES * blocks * units, sums) + of_ctas

    @property
    def macros(self) -> dict[str, int]:
        """The macros that the kernel turns into constants."""
        return {
            "GEMV_INPUT": INPUTS[self.input], "GEMV_X_INPUT": INPUTS[self.x_input or self.input],
            "GEMV_NUM_VECTORS": self.vectors, "GEMV_N_MAJOR": int(self.n_major), "GEMV_LOAD_BYTES": self.load_bytes,
            "GEMV_STRIDED_X": int(self.strided_x), "GEMV_SPLIT_THREADS": self.split_threads,
            "GEMV_CLUSTER_SIZE": self.cluster_size, "GEMV_CP_ASYNC": int(self.cp_async),
            "GEMV_MIN_CTAS_PER_SM": self.min_ctas_per_sm, "GEMV_SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


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
        """How often a thread waits for memory."""
        kernel = self.kernel
        return -(-self.lowering.k // (kernel.threads_per_result * kernel.k_per_step))

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes that the kernel reads and writes."""
        lowering = self.lowering
        operands = lowering.a.elements * lowering.a.size + lowering.b.elements * lowering.b.size
        return operands + lowering.m * lowering.n * lowering.batch * lowering.form.output_bytes * (
            2 if lowering.form.addend else 1
        )

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


def kernels(kind: str, vectors: int, n_major: bool, load_bytes: int) -> list[GemvKernel]:
    """Return a kernel for each division of K among threads and CTAs; fewer for several vectors, as tensor cores win."""
    if n_major:
        usual, most, wide = _usual(load_bytes), _CLUSTERS[-1], _CLUSTERS if vectors == 1 else (1,)
        divisions = [(x, cluster) for x in (usual // 4, usual // 2) if THREADS // x <= 32 for cluster in wide]
        divisions += [(usual, cluster) for cluster in _CLUSTERS] + [(2 * usual, most), (4 * usual, most)]
    else:
        divisions = [(2**i, 1) for i in range(3, 8)] + [(THREADS, cluster) for cluster in _CLUSTERS]
    found = [GemvKernel(kind, vectors, n_major, load_bytes, *division) for division in divisions]
    if n_major and vectors == 1 and load_bytes == MAX_LOAD_BYTES:
        found += [replace(kernel, cp_async=True) for kernel in found]
    return found


def staged_kernels(vectors: int, n_major: bool, divisions: Iterable[tuple[int, int]]) -> list[GemvKernel]:
    """Return the kernels for several vectors of float32 that load by cp.async, one for each division of K.

    With a matrix that is contiguous along K, and up to four vectors, other kernels are faster.
    """
    if vectors == 1 or not (n_major or vectors == VECTORS[-1]):
        return []
    return [GemvKernel("float32", vectors, n_major, MAX_LOAD_BYTES, *x, cp_async=True) for x in divisions]


def _usual(load_bytes: int) -> int:
    """Return the threads of a CTA that share K where the lanes of a warp read a line of a row together."""
    return THREADS // min(32, _LINE // load_bytes)


class _Family(NamedTuple):
    """What of a product decides which kernels there are for it."""

    input: str
    vectors: int
    n_major: bool
    load_bytes: int
    strided_x: bool
    x_input: str
    staged: tuple[tuple[int, int], ...]
    """Threads and CTAs that share K in the staged kernels that there are for it."""


@lru_cache(maxsize=256)
def _kernels_of(family: _Family) -> dict[str, GemvKernel]:
    """Return the kernels by name."""
    kind, vectors, n_major, load = family[:4]
    made = [
        replace(kernel, strided_x=family.strided_x, x_input=family.x_input)
        for kernel in kernels(kind, vectors, n_major, load)
    ]
    made += staged_kernels(vectors, n_major, family.staged)
    return {kernel.name: kernel for kernel in made}


def choices(lowerings: Iterable[Lowering]) -> list[GemvChoice]:
    """Return the choices for a problem; none where it has many rows and columns, or would need a copy."""
    found = _found(lowerings)
    if found is None:
        return []
    every = [GemvChoice(found[0], kernel) for kernel in _kernels_of(found[1]).values()]
    return [choice for choice in every if choice.grid < _MOST_CTAS]


def named(lowerings: Iterable[Lowering], name: str) -> GemvChoice | None:
    """Return the one of :func:`choices` that is called ``name``; None where there is none."""
    found = _found(lowerings)
    kernel = None if found is None else _kernels_of(found[1]).get(name)
    if found is None or kernel is None:
        return None
    choice = GemvChoice(found[0], kernel)
    return choice if choice.grid < _MOST_CTAS else None


def _found(lowerings: Iterable[Lowering]) -> tuple[Lowering, _Family] | None:
    """Return the lowering that the kernels read, and their family; None where they do not take the product."""
    lowering = next((x for x in lowerings if x.m <= VECTORS[-1] and _is_taken(x)), None)
    if lowering is None or max(lowering.n, lowering.k) >= _LONGEST:
        return None
    w, x, size = lowering.b, lowering.a, lowering.b.size
    k_major = lowering.k == 1 or w.strides[1] == 1
    if not (k_major or lowering.n == 1 or w.strides[0] == 1):
        return None
    strided_x = k_major and lowering.k > 1 and x.strides[1] != 1
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
    load = math.gcd(MAX_LOAD_BYTES // 2 if crowded or wide_x else MAX_LOAD_BYTES, *units)
    if load < size:
        return None
    kind, kind_of_x = _dtype(lowering, w), _dtype(lowering, x)
    x_input = kind_of_x if kind_of_x != kind else ""
    staged = kind == "float32" and not x_input and load == MAX_LOAD_BYTES and _stageable(x, lowering.k)
    return lowering, _Family(kind, vectors, not k_major, load, strided_x, x_input, _STAGED if staged else ())


def _is_taken(lowering: Lowering) -> bool:
    """Return whether the kernel reads the operands of ``lowering`` by their strides, in place.

    Operands of two dtypes have lowerings by planes only: their readings have the same strides.
    """
    if lowering.a.source_kind in _WIDENED or lowering.b.source_kind in _WIDENED:
        return True
    return not lowering.form.registers_a and lowering.form.input != f16_planes.INPUT


def _dtype(lowering: Lowering, operand: Reading) -> str:
    """Return the dtype of an operand: a key of :data:`INPUTS`."""
    widened = _WIDENED.get(operand.source_kind)
    return widened or ("float32" if operand.size == 4 else lowering.form.input)


def _stageable(x: Reading, k: int) -> bool:
    """Return whether all vectors of ``k`` elements are contiguous and consist of aligned units of 16 bytes."""
    units = (x.alignment, k * x.size, x.strides[0] * x.size, x.strides[2] * x.size)
    return x.strides[1] == 1 and math.gcd(MAX_LOAD_BYTES, *units) == MAX_LOAD_BYTES
