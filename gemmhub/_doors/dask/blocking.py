"""The choice of blocks for a product: those of its operands, or rechunked ones where the estimate is smaller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import dask
import numpy as np
from dask.utils import format_bytes, parse_bytes

from gemmhub import api
from gemmhub._doors.dask import cluster
from gemmhub._doors.dask.operands import Array, Chunks, Dimension, Product
from gemmhub.dtypes import DType
from gemmhub.verdict import Decision

_SHARE = 0.5
"""Fraction of a worker's memory that blocks of running tasks may take."""
_RATE = 1e11
"""Operations a second of one thread for the comparison of blockings, about those of a CPU core in float32. A backend's
estimates differ between processes: the blocks, and with them the name of the result, would differ too."""


@dataclass(frozen=True)
class Blocking:
    """One blocking of a product, with its estimated costs."""

    chunks: Mapping[Dimension, Chunks]
    chains: int
    """Independent sums over k of each block of the result; they are added at the end."""
    tasks: int
    rechunked: tuple[str, ...]
    """Operands that are rechunked, with the change of chunks and the bytes copied."""
    rechunk_bytes: int
    moved: int
    """Upper limit of the bytes that move between workers, where each block of the operands is on one worker."""
    working_set: int
    """Bytes of the blocks in the running tasks of one worker."""
    resident: int
    """Bytes of operands and result a worker, where all are in memory."""
    seconds: float
    backend: str = ""
    """Backend that this process would choose for a block. Each worker chooses for itself."""

    @property
    def steps(self) -> int:
        """The number of blocks of k."""
        return len(self.chunks["k"])


def choose(call: Product, workers: cluster.Cluster) -> Blocking:
    """The blocking with the minimum estimated time that fits in the memory of a worker (of all, where none fits)."""
    blockings = [_priced(call, dict(zip(call.sizes, cut)), workers) for cut in product(*_cuts(call))]
    limit = workers.memory
    fitting = [blocking for blocking in blockings if limit is None or blocking.working_set <= _SHARE * limit]
    if fitting:
        return min(fitting, key=lambda blocking: blocking.seconds)
    return min(blockings, key=lambda blocking: (blocking.working_set, blocking.seconds))


def _cuts(call: Product) -> Iterable[list[Chunks]]:
    """The possible chunks of each dimension."""
    for dimension, size in call.sizes.items():
        own = [x.chunks(dimension) for x in (call.a, call.b)]
        known = list(dict.fromkeys(x for x in own if x is not None)) or [(size,)]
        if call.packed and dimension in ("k", "n") and own[1] is not None:
            yield [own[1]]  # packed blocks cannot be rechunked
        elif dimension == "k" and call.whole_k:
            yield [(size,)]
        elif dimension in ("m", "n", "k"):
            yield list(dict.fromkeys([*known, *(_merged(x, _edge(call)) for x in known)]))
        else:
            yield [refined(known)]  # batch dimensions: nothing is summed over them, and cutting costs nothing


def _edge(call: Product) -> int:
    """Rows of a square block of Dask's chunk size."""
    size = parse_bytes(dask.config.get("array.chunk-size"))
    widest = max(x.array.dtype.itemsize for x in call.operands)
    return max(1, int((size / max(widest, call.accumulator.itemsize)) ** 0.5))


def _merged(chunks: Chunks, edge: int) -> Chunks:
    """Adjacent chunks merged while they are no longer than ``edge``."""
    merged: list[int] = []
    for size in chunks:
        if merged and merged[-1] + size <= edge:
            merged[-1] += size
        else:
            merged.append(size)
    return tuple(merged)


def refined(chunkings: list[Chunks]) -> Chunks:
    """The coarsest chunks with every boundary of all chunkings."""
    if len(chunkings) == 1:
        return chunkings[0]
    ends = sorted({int(end) for chunks in chunkings for end in np.cumsum(chunks)} - {0})
    return tuple(int(x) for x in np.diff([0, *ends])) or (0,)


