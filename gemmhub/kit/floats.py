"""The floating-point mode of a thread: how it rounds, whether it reads and writes subnormals, which exceptions trap.

A library that was built with ``-ffast-math``, or ``torch.set_flush_denormal(True)``, changes the mode of the thread
that calls it, and a new thread begins with the mode of the thread that starts it. Conversions, products and epilogues
that gemmhub computes are to be the same in every mode of their caller, and to leave that as it was.

The mode is that of C's ``<fenv.h>``, which glibc and musl keep whole (flushing of subnormals included). Not implemented
for other C libraries: there, code runs in the mode of its thread.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable

_DEFAULT = -1
"""``FE_DFL_ENV`` of glibc and musl."""
_Environment = ctypes.c_uint32 * 16
"""More than a ``fenv_t`` of any architecture."""
_MODES = {"x86_64": (7, 0xFFC0, 0x1F80), "aarch64": (0, 0xFFFFFFFF, 0)}
_INDEX, _MODE, _USUAL = _MODES.get(platform.machine(), (0, 0, 1))
"""Index of the mode's word in a ``fenv_t``, its bits that are not flags, and their default; elsewhere there is none."""


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


_FUNCTIONS = _functions()


def set_default() -> None:
    """Let this thread round to nearest, keep subnormals and trap nothing, from now on."""
    if _FUNCTIONS is not None:
        _FUNCTIONS[1](_DEFAULT)


class DefaultMode:
    """The default mode for a ``with`` statement, after which the thread has its own again, its flags too.

    Where the mode is the default, nothing is changed: that costs a microsecond.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = None
        if _FUNCTIONS is not None:
            read, write = _FUNCTIONS
            before = _Environment()
            read(before)
            if before[_INDEX] & _MODE != _USUAL:
                write(_DEFAULT)
                self._before = before

    def __exit__(self, *_: object) -> None:
        if self._before is not None and _FUNCTIONS is not None:
            _FUNCTIONS[1](self._before)
