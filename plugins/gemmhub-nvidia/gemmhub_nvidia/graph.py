"""Detection of the end of a CUDA graph, after which nothing uses the memory that it was captured with.

A graph can own a user object, which its executable graphs share. When the last of them is destroyed and has finished,
the driver calls the object's destructor: on any thread, where it must neither call CUDA nor wait. libc's sem_post does
neither, and needs no Python: so the end is recorded in a semaphore, which callers poll. (User objects: CUDA C++
Programming Guide, "CUDA Graphs".)
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any

from gemmhub_nvidia.driver import Driver

_BYTES = 64
"""Size in bytes of the memory of a semaphore; a sem_t has at most 32."""
_NO_DESTRUCTOR_SYNC, _MOVE = 1, 1


class GraphEnd:
    """A semaphore that the driver posts at the end of a graph. It is reusable after that."""

    def __init__(self) -> None:
        """Create the semaphore; OSError or AttributeError where libc has none."""
        libc = _libc()
        # Never freed: the driver may post it after the end of Python, when the process ends.
        self._semaphore = libc.malloc(_BYTES)
        if not self._semaphore or libc.sem_init(self._semaphore, 0, 0):
            raise OSError("libc has no semaphore")

    def watch(self, driver: Driver, graph: int) -> bool:
        """Register for the end of ``graph``, which may still be capturing. False where the driver refuses."""
        cuda, user_object = driver.cuda, c_void_p()
        post = ctypes.cast(_libc().sem_post, c_void_p)
        if cuda.cuUserObjectCreate(byref(user_object), self._semaphore, post, 1, _NO_DESTRUCTOR_SYNC):
            return False
        return not cuda.cuGraphRetainUserObject(graph, user_object, 1, _MOVE)

    def come(self) -> bool:
        """Whether the graph has ended; True once for each end."""
        return bool(_libc().sem_trywait(self._semaphore) == 0)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = c_void_p, (c_size_t,)
    for name, arguments in (("sem_init", (c_int, c_uint)), ("sem_post", ()), ("sem_trywait", ())):
        function = getattr(libc, name)
        function.restype, function.argtypes = c_int, (c_void_p, *arguments)
    return libc
