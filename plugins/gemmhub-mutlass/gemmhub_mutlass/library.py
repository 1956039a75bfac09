"""A compiled configuration, called through ctypes. The interface is that of ``source/gemm.h``."""

from __future__ import annotations

import ctypes
from ctypes import CDLL, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

from gemmhub_mutlass.forms import Form

_EVEN = 4096
"""In the place of an address that is not known yet: aligned to everything."""


class Call(ctypes.Structure):
    """GemmhubCall."""

    _fields_ = (
        *((name, c_int32) for name in ("m", "n", "k", "count")),
        *((name, c_int64) for name in ("lda", "ldb", "ldc", "ldd")),
        *((name, c_int64) for name in ("step_a", "step_b", "step_c", "step_d")),
        *((name, c_void_p) for name in ("a", "b", "c", "d")),
        ("alpha", c_double), ("beta", c_double), ("device", c_int32),
    )  # fmt: skip


def call_of(form: Form, device: int) -> Call:
    """The call of a form, but for addresses and scalars."""
    matrices = (form.a, form.b, form.c, form.d)
    return Call(
        form.m, form.n, form.k, form.count, *(x.ld for x in matrices), *(x.step for x in matrices),
        _EVEN, _EVEN, _EVEN, _EVEN, 1.0, 0.0, device,
    )  # fmt: skip


class Library:
    """The kernel of one configuration."""

    def __init__(self, cdll: CDLL) -> None:
        self._check = cdll["gemmhub_mutlass_check"]
        self._workspace = cdll["gemmhub_mutlass_workspace"]
        self._run = cdll["gemmhub_mutlass_run"]
        self._words = cdll["gemmhub_mutlass_words"]
        self._check.restype, self._check.argtypes = c_int, (c_void_p,)
        self._workspace.restype, self._workspace.argtypes = c_size_t, (c_void_p,)
        self._run.restype, self._run.argtypes = c_int, (c_void_p, c_int, c_void_p, c_void_p, c_void_p)
        self._words.restype, self._words.argtypes = c_char_p, (c_int,)

    def words(self, status: int) -> str:
        """A status for people."""
        return f"{(self._words(status) or b'').decode(errors='replace')} ({status})"

    def refused(self, call: Call) -> str:
        """What MUTLASS's ``can_implement`` has against a call; empty where nothing."""
        status = self._check(byref(call))
        return self.words(status) if status else ""

    def workspace(self, call: Call) -> int:
        """Bytes of scratch memory that a run needs."""
        nbytes: int = self._workspace(byref(call))
        return nbytes

    def run(self, call: Call, product: bool, workspace: int, stream: int) -> tuple[int, int]:
        """Put a call on a stream of the current device; without ``product`` A B counts for nothing.

        MUTLASS's status, and the runtime's error that was pending before and was cleared.
        """
        pending = c_int()
        status: int = self._run(byref(call), product, workspace, stream, byref(pending))
        return status, pending.value
