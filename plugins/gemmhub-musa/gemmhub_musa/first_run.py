"""The first run of a library's functions: in a child process, whose outcome is kept in the cache.

A proof (:mod:`gemmhub_musa.selftest`, :mod:`gemmhub_musa.proof`) calls code that this machine has not run before: the
vendor's libraries with arguments that are nowhere documented, kernels that were just compiled. A fault there would end
the user's process. So :func:`passed` runs it with everything in a child process first.
"""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gemmhub
from gemmhub.capability import Refusal
from gemmhub.kit import locks, native
from gemmhub.kit.native import FirstRun, Recipe
from gemmhub.kit.native.first_run import executable, keep, recall
from gemmhub.kit.native.process import FAULTS
from gemmhub_musa import compile
from gemmhub_musa.child import Child
from gemmhub_musa.sdk import Sdk

PATIENCE = 60.0
"""Seconds that one call may take in the child process: it may load a gigabyte of kernels from a slow disk."""
REMEDY = "update the MUSA SDK and driver, or send us what `gemmhub doctor musa` prints; other backends are not affected"
_FORMAT = 1
"""Part of every key, to be changed together with the meaning of an outcome."""
_GLUE = Path(__file__).parent / "glue"

_lock = locks.lock()
_child: Child | None = None


def passed(sdk: Sdk, what: str, facts: Sequence[object], prove: Callable[[Sdk], Refusal | None]) -> Refusal | None:
    """Return None where ``prove`` has passed in a child process, now or before; else a refusal.

    ``prove`` gets the installation as the child process sees it, and returns None or why its code must not be used. It
    is called for each ``what``, ``facts``, version of gemmhub, and set of the installation's libraries and headers,
    until it passes; a fault of the processor and a hang are kept too. What it raises is raised here. ``what`` names the
    code in reports.
    """
    if isinstance(sdk.loader, Child):
        return prove(sdk)
    name = _name(sdk, what, facts)
    kept = recall(name)
    if kept is not None:
        return _refusal(what, kept) if kept.failure else None
    with _lock:
        child = _started()
        if isinstance(child, Refusal):
            return child
        try:
            return _tried(child, name, what, lambda: prove(_there(child, sdk)))
        finally:
            if child is not _child:
                child.close()


def _tried(child: Child, name: str, what: str, prove: Callable[[], Refusal | None]) -> Refusal | None:
    verdict: Refusal | None = None
    try:
        with child.turn():
            verdict = prove()
    except Exception:
        if not child.failure:
            raise
    if child.failure:
        found = FirstRun(child.printed, child.failure)
        fault = child.hung or child.signal in FAULTS
        return _refusal(what, keep(name, found) if fault else found)
    if verdict is None:
        keep(name, FirstRun("", ""))
    return verdict


def parts(sdk: Sdk) -> dict[Hashable, Any]:
    """Return what callers keep for an installation as a child process sees it, for as long as that process lives."""
    assert isinstance(sdk.loader, Child)
    kept: dict[Hashable, Any] = sdk.loader.parts.setdefault(sdk, {})
    return kept


def _there(child: Child, sdk: Sdk) -> Sdk:
    """The installation as the child process sees it."""
    if sdk not in child.parts:
        child.parts[sdk] = replace(sdk, loader=child, _loaded={}, _lock=locks.lock())
    there: Sdk = child.parts[sdk]
    return there


def _started() -> Child | Refusal:
    """The child process, started where none is free."""
    global _child
    if _child is not None and _child.free:
        return _child
    program = _program()
    if isinstance(program, Refusal):
        return program
    try:
        child = Child(program, PATIENCE)
    except OSError as error:
        return Refusal(
            f"native code is not run before it has passed in a child process, and none can be started: {error}",
            "allow child processes; where the folder of the build cache forbids execution (noexec), set "
            f"{native.cache.VARIABLE} to one that does not",
        )
    if _child is None or not _child.busy:  # else a signal handler has interrupted its turn
        _close()
        _child = child
    return child


@atexit.register
def _close() -> None:
    if _child is not None:
        _child.close()


def _program() -> Path | Refusal:
    """The distribution's program if its wheel has it, else one that is compiled now."""
    with suppress(OSError):
        shipped = native.shipped(_GLUE, "first_run.run")
        if shipped is not None:
            return executable(shipped)
    command = compile.host_compiler()
    if isinstance(command, Refusal):
        return Refusal(f"{command.reason}, to build the program that runs native code first", command.remedy)
    flags = ("-std=c++17", "-O1", "-ldl")
    identity = compile.identity(command)
    return native.build(
        Recipe(command, flags, (_GLUE / "first_run.cpp",), name="musa_first_run", suffix=".run", identity=identity)
    )


def _refusal(what: str, found: FirstRun) -> Refusal:
    again = f"; to try again, remove {found.kept}" if found.kept else ""
    return Refusal(f"{what} {found.failure}, run for the first time in a child process", REMEDY + again, found.output)


def _name(sdk: Sdk, what: str, facts: Sequence[object]) -> str:
    """The name of the file with the outcome, by everything that it depends on."""
    known = [_FORMAT, gemmhub.__version__, sdk.files(), compile.headers_digest(sdk)]
    text = json.dumps([known, what, [str(fact) for fact in facts]])
    return f"first-run-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
