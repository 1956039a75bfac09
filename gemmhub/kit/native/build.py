"""Compilation of a recipe into the cache: once a user, for any number of concurrent processes.

A file's name has a hash of everything that it depends on, so that different files have different names: the compiler
(path, size, time), its flags, the contents of sources and headers, and the recipe's ``identity``. A digest of the
content follows, by which :mod:`gemmhub.kit.native.cache` detects damage.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gemmhub._base.evicting import keep
from gemmhub.capability import Refusal
from gemmhub.kit.native import cache
from gemmhub.kit.native.process import Outcome, run

_FORMAT = "1"
"""Part of every key, to be changed together with the behaviour of :func:`build`."""


@dataclass(frozen=True)
class Recipe:
    """The command and the sources of a compilation, with everything that the result depends on."""

    compiler: tuple[str, ...]
    """Command, e.g. ``("/usr/bin/g++",)``; a bare name is looked up on PATH. Flags that precede the sources
    (``-x musa``) belong here."""
    flags: tuple[str, ...]
    """Flags that follow the sources, so that libraries (``-l``) come after their users. The compiler runs in a
    temporary folder: paths must be absolute."""
    sources: tuple[Path, ...]
    """Files to compile; their contents are part of the key."""
    depends: tuple[Path, ...] = ()
    """Other files whose contents are part of the key: headers."""
    name: str = "kernel"
    """Stem of the built file."""
    suffix: str = ".so"
    identity: str = ""
    """Other facts that the result depends on, such as the output of ``mcc --version``."""


_MAX_ENTRIES = 1024

_failures: OrderedDict[str, Refusal] = OrderedDict()
"""Failures of this process by key, at most _MAX_ENTRIES: a second request must not cost another half minute."""


def forget() -> None:
    """Drop the kept failures, so that they are tried again."""
    _failures.clear()


def build(recipe: Recipe, *, timeout: float = 300.0) -> Path | Refusal:
    """Return the file built by ``recipe``: from the cache, or compiled now within ``timeout`` seconds.

    The Refusal of a failed compilation has the compiler's error, and in ``traceback`` the command and the last lines of
    its output; it is kept until :func:`forget` or the end of the process.
    """
    compiler = shutil.which(recipe.compiler[0])
    if compiler is None:
        return Refusal(
            f"there is no compiler {recipe.compiler[0]} to build {recipe.name} with",
            "install it, or check that it can be executed",
        )
    try:
        key = _key(recipe, compiler)
    except OSError as error:
        return Refusal(f"a file that {recipe.name} is built from cannot be read: {error}", "install its package again")
    file_name = f"{recipe.name}-{key}{recipe.suffix}"
    built = cache.find(file_name)
    if built is not None:
        return built
    if key in _failures:
        return _failures[key]
    try:
        folder = cache.folder().path
        with _locked(folder / f"{file_name}.lock", timeout):
            # Another process, or thread, may have built it, or failed, while this one waited.
            outcome = cache.find(file_name) or _failures.get(key)
            if outcome is None:
                outcome = _compile(recipe, compiler, folder, file_name, timeout)
            if isinstance(outcome, Refusal) and not _full(outcome.traceback or ""):  # the user may free space
                keep(_failures, key, outcome, _MAX_ENTRIES)
            return outcome
    except TimeoutError:
        return Refusal(
            f"another process has been building {recipe.name} for {timeout:.3g} s", "wait for it to end, or end it"
        )
    except OSError as error:
        return Refusal(
            f"{recipe.name} cannot be built: no folder to write to: {error}",
            f"free space, or set {cache.VARIABLE} to a folder of your own",
        )


def _key(recipe: Recipe, compiler: str) -> str:
    """A hash of everything that the result depends on; OSError where a file is missing."""
    status = os.stat(compiler)
    digest = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:
            data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)

    add(_FORMAT, recipe.name, recipe.suffix, recipe.identity)
    add(os.path.realpath(compiler), str(status.st_size), str(status.st_mtime_ns))
    add(str(len(recipe.compiler)), *recipe.compiler[1:], str(len(recipe.flags)), *recipe.flags)
    for files in (recipe.sources, recipe.depends):
        add(str(len(files)))
        for path in files:
            add(path.name, path.read_bytes())
    return digest.hexdigest()[:24]


@contextmanager
def _locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock. Where the file system has no locks there is none, and two processes may both build.

    TimeoutError when another process holds it for longer than its own build may take.
    """
    import filelock

    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=timeout + 10)
        os.utime(path)  # sweep() removes old locks
    except TimeoutError:
        raise
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _compile(recipe: Recipe, compiler: str, folder: Path, file_name: str, timeout: float) -> Path | Refusal:
    """Compile in a temporary folder beside the target, and move the result to it atomically."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-", ignore_cleanup_errors=True) as own:
        built = Path(own) / f"{recipe.name}{recipe.suffix}"
        sources = (str(source.absolute()) for source in recipe.sources)
        command = (compiler, *recipe.compiler[1:], *sources, "-o", str(built), *recipe.flags)
        outcome = run(command, timeout=timeout, folder=Path(own))
        if outcome.failure:
            return _refusal(recipe, outcome, folder)
        try:
            return cache.adopt(file_name, built, folder)
        except FileNotFoundError:
            return _refusal(recipe, Outcome(outcome.command, outcome.output, "no file was written"), folder)


def _refusal(recipe: Recipe, outcome: Outcome, folder: Path) -> Refusal:
    full = _full(outcome.output)
    complaint = full or _complaint(outcome.output)
    compiler = Path(recipe.compiler[0]).name
    reason = f"building {recipe.name} failed: {compiler}: {outcome.failure}"
    log = f"{outcome.command}\n{outcome.last()}\n{outcome.failure}"
    remedy = "`gemmhub doctor` shows the command and its output"
    if full:
        remedy = f"free space in {folder} and {tempfile.gettempdir()}, or set {cache.VARIABLE} to a folder with space"
    return Refusal(f"{reason}: {complaint}" if complaint else reason, remedy, log)


def _full(output: str) -> str:
    """The line of a compiler's output that reports a full disk; empty where none does."""
    reports = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
    lines = [line.strip()[:300] for line in output.splitlines()]
    return next((line for line in lines if any(report in line for report in reports)), "")


def _complaint(output: str) -> str:
    """The line of a compiler's output that states the error: the first error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    error = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return error[:300]