def _priced(call: Product, chunks: dict[Dimension, Chunks], workers: cluster.Cluster) -> Blocking:
    """The blocking with these chunks, with its estimate."""
    sizes = call.sizes
    blocks = prod(len(chunks[x]) for x in call.out_axes)
    steps = len(chunks["k"])
    chains = max(1, min(steps // 2, workers.threads // max(1, blocks)))
    rechunked, copied = [], 0
    for name, x in (("a", call.a), ("b", call.b), ("c", call.c), ("bias", call.bias)):
        if x is None:
            continue
        changed = [axis for i, axis in enumerate(x.axes) if axis is not None and chunks[axis] != x.array.chunks[i]]
        if changed:
            copied += x.nbytes
            counts = ", ".join(f"{len(x.chunks(axis) or ())} to {len(chunks[axis])} along {axis}" for axis in changed)
            rechunked.append(f"{name}: {counts} ({format_bytes(x.nbytes)})")
    tasks = blocks * steps

    largest = {dimension: max(cut, default=0) for dimension, cut in chunks.items()}
    batch = prod(largest[x] for x in sizes if x not in ("m", "n", "k"))
    m, n, k = (largest[x] for x in "mnk")
    result = batch * m * n * max(call.accumulator.itemsize, call.out_dtype.itemsize)
    a_block, b_block = (prod(largest[axis] if axis else 1 for axis in x.axes) * x.array.dtype.itemsize
                        for x in (call.a, call.b))  # fmt: skip
    # A task holds its operands, the previous sum and its own; the next task's operands arrive meanwhile.
    working = workers.threads_a_worker * (2 * (a_block + b_block) + 2 * result)

    rows = prod(len(chunks[x]) for x in call.out_axes if x in call.a.axes)
    cols = prod(len(chunks[x]) for x in call.out_axes if x in call.b.axes)
    moved = 0
    if workers.workers > 1:  # a block goes to each worker that has a block of the result in its row or column
        others = [min(workers.workers, max(1, blocks * chains // max(1, count))) - 1 for count in (rows, cols)]
        moved = call.a.nbytes * max(1, others[0]) + call.b.nbytes * max(1, others[1])
        moved += (chains - 1) * prod(call.shape) * call.accumulator.itemsize
        moved += sum(x.nbytes for x in (call.c, call.bias) if x is not None)
    total = sum(x.nbytes for x in call.operands) + prod(call.shape) * call.out_dtype.itemsize
    blocking = Blocking(
        chunks, chains, tasks, tuple(rechunked), copied, moved, working, -(-total // workers.workers), 0.0
    )
    return replace(blocking, seconds=_seconds(call, blocking, workers, 2.0 * batch * m * n * k / _RATE))


def _seconds(call: Product, blocking: Blocking, workers: cluster.Cluster, block: float) -> float:
    """Seconds of all tasks, where one of the largest blocks takes ``block`` seconds."""
    largest = prod(max(cut, default=0) for cut in blocking.chunks.values())
    share = prod(call.sizes.values()) / max(1, largest)  # in full blocks: the last ones are smaller
    blocks = blocking.tasks // max(1, blocking.steps)
    parallel = max(1, min(workers.threads, blocks * blocking.chains))
    scheduled = (blocking.tasks + 2 * len(blocking.rechunked) * blocks) * cluster.OVERHEAD
    return (
        block * share / parallel
        + scheduled
        + (blocking.moved + blocking.rechunk_bytes) / (cluster.BANDWIDTH * workers.workers)
    )


def estimated(call: Product, blocking: Blocking, workers: cluster.Cluster) -> tuple[Blocking, Decision]:
    """``blocking`` with the estimate of the backend that this process would choose for a block, and that decision."""
    largest = {dimension: max(cut, default=0) for dimension, cut in blocking.chunks.items()}
    batch = [size for x, size in largest.items() if x not in ("m", "n", "k")]
    out = call.accumulator if blocking.steps > 1 else call.out_dtype
    operand_dtypes = call.a.array.dtype, call.b.array.dtype
    m, n, k = (largest[x] for x in "mnk")
    shapes = (*batch, m, k), (*batch, k, n)
    left, right = (_without_memory(shape, dtype) for shape, dtype in zip(shapes, operand_dtypes))
    origin = call.request.settings.origin  # other settings are in force here
    own = {name: x for name, x in call.request.in_force.items() if origin.get(name) == "the call"}
    decision = api.explain(left, right, out_dtype=out, **own)
    seconds = None if decision.chosen is None else decision[decision.chosen].seconds
    if seconds is None:
        return replace(blocking, backend=decision.chosen or ""), decision
    whole = _seconds(call, blocking, workers, float(seconds))
    return replace(blocking, seconds=whole, backend=decision.chosen or ""), decision


def _without_memory(shape: tuple[int, ...], dtype: DType) -> Array:
    """A row-major array with one element of memory, for a decision: it must not be read."""
    strides = [dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides, writeable=False)
