"""The devices of a machine, as MUSA backends keep them: which serve, their workspace, the refusal of all others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from gemmhub.capability import Device, Refusal
from gemmhub_musa import runtime as musa
from gemmhub_musa import workspace
from gemmhub_musa.workspace import Workspace


class Devices:
    """The base of what a backend keeps of a machine; subclasses add the library, the compiler or the cards."""

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
        if device.kind == "musa" and device.index in self.usable:
            return None
        return Refusal(f"the operands are on {device}", f"copy them to {' or '.join(map(str, self.devices))}")

    def workspace(self, index: int) -> Workspace:
        """Return the workspace of device ``index``, which all backends share."""
        return workspace.of(self.runtime, index)

    def current(self, index: int) -> AbstractContextManager[None]:
        """Make device ``index`` the calling thread's current one for a block."""
        # With one device every thread is on it; with several a thread may be on another.
        return self.runtime.device(index) if self.count > 1 else nullcontext()
