"""libmublasLt through a small library that is compiled against the installed mublasLt.h (glue.cpp)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ctypes import Structure, byref, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from gemmhub_musa.compile import compile_host, enumerators
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Refusal
from gemmhub_mublas.library import LibraryError, StatusError
from gemmhub_mublas.lower import Form, Matrix
from gemmhub_mublas.lt import lower

_SOURCE = Path(__file__).with_name("glue.cpp")
WANTED = 8
"""The number of algorithms to ask for."""
LIBRARYS_CHOICE = -1
"""Stands for an algorithm: the library chooses one in each call (algo = NULL)."""

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "gemmhub_lt_create": (c_void_p,),
    "gemmhub_lt_plan": (c_void_p, c_void_p),
    "gemmhub_lt_propose": (c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_void_p, c_void_p),
    "gemmhub_lt_matmul": (c_void_p, c_void_p, c_int, *(c_void_p,) * 8, c_uint64, c_void_p),
}
_OWN_STATUS = {
    -1: "the installed mublasLt.h lacks a name that this needs",
    -2: "no host memory",
    -3: "no such algorithm",
}


class _Matrix(Structure):
    """GemmhubMatrix of the glue."""

    _fields_ = (
        ("rows", c_int64), ("cols", c_int64), ("ld", c_int64), ("stride", c_int64), ("type", c_int32),
        ("alignment", c_int32),
    )  # fmt: skip


class _Form(Structure):
    """GemmhubForm of the glue."""

    _fields_ = (
        ("a", _Matrix), ("b", _Matrix), ("c", _Matrix), ("d", _Matrix), ("compute", c_int32), ("scale", c_int32),
        ("trans_a", c_int32), ("trans_b", c_int32), ("count", c_int32), ("epilogue", c_int32),
    )  # fmt: skip


_TYPES = tuple(lower.TYPE)


def _matrix(matrix: Matrix) -> _Matrix:
    place = _TYPES.index(matrix.dtype)
    return _Matrix(matrix.rows, matrix.cols, matrix.ld, matrix.stride, place, matrix.alignment)


class Glue:
    """The compiled library with libmublasLt behind it."""

    def __init__(self, lib: Any, has: frozenset[str], words: Any) -> None:
        """``has`` are the names that the header has; ``words`` formats a status, which muBLAS and muBLASLt share."""
        for name, arguments in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = c_int, arguments
        lib.gemmhub_lt_forget.restype, lib.gemmhub_lt_forget.argtypes = None, (c_void_p,)
        self.lib = lib
        self.has = has
        self._words = words

    def words(self, status: int) -> str:
        """Return the text for a status."""
        own: str = _OWN_STATUS.get(status) or self._words(status)
        return own

    def check(self, function: str, status: int) -> None:
        """Raise StatusError unless ``status`` is success."""
        if status:
            raise StatusError(function, status, self.words(status))

    def create(self) -> int:
        """Return a new handle on the current device. Raises StatusError where the library makes none."""
        handle = c_void_p()
        self.check("mublasLtCreate", self.lib.gemmhub_lt_create(byref(handle)))
        return handle.value or 0


class Plan:
    """The library's descriptors of one form, which live as long as this object."""

    def __init__(self, glue: Glue, form: Form) -> None:
        """Raises StatusError where the library does not take such descriptors."""
        self._glue = glue
        self._form = _Form(
            *map(_matrix, (form.a, form.b, form.c, form.d)),
            lower.COMPUTES.index(lower.compute(form, glue.has)), _TYPES.index(form.compute),
            form.trans_a, form.trans_b, form.count, lower.epilogue(form),
        )  # fmt: skip
        self.at = None
        made = c_void_p()
        glue.check("mublasLt descriptors", glue.lib.gemmhub_lt_plan(byref(self._form), byref(made)))
        self.at = made.value

    def propose(self, handle: int, limit: int) -> list[int]:
        """Return the workspace in bytes of each proposed algorithm, best first; none where the library fails."""
        workspaces, found = (c_uint64 * WANTED)(), c_int()
        status = self._glue.lib.gemmhub_lt_propose(
            handle, self.at, byref(self._form), limit, WANTED, workspaces, byref(found)
        )
        return [] if status else list(workspaces[: found.value])

    def __del__(self) -> None:
        # At exit the library may be unloaded already.
        if self.at is not None and not sys.is_finalizing():
            self._glue.lib.gemmhub_lt_forget(self.at)


def load(sdk: Sdk, words: Any) -> Glue:
    """Build and load the glue. Raises LibraryError where the library, its header or a compiler is unusable."""
    lib = sdk.load("mublasLt")
    if isinstance(lib, Refusal):
        since = "; muBLASLt came with SDK 4.2" if not sdk.has_header("mublasLt.h") else ""
        raise LibraryError(lib.reason + since, lib.remedy)
    return glue(sdk, _names(sdk), words)


def _names(sdk: Sdk) -> frozenset[str]:
    names = enumerators(sdk, "mublasLt.h", (*lower.NEEDED, *lower.OPTIONAL))
    if isinstance(names, Refusal):
        raise LibraryError(f"muBLASLt's numbers are only in its header: {names.reason}", names.remedy)
    has = frozenset(names)
    missing = [name for name in lower.NEEDED if name not in has]
    if missing:
        raise LibraryError(f"the installed mublasLt.h has no {', '.join(missing)}", "install a complete MUSA SDK")
    return has


def glue(sdk: Sdk, has: frozenset[str], words: Any) -> Glue:
    """Build and load the glue for a header with the names ``has``. Raises LibraryError."""
    lib = sdk.load("mublasLt")  # the glue finds its functions
    if isinstance(lib, Refusal):
        raise LibraryError(lib.reason, lib.remedy)
    return Glue(_built(sdk, has), has, words)


def file(sdk: Sdk, has: frozenset[str] | None = None) -> Path:
    """Build the glue, for a header with the names ``has`` or the installed one. Raises LibraryError."""
    names = _names(sdk) if has is None else has
    flags: Sequence[str] = [f"-DHAS_{name}" for name in lower.OPTIONAL if name in names]
    path = compile_host(_SOURCE, sdk, name="mublaslt_glue", flags=flags)
    if isinstance(path, Refusal):
        raise LibraryError(f"the glue for muBLASLt could not be built: {path.reason}", path.remedy)
    return path


def _built(sdk: Sdk, has: frozenset[str]) -> Any:
    path = file(sdk, has)
    lib = sdk.loader.load(path)
    if isinstance(lib, Refusal):
        raise LibraryError(lib.reason, lib.remedy)
    return lib
