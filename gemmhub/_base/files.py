"""Reading whole files and replacing them atomically, safe against links, pipes and devices in their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def read(path: str | os.PathLike[str], limit: int = -1) -> bytes:
    """The content of a regular file, or its first ``limit`` bytes; nothing for the null device.

    Raises OSError for anything else: reading a named pipe, for example, would block.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags)
    try:
        if not _regular(os.fstat(handle)) and os.path.realpath(path) != os.devnull:
            raise OSError("it is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(limit)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path, draft: Path | None = None) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of the file ``path`` when the block ends, in one step.

    A link is followed: what it points to is replaced. The new file has the old one's permissions, or those of any new
    file, and is on the disk when this returns. After an exception nothing has changed. It is written beside the target,
    as ``draft`` where the caller owns that name; an existing draft is removed, and never followed. A device or a pipe
    cannot be replaced and is written to directly.
    """
    path = Path(os.path.realpath(path))
    mode = None
    with suppress(FileNotFoundError):
        status = path.stat()
        if not _regular(status):
            with path.open("wb") as stream:
                yield stream
            return
        mode = stat.S_IMODE(status.st_mode)
    if draft is None:
        draft = path.with_name(f".{path.name[:200]}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    else:
        draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(draft, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            if mode is not None:
                os.chmod(draft, mode)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(path.parent)


def _regular(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode)


def _sync_folder(path: Path) -> None:
    """Write the folder's new entry to the disk, where the system can."""
    if os.name == "posix":
        with suppress(OSError):  # some file systems cannot sync folders
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
