"""Writing a result into a store block by block, in rounds that fit in memory, resumable after an interruption."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from gemmhub._arrays.find import arrays_of
from gemmhub._base import units
from gemmhub._base.wording import instance
from gemmhub._doors.dask import cluster, operands
from gemmhub._doors.dask.block import located
from gemmhub._doors.dask.graph import ProductLayer
from gemmhub._doors.dask.journal import BlockIndex, Journal
from gemmhub._doors.dask.target import Target, open_target
from gemmhub.errors import InputError, OutputError

Array = Any
_SHARE = 0.4
"""Fraction of the workers' memory that operands of one round may take."""


@dataclass(frozen=True)
class Stored:
    """The result of :func:`store`: blocks written now, blocks kept from an earlier run, damaged ones repaired."""

    written: int
    kept: int
    repaired: int
    rounds: int

    def __str__(self) -> str:
        return f"blocks: {self.written} written, {self.kept} kept, {self.repaired} repaired; rounds: {self.rounds}"


def store(
    result: Array, target: Any, *, journal: str | Path | None = None, overwrite: bool = False,
    memory: int | str | None = None,
) -> Stored:  # fmt: skip
    """Compute ``result`` and write it into ``target``, block by block; skip blocks that an earlier run has written.

    The blocks are computed in rounds. Operands of one round fit in memory and are read again for the next, so that
    operands and result may be larger than the memory of all workers. A journal beside the target lists the blocks that
    were written, with their checksums. After an interruption the same call reads those blocks, compares the checksums,
    and computes only missing or damaged blocks.

    Parameters
    ----------
    result : Dask array, for example a product by :func:`gemmhub.matmul`.
    target : array of the result's shape and dtype that takes ``target[slices] = block`` (of zarr; a numpy.memmap that
        is a whole npy file), or a path: of an npy file if it ends in ".npy", else of a zarr array. A missing target is
        created. All workers must have access to it.
    journal : path of the journal; by default that of the target followed by ".gemmhub.jsonl". A target without a path
        has no default, and is written from the start each time.
    overwrite : whether to ignore the journal and write all blocks.
    memory : bytes of operands that the workers together may hold, or text such as "8GiB"; by default 0.4 of their
        limits.

    Returns
    -------
    A :class:`Stored`: the numbers of blocks written, kept and repaired.

    Raises
    ------
    OutputError : a target of another shape or dtype, or with chunks that two blocks would write; a target or a journal
        that is damaged, a link or a pipe; an array of this process, where the workers are other ones.
    InputError : not a Dask array; a journal of another product.
    OSError : a worker could not write, with its name and the cause (a full disk).

    See Also
    --------
    gemmhub.distributed.predict : times and memory of a product on many devices.
    gemmhub.matmul : a lazy product of Dask arrays.

    Examples
    --------
    >>> x = dask.array.ones((300, 200), chunks=100)
    >>> print(gemmhub.distributed.store(gemmhub.matmul(x, x.T), "product.npy"))
    blocks: 1 written, 0 kept, 0 repaired; rounds: 1
    """
    if not isinstance(result, da.Array):
        raise InputError("result", instance(type(result)), "an array of Dask", "gemmhub.matmul returns one")
    operands.facts(result, "result")
    limit = None if memory is None else units.memory(memory, "memory")
    opened, path = open_target(result, target)
    record = Journal.begin(path if journal is None else _path(journal, opened), result, overwrite)
    every = list(product(*(range(len(sizes)) for sizes in result.chunks)))
    done = record.sums
    intact = _intact(opened, result, done)
    record.keep(list(intact))
    written = rounds = 0
    for batch in _rounds(result, [x for x in every if x not in intact], limit):
        sums = _compute(result, batch, opened)
        if isinstance(opened.array, np.ndarray) and _read(opened, _slices(result, batch[0])) != sums[0]:
            raise OutputError(
                "target", "an array in the memory of this process", "what the workers, other processes, can write to",
                "pass the path of an npy file or of an array of zarr",
            )  # fmt: skip
        record.add(dict(zip(batch, sums)))
        written, rounds = written + len(batch), rounds + 1
    return Stored(written, len(intact), len(done) - len(intact), rounds)


