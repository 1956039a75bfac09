"""The implementations that an audit by name takes: libraries of the table, and gemmhub's backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmhub._audit.backends import PREFIX, backend_implementations
from gemmhub._audit.implementation import Implementation
from gemmhub._audit.libraries import LIBRARIES, Library
from gemmhub.capability import Device
from gemmhub.errors import DependencyError, InputError, NoBackendError
from gemmhub.registration import backends


def chosen(names: Sequence[str], device: Device) -> list[Implementation]:
    """The implementations of these names on ``device``; without names all that are installed.

    InputError for an unknown name, DependencyError for a library that is not installed, NoBackendError where there is
    nothing on the device.
    """
    rows = {name: row for name, row in LIBRARIES.items() if row.device == device.type}
    ready = backend_implementations(device)
    allowed = (*rows, *ready)
    text = str(device) if device.index else device.type
    made = []
    for name in names or [*(name for name, row in rows.items() if row.installed), *ready]:
        if name in ready:
            made.append(ready[name])
            continue
        if name not in rows:
            hint = f"backends that are ready are named {PREFIX}NAME; --device chooses the device"
            raise InputError("implementation", f"{name!r} on {text}", ", ".join(allowed), hint)
        row = rows[name]
        if not row.installed:
            needed = " and ".join(row.modules)
            raise DependencyError(f"implementation {name!r} needs {needed}, which is not installed; install it")
        try:
            implementation = row.make(name, f"{device.type}:{device.index}")
            implementation.set_up()
        except Exception as error:  # of any library, on a machine that may lack the device
            first = (str(error).strip() or "no message").splitlines()[0]
            raise DependencyError(f"implementation {name!r} cannot be used: {type(error).__name__}: {first}") from error
        made.append(implementation)
    if not made:
        raise _nothing(text, rows)
    return made


def _nothing(device: str, rows: Mapping[str, Library]) -> NoBackendError:
    """The error where no library of the table and no backend is ready on ``device``, with the reason of each."""
    missing = {name: f"needs {' and '.join(row.modules)}, which is not installed" for name, row in rows.items()}
    waiting = {x.name: f"{x.state}: {x.details}" for x in backends().rows if x.state != "ready"}
    reasons = "\n".join(f"  {name}: {reason}" for name, reason in (missing | waiting).items())
    return NoBackendError(f"no implementation is ready on {device}; make one of these ready:\n{reasons}")
