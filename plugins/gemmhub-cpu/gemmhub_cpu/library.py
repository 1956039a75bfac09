"""The compiled library of the kernels, and which of its units multiply right on this machine.

Library and self-check come compiled in the wheel; where they do not, or cannot be loaded, g++ compiles them on first
use. The self-check tries every unit in a child process before this one runs any.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub.numpy_backend.probe import cpu_flags
from gemmhub_cpu import limits, sources
from gemmhub_cpu.units import AVX2, NEON, UNITS, UNLISTED, Unit

_FACTS = ("vendor_id", "cpu family", "model", "stepping", "microcode", "flags", "CPU ", "Features")
"""Beginnings of the lines of /proc/cpuinfo that do not change from one reading to the next."""


class Loaded(NamedTuple):
    """The library with what the self-check found."""

    library: Any
    """None where there is none."""
    units: frozenset[str]
    """Names of the units that multiply right here."""
    reason: str
    """Why others, or all, do not; empty where all do."""


@lru_cache(maxsize=1)  # no lock, which a nested call or a forked child would wait for
def load() -> Loaded:
    """The library of this process."""
    return load_from(cpu_flags())


def load_from(words: frozenset[str], *defined: str) -> Loaded:
    """:func:`load` for a processor whose /proc/cpuinfo has ``words``. ``defined`` are as for :func:`recipe`."""
    needed = NEON if platform.machine() == "aarch64" else AVX2
    missing = [flag for flag in needed if flag not in words]
    if missing:
        return Loaded(None, frozenset(), f"the CPU has no {', '.join(missing)}")
    found = _files(defined)
    if isinstance(found, Refusal):
        return Loaded(None, frozenset(), f"{found.reason}; {found.remedy}")
    path, library, check = found
    _declare(library)
    if not _reads_arrays(library):
        reason = "this Python's or NumPy's array objects are not laid out as the kernels expect"
        return Loaded(None, frozenset(), f"{reason}; use CPython, or the numpy backend")
    if "threadpoolctl" in sys.modules:
        limits.register()
    words |= _unlisted(library)
    here = [u for u in UNITS if all(flag in words for flag in u.flags) and (not u.vendor or u.vendor in words)]
    units, reasons = _checked(check, path, here)
    for unit in here:
        if unit.name in units and unit.amx and library.gemmhub_cpu_request_amx() != 0:
            units.discard(unit.name)
            reasons.append(f"{unit.name}: the system refuses its registers to this process")
    return Loaded(library, frozenset(units), "; ".join(reasons))


def _unlisted(library: Any) -> frozenset[str]:
    """The words of the processor's instructions that /proc/cpuinfo does not list."""
    bits = library.gemmhub_cpu_features() if platform.machine() == "x86_64" else 0
    return frozenset(word for bit, word in UNLISTED.items() if bits & bit)


def _declare(library: Any) -> None:
    """Declare the functions of arrays.cpp."""
    integer, pointer, real, array = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.py_object
    functions = {
        "product": (pointer, integer, array, array, array),
        "product_with": (pointer, integer, array, array, integer, *(array,) * 6, real, real),
        "groups": (pointer, *(integer,) * 4, *(array,) * 4),
        "pack_array": (pointer, integer, array, integer),
        "bytes_of_packed": (pointer, integer, integer),
        "workspace_of": (pointer, integer, integer, integer, integer, integer),
        "reads": (integer, array, integer, integer, integer, array),
    }
    for name, arguments in functions.items():
        function = getattr(library, f"gemmhub_cpu_{name}")
        function.restype, function.argtypes = integer, arguments


def _reads_arrays(library: Any) -> bool:
    """Whether the kernels read array objects right: a matrix with strides, whose facts are known."""
    if sys.implementation.name != "cpython":
        return False
    matrix = np.empty((6, 5), np.float16)[::2]
    facts = matrix.ctypes.data, *matrix.shape[:1], *matrix.strides[:1], matrix.dtype
    return bool(library.gemmhub_cpu_reads(object.__basicsize__, matrix, *facts))


def recipe(part: sources.Part, *defined: str) -> native.Recipe:
    """How a part is compiled. ``defined`` are further options of the compiler, for tests."""
    return native.Recipe(
        ("g++",), (*part.flags, *defined), part.sources, part.headers, name=part.stem, suffix=part.suffix
    )


def _files(defined: Sequence[str]) -> tuple[Path, Any, Path] | Refusal:
    """(path of the library, the library, path of its self-check): those of the wheel, else compiled now."""
    parts = sources.library(), sources.self_check()
    if not defined:
        shipped = [native.shipped(sources.FOLDER, part.file_name) for part in parts]
        if shipped[0] is not None and shipped[1] is not None:
            library = native.load(shipped[0])
            if not isinstance(library, Refusal):
                return shipped[0], library, shipped[1]
    path = native.build(recipe(parts[0], *defined))
    if isinstance(path, Refusal):
        return path
    check = native.build(recipe(parts[1]))
    if isinstance(check, Refusal):
        return check
    library = native.load(path)
    return library if isinstance(library, Refusal) else (path, library, check)


def _checked(check: Path, path: Path, units: Sequence[Unit]) -> tuple[set[str], list[str]]:
    """(names of the units that pass, reasons of those that do not).

    One process tries them in turn; where it ends early, another one goes on behind the unit that ended it.
    """
    passed: set[str] = set()
    reasons: list[str] = []
    here, left = facts(), list(units)
    while left:
        arguments = [f"{unit.index}:{unit.pair}{':amx' if unit.amx else ''}" for unit in left]
        found = native.first_run(check, (path, *arguments), facts=here)
        if isinstance(found, Refusal):
            return passed, [*reasons, f"{found.reason}; {found.remedy}"]
        lines = found.output.splitlines()
        verdicts = [line.split()[1] for line in lines if line.split()[0].isdecimal()]
        for unit, verdict in zip(left, verdicts):
            if verdict == "right":
                passed.add(unit.name)
            elif verdict == "refused":
                reasons.append(f"{unit.name}: the system refuses its registers")
            else:
                reasons.append(f"{unit.name} multiplies wrongly on this CPU; {found.remedy}")
        left = left[len(verdicts) :]
        if left and not (found.signal or found.hung):
            return passed, [*reasons, f"the self-check {found.failure}: {found.output.strip()}; {found.remedy}"]
        if left:
            reasons.append(f"{left[0].name}: its self-check {found.failure}; {found.remedy}")
            left = left[1:]
    return passed, reasons


def facts() -> tuple[str, ...]:
    """What the outcome of a self-check depends on beside its program: the processor, and the system's state."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except (OSError, ValueError):
        first = platform.processor()
    lines = [line for line in first.splitlines() if line.startswith(_FACTS)]
    return (*lines, platform.machine(), platform.release(), f"{_registers():x}")


def _registers() -> int:
    """The components of the processor's state that Linux saves (those of XCR0); 0 where it does not report them."""
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        return 0
    arch_prctl, supported = 158, 0x1021  # ARCH_GET_XCOMP_SUPP, since Linux 5.16
    mask = ctypes.c_uint64(0)
    system = ctypes.CDLL(None)
    return mask.value if system.syscall(arch_prctl, supported, ctypes.byref(mask)) == 0 else 0
