"""The cache of built files: one private folder per user, written atomically, verified before use.

Built files are loaded into the process. So a folder is used only where no user but its owner (and root) can change its
files: neither the folder nor any folder above it may be owned by, or be writable by, another user. That is checked on
the resolved path, and a path that passes cannot be swapped by others between the check and the load, because each of
its components is in a folder that they cannot write to. Where there is no such folder, a temporary one replaces it
until the process ends, and the reason is reported.

A file's name ends in a digest of its content: ``kernel-KEY.DIGEST.so``. Name and content appear atomically, with any
number of writers, and a file that was truncated or damaged later does not match its name: it is ignored and rebuilt.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gemmhub.kit import locks

VARIABLE = "GEMMHUB_CACHE_DIR"
"""Environment variable with a folder to use instead of the user's cache directory."""

_log = logging.getLogger("gemmhub")

_DIGITS = 32
"""Number of hexadecimal digits of the content's SHA-256 in the file's name."""
_DIGEST = re.compile(rf"(.*)\.([0-9a-f]{{{_DIGITS}}})(\.[^.]*)$", re.DOTALL)
"""The name of a stored file: that without the digest of its content, the digest, and the suffix."""
_DAY = 86400.0
MAX_VERIFIED = 4096
"""Maximum number of files in :data:`verified`."""

temporary_folders: dict[int, Path] = {}
"""The temporary folder of this process, by process id: a forked child creates its own."""
verified: dict[Path, tuple[int, ...]] = {}
"""Files whose content this process has compared with its digest, with their ``fstat`` at that time."""
swept: set[Path] = set()
"""Folders whose leftovers this process has removed."""
_lock = locks.lock()


@dataclass(frozen=True)
class Folder:
    """A writable folder ``path``; ``note`` is the reason where it is a temporary one."""

    path: Path
    note: str = ""


