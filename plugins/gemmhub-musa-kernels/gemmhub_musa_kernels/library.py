"""Compiles the kernels' files with the installed SDK, once for a user, and loads them, once for a process."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_longlong, c_void_p
from pathlib import Path

from gemmhub_musa.compile import compile_mu
from gemmhub_musa.guard import Cleared
from gemmhub_musa.runtime import Runtime
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.kit import locks
from gemmhub_musa_kernels import sources, toolkit
from gemmhub_musa_kernels.parameters import Parameters
from gemmhub_musa_kernels.sources import PIPELINED, SQMMA, TRANSPOSE

NAME = "musa-kernels"


class Library:
    """A compiled file. Its functions enqueue work on a stream; they raise KernelError for a failed launch."""

    def __init__(self, cdll: ctypes.CDLL, file: str, runtime: Runtime, cleared: Cleared) -> None:
        self._runtime, self._cleared = runtime, cleared
        self.deep = file in (PIPELINED, SQMMA)
        # [] creates new function objects, so that other users may declare other types.
        if file == TRANSPOSE:
            self._copy = cdll["gemmhub_copy"]
            self._copy.argtypes = (
                c_void_p,
                c_void_p,
                c_int,
                c_int,
                c_longlong,
                c_longlong,
                c_longlong,
                c_void_p,
                c_void_p,
            )
            return
        self._gemm = cdll["gemmhub_gemm"]
        orders = (c_int, c_int) if self.deep else ()
        self._gemm.argtypes = (c_void_p, *orders, c_void_p, c_void_p)
        if self.deep:
            self._configure, self._shared_bytes = cdll["gemmhub_configure"], cdll["gemmhub_shared_bytes"]
            for function in (self._configure, self._shared_bytes):
                function.argtypes = (c_int, c_int)

    def configure(self, deep_a: bool, deep_b: bool) -> None:
        """Prepare the kernel on the current device, before the first product there."""
        if self.deep:
            self._check("preparing the kernel", self._configure(deep_a, deep_b), 0)

    def shared_bytes(self, deep_a: bool, deep_b: bool) -> int:
        """Return the bytes of shared memory that a block of the pipelined kernel uses."""
        return int(self._shared_bytes(deep_a, deep_b))

    def gemm(self, parameters: Parameters, deep_a: bool, deep_b: bool, stream: int) -> None:
        left = c_int()
        orders = (deep_a, deep_b) if self.deep else ()
        status = self._gemm(byref(parameters), *orders, stream, byref(left))
        self._check("launching the product", status, left.value)

    def copy(self, source: int, to: int, rows: int, cols: int, row: int, col: int, pitch: int, stream: int) -> None:
        """``to[i * pitch + j] = source[i * row + j * col]``, elements of 16 bits."""
        left = c_int()
        status = self._copy(source, to, rows, cols, row, col, pitch, stream, byref(left))
        self._check("launching the copy of an operand", status, left.value)

    def _check(self, what: str, status: int, left: int) -> None:
        if left:
            self._cleared.note(self._runtime.words(left)[0])
        if status:
            name, text = self._runtime.words(status)
            raise KernelError(NAME, f"{what}: {name} ({status}): {text}")


class Libraries:
    """The compiled files of one installation."""

    def __init__(self, sdk: Sdk, runtime: Runtime) -> None:
        self._sdk, self._runtime = sdk, runtime
        self.cleared = Cleared()
        self._known: dict[tuple[str, str, tuple[str, ...], str | None], Library | Refusal] = {}
        self._lock = locks.lock()

    def get(self, file: str, arch: str, defines: tuple[str, ...], added: str | None = None) -> Library | Refusal:
        """Return the library of kernels/``file``.mu for ``arch``; compiled at the first call, which takes seconds.

        ``added``: an activation beside those of all kernels.
        """
        key = (file, arch, defines, added)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._load(*key)
            return self._known[key]

    def build(self, file: str, arch: str, defines: tuple[str, ...], added: str | None = None) -> Path | Refusal:
        """Return the file of a library, compiled where the cache has none. Nothing is loaded."""
        return compile_mu(
            sources.text(file, added), self._sdk, arch, name=f"gemm_{file}_{arch}", include=(sources.KERNELS,),
            flags=(*toolkit.flags(self._sdk, arch, file), *defines), depends=sources.headers(),
        )  # fmt: skip

    def _load(self, file: str, arch: str, defines: tuple[str, ...], added: str | None) -> Library | Refusal:
        built = self.build(file, arch, defines, added)
        if isinstance(built, Refusal):
            return built
        cdll = self._sdk.loader.load(built)
        if isinstance(cdll, Refusal):
            return cdll
        return Library(cdll, file, self._runtime, self.cleared)
