"""Builds the archives of a plugin's wheel: ``python -m gemmhub_nvidia.build_cubins gemmhub_hopper FOLDER [NUMBER]``.

The package's module ``shipped`` has ``ARCHITECTURES``, and ``sources(architecture)``, a list of
:class:`gemmhub_nvidia.nvrtc.Source`. They are compiled in one process a processor, without a GPU. With NUMBER only so
many of each architecture are, evenly spaced: for tests of the build. The build hooks of wheels run it (cubin_hook.py).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

from gemmhub_nvidia.cubin_hook import NVRTC
from gemmhub_nvidia.cubins import SUFFIX, Entry, packed
from gemmhub_nvidia.nvrtc import Compiler, CompilerError, Source, preload


def library() -> Path:
    """Return the path of NVRTC 12 on ``sys.path``. Raises CompilerError where there is none."""
    for folder in sys.path:
        path = Path(folder, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.12")
        if path.is_file():
            return path
    raise CompilerError("NVRTC 12 is not on sys.path", f"pip install '{NVRTC}'")


def compiler(path: Path) -> Compiler:
    """Return the NVRTC of a file."""
    preload(path.parent)
    return Compiler(ctypes.CDLL(str(path)), str(path))


_compiler: Compiler | None = None
"""NVRTC of a process that compiles."""


def _open(path: Path) -> None:
    global _compiler
    _compiler = compiler(path)


def _compiled(source: Source) -> bytes:
    assert _compiler is not None
    return _compiler.compile(source).cubin


def archive(sources: list[Source], path: Path, processes: int) -> bytes:
    """Return the archive of ``sources``, compiled by the NVRTC of a file. Raises CompilerError."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _open, (path,)) as pool:
        images = list(pool.map(_compiled, sources))
    version = "{}.{}".format(*compiler(path).version)
    return packed((Entry(x.name, x.digest, image) for x, image in zip(sources, images)), version)


def some(sources: list[Source], number: int) -> list[Source]:
    """Return ``number`` of the sources, or all where there are fewer, evenly spaced."""
    count = min(number, len(sources))
    return [sources[i * len(sources) // count] for i in range(count)]


def main(package: str, folder: str, number: str = "") -> None:
    """Write the archives of a package into a folder."""
    shipped, path = import_module(f"{package}.shipped"), library()
    processes = len(os.sched_getaffinity(0))
    for architecture in shipped.ARCHITECTURES:
        start, sources = time.perf_counter(), shipped.sources(architecture)
        if number:
            sources = some(sources, int(number))
        content = archive(sources, path, processes)
        Path(folder, architecture + SUFFIX).write_bytes(content)
        seconds = time.perf_counter() - start
        print(f"{architecture}: {len(sources)} cubins, {len(content) / 2**20:.2f} MiB, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
