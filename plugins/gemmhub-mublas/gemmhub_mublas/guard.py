"""What a library's call leaves behind in the runtime: errors that the next call of somebody else would report."""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_int

from gemmhub_musa.runtime import Runtime

from gemmhub.errors import KernelError

_HARMLESS = "musaErrorNotSupported"
"""Left by muBLAS on some SDKs though its products are right: it asks the driver for something that is not there."""


class Guard:
    """Checks the calls of one backend; one for all threads."""

    def __init__(self, backend: str, runtime: Runtime) -> None:
        self._backend = backend
        self._runtime = runtime
        self._peek = CFUNCTYPE(c_int)(("musaPeekAtLastError", runtime.library.cdll))
        self.cleared = 0
        """How often a harmless error was cleared."""

    def before(self) -> int:
        """The runtime's last error before a call: 0, or the trace of a failure elsewhere."""
        code: int = self._peek()
        return code

    def after(self, before: int, function: str, failure: str) -> None:
        """Once ``function`` was called: ``failure`` is what its status says, empty for success.

        Clears what the call left behind. Raises KernelError for a failure, and for an error that the runtime did not
        have before.
        """
        if before:
            # Somebody's failed call: his to see, and to be told apart from ours no more.
            if failure:
                raise KernelError(self._backend, f"{function}: {failure}; before it, {self._name(before)} was pending")
            return
        left = self._runtime.clear_error()
        if failure:
            raise KernelError(self._backend, f"{function}: {failure}" + (f"; the runtime says {left}" if left else ""))
        if left == _HARMLESS:
            self.cleared += 1
        elif left:
            raise KernelError(
                self._backend,
                f"{function} succeeded, but the runtime then reports {left}, by this call or by earlier work on the "
                "device",
            )

    def _name(self, code: int) -> str:
        return self._runtime.words(code)[0]
