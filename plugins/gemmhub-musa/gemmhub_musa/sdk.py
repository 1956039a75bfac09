"""Finds the MUSA installation and loads its libraries.

A process can use one only. Libraries that the process has loaded already (torch_musa's) come first; after them those of
an installation that an environment variable names, then those that the loader finds by itself, then those of an
installation found elsewhere. None is ever unloaded.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gemmhub.capability import Absent, Refusal
from gemmhub.kit import locks, native

VARIABLES = ("MUSA_HOME", "MUSA_PATH", "MUSA_ROOT", "MUSA_INSTALL_PATH")
"""Environment variables that name the installation, strongest first."""
USUAL = Path("/usr/local/musa")

NAMES = {
    "musa": ("libmusa.so.1", "libmusa.so"),
    "musart": ("libmusart.so", "libmusart.so.5", "libmusart.so.4", "libmusart.so.1.5", "libmusart.so.1.0"),
    "mublas": ("libmublas.so", "libmublas.so.1"),
    "mublasLt": ("libmublasLt.so", "libmublasLt.so.1"),
    "mudnn": ("libmudnn.so", "libmudnn.so.3", "libmudnn.so.2"),
    "mudnncxx": ("libmudnncxx.so", "libmudnncxx.so.3"),
}
"""File names by library, in the order in which they are tried."""
_BEFORE = {"musa": (), "musart": ("musa",)}
"""The libraries to load first, musart unless listed: not every runtime exports the driver's functions for muBLAS."""
_MISSING = re.compile(r"^(lib[^\s:/]+): cannot open shared object file")
_MOST_MISSING = 16
_LINK_MAP = 2
"""RTLD_DI_LINKMAP of dlfcn.h."""


class Loader:
    """Opens libraries, here in this process. :class:`gemmhub_musa.child.Child` does so in a child process."""

    def open(self, name: str, mode: int) -> Any:
        """Open a library as ctypes.CDLL does; OSError where that fails."""
        return ctypes.CDLL(name, mode=mode)

    def path(self, library: Any) -> str:
        """Return the file that a library was loaded from; empty where the system does not report it."""
        link_map = ctypes.POINTER(ctypes.c_void_p * 2)()  # struct link_map begins with an address and the file's name
        try:
            dlinfo = ctypes.CDLL(None).dlinfo
        except AttributeError:
            return ""
        if dlinfo(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(link_map)) or not link_map:
            return ""
        name = link_map.contents[1]
        return os.path.realpath(os.fsdecode(ctypes.string_at(name))) if name else ""

    def load(self, path: Path) -> Any:
        """Open a library that was built into the cache; a Refusal where that fails."""
        return native.load(path)

    def host(self, address: int, nbytes: int) -> Any:
        """Return the argument that passes memory of this process to a function."""
        return address

    def write(self, address: int, data: bytes) -> None:
        """Write to host memory that a function has allocated."""
        ctypes.memmove(address, data, len(data))


HERE = Loader()
"""The loader of this process."""


class NotConfigured(Absent):
    """A backend is absent because the user never named the software that it needs; nothing is wrong."""


