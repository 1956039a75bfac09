"""Writing a result into a store block by block, in rounds that fit in memory, resumable after an interruption."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any, Literal

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from gemmhub._arrays.find import arrays_of
from gemmhub._doors.dask import cluster, operands
from gemmhub._doors.dask.block import located
from gemmhub._doors.dask.graph import ProductLayer
from gemmhub.errors import InputError, OutputError

Array = Any
Place = tuple[int, ...]
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
        return f"{self.written} blocks written in {self.rounds} rounds, {self.kept} kept, {self.repaired} repaired"


@dataclass(frozen=True)
class _Target:
    """A store that tasks open: the array itself, or the path of an npy file, which each task maps."""

    array: Any
    npy: str = ""

    def open(self, mode: Literal["r", "r+"]) -> Any:
        return np.load(self.npy, mmap_mode=mode) if self.npy else self.array


def store(
    result: Array, target: Any, *, journal: str | Path | None = None, overwrite: bool = False, memory: int | None = None
) -> Stored:
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
    memory : bytes of operands that the workers together may hold; by default 0.4 of their limits.

    Returns
    -------
    A :class:`Stored`: the numbers of blocks written, kept and repaired.

    Raises
    ------
    OutputError : a target of another shape or dtype, or with chunks that two blocks would write.
    InputError : not a Dask array; a journal of another product.
    OSError : a worker could not write, with its name and the cause (a full disk).

    Examples
    --------
    >>> x = dask.array.ones((300, 200), chunks=100)
    >>> print(gemmhub.distributed.store(gemmhub.matmul(x, x.T), "product.npy"))
    1 blocks written in 1 rounds, 0 kept, 0 repaired
    """
    if not isinstance(result, da.Array):
        raise InputError("result", f"a {type(result).__qualname__}", "an array of Dask", "gemmhub.matmul returns one")
    operands.facts(result, "result")
    opened, path = _open(result, target)
    record = _Journal.begin(Path(journal) if journal is not None else path, result, overwrite)
    every = list(product(*(range(len(sizes)) for sizes in result.chunks)))
    done = record.sums
    intact = _intact(opened, result, done)
    record.keep(list(intact))
    written = rounds = 0
    for places in _rounds(result, [x for x in every if x not in intact], memory):
        sums = _compute(result, places, opened)
        record.add(dict(zip(places, sums)))
        written, rounds = written + len(places), rounds + 1
    return Stored(written, len(intact), len(done) - len(intact), rounds)


# The target


def _open(result: Array, target: Any) -> tuple[_Target, Path | None]:
    """The target, created where missing, and the default path of its journal."""
    shape, dtype = tuple(map(int, result.shape)), result.dtype
    path: Path | None = None
    opened = _Target(target)
    if isinstance(target, (str, os.PathLike)):
        path = Path(target).absolute()
        if path.suffix == ".npy":
            if not path.exists():
                np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
            opened = _Target(None, str(path))
        else:
            opened = _Target(_zarr(path, result))
    elif isinstance(target, np.memmap) and target.filename is not None:
        path = Path(target.filename)
        whole = path.suffix == ".npy" and np.load(path, mmap_mode="r").shape == target.shape
        if not whole:
            raise OutputError("target", "a memmap of a part of a file", "a whole npy file", "pass the path of one")
        opened = _Target(None, str(path))
    elif hasattr(getattr(target, "store", None), "root"):
        path = Path(target.store.root) / getattr(target, "path", "")
    array = opened.open("r")
    if tuple(array.shape) != shape or array.dtype != dtype:
        given = f"{array.dtype} of shape {tuple(array.shape)}"
        raise OutputError("target", given, f"{dtype} of shape {shape}", "give it the shape and dtype of the result")
    _check_chunks(result, getattr(array, "shards", None) or getattr(array, "chunks", None))
    return opened, None if path is None else path.with_name(path.name + ".gemmhub.jsonl")


def _zarr(path: Path, result: Array) -> Any:
    try:
        import zarr
    except ImportError:
        raise InputError("target", f"{str(path)!r}", "the path of an npy file, or zarr", "pip install zarr") from None
    if path.exists():
        return zarr.open_array(str(path), mode="r+")
    sizes = tuple(max(chunks[0], 1) for chunks in result.chunks)
    return zarr.open_array(str(path), mode="w", shape=result.shape, dtype=result.dtype, chunks=sizes)