def _path(journal: Any, target: Target) -> Path:
    """The path of a journal that the caller named."""
    if not isinstance(journal, (str, os.PathLike)):
        raise InputError("journal", instance(type(journal)), "a path, or None for the default")
    path = Path(os.path.abspath(os.fsdecode(journal)))
    if target.file is not None and str(path) == target.file.path:
        raise OutputError("journal", f"{str(path)!r}, which is the target", "another file", "leave journal out")
    return path


# The rounds


def _rounds(result: Array, missing: list[BlockIndex], memory: int | None) -> Iterator[list[BlockIndex]]:
    """Yield the missing blocks in groups that are computed together: rectangles of the result whose operands fit."""
    workers = cluster.present()
    if not missing:
        return
    heights, widths = _rectangle(result, workers, memory)
    groups: dict[BlockIndex, list[BlockIndex]] = {}
    for index in missing:
        *batch, row, col = (0, 0, *index)[-max(2, len(index)) :]
        groups.setdefault((*batch, row // heights, col // widths), []).append(index)
    yield from groups.values()


def _rectangle(result: Array, workers: cluster.Cluster, memory: int | None) -> tuple[int, int]:
    """The rows and columns of blocks of a round, chosen to read operands the fewest times."""
    if memory is None:
        memory = int(_SHARE * (workers.memory * workers.workers if workers.memory else cluster.physical_memory()))
    layers = getattr(result.dask, "layers", {})
    layer = layers.get(result.name)
    rows, cols = ([1, 1, *(len(sizes) for sizes in result.chunks)])[-2:]
    if not isinstance(layer, ProductLayer):  # not a product: a few blocks for each thread
        return 1, min(cols, 2 * workers.threads)
    a, b = layer.panels
    block = prod(max(sizes, default=0) for sizes in result.chunks) * result.dtype.itemsize * 2
    best, shape = None, (1, 1)
    for height in range(1, rows + 1):
        room = memory - height * a
        width = min(cols, room // max(1, b + height * block))
        if width < 1:
            break
        cost = ceil(cols / width) * a * rows + ceil(rows / height) * b * cols
        # Rounds with fewer blocks than threads leave threads idle.
        key = (height * width < min(workers.threads, rows * cols), cost)
        if best is None or key < best:
            best, shape = key, (height, int(width))
    return shape


def _compute(result: Array, blocks: list[BlockIndex], target: Target) -> list[int]:
    """Compute and write these blocks; return their checksums."""
    source = operands.Operand(result, ())
    name = f"gemmhub-store-{tokenize(source.name, blocks)}"
    layer = {(name, *x): (_write, target, (source.name, *x), _slices(result, x)) for x in blocks}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[result])
    return list(dask.compute(*(Delayed(key, graph, layer=name) for key in layer)))


def _slices(result: Array, index: BlockIndex) -> tuple[slice, ...]:
    starts = (sum(sizes[:i]) for sizes, i in zip(result.chunks, index))
    return tuple(slice(start, start + sizes[i]) for start, sizes, i in zip(starts, result.chunks, index))


@located
def _write(target: Target, block: Array, where: tuple[slice, ...]) -> int:
    """Write one block; return its checksum."""
    native = np.asarray(arrays_of(block, "block").to_host(block), order="C")
    array = target.open("r+")
    array[where] = native
    if target.file is not None:
        array.flush()
    return _checksum(native)


@located
def _read(target: Target, where: tuple[slice, ...]) -> int | None:
    """The checksum of a block in the store; None where it cannot be read: a chunk of zarr may be damaged."""
    array = target.open("r")
    try:
        return _checksum(np.asarray(array[where], order="C"))
    except MemoryError:
        raise
    except Exception:
        return None


def _checksum(block: Array) -> int:
    return zlib.crc32(block.reshape(-1).view(np.uint8))


def _intact(target: Target, result: Array, sums: Mapping[BlockIndex, int]) -> dict[BlockIndex, None]:
    """The recorded blocks whose content in the store is unchanged."""
    tasks = [dask.delayed(_read, pure=False)(target, _slices(result, index)) for index in sums]
    checksums = dask.compute(*tasks) if tasks else ()
    return {index: None for index, value in zip(sums, checksums) if value == sums[index]}