@dataclass(frozen=True)
class Sdk:
    """An installation. Parts may be missing: machines that only run programs have no ``mcc`` and no headers."""

    home: Path | None
    """None where there are only libraries that the loader finds."""
    found_by: str
    """How it was found: the name of a variable, "mcc on PATH", "the usual place" or "the loader"."""
    libraries: tuple[Path, ...] = ()
    """The folders ``lib`` and ``lib64``, as far as they exist."""
    include: Path | None = None
    mcc: Path | None = None
    notes: tuple[str, ...] = ()
    """Descriptions of variables that name no installation."""
    loader: Loader = HERE
    _loaded: dict[str, Library | Refusal] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.RLock = field(default_factory=locks.lock, repr=False, compare=False)

    @cached_property
    def version(self) -> str:
        """The version ("4.3.0") by the headers, ``musa.h`` first, else by the folder's name; empty if unknown."""
        others = sorted(path.name for path in self.include.glob("musa*.h")) if self.include else []
        for header in ("musa.h", *others):
            number = self.macro(header, "MUSA_VERSION")
            if number:
                return decimal(number)
        named = re.search(r"musa-(\d+(?:\.\d+)+)", self.home.resolve().name if self.home else "")
        return named[1] if named else ""

    def macro(self, header: str, name: str) -> int | None:
        """Return the number that ``header`` of this installation defines ``name`` to be; None where it does not."""
        if self.include is None:
            return None
        try:
            text = (self.include / header).read_text(errors="replace")
        except OSError:
            return None
        found = re.search(rf"^\s*#\s*define\s+{name}\s+\(?\s*(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else None

    def has_header(self, name: str) -> bool:
        """Return whether ``include`` has a file of that name ("mublasLt.h")."""
        return self.include is not None and (self.include / name).is_file()

    def files(self) -> list[tuple[str, int, int]]:
        """Return path, size and time of the installation's libraries of :data:`NAMES`, those of other folders too."""
        paths = {folder / name for folder in self.libraries for names in NAMES.values() for name in names}
        paths |= {Path(each.where) for each in list(self._loaded.values()) if isinstance(each, Library)}
        found = []
        for path in sorted({Path(os.path.realpath(path)) for path in paths if path.is_file()}):
            status = path.stat()
            found.append((str(path), status.st_size, status.st_mtime_ns))
        return found

    def load(self, stem: str) -> Any:
        """Return the library ``stem`` ("musart", "mublas", ...), its symbols visible to libraries loaded later."""
        found = self.library(stem)
        return found if isinstance(found, Refusal) else found.cdll

    def library(self, stem: str) -> Library | Refusal:
        """Return the library ``stem`` with its file and its finder; see :meth:`load`. The result is kept."""
        with self._lock:
            if stem not in self._loaded:
                for other in _BEFORE.get(stem, ("musart",)):
                    before = self.library(other)
                    # The driver may be part of the runtime; without a runtime nothing works.
                    if isinstance(before, Refusal) and other != "musa":
                        return before
                self._loaded[stem] = _load(self, stem)
            return self._loaded[stem]


@dataclass(frozen=True)
class Library:
    """A loaded library."""

    cdll: ctypes.CDLL
    where: str
    """The path of its file where the system reports it, else the name that it was loaded by."""
    by: str
    """The finder: "in the process already", "the loader", or a folder."""
    loader: Loader = HERE


def find() -> Sdk | Absent:
    """Return the installation that the environment, PATH or the usual place name; else what the loader finds."""
    return _find(tuple(os.environ.get(name, "") for name in VARIABLES), os.environ.get("PATH", ""), USUAL)


@cache
def _find(named: tuple[str, ...], path: str, usual: Path) -> Sdk | Absent:
    tried: list[str] = []
    notes: list[str] = []
    for by, candidate in _candidates(named, path, usual):
        home = Path(candidate).absolute()
        libraries = tuple(folder for folder in (home / "lib", home / "lib64") if _holds_libraries(folder))
        include = home / "include" if (home / "include").is_dir() else None
        if libraries:
            mcc = home / "bin" / "mcc"
            usable = mcc.is_file() and os.access(mcc, os.X_OK)
            return Sdk(home, by, libraries, include, mcc if usable else None, tuple(notes))
        what = f"{by}: {home} has no lib or lib64 with libmusart.so*" if home.is_dir() else f"{by}: no folder {home}"
        tried.append(what)
        if by in VARIABLES:
            notes.append(what)
    bare = Sdk(None, "the loader", notes=tuple(notes))
    runtime = bare.library("musart")
    if isinstance(runtime, Library):
        return bare
    return Absent(
        f"no MUSA installation was found ({'; '.join(tried)}; the loader: no libmusart.so)",
        "install the MUSA SDK, or set MUSA_HOME to the folder that has its bin, include and lib",
    )


def _candidates(named: tuple[str, ...], path: str, usual: Path) -> Iterator[tuple[str, str | Path]]:
    for variable, value in zip(VARIABLES, named):
        if value:
            yield variable, value
    mcc = shutil.which("mcc", path=path)
    if mcc is not None:
        yield "mcc on PATH", Path(mcc).resolve().parent.parent
    yield "the usual place", usual


def _holds_libraries(folder: Path) -> bool:
    return any(folder.glob("libmusart.so*"))


def _load(sdk: Sdk, stem: str) -> Library | Refusal:
    complaints: list[str] = []
    for by, name, mode in _places(sdk, stem):
        # A missing file at an absolute path is expected; all other messages of the loader are kept.
        if os.sep in name and not os.path.exists(name):
            continue
        try:
            cdll = _open(sdk, name, mode)
        except OSError as error:
            if not mode & os.RTLD_NOLOAD and str(error) not in complaints:
                complaints.append(str(error))
            continue
        return Library(cdll, sdk.loader.path(cdll) or name, by, sdk.loader)
    searched = ", ".join(["the loader's path", *map(str, sdk.libraries)])
    serious = [text for text in complaints if not _says_only_absent(text, stem)]
    reason = f"lib{stem}.so could not be loaded" if serious else f"there is no lib{stem}.so here"
    return Refusal(
        f"{reason}: looked for {', '.join(NAMES[stem])} in {searched}" + "".join(f"; {text}" for text in serious),
        "install the part of the MUSA SDK that has it, or set MUSA_HOME (or LD_LIBRARY_PATH) to where it is",
    )


def _says_only_absent(complaint: str, stem: str) -> bool:
    found = _MISSING.match(complaint)
    return found is not None and found[1] in NAMES[stem]


def _places(sdk: Sdk, stem: str) -> Iterator[tuple[str, str, int]]:
    """Yield (finder, file name, mode) of each attempt, in order."""
    names, mode = NAMES[stem], ctypes.RTLD_GLOBAL
    for name in names:
        yield "in the process already", name, mode | os.RTLD_NOLOAD
    by_loader = [("the loader", name, mode) for name in names]
    by_home = [(str(folder), str(folder / name), mode) for folder in sdk.libraries for name in names]
    if sdk.found_by in VARIABLES:
        yield from by_home + by_loader
    else:
        yield from by_loader + by_home


def _open(sdk: Sdk, name: str, mode: int, depth: int = 0) -> Any:
    """Open a library; dependencies that the loader does not find come from the installation."""
    for _ in range(_MOST_MISSING):
        try:
            return sdk.loader.open(name, mode)
        except OSError as error:
            found = _MISSING.match(str(error))
            needed = _in_folders(sdk, found[1]) if found and found[1] != name else None
            if needed is None or depth == _MOST_MISSING:
                raise
            _open(sdk, str(needed), ctypes.RTLD_GLOBAL, depth + 1)
    return sdk.loader.open(name, mode)


def _in_folders(sdk: Sdk, name: str) -> Path | None:
    return next((folder / name for folder in sdk.libraries if (folder / name).exists()), None)


def decimal(number: int) -> str:
    """MUSA's version numbers as text: 50100 is 5.1.0, and 4030, as versions before 5 are written, 4.3.0."""
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number % 1000 // 10}.{number % 10}"
