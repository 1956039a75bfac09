"""What the kernels are compiled from, and where a wheel keeps them compiled.

The build of a wheel (``hatch_build.py``) loads this file by its path: it imports nothing that is not in Python.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

STEM = "gemmhub_cpu_kernels"
"""The beginning of the library's file name, by which threadpoolctl finds it."""
FOLDER = Path(__file__).parent / "kernels"
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared", "-pthread", "-fno-exceptions", "-fno-rtti", "-Wl,--as-needed", "-s")
"""Options of g++. Without symbols, which would hold paths, the same compiler makes the same bytes anywhere."""


def files(machine: str = "") -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """(sources, headers) for ``machine``, as :func:`platform.machine` names it; this one by default."""
    folders = (FOLDER, FOLDER / (machine or platform.machine()))
    sources, headers = (
        tuple(path for folder in folders for path in sorted(folder.glob(pattern))) for pattern in ("*.cpp", "*.h")
    )
    return sources, headers


def compiled(machine: str = "") -> Path:
    """Where a wheel for ``machine`` has the library. The name holds a digest of what it is compiled from."""
    machine = machine or platform.machine()
    digest = hashlib.sha256(repr(FLAGS).encode())
    for group in files(machine):
        for path in group:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(FOLDER).as_posix()} {len(data)} ".encode() + data)
    return FOLDER / f"{STEM}-{machine}-{digest.hexdigest()[:16]}.so"
