"""GPU kernels compiled by g++ and run on the host, where an emulator stands in for the GPU's instructions.

An emulator is a folder of C++ files. Those with the name of a kernel's file replace it. ``kernel.cpp`` includes
``machine.hpp`` and then a kernel, by macros; the other sources are compiled once for all kernels, together with the
fibers and barriers of ``gemmhub/testing/simt``::

    kernels = HostKernels(Path("my_plugin/kernels"), Path("tests/emulator"))
    library = kernels.library({"TILE_M": 64})
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SIMT = Path(__file__).parent / "simt"
COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC", "-w", "-I", str(SIMT.parent))
_LINKER = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()
"""The GNU linker takes a quarter of the time of a compilation, gold a twentieth."""
_HEADER, _KERNEL = "machine.hpp", "kernel.cpp"


class CompileError(RuntimeError):
    """The output of a g++ that did not compile a kernel."""


class HostKernels:
    """The kernels of a folder, compiled for the host; the files live as long as the process."""

    def __init__(self, kernels: Path, emulator: Path) -> None:
        self._parts = kernels, emulator
        self._folder = Path(tempfile.mkdtemp(prefix="gemmhub-host-kernels-"))
        atexit.register(shutil.rmtree, self._folder, True)
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def sources(self) -> Path:
        """The folder of the kernels' and the emulator's files, and of what is compiled once."""
        folder = self._folder / "sources"
        with self._locks[folder]:
            if not (folder / "machine.o").exists():
                for part in self._parts:
                    shutil.copytree(part, folder, dirs_exist_ok=True)
                # As one file: that takes half as long.
                files = sorted({*folder.glob("*.cpp"), *SIMT.glob("*.cpp")} - {folder / _KERNEL})
                (folder / "machine.cc").write_text("".join(f'#include "{file}"\n' for file in files))
                header = "-x", "c++-header", str(folder / _HEADER)
                machine = "-O2", "-c", "-o", str(folder / "machine.o"), str(folder / "machine.cc")
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(_compile, (header, machine)))
        return folder

    def library(self, macros: Mapping[str, object], changes: Sequence[tuple[str, str, str]] = ()) -> ctypes.CDLL:
        """The kernel with these macros, compiled when it is not there yet; two threads compile two at a time.

        ``changes`` are (file, old text, new text), for tests that break the kernel.
        """
        definitions = [f"-D{name}={value}" for name, value in sorted(macros.items())]
        digest = hashlib.sha256(repr((definitions, tuple(changes))).encode()).hexdigest()[:16]
        path, sources = self._folder / f"{digest}.so", self.sources()
        with self._locks[path]:
            if not path.exists():
                folder = self.changed(changes) if changes else sources
                files = str(folder / _KERNEL), str(sources / "machine.o")
                _compile(["-shared", *_LINKER, *definitions, "-I", str(sources), "-o", str(path), *files])
        return ctypes.CDLL(str(path))

    def changed(self, changes: Sequence[tuple[str, str, str]]) -> Path:
        """A folder of the changed files, without what is compiled once; AssertionError where a text is missing."""
        sources = self.sources()
        folder = self._folder / f"changed-{hashlib.sha256(repr(tuple(changes)).encode()).hexdigest()[:16]}"
        with self._locks[folder]:
            if not folder.exists():
                texts = {file: (sources / file).read_text() for file, _, _ in changes}
                for file, old, new in changes:
                    assert old in texts[file], f"{file} has no {old!r}"
                    texts[file] = texts[file].replace(old, new)
                shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("*.gch", "*.o", _HEADER))
                for file, text in texts.items():
                    (folder / file).write_text(text)
        return folder


def _compile(arguments: Sequence[str]) -> None:
    done = subprocess.run([*COMPILER, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)
