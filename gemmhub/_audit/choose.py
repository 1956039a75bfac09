"""The implementations that an audit by name takes: libraries of the table, and gemmhub's backends."""

from __future__ import annotations

from collections.abc import Sequence

from gemmhub._audit.backends import PREFIX, backend_implementations
from gemmhub._audit.implementation import Implementation
from gemmhub._audit.libraries import LIBRARIES
from gemmhub.capability import Device
from gemmhub.errors import DependencyError, InputError


def chosen(names: Sequence[str], device: Device) -> list[Implementation]:
    """The implementations of these names on ``device``; without names all that are installed.

    InputError for an unknown name, DependencyError for a library that is not installed.
    """
    rows = {name: row for name, row in LIBRARIES.items() if row.device == device.type}
    backends = backend_implementations(device)
    allowed = (*rows, *backends)
    text = str(device) if device.index else device.type
    made = []
    for name in names or [*(name for name, row in rows.items() if row.installed), *backends]:
        if name in backends:
            made.append(backends[name])
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
    return made
