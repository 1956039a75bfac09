"""The variants of kernels/gemv_kernel.cu, for a few vectors times a matrix: their macros, and the divisions of K."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

PREFIX = "gemv"
"""The beginning of the names of these candidates."""
THREADS = 256
"""Threads of a CTA."""
INPUTS = {"bfloat16": 0, "float16": 1, "float32": 2, "float8_e4m3fn": 3, "float8_e5m2": 4, "int8": 5}
"""Number of each dtype of the operands. tf32 products are computed in float32."""
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of an element of an input; of others one."""
_NUM_ROWS = 4
"""``kNumRows`` of the kernel."""
VECTORS = (1, 2, 4, 8)
"""Numbers of vectors that kernels are compiled for."""
MAX_VECTORS = 2 * VECTORS[-1]
"""Largest number of vectors. Only staged kernels are compiled for it: loads to registers leave no room for the sums."""
MAX_LOAD_BYTES = 16
"""Largest number of bytes of a load."""
_LINE = 128
"""Bytes of a row that neighbouring lanes read together; more for many columns, fewer for few columns and a long K."""
_CLUSTERS = (1, 2, 4, 8)
_STAGED_UNITS = 1024
"""Units of 16 bytes of the vectors that a buffer holds at least, as in the kernel."""


@dataclass(frozen=True)
class GemvKernel:
    """One compilation of the kernel."""

    input: str
    """The dtype of the matrix: a key of :data:`INPUTS`."""
    vectors: int
    """Rows of results: 1, 2, 4, 8 or 16."""
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
    added: str | None = None
    """The activation of its products where it is not one of those that all kernels are compiled with; else None."""
    block_scales: bool = False
    """Whether operands have quantization scales for blocks of K."""

    @property
    def name(self) -> str:
        """The name of the candidate: in "gemv64", 64 threads of one or more CTAs share the K of a result.

        In "gemv32x8a" they are 32 threads of each of 8 CTAs: so are named staged kernels with a cluster. A suffix "a"
        marks loads by cp.async.
        """
        shared = self.cluster_size > 1 and self.staged
        threads = f"{self.split_threads}x{self.cluster_size}" if shared else str(self.threads_per_result)
        return f"{PREFIX}{threads}{'a' if self.cp_async else ''}"

    @property
    def threads_per_result(self) -> int:
        """Threads, of one or more CTAs, that share the K of a result."""
        return self.split_threads * self.cluster_size

    @property
    def load_elements(self) -> int:
        """Elements of a load."""
        return self.load_bytes // BYTES.get(self.input, 1)

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
            "GEMV_BLOCK_SCALES": int(self.block_scales),
            "GEMV_STRIDED_X": int(self.strided_x), "GEMV_SPLIT_THREADS": self.split_threads,
            "GEMV_CLUSTER_SIZE": self.cluster_size, "GEMV_CP_ASYNC": int(self.cp_async),
            "GEMV_MIN_CTAS_PER_SM": self.min_ctas_per_sm, "GEMV_SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


def kernels(input_type: str, vectors: int, n_major: bool, load_bytes: int) -> list[GemvKernel]:
    """Return a kernel for each division of K among threads and CTAs."""
    if n_major:
        usual, widest = _usual(load_bytes), _CLUSTERS[-1]
        divisions = [(x, 1) for x in (usual // 4, usual // 2) if THREADS // x <= 32]
        divisions += [(usual, cluster) for cluster in _CLUSTERS] + [(2 * usual, widest), (4 * usual, widest)]
    else:
        divisions = [(2**i, 1) for i in range(3, 8)] + [(THREADS, cluster) for cluster in _CLUSTERS]
    usual_kernels = [GemvKernel(input_type, vectors, n_major, load_bytes, *division) for division in divisions]
    if n_major and vectors == 1 and load_bytes == MAX_LOAD_BYTES:
        usual_kernels += [replace(kernel, cp_async=True) for kernel in usual_kernels]
    return usual_kernels


def staged_kernels(vectors: int, n_major: bool, divisions: Iterable[tuple[int, int]]) -> list[GemvKernel]:
    """Return the kernels for several vectors of float32 that load by cp.async, one for each division of K.

    With a matrix that is contiguous along K, and up to four vectors, other kernels are faster.
    """
    if vectors == 1 or not (n_major or vectors >= VECTORS[-1]):
        return []
    return [GemvKernel("float32", vectors, n_major, MAX_LOAD_BYTES, *x, cp_async=True) for x in divisions]


def _usual(load_bytes: int) -> int:
    """Return the threads of a CTA that share K where the lanes of a warp read a line of a row together."""
    return THREADS // min(32, _LINE // load_bytes)
