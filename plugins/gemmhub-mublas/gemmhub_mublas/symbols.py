"""Finds a function in a shared library under its C++ name, any C++ name with its parameters, or its plain name.

libmublas exports its functions as C does, except the three ...Ex ones, which SDKs export as C++ does: the name then
encodes the parameters, and a type renamed by the vendor renames the function. There are other overloads as well: an
older one with more parameters, and one whose compute type is a musaDataType_t. These must not be called by mistake. So
the usual C++ name comes first, then any in the table of dynamic symbols whose parameters are, one by one, the expected
kinds. The plain name, which states no parameters, is the last.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from ctypes import CDLL, c_void_p, cast
from pathlib import Path
from typing import Any, NamedTuple

from gemmhub_musa.child import RemoteLibrary

_DYNSYM, _UNDEFINED, _FUNCTION = 11, 0, 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class Found(NamedTuple):
    """A function, its symbol, and how it was found."""

    function: Any
    symbol: str
    how: str
    """How it was found: "mangled", "scanned" or "plain"."""


class _UnreadableError(Exception):
    """A symbol is no mangled name of a plain function that this module can read."""


def resolve(library: CDLL | RemoteLibrary, name: str, mangled: str, kinds: str) -> Found | None:
    """Return the function called ``name``; None where the library has none with parameters of these ``kinds``.

    ``mangled`` is its usual C++ name, ``kinds`` the result of :func:`parameters` for it.
    """
    path = where(library)
    names = sorted(exported(path)) if path is not None and not hasattr(library, mangled) else ()
    scanned = (x for x in names if x.startswith(f"_Z{len(name)}{name}") and parameters(x) == kinds)
    for symbol, how in ((mangled, "mangled"), *((x, "scanned") for x in scanned), (name, "plain")):
        function = getattr(library, symbol, None)
        if function is not None:
            return Found(function, symbol, how)
    return None


def where(library: CDLL | RemoteLibrary, symbol: str = "mublasCreate") -> Path | None:
    """Return the file that ``symbol`` of a loaded library was loaded from; None where the system does not report it."""
    if isinstance(library, RemoteLibrary):
        return Path(library.where)
    function = getattr(library, symbol, None)
    if function is None:
        return None
    address = cast(function, c_void_p).value or 0
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split(maxsplit=5)
        low, high = (int(x, 16) for x in fields[0].split("-"))
        if low <= address < high and len(fields) == 6:
            return Path(fields[5])
    return None


def exported(path: Path) -> set[str]:
    """Return the functions in the dynamic symbol table of a 64-bit little-endian ELF file; empty for other files."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return set(_functions(data))
    except (OSError, struct.error, IndexError, ValueError, OverflowError):
        return set()


def _functions(data: mmap.mmap) -> Iterator[str]:
    if data[:6] != b"\x7fELF\x02\x01":
        return
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        start, length, names = section[4], section[5], sections[section[6]][4]
        for at in range(start, start + length, _SYMBOL.size):
            name, info, _, index, _, _ = _SYMBOL.unpack_from(data, at)
            if index != _UNDEFINED and info & 15 == _FUNCTION:
                begin = names + name
                end = data.find(b"\0", begin)
                yield data[begin:end].decode("ascii", "replace")


def parameters(symbol: str) -> str:
    """Return the kinds of parameters that an Itanium-mangled plain function has, a letter each; "" where it is not one.

    "p" any pointer, "e" a named type (here: an enumeration), else the letter of the builtin type ("i" int, "x" long
    long, "f" float): ``parameters("_Z1f3FooiPKvx") == "eipx"``.
    """
    try:
        return "".join(_Names(symbol).kinds())
    except (_UnreadableError, IndexError, ValueError):
        return ""


class _Names:
    """A reader of one mangled name: pointers, const, named types, builtin types and substitutions."""

    def __init__(self, symbol: str) -> None:
        if not symbol.startswith("_Z"):
            raise _UnreadableError
        self._text = symbol
        self._at = 2
        self._seen: list[str] = []
        """The kinds of the types that S_, S0_, S1_... stand for."""

    def kinds(self) -> Iterator[str]:
        self._source_name()
        while self._at < len(self._text):
            yield self._type()

    def _source_name(self) -> None:
        start = self._at
        while self._text[self._at].isdigit():
            self._at += 1
        self._at += int(self._text[start : self._at])
        if self._at > len(self._text):
            raise _UnreadableError

    def _type(self) -> str:
        letter = self._text[self._at]
        if letter.isdigit():
            self._source_name()
            return self._remember("e")
        self._at += 1
        if letter == "P":
            self._type()
            return self._remember("p")
        if letter == "K":
            return self._remember(self._type())
        if letter == "S":
            return self._substituted()
        if letter in "vbcahstijlmxyfd":
            return letter
        raise _UnreadableError(letter)

    def _remember(self, kind: str) -> str:
        self._seen.append(kind)
        return kind

    def _substituted(self) -> str:
        end = self._text.index("_", self._at)
        digits, self._at = self._text[self._at : end], end + 1
        return self._seen[int(digits, 36) + 1 if digits else 0]
