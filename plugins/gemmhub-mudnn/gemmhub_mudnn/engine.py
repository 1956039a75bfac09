"""muDNN on one device: its handle, its scratch memory, the products made ready, and the lock around them all."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, c_int

from gemmhub_musa.runtime import Runtime

from gemmhub.errors import KernelError
from gemmhub_mudnn.forms import Form
from gemmhub_mudnn.library import Grow, Library, MudnnError
from gemmhub_mudnn.workspace import Workspace

_HARMLESS = "musaErrorNotSupported"
"""Left behind by libraries of MUSA that call a function the driver lacks, though the work was done."""


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
        self.workspace = Workspace(runtime.malloc)
        self._lock = threading.Lock()
        self._grow = Grow(self._more)
        self._peek = CFUNCTYPE(c_int)(("musaPeekAtLastError", runtime.library.cdll))
        self._stream, self._limit = 0, 0
        self._trouble: Exception | None = None
        with runtime.device(index):
            self._handle = library.create(index, self._grow)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """This thread's turn, on this device: the handle's stream and the workspace are one thread's at a time."""
        with self._lock, self.runtime.device(self.index):
            yield

    def plan(self, form: Form, addend: int) -> Plan:
        """``form`` made ready, with an addend as :meth:`Library.plan` says. Raises MudnnError."""
        return Plan(self.library, self.library.plan(self._handle, form, addend))

    def zeros(self, nbytes: int) -> int:
        """The address of ``nbytes`` zero bytes. Raises AllocationError."""

        def clear(address: int, nbytes: int) -> None:
            self.runtime.memset(address, 0, nbytes)
            self.runtime.synchronize()  # whatever stream reads them first

        return self.workspace.zeros(nbytes, clear) if nbytes else 0

    def run(
        self, plan: Plan, places: tuple[int | None, ...], alpha: float, beta: float, stream: int, limit: int
    ) -> None:
        """Put a product on ``stream``; ``places`` are the addresses of a, b, c, d and the bias. Raises KernelError."""
        buffer = self.workspace.buffer(stream, plan.workspace, limit)
        self._stream, self._limit, self._trouble = stream, limit, None
        pending = self._peek()  # somebody's failed call: his to see
        try:
            self.library.run(plan.pointer, *places, alpha, beta, stream, buffer.address, buffer.nbytes)
        except MudnnError as error:
            left = "" if pending else self.runtime.clear_error()
            text = f"{error} (the runtime reports {left})" if left else str(error)
            raise KernelError("mudnn", text) from self._trouble
        left = "" if pending else self.runtime.clear_error()
        if left and left != _HARMLESS:
            raise KernelError(
                "mudnn", f"the product was taken, but the runtime then reports {left}, by it or by work before it"
            )

    def _more(self, nbytes: int) -> int | None:
        """Called by the glue during :meth:`run`; None where there is no more memory."""
        try:
            return self.workspace.more(self._stream, nbytes, self._limit)
        except Exception as error:  # nothing can be raised through the library
            self._trouble = error
            return None