def wanted() -> Path:
    """The configured folder of the cache; it need not exist."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).absolute() / "native"
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("gemmhub", appauthor=False)) / "native"


def folder() -> Folder:
    """The folder to write to, as a resolved path. OSError without even a usable temporary folder."""
    path = wanted()
    try:
        _make(path)
        path = _resolved(path)
        doubt = distrust(path)
    except OSError as error:
        return Folder(_fallback(), f"{path} cannot be made: {error.strerror or error}")
    if not doubt and not os.access(path, os.W_OK | os.X_OK):
        doubt = f"{path} cannot be written to"
    if doubt:
        return Folder(_fallback(), doubt)
    if path not in swept:
        swept.add(path)
        sweep(path)
    return Folder(path)


def find(file_name: str) -> Path | None:
    """The verified cached file stored as ``file_name``; None where there is no usable one.

    It is searched in the user's cache (which may be read-only) and in the temporary one.
    """
    for directory in _usable_folders():
        for path in _versions(directory, file_name):
            reason = doubt(path)
            if not reason:
                return path
            _log.warning("%s; it is ignored", reason)
    return None


def stored() -> frozenset[str]:
    """The names under which files are stored in the usable folders; the files need not be intact."""
    names: set[str] = set()
    for directory in _usable_folders():
        with suppress(OSError):
            names.update(match[1] + match[3] for match in map(_DIGEST.match, os.listdir(directory)) if match)
    return frozenset(names)


def shipped(directory: Path, file_name: str) -> Path | None:
    """The intact file of a distribution that is stored as ``file_name`` in its folder ``directory``; None without one.

    Its owner may be any user: the Python code beside it has the same. Its content is read at each call.
    """
    for path in _versions(directory, file_name):
        try:
            with path.open("rb") as stream:
                if content_digest(stream.fileno()) == _digest_of(path):
                    return path
            _log.warning("%s; it is ignored: install its distribution again", _damaged(path))
        except OSError as error:
            _log.warning("%s cannot be read: %s; it is ignored", path, error.strerror or error)
    return None


def read(file_name: str) -> bytes | None:
    """The content of the cached file stored as ``file_name``: the same bytes that were verified."""
    for directory in _usable_folders():
        for path in _versions(directory, file_name):
            try:
                with _opened(path) as handle, os.fdopen(os.dup(handle), "rb") as stream:
                    content = stream.read()
            except OSError as error:
                _log.warning("%s; it is ignored", error.strerror or error)
                continue
            if _digest_of(path) == hashlib.sha256(content).hexdigest()[:_DIGITS]:
                return content
            _log.warning("%s; it is ignored", _damaged(path))
    return None


def store(file_name: str, content: bytes) -> Path:
    """Write a file into the cache atomically, replacing others stored as ``file_name``; return its path.

    Raises OSError where neither folder can be written to.
    """
    directory = folder().path
    path = directory / named(file_name, hashlib.sha256(content).hexdigest())
    if doubt(path):
        handle, draft = tempfile.mkstemp(dir=directory, prefix=".draft-")  # readable and writable by the user only
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    for other in _versions(directory, file_name):
        if other != path:
            with suppress(OSError):
                other.unlink()
    return path


def adopt(file_name: str, built: Path, directory: Path) -> Path:
    """Move the file ``built`` from a folder in ``directory`` to its name there atomically; return its path."""
    os.chmod(built, stat.S_IMODE(built.stat().st_mode) & 0o700)  # for any umask
    with built.open("rb") as stream:
        path = directory / named(file_name, content_digest(stream.fileno()))
    os.replace(built, path)
    for other in _versions(directory, file_name):
        if other != path and doubt(other):  # damaged: otherwise every process reads it and rejects it
            with suppress(OSError):
                other.unlink()
    return path


def named(file_name: str, digest: str) -> str:
    """The name, with its digest, of a file stored as ``file_name``."""
    stem, suffix = os.path.splitext(file_name)
    return f"{stem}.{digest[:_DIGITS]}{suffix}"


def holds(path: Path) -> bool:
    """Whether ``path`` is in the cache; the file need not be verified."""
    return path.parent in _folders() and bool(_digest_of(path))


def doubt(path: Path) -> str:
    """The reason why this file of the cache must not be used; empty where it may.

    Its content is read once a process, and again after the file has changed.
    """
    try:
        with _opened(path) as handle:
            status = os.fstat(handle)
            facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if verified.get(path) == facts:
                return ""
            if content_digest(handle) != _digest_of(path):
                return _damaged(path)
    except OSError as error:
        return str(error.strerror or error)
    if len(verified) >= MAX_VERIFIED:
        verified.clear()
    verified[path] = facts
    return ""


def distrust(path: Path) -> str:
    """The reason why files of this folder, a resolved path, must not be loaded; empty where they may."""
    if os.name != "posix":
        return ""
    for step in (path, *path.parents):
        status = step.lstat()
        if status.st_uid not in (os.geteuid(), 0):
            return f"{step} belongs to another user"
        writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not writable:
            continue
        if step == path:
            return f"others may write to {path} (chmod 700 it, and empty it)"
        # In a sticky folder only the owner of a file can rename or remove it.
        own_group = writable == stat.S_IWGRP and private_group(status.st_gid, status.st_uid)
        if not status.st_mode & stat.S_ISVTX and not own_group:
            return f"others may write to {step}, a parent of {path} (chmod go-w it)"
    return ""


def sweep(directory: Path) -> None:
    """Remove leftovers of killed builds: drafts older than a day, locks older than a week."""
    now = time.time()
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            draft = entry.name.startswith((".build-", ".draft-"))
            if not draft and not entry.name.endswith(".lock"):
                continue
            with suppress(OSError):
                if now - entry.stat(follow_symlinks=False).st_mtime < (_DAY if draft else 7 * _DAY):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def private_group(group: int, user: int) -> bool:
    """Whether the group has this user as its only member, so that group permissions admit no other user."""
    try:
        import grp
        import pwd

        them, us = grp.getgrgid(group), pwd.getpwuid(user)
    except (ImportError, KeyError):
        return False
    return us.pw_gid == group and them.gr_name == us.pw_name and set(them.gr_mem) <= {us.pw_name}


def _make(path: Path) -> None:
    """Create the folder and its missing parents, for the user only, under any umask."""
    if not path.exists():
        _make(path.parent)
        with suppress(FileExistsError):  # another process was faster
            path.mkdir(mode=0o700)


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _folders() -> list[Path]:
    """The user's folder and this process's temporary one, resolved, usable or not."""
    own = temporary_folders.get(os.getpid())
    return [_resolved(wanted()), *([own] if own else [])]


def _usable_folders() -> list[Path]:
    """The usable folders."""
    trusted = []
    for directory in _folders():
        with suppress(OSError):
            if not distrust(directory):
                trusted.append(directory)
    return trusted


def _versions(directory: Path, file_name: str) -> list[Path]:
    """All files stored as ``file_name``: usually one, or none."""
    stem, suffix = os.path.splitext(file_name)
    pattern = re.compile(f"{re.escape(stem)}\\.[0-9a-f]{{{_DIGITS}}}{re.escape(suffix)}")
    try:  # a folder may hold thousands of files
        names = [name for name in os.listdir(directory) if name.startswith(stem) and pattern.fullmatch(name)]
        return sorted(directory / name for name in names)
    except OSError:
        return []


def _digest_of(path: Path) -> str:
    """The digest in a file's name; empty where there is none."""
    match = _DIGEST.match(path.name)
    return match[2] if match else ""


def content_digest(handle: int) -> str:
    """The digest of the content of an open file."""
    digest = hashlib.sha256()
    with os.fdopen(os.dup(handle), "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()[:_DIGITS]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the file. OSError for a link, any other non-regular file, and one that another user owns or can write to."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if os.name == "posix":
            if status.st_uid not in (os.geteuid(), 0):
                raise OSError(f"{path} belongs to another user")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise OSError(f"others may write to {path}")
        yield handle
    finally:
        os.close(handle)


def _damaged(path: Path) -> str:
    return f"{path} is damaged: its content does not match the digest in its name"


def _fallback() -> Path:
    with _lock:
        process = os.getpid()
        if process not in temporary_folders or not temporary_folders[process].is_dir():
            path = _resolved(Path(tempfile.mkdtemp(prefix="gemmhub-native-")))
            reason = distrust(path)
            if reason:
                os.rmdir(path)
                raise OSError(reason)
            temporary_folders[process] = path
            atexit.register(_remove, process, path)
        return temporary_folders[process]


def _remove(process: int, path: Path) -> None:
    if os.getpid() == process:  # a forked child keeps its parent's folder
        shutil.rmtree(path, ignore_errors=True)
