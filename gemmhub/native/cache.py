"""Where built files are kept: one private folder per user, written in single steps.

Built files are loaded into the process, so a folder that others may write to is not used. Where there is no usable
one, a temporary folder takes its place until the process ends, and says why.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gemmhub import locks

VARIABLE = "GEMMHUB_CACHE_DIR"
"""Names the folder to use instead of the user's cache directory."""

_temporary: dict[int, Path] = {}
"""The temporary folder of this process, by process id: a forked child makes its own."""
_lock = locks.lock()


@dataclass(frozen=True)
class Folder:
    """``path`` exists and can be written to. ``note`` says why it is a temporary one, if it is."""

    path: Path
    note: str = ""


def wanted() -> Path:
    """The folder that the cache should be in; it need not exist."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).absolute() / "native"
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("gemmhub", appauthor=False)) / "native"


def folder() -> Folder:
    """The folder to write to. OSError only where there is not even room for a temporary folder."""
    path = wanted()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return Folder(_fallback(), f"{path} cannot be made: {error.strerror or error}")
    doubt = distrust(path)
    if not doubt and not os.access(path, os.W_OK | os.X_OK):
        doubt = f"{path} cannot be written to"
    return Folder(_fallback(), doubt) if doubt else Folder(path)


def find(file_name: str) -> Path | None:
    """The cached file of that name, in the user's cache (which may be read-only) or in the temporary one."""
    places = [wanted()]
    if os.getpid() in _temporary:
        places.append(_temporary[os.getpid()])
    for place in places:
        path = place / file_name
        try:
            if path.stat().st_size and not distrust(place):
                return path
        except OSError:
            continue
    return None


def store(file_name: str, content: bytes) -> Path:
    """Write a file into the cache in one step; its path. OSError where nothing can be written anywhere."""
    place = folder().path
    handle, draft = tempfile.mkstemp(dir=place, prefix=".draft-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(draft, place / file_name)
    except BaseException:
        os.unlink(draft)
        raise
    return place / file_name


def distrust(path: Path) -> str:
    """Why files of this folder must not be loaded; empty when they may: nobody else (but root) can write to it."""
    if os.name != "posix":
        return ""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to {path} (chmod 700 it, and empty it)"
    return ""


def _fallback() -> Path:
    with _lock:
        process = os.getpid()
        if process not in _temporary or not _temporary[process].is_dir():
            path = Path(tempfile.mkdtemp(prefix="gemmhub-native-"))
            _temporary[process] = path
            atexit.register(_remove, process, path)
        return _temporary[process]


def _remove(process: int, path: Path) -> None:
    if os.getpid() == process:  # a forked child leaves its parent's alone
        shutil.rmtree(path, ignore_errors=True)
