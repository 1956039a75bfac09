"""When a CUDA graph is gone, and with it whoever might still use what it was captured with.

A graph can be given an object, which all that is instantiated of it has, too. When the last of them is destroyed and
has run to its end, the driver calls a function. That may be on any thread, and must neither call CUDA nor wait. libc's
sem_post does neither, and needs no Python: so what there is to know stands in a semaphore, which whoever wants to know
looks at. (User objects: CUDA C++ Programming Guide, "CUDA Graphs".)
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any

from gemmhub.kit.cuda import Driver

_BYTES = 64
"""A sem_t has at most 32."""
_NO_DESTRUCTOR_SYNC, _MOVE = 1, 1


class GraphEnd:
    """Told when a graph is gone. Can be used again after that."""

    def __init__(self) -> None:
        """OSError or AttributeError where libc has no semaphores."""
        libc = _libc()
        # Never freed: the driver may post it when the process ends, after Python has.
        self._semaphore = libc.malloc(_BYTES)
        if not self._semaphore or libc.sem_init(self._semaphore, 0, 0):
            raise OSError("libc has no semaphore")

    def watch(self, driver: Driver, graph: int) -> bool:
        """Ask to be told of ``graph``, which may be one that is being captured. False where nobody will tell."""
        cuda, made = driver.cuda, c_void_p()
        post = ctypes.cast(_libc().sem_post, c_void_p)
        if cuda.cuUserObjectCreate(byref(made), self._semaphore, post, 1, _NO_DESTRUCTOR_SYNC):
            return False
        return not cuda.cuGraphRetainUserObject(graph, made, 1, _MOVE)

    def come(self) -> bool:
        """Whether it is gone: true once."""
        return bool(_libc().sem_trywait(self._semaphore) == 0)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = c_void_p, (c_size_t,)
    for name, arguments in (("sem_init", (c_int, c_uint)), ("sem_post", ()), ("sem_trywait", ())):
        function = getattr(libc, name)
        function.restype, function.argtypes = c_int, (c_void_p, *arguments)
    return libc
