"""All exceptions that gemmhub raises.

::

    GemmhubError
    ├── InputError            an argument cannot be used          (ValueError)
    │   ├── ShapeError        shapes that numpy.matmul would refuse too
    │   ├── DTypeError        a dtype, or a combination, outside the table     (TypeError)
    │   ├── OutputError       ``out=`` cannot take the result                  (TypeError)
    │   └── DeviceError       operands on different devices
    ├── AllocationError       memory for a result or a workspace   (MemoryError)
    ├── ConfigError           a configuration value                (ValueError)
    ├── BackendError          a backend cannot, or failed to, run  (RuntimeError)
    │   ├── NoBackendError    no backend may run the problem; carries the Decision
    │   └── KernelError       the chosen kernel raised while running
    ├── DependencyError       an optional library is not installed (ImportError)
    └── RecordError           a tuning record file                 (ValueError)

Messages of input errors have four parts: the argument, its actual value, the allowed values, the remedy.
"""

from __future__ import annotations

from typing import Any

from gemmhub._base import printing


class GemmhubError(Exception):
    """Root of the tree: ``except gemmhub.GemmhubError`` catches all of it.

    Messages may contain texts of plugins, files and arrays: what a terminal would interpret is shown as an escape.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(printing.lines(x) if isinstance(x, str) else x for x in arguments))


class InputError(GemmhubError, ValueError):
    """An argument cannot be used.

    Attributes: ``argument`` (its name), ``given``, ``allowed``, ``remedy`` (text for readers).
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

    NumPy raises ValueError for a wrong shape and TypeError for a wrong dtype: either ``except`` clause catches this.
    """


class DeviceError(InputError):
    """Operands on different devices, or of array libraries that cannot be combined."""


class AllocationError(GemmhubError, MemoryError):
    """Memory for the result or for a workspace is missing; nothing was computed."""


class ConfigError(GemmhubError, ValueError):
    """An invalid configuration value; the message names its source, its key and what is allowed."""


class DependencyError(GemmhubError, ImportError):
    """A part of gemmhub needs a library that is not installed; the message has the command that installs it."""


class BackendError(GemmhubError, RuntimeError):
    """A backend cannot run, or failed to run, a call."""


class NoBackendError(BackendError):
    """No backend may run this problem. ``decision`` is the :class:`gemmhub.Decision` of :func:`gemmhub.explain`."""

    def __init__(self, message: str, decision: Any = None) -> None:
        self.decision = decision
        super().__init__(f"{message}\n{decision}" if decision is not None else message)


class KernelError(BackendError):
    """The chosen kernel raised; ``__cause__`` is its exception, ``backend`` the backend's name."""

    def __init__(self, backend: str, message: str) -> None:
        self.backend = backend
        self.message = message
        super().__init__(f"backend {backend!r}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.backend, self.message)


class RecordError(GemmhubError, ValueError):
    """A tuning record file that cannot be read or written."""
