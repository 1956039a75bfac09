"""Compiles against the installed SDK: ``.mu`` sources with mcc, glue with the host's C++ compiler, header values.

:mod:`gemmhub.kit.native` caches all results, so that each is compiled once for a user. A failure is a Refusal.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub.kit.native import Recipe
from gemmhub_musa.sdk import Sdk

STANDARD = "-std=c++17"
SHARED = ("-O2", "-fPIC", "-shared", "-fno-strict-aliasing")
"""Flags of shared libraries. Kernels read shared memory by several types, so strict aliasing is off, as in the vendor's
own builds.
"""
_HOST = ("g++", "c++", "clang++")
_VERSION_SECONDS = 30.0
_ENUM_SECONDS = 120.0
_FORMAT = 1


def mcc(sdk: Sdk) -> Path | Refusal:
    """Return the MUSA compiler: GEMMHUB_MCC, else the installation's, else the one on PATH."""
    chosen = os.environ.get("GEMMHUB_MCC")
    if chosen:
        found = shutil.which(chosen)
        return Path(found) if found else Refusal(f"GEMMHUB_MCC is {chosen!r}, which cannot be executed", "correct it")
    if sdk.mcc is not None:
        return sdk.mcc
    found = shutil.which("mcc")
    if found:
        return Path(found)
    where = f"{sdk.home / 'bin'} or on PATH" if sdk.home else "PATH"
    return Refusal(f"there is no MUSA compiler mcc in {where}", "install the MUSA toolkit, or set MUSA_HOME to it")


def host_compiler() -> tuple[str, ...] | Refusal:
    """Return the command of the C++ compiler: CXX, else g++, c++ or clang++."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _HOST]:
        found = shutil.which(command[0])
        if found:
            return (found, *command[1:])
    wanted = f"CXX={chosen[0]}" if chosen else ", ".join(_HOST)
    return Refusal(f"there is no C++ compiler (looked for {wanted})", "install g++, or set CXX")


def identity(command: Sequence[str]) -> str:
    """Return the output of a compiler's ``--version``; empty where there is none."""
    try:
        status = os.stat(command[0])
    except OSError:
        return ""
    return _identity(tuple(command), status.st_size, status.st_mtime_ns)


@cache
def _identity(command: tuple[str, ...], size: int, time: int) -> str:
    outcome = native.run((*command, "--version"), timeout=_VERSION_SECONDS)
    return "" if outcome.failure else outcome.output


def compile_mu(
    source: Path | str,
    sdk: Sdk,
    arch: str,
    *,
    name: str,
    flags: Sequence[str] = (),
    include: Sequence[Path] = (),
    libraries: Sequence[str] = ("musart",),
    depends: Sequence[Path] = (),
    timeout: float = 300.0,
) -> Path | Refusal:
    """Compile ``source`` (a file, or the text of one) for ``arch`` ("mp_22") to a shared library.

    ``libraries`` are linked by their stems ("musart"); ``depends`` are the plugin's own headers.
    """
    compiler = mcc(sdk)
    if isinstance(compiler, Refusal):
        return compiler
    language = (str(compiler), "-x", "musa")
    options = (STANDARD, *SHARED, f"--offload-arch={arch}", *flags)
    version = identity((str(compiler),))
    return _compile(source, ".mu", sdk, language, options, name, include, libraries, depends, version, timeout)


def compile_host(
    source: Path | str,
    sdk: Sdk,
    *,
    name: str,
    flags: Sequence[str] = (),
    include: Sequence[Path] = (),
    libraries: Sequence[str] = (),
    depends: Sequence[Path] = (),
    timeout: float = 120.0,
) -> Path | Refusal:
    """Compile C++ ``source`` (a file, or the text of one), which may include the SDK's headers, to a shared library.

    Functions of libraries that :meth:`Sdk.load` loaded need not be linked: the loader finds them.
    """
    command = host_compiler()
    if isinstance(command, Refusal):
        return command
    if sdk.include is None:
        return no_headers(sdk)
    options = (STANDARD, *SHARED, *flags)
    version = identity(command)
    return _compile(source, ".cpp", sdk, command, options, name, include, libraries, depends, version, timeout)


def no_headers(sdk: Sdk) -> Refusal:
    """Return the refusal where the installation has no ``include``."""
    where = f"{sdk.home} has" if sdk.home else "there are"
    return Refusal(f"{where} no MUSA headers", "install the MUSA SDK with its headers, and set MUSA_HOME to it")


def _compile(
    source: Path | str,
    suffix: str,
    sdk: Sdk,
    command: tuple[str, ...],
    options: tuple[str, ...],
    name: str,
    include: Sequence[Path],
    libraries: Sequence[str],
    depends: Sequence[Path],
    version: str,
    timeout: float,
) -> Path | Refusal:
    path = _as_file(source, name, suffix)
    if isinstance(path, Refusal):
        return path
    folders = [*include, *([sdk.include] if sdk.include else [])]
    flags = (
        *options, *(f"-I{folder}" for folder in folders),
        *(f"-L{folder}" for folder in sdk.libraries), *(f"-l{stem}" for stem in libraries),
    )  # fmt: skip
    identity = f"{version}\n{headers_digest(sdk)}"
    return native.build(Recipe(command, flags, (path,), tuple(depends), name, identity=identity), timeout=timeout)


