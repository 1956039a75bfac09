"""Guarded calls of foreign code: a plugin's exception becomes a refusal or an error of gemmhub."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from gemmhub._base import printing
from gemmhub.errors import AllocationError, GemmhubError, KernelError

if TYPE_CHECKING:
    from gemmhub.capability import Refusal

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_MAX_ENTRIES = 4000
"""Maximum number of characters of a message that are kept; the traceback has all of it."""


def guarded(call: Callable[[], T], doing: str, remedy: str) -> T | Refusal:
    """Return ``call()``, run in the :func:`neutral` state, or the refusal that its exception becomes.

    Only KeyboardInterrupt is raised; SystemExit and other classes beside Exception are refusals, too.
    """
    try:
        if _here.neutral:
            return call()
        with neutral():
            return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        from gemmhub.capability import Raised  # here, so that importing gemmhub does not

        return Raised(f"{doing} raised {words(error)}", remedy, _trace(), type(error))


class _Here(threading.local):
    neutral = False
    """Whether this thread is in a :func:`neutral` block, within which another one costs nothing."""


_here = _Here()


@contextmanager
def neutral() -> Iterator[None]:
    """Run a block that neither the caller's ``numpy.errstate`` nor the process's warning filters can make raise.

    For code whose outcome is kept for the process: it must not depend on the state in which the first call came. Only
    this thread is concerned. (``warnings.catch_warnings`` replaces the filters of all threads, and leaves the wrong
    ones where two threads overlap.)
    """
    if _here.neutral:
        yield
        return
    pattern = _ThisThread()
    mine = ("ignore", pattern, Warning, None, 0)
    filters = cast("list[Any]", warnings.filters)
    try:
        filters.insert(0, mine)
        _here.neutral = True
        with np.errstate(all="ignore"):
            yield
    finally:
        _here.neutral = False
        pattern.thread = None  # another thread's copy of the filters keeps the entry
        with suppress(ValueError):
            filters.remove(mine)


class _ThisThread:
    """A pattern for a warning filter that matches every message of the thread that created it."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def match(self, _: str) -> bool:
        return threading.get_ident() == self.thread


def words(error: BaseException) -> str:
    """Return the class and the message of an exception, also where its own methods raise."""
    return f"{_safe(lambda: type(error).__name__, 'an exception')}: {message(error)}"


def message(error: BaseException) -> str:
    """Return the message of an exception, also where its own methods raise."""
    return _safe(lambda: str(error), "its message cannot be shown")[:_MAX_ENTRIES].strip() or "no message"


def _trace() -> str:
    return _safe(traceback.format_exc, "the traceback cannot be shown")


def _safe(call: Callable[[], str], otherwise: str) -> str:
    """``call()`` as a plain str that a terminal prints as it is; ``otherwise`` where it raises."""
    try:
        return printing.lines(str.encode(call(), errors="backslashreplace").decode())
    except KeyboardInterrupt:
        raise
    except BaseException:
        return otherwise


def _printable(record: logging.LogRecord) -> bool:
    """A filter of the log, which lets every record pass, with texts that a terminal prints as they are."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            x if isinstance(x, (int, float)) else _safe(partial(str, x), "a text that cannot be shown")
            for x in record.args
        )
    return True


logging.getLogger("gemmhub").addFilter(_printable)


def propagates(error: BaseException) -> bool:
    """Whether an exception out of a running kernel is meant for the caller: an interrupt, an exit, a cancellation.

    Other classes that do not derive from Exception, such as a Rust panic, are failures of the kernel.
    """
    asyncio = sys.modules.get("asyncio.exceptions")  # without asyncio nothing is cancelled
    cancelled = getattr(asyncio, "CancelledError", KeyboardInterrupt)
    return issubclass(type(error), (KeyboardInterrupt, SystemExit, GeneratorExit, cancelled))


def translated(error: BaseException, backend: str) -> GemmhubError:
    """A kernel's exception as an error of gemmhub. Raises those that :func:`propagates` names."""
    if propagates(error):
        raise error
    cls = type(error)  # isinstance() would read the class that the exception claims
    if issubclass(cls, GemmhubError):
        return cast("GemmhubError", error)
    if issubclass(cls, MemoryError):
        return AllocationError(f"backend {backend!r} ran out of memory: {message(error)}")
    return KernelError(backend, words(error))


def out_of_memory(error: MemoryError | RuntimeError) -> AllocationError:
    """``error`` as gemmhub's AllocationError."""
    return AllocationError(f"memory ran out: {message(error)}; free some, and call again")


def memory_errors(function: F) -> F:
    """Decorate a function so that it raises AllocationError instead of MemoryError."""

    @wraps(function)
    def decorated(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except AllocationError:
            raise
        except MemoryError as error:
            raise out_of_memory(error) from error

    return cast("F", decorated)


_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory")
"""Words of the errors by which torch and JAX, which raise RuntimeError, say that there is no memory."""


def array_memory_errors(function: F) -> F:
    """Decorate a function of an array library's operations, so that it raises AllocationError for want of memory."""

    @wraps(function)
    def decorated(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except MemoryError as error:
            raise out_of_memory(error) from error
        except RuntimeError as error:
            if any(words in str(error).lower() for words in _NO_MEMORY):
                raise out_of_memory(error) from error
            raise

    return cast("F", decorated)
