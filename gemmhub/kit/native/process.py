"""Running a compiler or another tool with a time limit for it and all its child processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FAULTS = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
)
"""Signals by which a process ends for a fault of its own."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command. ``failure`` is empty where its exit code was 0."""

    command: str
    """Command line, quoted for a shell."""
    output: str
    """Standard output and standard error, interleaved."""
    failure: str
    started: bool = True
    """Whether the command could be started."""
    hung: bool = False
    """Whether it was killed because its time was over."""
    signal: int = 0
    """The signal that killed it, if another process or a fault of its own did; else 0."""

    def last(self, lines: int = 40) -> str:
        """The last lines of the output."""
        return "\n".join(self.output.rstrip().splitlines()[-lines:])


def run(command: Sequence[str], *, timeout: float, folder: Path | None = None) -> Outcome:
    """Run ``command`` in ``folder`` for at most ``timeout`` seconds; then its whole process group is killed.

    Never raises for a command that is missing or fails. Standard input is empty.
    """
    text = shlex.join(command)
    # A file, not a pipe: a child that escapes the kill and keeps a pipe open would block the read.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return Outcome(text, "", f"{command[0]} cannot be started: {getattr(error, 'strerror', error)}", False)
        failure, hung = "", False
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            failure, hung, code = f"did not end within {timeout:.3g} s and was killed", True, 0
        finally:
            if process.poll() is None:  # also after an interrupt
                _kill(process)
        if code:
            failure = f"was killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        output.seek(0)
        return Outcome(text, output.read().decode(errors="replace"), failure, hung=hung, signal=max(0, -code))


def signal_name(number: int) -> str:
    """The number of a signal with its name: ``signal 11 (SIGSEGV)``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