def _as_file(source: Path | str, name: str, suffix: str) -> Path | Refusal:
    """Return ``source`` as a file; a text is stored in the cache, so that compiler messages name an existing file."""
    if isinstance(source, Path):
        return source
    data = source.encode()
    file_name = f"{name}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    try:
        return native.store(file_name, data)
    except OSError as error:
        return Refusal(f"the source of {name} cannot be written: {error}", "make room, or set GEMMHUB_CACHE_DIR")


def headers_digest(sdk: Sdk) -> str:
    """Return a hash of the installation's own headers; empty where it has none."""
    if sdk.include is None:
        return ""
    files = sorted([*sdk.include.glob("*.h"), *sdk.include.glob("mudnncxx/*.h")])
    facts = []
    for path in files:
        try:
            status = path.stat()
        except OSError:  # a link to nothing
            continue
        facts.append((str(path), status.st_size, status.st_mtime_ns))
    return _digest(tuple(facts))


@cache
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in files:
        digest.update(f"{os.path.basename(path)} {size}\n".encode())
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


# Header values


def enumerators(sdk: Sdk, header: str, names: Sequence[str]) -> dict[str, int] | Refusal:
    """Return the values of ``names`` in ``header`` of the installation, without names that the header lacks.

    Names may be any constant expressions (``sizeof(mublasLtMatmulAlgo_t)``). Values are kept on disk, by the headers'
    contents. Returns a Refusal where the header is missing, or does not compile by itself.
    """
    command = host_compiler()
    if isinstance(command, Refusal):
        return command
    if sdk.include is None:
        return no_headers(sdk)
    if not sdk.has_header(header):
        return Refusal(f"{sdk.include} has no {header}", "install the part of the MUSA SDK that has it")
    wanted = tuple(dict.fromkeys(names))
    facts = json.dumps([_FORMAT, header, wanted, headers_digest(sdk), identity(command)])
    file_name = f"values-{hashlib.sha256(facts.encode()).hexdigest()[:24]}.json"
    cached = _read(file_name)
    if cached is not None:
        return cached
    found = _values(sdk, header, wanted)
    if isinstance(found, Refusal):
        alone = _values(sdk, header, ())
        if isinstance(alone, Refusal):
            return Refusal(f"the values of {header} cannot be read: {alone.reason}", alone.remedy, alone.traceback)
        found = _each(sdk, header, wanted)
    if not isinstance(found, Refusal):
        with suppress(OSError):  # the next process compiles it again
            native.store(file_name, json.dumps(found).encode())
    return found


def _read(file_name: str) -> dict[str, int] | None:
    content = native.read(file_name)
    if content is None:
        return None
    try:
        data = json.loads(content)
    except ValueError:
        return None
    valid = isinstance(data, dict) and all(isinstance(value, int) for value in data.values())
    return data if valid else None


def _each(sdk: Sdk, header: str, names: tuple[str, ...]) -> dict[str, int] | Refusal:
    """Return the values of the names that compile, found by bisection of the list until each failing name is alone."""
    if not names:
        return {}
    found = _values(sdk, header, names)
    if isinstance(found, dict):
        return found
    if len(names) == 1:
        # A name is unknown only where the compiler reports an error: it may also have run out of memory or time.
        word = re.search(r"\w+", names[0].removeprefix("sizeof"))
        complained = word is not None and re.search(rf"error.*\b{word[0]}\b", found.traceback or "")
        return {} if complained else found
    half = len(names) // 2
    first, second = _each(sdk, header, names[:half]), _each(sdk, header, names[half:])
    if isinstance(first, Refusal) or isinstance(second, Refusal):
        return first if isinstance(first, Refusal) else second
    return first | second


def _values(sdk: Sdk, header: str, names: tuple[str, ...]) -> dict[str, int] | Refusal:
    built = _compiled(sdk, header, names)
    if isinstance(built, Refusal):
        return built
    library = native.load(built)
    if isinstance(library, Refusal):
        return library
    return dict(zip(names, (ctypes.c_longlong * len(names)).in_dll(library, "gemmhub_values")))


def _compiled(sdk: Sdk, header: str, names: tuple[str, ...]) -> Path | Refusal:
    values = "".join(f"    (long long)({name}),\n" for name in names)
    text = (
        f"#include <{header}>\n"
        f'extern "C" {{ extern const long long gemmhub_values[]; }}\n'
        f"const long long gemmhub_values[] = {{\n{values}    0}};\n"
    )
    stem = re.sub(r"\W", "_", header)
    return compile_host(text, sdk, name=f"values_{stem}", timeout=_ENUM_SECONDS)
