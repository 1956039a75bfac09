"""A child process that loads libraries and calls their functions for this one, so that a fault there ends it alone.

Its program is ``glue/first_run.cpp``. :class:`Child` stands in for :class:`gemmhub_musa.sdk.Loader`: libraries that it
opens look like those of ctypes, so that the same code calls a library here or there. Differences: arguments are
integers, ctypes objects and bytes, as no float is passed by value; memory that a function gets by ``byref`` is copied
there and back, and is not kept; addresses that functions return mean the child's memory.
"""

from __future__ import annotations

import ctypes
import operator
import os
import select
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gemmhub.capability import Refusal
from gemmhub.errors import BackendError
from gemmhub.kit.native.process import signal_name
from gemmhub_musa.sdk import Loader

_OPEN, _SYMBOL, _CALL, _RETURN, _IDLE, _PING = range(1, 7)
_RESULT, _GROW = range(2)
_WORD, _BLOCK, _CALLBACK = range(3)
_MASK = 2**64 - 1
_MAX_ENTRIES = 24
"""Arguments of a function."""
_MOST_CALLBACKS = 16
_ENDS = 5.0
"""Seconds within which a process whose replies have ended is gone."""
_LAST = 4000
"""Characters of its output that a report shows."""


class ChildError(BackendError):
    """The child process has ended, or does not answer."""


class Child(Loader):
    """The child process. Only the thread that is in :meth:`turn` calls through it.

    A call from elsewhere does nothing and returns 0: it is a finaliser's, which frees what ends with the process.
    """

    def __init__(self, program: Path, patience: float) -> None:
        """``patience`` is the seconds that a call may take. Raises OSError where no process can be started."""
        self.failure = ""
        """How it failed; empty while it works."""
        self.hung = False
        self.signal = 0
        """The signal that ended it, or 0."""
        self.parts: dict[Hashable, Any] = {}
        """What callers keep for as long as this process lives: handles, compiled libraries."""
        self._patience = patience
        self._owner: int | None = None
        self._waiting = False
        self._callbacks: list[Any] = []
        self.printed = ""
        """The last of what it printed; empty while it works."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._output, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._output.close()
            raise
        self._pid = os.getpid()

    @property
    def busy(self) -> bool:
        """Whether it is in a turn of this process."""
        return self._pid == os.getpid() and self._owner is not None and not self.failure

    @property
    def free(self) -> bool:
        """Whether it can be used now: it belongs to this process, works, and is in no other turn."""
        if self._pid != os.getpid() or self._owner is not None or self.failure:
            return False
        try:
            with self.turn():
                self._exchange(struct.pack("=Q", _PING))
        except ChildError:  # it was idle and has ended
            self.close()
            return False
        return True

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let this thread call functions. Afterwards the process ends by itself when it has been idle for long."""
        self._owner = threading.get_ident()
        try:
            yield
        finally:
            if not self.failure:
                with suppress(ChildError):
                    self._send(struct.pack("=Q", _IDLE))
            self._owner = None

    def close(self) -> None:
        """End the process."""
        if self._output.closed:
            return
        if self._pid == os.getpid():
            self._process.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # of the process that this one was forked from, which waits for it
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        with self._output:
            self._output.seek(0)
            self.printed = self._output.read().decode(errors="replace")[-_LAST:]
        self.failure = self.failure or "was closed"

    # A loader

    def open(self, name: str, mode: int) -> Any:
        """See :meth:`Loader.open`. With RTLD_NOLOAD the child opens the file of a library that this process has."""
        if mode & os.RTLD_NOLOAD:
            here = super().open(name, mode)
            name, mode = super().path(here) or name, mode & ~os.RTLD_NOLOAD
        data = os.fsencode(name)
        handle, text, _ = self._exchange(struct.pack("=QQQ", _OPEN, mode | os.RTLD_NOW, len(data)) + data)
        if not handle:
            raise OSError(text.decode(errors="replace"))
        return RemoteLibrary(self, handle, os.path.realpath(os.fsdecode(text)) if text else name)

    def path(self, library: Any) -> str:
        return str(library.where)

    def load(self, path: Path) -> Any:
        try:
            return self.open(str(path), os.RTLD_NOW)
        except OSError as error:
            return Refusal(f"loading {path.name} failed: {error}", "install the library that is missing")

    def host(self, address: int, nbytes: int) -> Any:
        return (ctypes.c_char * nbytes).from_address(address)

    def write(self, address: int, data: bytes) -> None:
        if "memcpy" not in self.parts:
            self.parts["memcpy"] = self.open("libc.so.6", os.RTLD_NOW)["memcpy"]
        self.parts["memcpy"](address, data, len(data))

    # Messages

    def address(self, library: int, name: str) -> int:
        """Return the address of a function; 0 where the library has none of that name."""
        data = name.encode()
        return self._exchange(struct.pack("=QQQ", _SYMBOL, library, len(data)) + data)[0]

    def call(self, address: int, arguments: tuple[Any, ...], returns_text: bool) -> tuple[int, bytes]:
        """Call a function; return its result as a word, and the text that this points to where that is asked for."""
        if self.failure or self._waiting or self._owner != threading.get_ident():
            return 0, b""
        if len(arguments) > _MAX_ENTRIES:
            raise TypeError(f"{len(arguments)} arguments: {_MAX_ENTRIES} are allowed")
        message, blocks = [struct.pack("=QQQQ", _CALL, address, returns_text, len(arguments))], []
        for argument in arguments:
            block = _block(argument)
            if block is not None:
                blocks.append(block)
                message.append(struct.pack("=QQ", _BLOCK, block.nbytes) + bytes(block))
            elif isinstance(argument, ctypes._CFuncPtr):  # type: ignore[attr-defined]  # the base of all CFUNCTYPEs
                message.append(struct.pack("=QQ", _CALLBACK, self._place(argument)))
            else:
                message.append(struct.pack("=QQ", _WORD, _word(argument)))
        result, text, returned = self._exchange(b"".join(message), len(blocks))
        for block, data in zip(blocks, returned):
            if not block.readonly:
                block[:] = data
        return result, text

    def _place(self, callback: Any) -> int:
        """The number of a callback, which the child keeps."""
        if callback not in self._callbacks:
            if len(self._callbacks) == _MOST_CALLBACKS:
                raise ValueError(f"more than {_MOST_CALLBACKS} callbacks")
            self._callbacks.append(callback)
        return self._callbacks.index(callback)

    def _exchange(self, message: bytes, blocks: int = 0) -> tuple[int, bytes, list[bytes]]:
        """Send a request; serve callbacks; return the reply: a word, a text, the content of blocks after the call."""
        self._waiting = True
        try:
            self._send(message)
            until = time.monotonic() + self._patience
            while self._received(until) == _GROW:
                place, nbytes = self._received(until), self._received(until)
                self._waiting = False  # the callback may call functions
                there = self._callbacks[place](nbytes) or 0
                self._waiting = True
                self._send(struct.pack("=QQ", _RETURN, there))
            return self._received(until), self._bytes(until), [self._bytes(until) for _ in range(blocks)]
        except ChildError:
            raise
        except BaseException:  # an interrupt: the rest of the reply would be read as the next one
            self.failure = "was interrupted"
            self.close()
            raise
        finally:
            self._waiting = False

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(message)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except OSError:  # EPIPE
            self._ended()

    def _received(self, until: float) -> int:
        word: int = struct.unpack("=Q", self._read(8, until))[0]
        return word

    def _bytes(self, until: float) -> bytes:
        return self._read(self._received(until), until)

    def _read(self, size: int, until: float) -> bytes:
        assert self._process.stdout is not None
        handle, parts = self._process.stdout.fileno(), []
        ready = select.poll()
        ready.register(handle, select.POLLIN)
        while size:
            left = max(0.0, until - time.monotonic())
            if not ready.poll(left * 1000):
                self.hung = True
                self.failure = f"did not return within {self._patience:.3g} s and was killed"
                self.close()
                raise ChildError(f"the child process {self.failure}")
            data = os.read(handle, min(size, 1 << 20))
            if not data:
                self._ended()
            size -= len(data)
            parts.append(data)
        return b"".join(parts)

    def _ended(self) -> None:
        try:
            code = self._process.wait(_ENDS)
        except subprocess.TimeoutExpired:
            code = 0
        self.signal = max(0, -code)
        self.failure = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        self.close()
        raise ChildError(f"the child process {self.failure}")