def _check_chunks(result: Array, chunks: Sequence[int] | None) -> None:
    """Raise OutputError where two blocks of the result would write one chunk of the target and could lose data."""
    if chunks is None:
        return
    for axis, (size, blocks) in enumerate(zip(chunks, result.chunks)):
        if any(int(end) % size for end in np.cumsum(blocks)[:-1]):
            raise OutputError(
                "target", f"chunks of {size} along axis {axis}, and blocks of {blocks}", "blocks of whole chunks",
                f"rechunk the result: result.rechunk({{{axis}: {size * max(1, max(blocks) // size)}}})",
            )  # fmt: skip


# The journal


class _Journal:
    """The list of written blocks: a line for the product, then one for each block with its checksum."""

    def __init__(self, path: Path | None, head: dict[str, Any], sums: dict[Place, int]) -> None:
        self.path, self.head, self.sums = path, head, sums

    @classmethod
    def begin(cls, path: Path | None, result: Array, overwrite: bool) -> _Journal:
        """The journal of this product; InputError where an existing one is of another product."""
        head = {"product": result.name, "shape": list(map(int, result.shape)), "dtype": str(result.dtype)}
        head["chunks"] = [list(map(int, sizes)) for sizes in result.chunks]
        if path is None or overwrite or not path.exists():
            return cls(path, head, {})
        lines = _whole_lines(path)
        if lines and lines[0] != head:
            raise InputError(
                "journal", f"{str(path)!r}, of another product: {lines[0]}", f"that of {head}",
                "delete it, or pass overwrite=True; the name of a product changes with its operands and blocks",
            )  # fmt: skip
        return cls(path, head, {tuple(line["block"]): line["sum"] for line in lines[1:]})

    def keep(self, places: Sequence[Place]) -> None:
        """Rewrite the journal with these blocks only."""
        if self.path is not None:
            rest = self.path.with_name(self.path.name + ".new")
            rest.write_text(json.dumps(self.head) + "\n" + self._lines({x: self.sums[x] for x in places}))
            os.replace(rest, self.path)

    def add(self, sums: dict[Place, int]) -> None:
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(self._lines(sums))
                file.flush()
                os.fsync(file.fileno())

    @staticmethod
    def _lines(sums: dict[Place, int]) -> str:
        return "".join(json.dumps({"block": list(place), "sum": value}) + "\n" for place, value in sums.items())


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a journal, without a last one that an interruption truncated."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


# The rounds


def _rounds(result: Array, places: list[Place], memory: int | None) -> Iterator[list[Place]]:
    """Yield the missing blocks in groups that are computed together: rectangles of the result whose operands fit."""
    workers = cluster.present()
    if not places:
        return
    heights, widths = _rectangle(result, workers, memory)
    groups: dict[Place, list[Place]] = {}
    for place in places:
        *batch, row, col = (0, 0, *place)[-max(2, len(place)) :]
        groups.setdefault((*batch, row // heights, col // widths), []).append(place)
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


def _compute(result: Array, places: list[Place], target: _Target) -> list[int]:
    """Compute and write these blocks; return their checksums."""
    source = operands.Operand(result, ())
    name = f"gemmhub-store-{tokenize(source.name, places)}"
    layer = {(name, *x): (_write, target, (source.name, *x), _slices(result, x)) for x in places}
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[result])
    return list(dask.compute(*(Delayed(key, graph, layer=name) for key in layer)))


def _slices(result: Array, place: Place) -> tuple[slice, ...]:
    starts = (sum(sizes[:i]) for sizes, i in zip(result.chunks, place))
    return tuple(slice(start, start + sizes[i]) for start, sizes, i in zip(starts, result.chunks, place))


@located
def _write(target: _Target, block: Array, where: tuple[slice, ...]) -> int:
    """Write one block; return its checksum."""
    native = np.ascontiguousarray(arrays_of(block, "block").to_host(block))
    array = target.open("r+")
    array[where] = native
    if target.npy:
        array.flush()
    return _checksum(native)


@located
def _read(target: _Target, where: tuple[slice, ...]) -> int:
    """The checksum of a block in the store."""
    return _checksum(np.ascontiguousarray(target.open("r")[where]))


def _checksum(block: Array) -> int:
    return zlib.crc32(block.reshape(-1).view(np.uint8))


def _intact(target: _Target, result: Array, sums: dict[Place, int]) -> dict[Place, None]:
    """The recorded blocks whose content in the store is unchanged."""
    tasks = [dask.delayed(_read, pure=False)(target, _slices(result, place)) for place in sums]
    found = dask.compute(*tasks) if tasks else ()
    return {place: None for place, value in zip(sums, found) if value == sums[place]}
