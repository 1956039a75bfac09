"""The devices of a machine, as MUSA backends keep them: which serve, their workspace, the refusal of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from gemmhub.capability import Device, Refusal
from gemmhub_musa import first_run, workspace
from gemmhub_musa import runtime as musa
from gemmhub_musa.workspace import Workspace

if TYPE_CHECKING:
    from typing_extensions import Self


class Devices:
    """The base of what a backend keeps of a machine; subclasses add the library, the compiler or the cards."""

    facts: tuple[object, ...] = ()
    """What every proof depends on besides the installation."""

    def __init__(self, found: musa.Machine, usable: Iterable[int] | None = None) -> None:
        """``usable`` are the indices of devices that the backend runs on; all unless given."""
        self.musa = found
        self.runtime, self.count = found.runtime, found.count
        self.usable = tuple(range(found.count) if usable is None else usable)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The usable devices."""
        return tuple(Device("musa", index) for index in self.usable)

    def refusal(self, device: Device) -> Refusal | None:
        """Return why operands on ``device`` cannot be multiplied here; None where they can."""
        if device.type == "musa" and device.index in self.usable:
            return None
        return Refusal(f"the operands are on {device}", f"copy them to {' or '.join(map(str, self.devices))}")

    def on(self, found: musa.Machine) -> Self:
        """Return the same for the machine as a child process has it: its runtime, and libraries loaded there."""
        return type(self)(found, self.usable)

    def proven(self, what: str, facts: Sequence[object], prove: Callable[[Self], Refusal | None]) -> Refusal | None:
        """Return None where ``prove`` passes in a child process, now or before, and then here; else a refusal."""
        return self.first(what, facts, prove) or prove(self)

    def first(self, what: str, facts: Sequence[object], prove: Callable[[Self], Refusal | None]) -> Refusal | None:
        """Return None where ``prove`` has passed in a child process; see :meth:`gemmhub_musa.runtime.Machine.first`."""

        def there(found: musa.Machine) -> Refusal | None:
            parts = first_run.parts(found.sdk)
            if self not in parts:
                parts[self] = self.on(found)
            return prove(parts[self])

        return self.musa.first(what, (*self.facts, *facts), there)

    def workspace(self, index: int) -> Workspace:
        """Return the workspace of device ``index``, which all backends share."""
        return workspace.of(self.runtime, index)

    def current(self, index: int) -> AbstractContextManager[None]:
        """Make device ``index`` the calling thread's current one for a block."""
        # With one device every thread is on it; with several a thread may be on another.
        return self.runtime.device(index) if self.count > 1 else nullcontext()