class RemoteLibrary:
    """A library that a child process has opened; ``where`` is its file."""

    def __init__(self, child: Child, handle: int, where: str) -> None:
        self._child, self._handle, self.where = child, handle, where

    def __getitem__(self, name: str) -> RemoteFunction:
        """Return a new object for a function. Raises AttributeError where the library has none of that name."""
        address = self._child.address(self._handle, name)
        if not address:
            raise AttributeError(f"{self.where}: undefined symbol: {name}")
        return RemoteFunction(self._child, address)

    def __getattr__(self, name: str) -> RemoteFunction:
        if name.startswith("__"):
            raise AttributeError(name)
        function = self[name]
        setattr(self, name, function)
        return function


class RemoteFunction:
    """A function of a library in a child process, called as one of ctypes."""

    argtypes: Any = None
    """Not read: arguments are passed as what they are."""
    restype: Any = ctypes.c_int

    def __init__(self, child: Child, address: int) -> None:
        self._child, self._address = child, address

    def __call__(self, *arguments: Any) -> Any:
        result, text = self._child.call(self._address, arguments, self.restype is ctypes.c_char_p)
        if self.restype is None:
            return None
        if self.restype is ctypes.c_char_p:
            return text if result else None
        return self.restype(result).value


def _block(argument: Any) -> memoryview | None:
    """The memory that is passed by its address; None for what is passed as a word."""
    if isinstance(argument, bytes):
        return memoryview(argument + b"\0")
    pointed = getattr(argument, "_obj", None)  # of byref
    if pointed is None and isinstance(argument, (ctypes.Array, ctypes.Structure)):
        pointed = argument
    return None if pointed is None else memoryview(pointed).cast("B")


def _word(argument: Any) -> int:
    if argument is None:
        return 0
    if isinstance(argument, ctypes._SimpleCData):
        argument = argument.value or 0
    return operator.index(argument) & _MASK
