"""Arrays of matrix addresses in device memory, as the ...Batched functions read them.

The addresses change with every call's operands, so they are copied to the device in order with the products that read
them. The host's side of a copy must not change before the copy is done: each call takes a page-locked block that no
unfinished copy uses, and a new one where there is none, so that nobody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_int, c_size_t, c_uint64, c_void_p, cast
from typing import Any

from gemmhub_musa.runtime import TO_DEVICE, Runtime

from gemmhub.errors import AllocationError

_WORD = 8


class _Block:
    """Page-locked host memory and the event behind the last copy from it."""

    def __init__(self, words: Any, event: int) -> None:
        self.words = words
        self.event = event


class _Table:
    """The device's side for one stream."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.holds: tuple[int, ...] = ()
        self.blocks: list[_Block] = []
        self.lock = threading.Lock()


class Pointers:
    """Address arrays for products of matrices at fixed ``offsets`` (bytes, for A, B and C) from three addresses."""

    def __init__(self, runtime: Runtime, offsets: Sequence[tuple[int, int, int]]) -> None:
        self._runtime = runtime
        self._offsets = tuple(zip(*offsets))
        self._count = len(offsets)
        self._tables: dict[int, _Table] = {}
        self._lock = threading.Lock()
        cdll = runtime.library.cdll
        self._allocate = CFUNCTYPE(c_int, c_void_p, c_size_t)(("musaMallocHost", cdll))
        self._query = CFUNCTYPE(c_int, c_void_p)(("musaEventQuery", cdll))
        self._peek = CFUNCTYPE(c_int)(("musaPeekAtLastError", cdll))

    @property
    def nbytes(self) -> int:
        """Device memory for each stream."""
        return 3 * self._count * _WORD

    def table(self, stream: int) -> _Table:
        """The device memory for ``stream``; hold its ``lock`` from :meth:`fill` until the products are on the stream.

        Raises AllocationError.
        """
        with self._lock:
            table = self._tables.get(stream)
            if table is None:
                table = self._tables[stream] = _Table(self._runtime.malloc(self.nbytes))
            return table

    def fill(self, table: _Table, bases: tuple[int, int, int], stream: int) -> tuple[int, int, int]:
        """Put the copy on ``stream``; where the arrays of A, B and C begin. Raises AllocationError or MusaError."""
        if table.holds != bases:
            block = self._free_block(table)
            for which, (base, offsets) in enumerate(zip(bases, self._offsets)):
                start = which * self._count
                block.words[start : start + self._count] = [base + offset for offset in offsets]
            table.holds = ()
            source = cast(block.words, c_void_p).value or 0
            self._runtime.memcpy_async(table.address, source, self.nbytes, TO_DEVICE, stream)
            self._runtime.event_record(block.event, stream)
            table.holds = bases
        size = self._count * _WORD
        return table.address, table.address + size, table.address + 2 * size

    def _free_block(self, table: _Table) -> _Block:
        for block in table.blocks:
            status = self._query(block.event)
            if status == 0:
                return block
            if self._peek() == status:
                self._runtime.clear_error()  # "not ready" counts as an error
        address = c_void_p()
        if self._allocate(byref(address), self.nbytes):
            raise AllocationError(f"{self.nbytes} bytes of page-locked host memory: {self._runtime.clear_error()}")
        words = cast(address, POINTER(c_uint64 * (3 * self._count))).contents
        block = _Block(words, self._runtime.event_create())
        table.blocks.append(block)
        return block
