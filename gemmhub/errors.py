"""Every exception gemmhub raises.

::

    GemmhubError
    ├── InputError            an argument cannot be used          (ValueError)
    │   ├── ShapeError        shapes that numpy.matmul would refuse too
    │   ├── DTypeError        a dtype, or a combination, outside the table     (TypeError)
    │   ├── OutputError       ``out=`` cannot take the result                  (TypeError)
    │   └── DeviceError       operands that do not live together
    ├── AllocationError       memory for a result or a workspace   (MemoryError)
    ├── ConfigError           a configuration value                (ValueError)
    ├── BackendError          a backend cannot or did not do it    (RuntimeError)
    │   ├── NoBackendError    nothing may run the problem; carries the Decision
    │   └── KernelError       the chosen kernel raised while running
    └── RecordError           a tuning record file                 (ValueError)

Input errors say four things: which argument, what was given, what is allowed, what to do.
"""

from __future__ import annotations

from typing import Any


class GemmhubError(Exception):
    """Root of the tree: ``except gemmhub.GemmhubError`` catches all of it."""


class InputError(GemmhubError, ValueError):
    """An argument cannot be used.

    Attributes: ``argument`` (its name), ``given``, ``allowed``, ``remedy`` (sentences for a person).
    """

    def __init__(self, argument: str, given: str, allowed: str, remedy: str = "") -> None:
        self.argument = argument
        self.given = given
        self.allowed = allowed
        self.remedy = remedy
        message = f"{argument}: {given}; allowed: {allowed}"
        super().__init__(f"{message}. {remedy}" if remedy else message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.argument, self.given, self.allowed, self.remedy)


class ShapeError(InputError):
    """Shapes that do not multiply."""


class DTypeError(InputError, TypeError):
    """A dtype, or a combination of dtypes, outside the table in :mod:`gemmhub.dtypes`."""


class OutputError(InputError, TypeError):
    """``out=`` cannot take the result; nothing was written to it.

    NumPy raises ValueError for its shape and TypeError for its dtype: both catch this.
    """


class DeviceError(InputError):
    """Operands on different devices, or of kinds of array that do not mix."""


class AllocationError(GemmhubError, MemoryError):
    """No memory for the result or for a workspace; nothing was computed."""


class ConfigError(GemmhubError, ValueError):
    """A configuration value: the message names where it stands, its key and what is allowed."""


class BackendError(GemmhubError, RuntimeError):
    """A backend cannot do, or did not do, what was asked."""


class NoBackendError(BackendError):
    """Nothing may run this problem. ``decision`` is the :class:`gemmhub.Decision` of :func:`gemmhub.explain`."""

    def __init__(self, message: str, decision: Any = None) -> None:
        self.decision = decision
        super().__init__(f"{message}\n{decision}" if decision is not None else message)


class KernelError(BackendError):
    """The chosen kernel raised; ``__cause__`` is what it raised, ``backend`` its name."""

    def __init__(self, backend: str, message: str) -> None:
        self.backend = backend
        self.message = message
        super().__init__(f"backend {backend!r}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.backend, self.message)


class RecordError(GemmhubError, ValueError):
    """A tuning record file that cannot be read or written as a whole."""
