"""The emulator of AMX (amx_emulator.cpp) for tests: what is shipped runs, on CPUs without its instructions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemmhub.capability import Refusal
from gemmhub.kit import native

SOURCE = Path(__file__).parent / "amx_emulator.cpp"


def emulator() -> Any | Refusal:
    """The emulator's library; a refusal where nothing can be compiled."""
    flags = ("-O2", "-std=c++17", "-fPIC", "-shared")
    built = native.build(native.Recipe(("g++",), flags, (SOURCE,), (), name="amx_emulator"))
    return built if isinstance(built, Refusal) else native.load(built)


@contextmanager
def emulated(library: Any) -> Iterator[Callable[[], int]]:
    """Tile instructions of all threads run in a handler of SIGILL; yields a function that counts them."""
    library.amx_emulator_executed.restype = ctypes.c_int64
    library.amx_emulator_install()
    try:
        yield library.amx_emulator_executed
    finally:
        library.amx_emulator_remove()
