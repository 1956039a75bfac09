"""muDNN on one device: its handle, the products made ready, and the lock around them all."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import CFUNCTYPE, c_int
from dataclasses import dataclass

from gemmhub_musa import workspace
from gemmhub_musa.runtime import Runtime

from gemmhub.errors import AllocationError, KernelError
from gemmhub_mudnn.library import Grow, Library, MudnnError
from gemmhub_mudnn.lower import Form

_HARMLESS = "musaErrorNotSupported"
"""Left behind by libraries of MUSA that call a function the driver lacks, though the work was done."""

_Places = tuple[int | None, ...]


@dataclass
class _Growth:
    """What the library takes beyond the workspace that it had asked for, while it begins a product."""

    leases: ExitStack
    stream: int
    nbytes: int
    """In all so far."""
    limit: int
    trouble: Exception | None = None


class Plan:
    """A form that the library has taken, and the bytes of workspace that it says a run needs."""

    def __init__(self, library: Library, pointer: int) -> None:
        self.pointer = pointer
        # At exit the library may be gone already.
        weakref.finalize(self, library.forget, pointer).atexit = False
        self.workspace = library.workspace(pointer)


class Engine:
    """Everything of one device. Hold :meth:`turn` for all that is called."""

    def __init__(self, library: Library, runtime: Runtime, index: int) -> None:
        """Raises MudnnError where the library makes no handle."""
        self.library, self.runtime, self.index = library, runtime, index
        self.workspace = workspace.of(runtime, index)
        self._lock = threading.RLock()  # a nested call, between two launches, sets all that it needs itself
        self._grow = Grow(self._more)
        self._peek = CFUNCTYPE(c_int)(("musaPeekAtLastError", runtime.library.cdll))
        self._growth: _Growth | None = None
        """Of the product that the library now begins; a nested call restores it."""
        with runtime.device(index):
            self._handle = library.create(index, self._grow)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """This thread's turn, on this device: the handle's stream is one thread's at a time."""
        with self._lock, self.runtime.device(self.index):
            yield

    def plan(self, form: Form, addend: int) -> Plan:
        """``form`` made ready, with an addend as :meth:`Library.plan` says. Raises MudnnError."""
        return Plan(self.library, self.library.plan(self._handle, form, addend))

    def run(self, plan: Plan, calls: Iterable[_Places], alpha: float, beta: float, stream: int, limit: int) -> None:
        """Put products on ``stream``; of each, the addresses of a, b, c, d and the bias. Raises KernelError."""
        with ExitStack() as leases:
            block = leases.enter_context(self.workspace.lease(stream, plan.workspace)) if plan.workspace else None
            address, nbytes = (block.address, block.nbytes) if block else (0, 0)
            for places in calls:
                growth = _Growth(leases, stream, plan.workspace, limit)
                self._launch(plan, (*places, alpha, beta, stream, address, nbytes), growth)

    def _launch(self, plan: Plan, call: tuple[int | float | None, ...], growth: _Growth) -> None:
        pending = self._peek()  # of another program part's failed call, which reads it itself
        before, self._growth = self._growth, growth
        try:
            self.library.run(plan.pointer, *call)
        except MudnnError as error:
            left = "" if pending else self.runtime.clear_error()
            text = f"{error} (the runtime reports {left})" if left else str(error)
            raise KernelError("mudnn", text) from growth.trouble
        finally:
            self._growth = before
        left = "" if pending else self.runtime.clear_error()
        if left and left != _HARMLESS:
            raise KernelError(
                "mudnn", f"the product was taken, but the runtime then reports {left}, by it or by work before it"
            )

    def _more(self, nbytes: int) -> int | None:
        """Called by the glue during :meth:`run`; None where there is no more memory."""
        growth = self._growth
        assert growth is not None
        try:
            growth.nbytes += nbytes
            if growth.nbytes > growth.limit:
                raise AllocationError(
                    f"muDNN wants a workspace of {growth.nbytes} bytes, the limit is {growth.limit}: raise the setting "
                    "workspace_mib"
                )
            return growth.leases.enter_context(self.workspace.lease(growth.stream, nbytes)).address
        except Exception as error:  # nothing can be raised through the library
            growth.trouble = error
            return None
