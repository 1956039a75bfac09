"""The journal of a stored result: a file that lists the blocks that were written, with their checksums.

It may be damaged in any way. A line that is not of a block is ignored, and a checksum only decides which block to
read again. Its first line must be complete: it states the product that the checksums belong to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from gemmhub._base import files
from gemmhub._doors.dask.target import disk
from gemmhub.errors import InputError, OutputError

BlockIndex = tuple[int, ...]
_LINE, _INDEX = 64, 24
"""More bytes than a line has, without the indices of its block, and than each of these has."""


class Journal:
    """The checksums of the blocks of one product. Without a path nothing is kept."""

    def __init__(self, path: Path | None, head: Mapping[str, Any], sums: Mapping[BlockIndex, int]) -> None:
        self.path, self.head, self.sums = path, head, sums

    @classmethod
    def begin(cls, path: Path | None, result: Any, overwrite: bool) -> Journal:
        """The journal of this product, empty where there is none or with ``overwrite``.

        Raises InputError where the file is of another product, OutputError where it is no journal or no regular file.
        """
        head = {"product": result.name, "shape": list(map(int, result.shape)), "dtype": str(result.dtype)}
        head["chunks"] = [list(map(int, sizes)) for sizes in result.chunks]
        if path is None:
            return cls(path, head, {})
        counts = [len(sizes) for sizes in result.chunks]
        first, lines = _read(path, len(json.dumps(head)), counts)
        if overwrite or (json.dumps(head).encode().startswith(first) and not lines):  # no file, or a truncated one
            return cls(path, head, {})
        recorded = _parsed(first)
        if recorded == head:
            return cls(path, head, dict(filter(None, (_block(line, counts) for line in lines))))
        if isinstance(recorded, dict) and "product" in recorded:
            raise InputError(
                "journal", f"{str(path)!r}, of another product: {recorded}"[:2000], f"that of {head}"[:2000],
                "delete it, or pass overwrite=True; the name of a product changes with its operands and blocks",
            )  # fmt: skip
        raise OutputError(
            "journal", f"{str(path)!r}, whose first line is not of a journal", "the journal of this product, or none",
            "if it is a damaged journal, delete it or pass overwrite=True: all blocks are computed again",
        )  # fmt: skip

    def keep(self, blocks: Iterable[BlockIndex]) -> None:
        """Replace the journal by one of these blocks only."""
        if self.path is not None:
            with disk("journal", self.path), files.replacing(self.path, links=False) as file:
                text = json.dumps(self.head) + "\n" + _lines({x: self.sums[x] for x in blocks})
                file.write(text.encode())

    def add(self, sums: Mapping[BlockIndex, int]) -> None:
        """Append these blocks, and wait until they are on the disk."""
        if self.path is not None:
            with disk("journal", self.path), files.opened(self.path, "ab", links=False) as file:
                file.write(_lines(sums).encode())
                file.flush()
                os.fsync(file.fileno())


def _lines(sums: Mapping[BlockIndex, int]) -> str:
    return "".join(json.dumps({"block": list(index), "sum": value}) + "\n" for index, value in sums.items())


def _read(path: Path, head: int, counts: list[int]) -> tuple[bytes, list[bytes]]:
    """The first line of a file, and the others; no more of it than a journal of so many blocks can have."""
    limit = head + prod(counts) * (_LINE + _INDEX * len(counts))
    with disk("journal", path):
        try:
            content = files.read(path, limit, links=False)
        except FileNotFoundError:
            content = b""
    first, *lines = content.split(b"\n")
    return first, lines


def _parsed(line: bytes) -> Any:
    """The JSON value of a line; None where it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _block(line: bytes, counts: list[int]) -> tuple[BlockIndex, int] | None:
    """The block and the checksum of a line; None where it has none of a result with so many blocks."""
    entry = _parsed(line)
    if not isinstance(entry, dict):
        return None
    index, value = entry.get("block"), entry.get("sum")
    if not isinstance(index, list) or len(index) != len(counts) or type(value) is not int:
        return None
    if not all(type(i) is int and 0 <= i < count for i, count in zip(index, counts)):
        return None
    return tuple(index), value
