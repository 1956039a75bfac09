"""Errors of the command line: one message on stderr, an exit code, no traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from gemmhub._base import printing
from gemmhub.errors import ConfigError, GemmhubError, InputError, RecordError

WRONG = 1
"""Exit code: a wrong product, and nothing else."""
UNUSABLE = 2
"""Exit code: input, options or configuration that cannot be used."""
FAILED = 3
"""Exit code: the command, or a part of it, failed."""
INTERRUPTED = 130
"""Exit code: Ctrl-C, as shells report it."""
CLOSED = 141
"""Exit code: the reader of standard output has closed it, as shells report it."""

_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class Failure(click.ClickException):
    """An error that ends the command with exit code 2; printed as ``error: message``."""

    exit_code = UNUSABLE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {printing.lines(self.format_message())}", file=file, err=file is None)


class Undone(Failure):
    """An error that ends the command with exit code 3: the arguments are valid."""

    exit_code = FAILED


class ClosedError(Exception):
    """The reader of a stream has closed it. Not a BrokenPipeError, for which click would exit with 1."""


@contextmanager
def pipes() -> Iterator[None]:
    """Turn a broken pipe into :class:`ClosedError`."""
    try:
        yield
    except BrokenPipeError as error:
        raise ClosedError from error


def unwritable(name: str, error: OSError) -> Undone:
    """The error for a result that cannot be written to the file ``name``."""
    return Undone(f"{name}: cannot be written: {error.strerror or error}")


def run(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; an error is one message on stderr, never a traceback.

    Python's development mode (``python -X dev``) shows the tracebacks of unexpected errors.
    """
    code = _guarded(lambda: int(command() or 0))
    # Buffered output is written now: at exit Python would print a traceback.
    code = code or _guarded(_flush)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and _unwritable(stream):
            _redirect(stream)
    return code


def _flush() -> int:
    if sys.stdout is not None:  # None where the shell has closed it
        sys.stdout.flush()
    return 0


def _guarded(command: Callable[[], int]) -> int:
    try:
        return command()
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", INTERRUPTED)
    except (ClosedError, BrokenPipeError):
        return CLOSED
    except click.ClickException as error:
        with suppress(OSError):  # stderr may be closed, or full
            error.show()
        return error.exit_code
    except GemmhubError as error:
        unusable = isinstance(error, (InputError, ConfigError, RecordError))
        full = isinstance(error.__context__, OSError) and error.__context__.errno in _STORAGE
        return _report(str(error), UNUSABLE if unusable and not full else FAILED)
    except MemoryError as error:
        return _report(f"out of memory: {error}" if str(error) else "out of memory", FAILED)
    except OSError as error:
        if error.filename is None and error.errno in _STORAGE:
            return _report(f"standard output cannot be written: {error.strerror}", FAILED)
        return _report(str(error), FAILED)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        what = f"{type(error).__name__}: {error}"
        return _report(f"{what}\nThis is a defect of gemmhub; `python -X dev -m gemmhub ...` shows where", FAILED)


def _report(message: str, code: int) -> int:
    with suppress(OSError):
        Failure(message).show()
    return code


def _unwritable(stream: IO[str]) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):
        return True
    return False


def _redirect(stream: IO[str]) -> None:
    """Redirect a stream that cannot be written to the null device, so that Python's exit does not fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
