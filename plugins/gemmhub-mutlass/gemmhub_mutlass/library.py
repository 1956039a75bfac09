"""Compiled configurations: mcc makes a library of each against the user's MUTLASS, ctypes calls it.

Each is compiled once for a user, and one at a time in a process, as each takes half a minute and 1 to 2 GB. The
library's functions are those of ``kernels/gemm.h``.
"""

from __future__ import annotations

import ctypes
from ctypes import CDLL, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from gemmhub_musa import compile as compilers
from gemmhub_musa.attempts import device_flags
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Refusal
from gemmhub.kit import locks
from gemmhub_mutlass import sources
from gemmhub_mutlass.installation import Mutlass
from gemmhub_mutlass.lower import Form
from gemmhub_mutlass.sources import LONG, SHORT
from gemmhub_mutlass.variants import Configuration

PATIENCE = 600.0
"""Seconds for one compilation; half a minute is usual."""
_EVEN = 4096
"""A placeholder for addresses; aligned for every access."""


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
    """Return the call for a form, without addresses and scalars."""
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
        """Return the text for a status."""
        return f"{(self._words(status) or b'').decode(errors='replace')} ({status})"

    def refused(self, call: Call) -> str:
        """Return the reason for which MUTLASS's ``can_implement`` refuses a call; empty where it takes it."""
        status = self._check(byref(call))
        return self.words(status) if status else ""

    def workspace(self, call: Call) -> int:
        """Return the bytes of scratch memory that a run needs."""
        nbytes: int = self._workspace(byref(call))
        return nbytes

    def run(self, call: Call, product: bool, workspace: int, stream: int) -> tuple[int, int]:
        """Enqueue a call on a stream of the current device; without ``product`` the result is beta C alone.

        Returns MUTLASS's status, and the runtime's error that was pending before and was cleared.
        """
        pending = c_int()
        status: int = self._run(byref(call), product, workspace, stream, byref(pending))
        return status, pending.value


class Kernels:
    """The configurations compiled and loaded in this process. Safe in any number of threads."""

    def __init__(self, sdk: Sdk, mutlass: Mutlass) -> None:
        self._sdk, self._mutlass = sdk, mutlass
        self._lock = locks.lock()
        self._found: dict[Configuration, Library | Refusal] = {}
        self._arguments: int | Refusal | None = None

    def outcome(self, configuration: Configuration) -> Library | Refusal | None:
        """Return the kernel or the refusal for a configuration; None where :meth:`get` was not called for it yet."""
        return self._found.get(configuration)

    def get(self, configuration: Configuration) -> Library | Refusal:
        """Return the kernel of a configuration: from this process, from the cache, or compiled now."""
        with self._lock:
            if configuration not in self._found:
                self._found[configuration] = self._load(configuration)
            return self._found[configuration]

    def arguments(self, arch: str) -> int | Refusal:
        """Return the number of arguments of the mainloop's builder: by the version, or by trial where it is unknown."""
        version = self._mutlass.version
        if version is not None:
            return LONG if version < (0, 2) else SHORT
        with self._lock:
            if self._arguments is None:
                self._arguments = self._tried(arch)
            return self._arguments

    def _tried(self, arch: str) -> int | Refusal:
        answers: dict[int, Path | Refusal] = {}
        for arguments in (SHORT, LONG):
            text = sources.trial(arguments)
            answers[arguments] = self._compile(text, arch, f"mutlass_builder_{arguments}")
            if not isinstance(answers[arguments], Refusal):
                return arguments
        last = answers[LONG]
        assert isinstance(last, Refusal)
        return Refusal(
            f"{self._mutlass.name} at {self._mutlass.home} has a CollectiveBuilder that takes neither {SHORT} nor "
            f"{LONG} arguments, or does not compile: {last.reason}",
            "use a release of MUTLASS, 0.1.1 or later, with its version.h",
            last.traceback,
        )

    def build(self, configuration: Configuration) -> Path | Refusal:
        """Return the file of a configuration's kernel, compiled where the cache has none. Nothing is loaded."""
        with self._lock:
            refusal = self._found.get(configuration)
            if isinstance(refusal, Refusal):
                return refusal
            built = self._built(configuration)
            if isinstance(built, Refusal):
                self._found[configuration] = built
            return built

    def _load(self, configuration: Configuration) -> Library | Refusal:
        built = self._built(configuration)
        if isinstance(built, Refusal):
            return built
        loaded = self._sdk.loader.load(built)
        if isinstance(loaded, Refusal):
            return loaded
        try:
            return Library(loaded)
        except AttributeError as error:
            return Refusal(f"{built.name} is not a kernel: {error}", f"delete {built}")

    def _built(self, configuration: Configuration) -> Path | Refusal:
        arguments = self.arguments(configuration.arch)
        if isinstance(arguments, Refusal):
            return arguments
        text = sources.text(configuration, arguments)
        built = self._compile(text, configuration.arch, f"mutlass_{configuration.name}")
        if isinstance(built, Refusal):
            return Refusal(
                f"{self._mutlass.name} gives no kernel for {configuration}: {built.reason}", built.remedy,
                built.traceback,
            )  # fmt: skip
        return built

    def _compile(self, text: str, arch: str, name: str) -> Path | Refusal:
        return compilers.compile_mu(
            text, self._sdk, arch, name=name, flags=device_flags(self._sdk, arch),
            include=(sources.FOLDER, self._mutlass.include),
            depends=(sources.TEMPLATE, *self._mutlass.headers()), timeout=PATIENCE,
        )  # fmt: skip
