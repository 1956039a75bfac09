"""The floating-point mode of a thread: how it rounds, whether it reads and writes subnormals, which exceptions trap.

A library that was built with ``-ffast-math``, or ``torch.set_flush_denormal(True)``, changes the mode of the thread
that calls it, and a new thread begins with the mode of the thread that starts it. Conversions, products and epilogues
that gemmhub computes are to be the same in every mode of their caller, and to leave that as it was.

The mode is that of C's ``<fenv.h>``, which glibc and musl keep whole (flushing of subnormals included). Not implemented
for other C libraries: there, code runs in the mode of its thread.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache

_DEFAULT = -1
"""``FE_DFL_ENV`` of glibc and musl."""
_BYTES = 64
"""More than a ``fenv_t`` of any architecture."""


@lru_cache(maxsize=1)  # no lock, which a nested call or a forked child would wait for
def _functions() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """``fegetenv`` and ``fesetenv``; None where they are not known to keep the whole mode."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        program = ctypes.PyDLL(None)  # these take nanoseconds: the GIL is not released
        read, write = program.fegetenv, program.fesetenv
    except (OSError, AttributeError):
        return None
    read.argtypes = write.argtypes = (ctypes.c_void_p,)
    return read, write


def set_default() -> None:
    """Let this thread round to nearest, keep subnormals and trap nothing, from now on."""
    functions = _functions()
    if functions is not None:
        functions[1](_DEFAULT)


class DefaultMode:
    """The default mode for a ``with`` statement, after which the thread has its own again, its flags too."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        functions = _functions()
        if functions is not None:
            self._before = ctypes.create_string_buffer(_BYTES)
            functions[0](self._before)
            functions[1](_DEFAULT)

    def __exit__(self, *_: object) -> None:
        functions = _functions()
        if functions is not None:
            functions[1](self._before)
