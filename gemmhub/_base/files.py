"""Opening files and replacing them atomically, safe against links, pipes and devices of the same path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from pathlib import Path  # its import takes 2 ms, and settings are read without it

_FLAGS = {"rb": os.O_RDONLY, "r+b": os.O_RDWR, "ab": os.O_WRONLY | os.O_APPEND}
_ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def opened(path: str | os.PathLike[str], mode: str = "rb", *, links: bool = True) -> BinaryIO:
    """An existing regular file, opened in ``mode`` ("rb", "r+b" or "ab") without waiting, and never created.

    Raises OSError for anything else: opening a named pipe, for example, would block. ``links`` is whether ``path`` may
    be a symbolic link.
    """
    if not links:
        _refuse_link(path)
    handle = os.open(path, _FLAGS[mode] | _ALWAYS | (0 if links else _NOFOLLOW))
    try:
        if not _regular(os.fstat(handle)) and not (mode == "rb" and os.path.realpath(path) == os.devnull):
            raise OSError("it is not a regular file")
        return cast("BinaryIO", os.fdopen(handle, mode))
    except BaseException:
        os.close(handle)
        raise


def read(path: str | os.PathLike[str], limit: int = -1, *, links: bool = True) -> bytes:
    """The content of a file, or its first ``limit`` bytes, as :func:`opened` opens it; nothing for the null device."""
    with opened(path, links=links) as stream:
        return stream.read(limit)


@contextmanager
def replacing(path: Path, draft: Path | None = None, *, links: bool = True) -> Iterator[BinaryIO]:
    """A stream whose content replaces the file ``path`` when the block ends, in one step.

    A link is followed: what it points to is replaced. The new file has the old one's permissions, or those of any new
    file, and is on the disk when this returns. After an exception nothing has changed. It is written beside the target,
    as ``draft`` where the caller owns that name; an existing draft is removed, and never followed. A device or a pipe
    cannot be replaced and is written to directly. Without ``links``, a link, a device or a pipe is an OSError.
    """
    from pathlib import Path

    if links:
        path = Path(os.path.realpath(path))
    else:
        _refuse_link(path)
    mode = None
    with suppress(FileNotFoundError):
        status = path.stat(follow_symlinks=links)
        if not _regular(status):
            if not links:
                raise OSError("it is not a regular file")
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


def _refuse_link(path: str | os.PathLike[str]) -> None:
    """Raise OSError where ``path`` is a symbolic link: writing would change what it points to."""
    if os.path.islink(path):
        raise OSError(f"it is a symbolic link to {os.readlink(path)}")


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
