"""Compiling a recipe into the cache: once for a user, however many processes ask at the same time.

A file's name carries a hash of all that it was made from, so that nothing is ever overwritten by something else:
the compiler (path, size, time), its flags, the contents of sources and headers, and the recipe's ``identity``. A digest
of what was made follows, by which :mod:`gemmhub.kit.native.cache` knows whether it is still whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit.native import cache
from gemmhub.kit.native.process import Outcome, run

_FORMAT = "1"
"""Part of every key: change it when what :func:`build` does to a recipe changes."""


@dataclass(frozen=True)
class Recipe:
    """What to compile, and all that the result depends on."""

    compiler: tuple[str, ...]
    """The command, e.g. ``("/usr/bin/g++",)``; a bare name is looked for on PATH. What must stand before the sources
    (``-x musa``) belongs here."""
    flags: tuple[str, ...]
    """Follow the sources, so that libraries (``-l``) come after what needs them. The compiler runs in a folder of its
    own: paths must be absolute."""
    sources: tuple[Path, ...]
    """Compiled; their contents are part of the key."""
    depends: tuple[Path, ...] = ()
    """Other files whose contents are part of the key: headers."""
    name: str = "kernel"
    """Stem of the file that is made."""
    suffix: str = ".so"
    identity: str = ""
    """What else the result depends on, such as the output of ``mcc --version``."""


_MOST = 1024

_failures: dict[str, Refusal] = {}
"""What failed in this process, by key: a second request must not cost another half minute. At most _MOST."""


def forget() -> None:
    """Try again what failed before."""
    _failures.clear()


def build(recipe: Recipe, *, timeout: float = 300.0) -> Path | Refusal:
    """The file that ``recipe`` makes: from the cache, or compiled now within ``timeout`` seconds.

    The Refusal of a failed compilation gives the compiler's complaint, and in ``traceback`` the command and the last
    lines of its output; it is remembered until :func:`forget` or the end of the process.
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
    found = cache.find(file_name)
    if found is not None:
        return found
    if key in _failures:
        return _failures[key]
    try:
        folder = cache.folder().path
        with _locked(folder / f"{file_name}.lock", timeout):
            # Another process, or thread, may have made it, or failed, while this one waited.
            answer = cache.find(file_name) or _failures.get(key)
            if answer is None:
                answer = _compile(recipe, compiler, folder, file_name, timeout)
            if isinstance(answer, Refusal) and not _full(answer.traceback or ""):  # room may be made
                if len(_failures) >= _MOST:
                    _failures.clear()
                _failures[key] = answer
            return answer
    except TimeoutError:
        return Refusal(
            f"another process has been building {recipe.name} for {timeout:.3g} s", "wait for it to end, or end it"
        )
    except OSError as error:
        return Refusal(
            f"{recipe.name} cannot be built: no folder to write to: {error}",
            f"make room, or set {cache.VARIABLE} to a folder of your own",
        )


def _key(recipe: Recipe, compiler: str) -> str:
    """A hash of all that the result depends on; OSError where a file is missing."""
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
    """Holds the lock; goes without where the file system has no locks, at the price of building twice.

    TimeoutError when another process holds it for longer than its own build may take.
    """
    import filelock

    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=timeout + 10)
        os.utime(path)  # old ones are swept
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
    """Compile in a folder of its own beside the target, and move the result there in one step."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-", ignore_cleanup_errors=True) as own:
        made = Path(own) / f"{recipe.name}{recipe.suffix}"
        sources = (str(source.absolute()) for source in recipe.sources)
        command = (compiler, *recipe.compiler[1:], *sources, "-o", str(made), *recipe.flags)
        outcome = run(command, timeout=timeout, folder=Path(own))
        if outcome.failure:
            return _refusal(recipe, outcome, folder)
        try:
            return cache.adopt(file_name, made, folder)
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
        remedy = f"make room in {folder} and {tempfile.gettempdir()}, or set {cache.VARIABLE} to a folder that has some"
    return Refusal(f"{reason}: {complaint}" if complaint else reason, remedy, log)


def _full(output: str) -> str:
    """The line of a compiler's output that reports a full disk; empty where none does."""
    reports = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
    lines = [line.strip()[:300] for line in output.splitlines()]
    return next((line for line in lines if any(report in line for report in reports)), "")


def _complaint(output: str) -> str:
    """The line of a compiler's output that says what is wrong: the first error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    error = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return error[:300]
