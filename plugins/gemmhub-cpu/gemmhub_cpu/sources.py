"""What the kernels and their self-check are compiled from, and where a wheel keeps them compiled.

The build of a wheel (``hatch_build.py``) loads this file by its path: it imports nothing that is not in Python.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

STEM = "gemmhub_cpu_kernels"
"""The beginning of the library's file name, by which threadpoolctl finds it."""
ROOT = Path(__file__).parent
FOLDER = ROOT / "kernels"
ARITHMETIC = ("-ffp-contract=off",)
"""No product and sum of an epilogue are contracted: an element has the same bits in every code path."""
FLAGS = (
    "-O2", "-std=c++17", "-fPIC", "-shared", "-pthread", "-fno-exceptions", "-fno-rtti", *ARITHMETIC,
    "-Wl,--as-needed", "-s",
)  # fmt: skip
"""Options of g++. Without symbols, which would hold paths, the same compiler makes the same bytes anywhere."""
CHECK_FLAGS = ("-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-ldl", "-Wl,--as-needed", "-s")
_DIGITS = 32
"""Digits of the content's digest in a file's name, as :mod:`gemmhub.kit.native.cache` writes and compares them."""


def files(machine: str = "") -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """(sources, headers) for ``machine``, as :func:`platform.machine` names it; this one by default."""
    folders = (FOLDER, FOLDER / (machine or platform.machine()))
    sources, headers = (
        tuple(path for folder in folders for path in sorted(folder.glob(pattern))) for pattern in ("*.cpp", "*.h")
    )
    return sources, headers


@dataclass(frozen=True)
class Part:
    """A file that is compiled."""

    stem: str
    suffix: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    flags: tuple[str, ...]
    machine: str

    @property
    def digest(self) -> str:
        """A digest of what it is compiled from."""
        digest = hashlib.sha256(repr(self.flags).encode())
        for path in (*self.sources, *self.headers):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(data)} ".encode() + data)
        return digest.hexdigest()[:16]

    @property
    def file_name(self) -> str:
        """Its name in a wheel; a digest of its content is added to it."""
        return f"{self.stem}-{self.machine}-{self.digest}{self.suffix}"

    def shipped_name(self, content: bytes) -> str:
        """The name of the compiled file in a wheel, with the digest of its content."""
        name = Path(self.file_name)
        return f"{name.stem}.{hashlib.sha256(content).hexdigest()[:_DIGITS]}{name.suffix}"


def library(machine: str = "") -> Part:
    """The library of the kernels."""
    machine = machine or platform.machine()
    code, headers = files(machine)
    return Part(STEM, ".so", code, headers, FLAGS, machine)


def self_check(machine: str = "") -> Part:
    """The executable that tries each unit of the library."""
    source = ROOT / "self_check" / "self_check.cpp"
    headers = (FOLDER / "gemm.h", FOLDER / "unit.h")
    return Part("gemmhub_cpu_self_check", ".bin", (source,), headers, CHECK_FLAGS, machine or platform.machine())
