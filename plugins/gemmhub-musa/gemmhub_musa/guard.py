"""Errors that a library's call leaves behind in the runtime, and that the next call of other code would report."""

from __future__ import annotations

from gemmhub.errors import KernelError
from gemmhub_musa.runtime import Runtime

_HARMLESS = "musaErrorNotSupported"
"""An error that libraries of some SDKs leave behind although their products are right: they call a function that the
driver lacks.
"""


class Guard:
    """Checks the calls of one backend; safe in any number of threads."""

    def __init__(self, backend: str, runtime: Runtime) -> None:
        self._backend = backend
        self._runtime = runtime
        self.cleared = 0
        """How often a harmless error was cleared."""

    def before(self) -> int:
        """Return the runtime's last error before a call: 0, or the trace of a failure elsewhere."""
        return self._runtime.peek_error()

    def after(self, before: int, function: str, failure: str, cause: BaseException | None = None) -> None:
        """Check a call of ``function``: ``before`` is the error before it, ``failure`` its status, empty for success.

        Clears the error that the call left behind. Raises KernelError, from ``cause``, for a failure and for an error
        that the runtime did not have before.
        """
        if before:
            # The code whose call failed reads that error itself; an error of this call cannot be distinguished from it.
            if failure:
                pending = self._runtime.words(before)[0]
                raise KernelError(self._backend, f"{function}: {failure}; before it, {pending} was pending") from cause
            return
        left = self._runtime.clear_error()
        if failure:
            reported = f"; the runtime reports {left}" if left else ""
            raise KernelError(self._backend, f"{function}: {failure}{reported}") from cause
        if left == _HARMLESS:
            self.cleared += 1
        elif left:
            raise KernelError(
                self._backend,
                f"{function} succeeded, but the runtime then reports {left}, by this call or by earlier work on the "
                "device",
            )

    def remarks(self) -> list[str]:
        """Return a clause about cleared errors, for ``explain``; none where there were none."""
        return [f"left {_HARMLESS} behind {self.cleared} times, cleared"] if self.cleared else []


class Cleared:
    """Counts errors of other work that compiled launchers found in the runtime and cleared."""

    def __init__(self) -> None:
        self.count, self.last = 0, ""

    def note(self, name: str) -> None:
        """Count the error ``name`` (musaErrorInvalidValue)."""
        self.count += 1
        self.last = name

    def remarks(self) -> list[str]:
        """Return a clause about cleared errors, for ``explain``; none where there were none."""
        return [f"cleared {self.last} that other work had left ({self.count} times)"] if self.count else []
