"""The first run of native code on a machine: in a child process, whose outcome is kept in the cache.

Code that a machine has not run before may use instructions that the processor or the system refuses, or be compiled
wrongly: a fault would end the user's process. So the build of such code links its self-check as an executable without
Python, which runs here once for each content, arguments and facts of the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit.native import cache
from gemmhub.kit.native.process import FAULTS, run

PATIENCE = 10.0
"""Seconds that a self-check may take; one that takes longer hangs."""
_FORMAT = "1"
"""Part of every key, to be changed together with the meaning of an outcome."""


@dataclass(frozen=True)
class FirstRun:
    """The outcome of a self-check."""

    output: str
    """Its output, also that before a failure."""
    failure: str
    """The failure ("was killed by signal 11 (SIGSEGV)"); empty where its exit code was 0."""
    signal: int = 0
    """The signal that killed it, else 0."""
    hung: bool = False
    """Whether it was killed because its time was over."""
    kept: str = ""
    """The file of the cache that has the outcome; empty where it is not kept."""

    @property
    def remedy(self) -> str:
        """The advice for a failure."""
        again = f"; to run the self-check again, remove {self.kept}" if self.kept else ""
        return f"upgrade its distribution, or report this to its authors{again}"


def first_run(
    program: Path, arguments: Sequence[str | Path] = (), *, facts: Sequence[str] = (), patience: float | None = None
) -> FirstRun | Refusal:
    """Run the self-check ``program`` in a child process, or return the outcome that the cache has of the same run.

    The same run is one of the same content of ``program`` and of every argument that is a Path, with the same other
    arguments and the same ``facts``: whatever else the outcome depends on, such as the processor's features and the
    state of the system. It may take ``patience`` seconds, :data:`PATIENCE` by default. A success, a fault of the
    processor and a hang are kept; a run that something else ended, such as a lack of memory, is not. The Refusal is of
    a system where no child process can be started.
    """
    try:
        name = f"first-run-{_key(program, arguments, facts)}.json"
    except OSError as error:
        return Refusal(f"the self-check {program.name} cannot be read: {error}", "install its distribution again")
    kept = recall(name)
    if kept is not None:
        return kept
    try:
        command = [str(executable(program)), *map(str, arguments)]
    except OSError as error:
        return _not_started(program, str(error))
    outcome = run(command, timeout=PATIENCE if patience is None else patience)
    if not outcome.started:
        return _not_started(program, outcome.failure)
    result = FirstRun(outcome.output, outcome.failure, outcome.signal, outcome.hung)
    if result.failure and not result.hung and result.signal not in FAULTS:
        return result
    return keep(name, result)


def recall(name: str) -> FirstRun | None:
    """Return the outcome that the cache keeps in the file ``name``; None without one."""
    kept = cache.read(name)
    return None if kept is None else FirstRun(**json.loads(kept))


def keep(name: str, result: FirstRun) -> FirstRun:
    """Keep an outcome in the file ``name``, whose suffix is ".json"; return it with the file's path."""
    with suppress(OSError):  # where it cannot be kept, it runs again in the next process
        kept = replace(result, kept=str(cache.folder().path / name.replace(".json", ".*.json")))
        cache.store(name, json.dumps(asdict(kept)).encode())
        return kept
    return result


def _not_started(program: Path, reason: str) -> Refusal:
    return Refusal(
        f"native code is not run before its self-check has passed in a child process, and {program.name} cannot be "
        f"started: {reason}",
        f"allow child processes; where a folder forbids execution (noexec), set {cache.VARIABLE} to one that does not",
    )


def executable(program: Path) -> Path:
    """``program``, or a copy of it in the cache where an installer dropped the permission to execute it."""
    if os.access(program, os.X_OK):
        return program
    copy = cache.store(f"{program.stem}-copy{program.suffix}", program.read_bytes())
    copy.chmod(stat.S_IRWXU)
    return copy


def _key(program: Path, arguments: Sequence[str | Path], facts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in (_FORMAT, program, "arguments", *arguments, "facts", *facts):
        data = part.read_bytes() if isinstance(part, Path) else part.encode(errors="surrogateescape")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]
