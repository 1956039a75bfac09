"""Archives of cubins: the kernels that a wheel carries compiled, one file for each architecture.

A cubin is found by its source's digest (:attr:`gemmhub_nvidia.nvrtc.Source.digest`): one of other sources or options is
never found, whichever compiler made the archive. Cubins that are added one after another share a block, which is
compressed as a whole, since variants of a kernel differ little. The bytes of an archive follow from its cubins alone.

    MAGIC | SHA-256 of the index | length of the index | index | blocks

The index is JSON, compressed too. It has the SHA-256 of each block: what is damaged or truncated is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger("gemmhub")

SUFFIX = ".cubins"
"""Suffix of the name of an archive, which is that of its architecture."""
MAGIC = b"gemmhub cubins 1\n"
_DIGEST = 32
_LENGTH = 8
_HEAD = len(MAGIC) + _DIGEST + _LENGTH
_BLOCK = 2**20
"""Bytes from which a block is full. Reading one cubin decompresses its block, in about 10 ms."""
_FILTERS: list[Mapping[str, Any]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 3, "pb": 4}
]
"""Instructions of these cards have 16 bytes: positions matter more than the byte before."""


class ArchiveError(ValueError):
    """An archive is damaged, truncated or of another format."""


@dataclass(frozen=True)
class Entry:
    """A cubin of an archive."""

    name: str
    """The name of its source."""
    digest: str
    """The digest of its source."""
    cubin: bytes


def packed(entries: Iterable[Entry], compiler: str) -> bytes:
    """Return an archive of ``entries``, in this order. ``compiler``: the version that compiled them, such as "12.4"."""
    blocks: list[bytes] = []
    places: dict[str, tuple[str, int, int, int]] = {}
    block = b""
    for entry in entries:
        if len(block) >= _BLOCK:
            blocks.append(block)
            block = b""
        places[entry.digest] = entry.name, len(blocks), len(block), len(entry.cubin)
        block += entry.cubin
    compressed = [_compressed(x) for x in [*blocks, block]]
    sums = [(len(x), hashlib.sha256(x).hexdigest()) for x in compressed]
    index = _compressed(json.dumps({"compiler": compiler, "blocks": sums, "cubins": places}).encode())
    head = MAGIC + hashlib.sha256(index).digest() + len(index).to_bytes(_LENGTH, "little")
    return b"".join([head, index, *compressed])


def _compressed(data: bytes) -> bytes:
    return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_NONE, filters=_FILTERS)


class Archive:
    """An archive on disk. Its index is read once, a block whenever one of its cubins is."""

    def __init__(self, path: Path) -> None:
        """Read the index. Raises ArchiveError, and OSError where the file cannot be read."""
        self.path = path
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
            if len(head) < _HEAD or not head.startswith(MAGIC):
                raise ArchiveError(f"{path} is no archive of cubins of this version")
            digest, length = head[len(MAGIC) : -_LENGTH], int.from_bytes(head[-_LENGTH:], "little")
            size = path.stat().st_size
            index = stream.read(min(length, size))
        if hashlib.sha256(index).digest() != digest:
            raise ArchiveError(f"{path} is damaged: its index does not match its digest")
        content = json.loads(lzma.decompress(index))
        self.compiler: str = content["compiler"]
        """The version of the compiler, such as "12.4"."""
        self._places: dict[str, tuple[str, int, int, int]] = content["cubins"]
        self._blocks: list[tuple[int, int, str]] = []
        at = _HEAD + length
        for nbytes, checksum in content["blocks"]:
            self._blocks.append((at, nbytes, checksum))
            at += nbytes
        if at != size:
            raise ArchiveError(f"{path} has {size} bytes, of {at}")
        self.names = frozenset(name for name, *_ in self._places.values())
        """The names of the sources."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, digest: object) -> bool:
        return digest in self._places

    def read(self, digest: str) -> bytes | None:
        """Return the cubin of a source; None where the archive has none, or its block is damaged."""
        place = self._places.get(digest)
        if place is None:
            return None
        _, number, start, nbytes = place
        at, length, checksum = self._blocks[number]
        try:
            with self.path.open("rb") as stream:
                stream.seek(at)
                block = stream.read(length)
        except OSError as error:
            _log.warning("%s cannot be read: %s; its cubins are compiled", self.path, error.strerror or error)
            return None
        if hashlib.sha256(block).hexdigest() != checksum:
            _log.warning("%s is damaged: its cubins are compiled; install its distribution again", self.path)
            return None
        return lzma.decompress(block)[start : start + nbytes]
