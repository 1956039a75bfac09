"""A few vectors times a matrix, by gemv_kernel.cu: what it is compiled with, and what it can run.

It reads the matrix once, where it lies. Neither TMA nor tensor cores would be of use: all that counts is memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gemmhub_hopper.lower import Lowered

THREADS = 256
INPUTS = {"bfloat16": 0, "float16": 1, "float32": 2}
"""Of elements. tf32 products are computed in float32."""
_ROWS = 4
"""``kNumRows`` of the kernel."""
VECTORS = (1, 2, 4, 8)
WIDEST = 16
"""Bytes of a load."""
_LINE = 128
"""Bytes of a row that neighbouring lanes read together; more for many columns, fewer where few have a long k."""
_CLUSTERS = (1, 2, 4, 8)
_LONGEST = 2**30


@dataclass(frozen=True)
class GemvKernel:
    """One compilation of the kernel."""

    input: str
    vectors: int
    """Rows of results: 1, 2, 4 or 8."""
    n_major: bool
    """Neighbours along n (not k) are neighbours in memory."""
    load: int
    """Bytes of a load."""
    spread: int
    """Threads of a block that share the k of a result."""
    cluster: int
    """Blocks that do."""
    x_strided: bool = False
    """Neighbours along k are no neighbours in the vectors."""
    ahead: bool = False
    """Loads go to shared memory, so that some are under way at all times."""

    @property
    def name(self) -> str:
        """Such as "gemv64": 64 threads, of one or more blocks, share the k of a result. Where a block reads wider rows
        than usual and does not have k for itself, "gemv8x4": 8 threads of each of 4 blocks. With "a" at the end loads
        are asked for ahead.
        """
        shared = self.n_major and self.cluster > 1 and self.spread < _usual(self.load)
        sharers = f"{self.spread}x{self.cluster}" if shared else str(self.sharers)
        return f"gemv{sharers}{'a' if self.ahead else ''}"

    @property
    def sharers(self) -> int:
        """Threads, of one or more blocks, that share the k of a result."""
        return self.spread * self.cluster

    @property
    def width(self) -> int:
        """Elements of a load."""
        return self.load // (4 if self.input == "float32" else 2)

    @property
    def loads(self) -> int:
        """That a thread has under way."""
        return 8 if self.vectors < 8 else 4

    @property
    def at_once(self) -> int:
        """Elements along k that a thread waits for at a time."""
        return self.loads if self.n_major else self.loads // _ROWS * self.width

    @property
    def columns(self) -> int:
        """Of results, of a block."""
        return THREADS // self.spread * (self.width if self.n_major else _ROWS)

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has room for, as far as registers go; those of loads are many."""
        return 4 if self.ahead else 2

    @property
    def shared_bytes(self) -> int:
        parts = THREADS // 32 if self.n_major else max(1, self.spread // 32)
        sums = 4 * (parts + (self.cluster if self.cluster > 1 else 0)) * self.vectors * self.columns
        return sums + (self.loads * THREADS * self.load if self.ahead else 0)

    @property
    def macros(self) -> dict[str, int]:
        return {
            "GEMV_INPUT": INPUTS[self.input], "GEMV_NUM_VECTORS": self.vectors, "GEMV_N_MAJOR": int(self.n_major),
            "GEMV_LOAD_BYTES": self.load, "GEMV_STRIDED_X": int(self.x_strided), "GEMV_SPLIT_THREADS": self.spread,
            "GEMV_CLUSTER_SIZE": self.cluster, "GEMV_CP_ASYNC": int(self.ahead), "GEMV_MIN_CTAS_PER_SM": self.resident,
            "GEMV_SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class GemvChoice:
    """One way of running a product of a few vectors."""

    way: Lowered
    kernel: GemvKernel

    @property
    def name(self) -> str:
        return self.kernel.name

    @cached_property
    def strips(self) -> int:
        """Blocks, or clusters, for each matrix."""
        return -(-self.way.n // self.kernel.columns)

    @property
    def grid(self) -> int:
        return self.strips * self.kernel.cluster * self.way.batch

    @property
    def steps(self) -> int:
        """Times that a thread waits for memory."""
        kernel = self.kernel
        return -(-self.way.k // (kernel.sharers * kernel.at_once))

    @cached_property
    def moved(self) -> int:
        """Bytes of memory."""
        way = self.way
        operands = (way.a.elements + way.b.elements) * way.b.size
        return operands + way.m * way.n * way.batch * way.form.output_bytes * (2 if way.form.addend else 1)

    @property
    def run(self) -> int:
        """Bytes of a row that a block reads at a time."""
        kernel = self.kernel
        return (kernel.columns if kernel.n_major else kernel.spread * kernel.width) * self.way.b.size

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next."""
        w = self.way.b
        return w.strides[1 if self.kernel.n_major else 0] * w.size

    @property
    def copied(self) -> tuple[()]:
        """No operand is."""
        return ()


def kernels(kind: str, vectors: int, n_major: bool, load: int) -> list[GemvKernel]:
    """All ways to share k among threads, and to load. Several vectors, mostly left to tensor cores, have fewer."""
    if n_major:
        usual, most, wide = _usual(load), _CLUSTERS[-1], _CLUSTERS if vectors == 1 else (1,)
        spreads = [(x, cluster) for x in (usual // 4, usual // 2) if THREADS // x <= 32 for cluster in wide]
        spreads += [(usual, cluster) for cluster in _CLUSTERS] + [(2 * usual, most), (4 * usual, most)]
    else:
        spreads = [(2**i, 1) for i in range(3, 8)] + [(THREADS, cluster) for cluster in _CLUSTERS]
    found = [GemvKernel(kind, vectors, n_major, load, *spread) for spread in spreads]
    if n_major and vectors == 1 and load == WIDEST:
        found += [replace(kernel, ahead=True) for kernel in found]
    return found


def _usual(load: int) -> int:
    """Threads of a block that share k where others read a line of a row together."""
    return THREADS // min(32, _LINE // load)


def choices(ways: Sequence[Lowered]) -> list[GemvChoice]:
    """Those for a problem; none where it has many rows and columns, or the kernel cannot read it where it lies."""
    way = next((x for x in ways if x.m <= VECTORS[-1] and not x.form.a_registers), None)
    if way is None or max(way.n, way.k) >= _LONGEST:
        return []
    w, x, size = way.b, way.a, way.b.size
    k_major = way.k == 1 or w.strides[1] == 1
    if not (k_major or way.n == 1 or w.strides[0] == 1):
        return []
    x_strided = k_major and way.k > 1 and x.strides[1] != 1
    inner, outer, ld = (way.k, way.n, w.strides[0]) if k_major else (way.n, way.k, w.strides[1])
    units = [w.alignment, inner * size, w.strides[2] * size, ld * size if outer > 1 else 0]
    if k_major and not x_strided:
        units += [x.alignment, x.strides[2] * size, x.strides[0] * size if way.m > 1 else 0]
    vectors = 1 << (way.m - 1).bit_length()
    # Elements of strided vectors have a register each.
    crowded = x_strided and vectors > 2 and size == 2
    load = math.gcd(WIDEST // 2 if crowded else WIDEST, *units)
    if load < size:
        return []
    kind = "float32" if size == 4 else way.form.input
    found = [GemvChoice(way, replace(x, x_strided=x_strided)) for x in kernels(kind, vectors, not k_major, load)]
    return [choice for choice in found if choice.grid < 2**31]
