"""muDNN on one device: its handle, the plans of products, and the lock around them all."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from gemmhub_musa import workspace
from gemmhub_musa.guard import Guard
from gemmhub_musa.runtime import Runtime

from gemmhub.errors import AllocationError
from gemmhub_mudnn.library import Grow, Library, MudnnError
from gemmhub_mudnn.lower import Form

_Places = tuple[int | None, ...]


@dataclass
class _Growth:
    """Memory that the library takes beyond the reported workspace, while it begins a product."""

    leases: ExitStack
    stream: int
    nbytes: int
    """Bytes in all so far."""
    limit: int
    trouble: Exception | None = None


class Plan:
    """A form that the library has accepted, with the bytes of workspace that a run needs."""

    def __init__(self, library: Library, pointer: int) -> None:
        self.pointer = pointer
        # At exit the library may be unloaded already.
        weakref.finalize(self, library.forget, pointer).atexit = False
        self.workspace = library.workspace(pointer)


class Engine:
    """muDNN on one device. Hold :meth:`turn` around calls of the other methods."""

    def __init__(self, library: Library, runtime: Runtime, index: int) -> None:
        """Raises MudnnError where the library makes no handle."""
        self.library, self.runtime, self.index = library, runtime, index
        self.workspace = workspace.of(runtime, index)
        self._lock = threading.RLock()  # a nested call, between two launches, sets all that it needs itself
        self._grow = Grow(self._more)
        self.guard = Guard("mudnn", runtime)
        self._growth: _Growth | None = None
        """The growth of the product that the library now begins; a nested call restores it."""
        with runtime.device(index):
            try:
                self._handle = library.create(index, self._grow)
            except MudnnError as error:
                raise MudnnError(f"muDNN makes no handle: {error}") from error

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Make this device current and exclude other threads: the handle's stream belongs to one thread at a time."""
        with self._lock, self.runtime.device(self.index):
            yield

    def plan(self, form: Form, addend: int) -> Plan:
        """Return a plan for ``form``, with an addend as for :meth:`Library.plan`. Raises MudnnError."""
        return Plan(self.library, self.library.plan(self._handle, form, addend))

    def run(self, plan: Plan, calls: Iterable[_Places], alpha: float, beta: float, stream: int, limit: int) -> None:
        """Enqueue products on ``stream``; a call is the addresses of a, b, c, d and the bias. Raises KernelError."""
        with ExitStack() as leases:
            block = leases.enter_context(self.workspace.lease(stream, plan.workspace)) if plan.workspace else None
            address, nbytes = (block.address, block.nbytes) if block else (0, 0)
            for places in calls:
                growth = _Growth(leases, stream, plan.workspace, limit)
                self._launch(plan, (*places, alpha, beta, stream, address, nbytes), growth)

    def _launch(self, plan: Plan, call: tuple[int | float | None, ...], growth: _Growth) -> None:
        pending, failure = self.guard.before(), ""
        before, self._growth = self._growth, growth
        try:
            self.library.run(plan.pointer, *call)
        except MudnnError as error:
            failure = str(error)
        finally:
            self._growth = before
        self.guard.after(pending, "muDNN's product", failure, growth.trouble)

    def _more(self, nbytes: int) -> int | None:
        """Called by the glue during :meth:`run`; None where there is no more memory."""
        growth = self._growth
        assert growth is not None
        try:
            growth.nbytes += nbytes
            if growth.nbytes > growth.limit:
                raise AllocationError(
                    f"muDNN needs {growth.nbytes} bytes of workspace: {growth.limit} are allowed; raise the setting "
                    "workspace_mib"
                )
            return growth.leases.enter_context(self.workspace.lease(growth.stream, nbytes)).address
        except Exception as error:  # nothing can be raised through the library
            growth.trouble = error
            return None
