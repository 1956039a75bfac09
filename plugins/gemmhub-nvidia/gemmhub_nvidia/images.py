"""The images of a plugin's kernels: cubins from its wheel, from the user's cache, or compiled now; counted.

A plugin's wheel may have the archives ``cubins/ARCHITECTURE.cubins`` (:mod:`gemmhub_nvidia.cubins`) in its package. A
wheel without them, and what they lack, is compiled by NVRTC when it is first needed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from gemmhub.kit import locks
from gemmhub.kit.native import cache
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.cubins import SUFFIX, Archive, ArchiveError
from gemmhub_nvidia.driver import DriverError, Gpu
from gemmhub_nvidia.nvrtc import Compiler, Source

_log = logging.getLogger("gemmhub")


@dataclass
class Loads:
    """The kernels that a plugin has loaded in this process, by where they came from."""

    shipped: int = 0
    """Kernels from the wheel."""
    cached: int = 0
    """Kernels from the user's cache."""
    compiled: int = 0
    """Kernels that this process compiled."""
    seconds: float = 0.0
    """Seconds that it compiled."""

    @property
    def remark(self) -> str:
        """The count for readers of a decision; empty where nothing was loaded yet."""
        return str(self) if self.shipped or self.cached or self.compiled else ""

    def __str__(self) -> str:
        parts = [f"{self.shipped} from the wheel", f"{self.cached} from the cache", f"{self.compiled} compiled"]
        parts[-1] += f" in {self.seconds:.1f} s" if self.compiled else ""
        return f"kernels loaded: {', '.join(parts)}"


class Images:
    """The images of the kernels of a plugin, for one process."""

    def __init__(self, compiler: Compiler, folder: Path) -> None:
        """``folder``: that of the archives; it need not exist."""
        self.loads = Loads()
        """What was loaded so far."""
        self._compiler, self._folder = compiler, folder
        self._lock = locks.lock()
        self._archives: dict[str, Archive | str] = {}
        """By architecture: the archive, or why there is none (empty where the wheel has no such file)."""
        self._files: tuple[frozenset[str], frozenset[str]] | None = None

    def function(self, gpu: Gpu, source: Source, name: str, shared: int) -> int:
        """Return the handle of the kernel ``name`` of ``source`` on a device, with ``shared`` bytes of shared memory.

        Its image is shipped, cached, or compiled now and cached. One of the wheel that the driver does not load is
        reported, and not used. Raises CompilerError, DriverError.
        """
        archive = self._archive(source.architecture)
        image = None if archive is None else archive.read(source.digest)
        if image is not None:
            try:
                handle = gpu.function(image, name, shared)
            except DriverError as error:
                _log.warning("the driver does not load %s of the wheel: %s; it is compiled", source.name, error)
            else:
                self.loads.shipped += 1
                return handle
        return gpu.function(self.load(source), name, shared)

    def load(self, source: Source) -> bytes:
        """Return the cubin of ``source`` from the cache, or compiled now and cached. Raises CompilerError."""
        image = cache.read(nvrtc.file_name(self._compiler, source))
        if image is not None:
            self.loads.cached += 1
            return image
        start = time.perf_counter()
        image = nvrtc.compile_and_store(self._compiler, source)
        self.loads.seconds += time.perf_counter() - start
        self.loads.compiled += 1
        return image

    def shipped(self, source: Source) -> bool:
        """Return whether the wheel has the cubin of ``source``."""
        archive = self._archive(source.architecture)
        return archive is not None and source.digest in archive

    def known(self, name: str, architecture: str) -> bool:
        """Return whether the wheel or the user's cache has a cubin of a source called ``name``, whatever its options.

        It takes far less time than computing a digest. The cache is listed once, when a kernel is first looked for.
        """
        archive = self._archive(architecture)
        return (archive is not None and name in archive.names) or name in self._listed()[1]

    def ready(self, source: Source) -> bool:
        """Return whether ``source`` needs no compiler: the wheel has it, or the cache when it was listed."""
        if self.shipped(source):
            return True
        stored, names = self._listed()
        return source.name in names and nvrtc.file_name(self._compiler, source) in stored

    def _listed(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the files of the user's cache, and those of their sources."""
        if self._files is None:
            stored = cache.stored()
            self._files = stored, frozenset(name.rpartition("-")[0] for name in stored)
        return self._files

    def count(self, architecture: str) -> int:
        """Return the number of cubins for an architecture in the wheel."""
        archive = self._archive(architecture)
        return 0 if archive is None else len(archive)

    def about(self, architecture: str) -> str:
        """Return what the wheel has for an architecture, for readers."""
        archive = self._archive(architecture)
        if archive is None:
            return f"no kernels for {architecture} from the wheel: NVRTC compiles them at first use"
        return f"{len(archive)} kernels for {architecture} in the wheel, compiled by NVRTC {archive.compiler}"

    def fault(self, architecture: str) -> str:
        """Return why the archive of the wheel for an architecture is not used; empty where it is, or there is none."""
        return "" if self._archive(architecture) is not None else str(self._archives[architecture])

    def _archive(self, architecture: str) -> Archive | None:
        """Return the archive for an architecture, opened once; None where there is none that can be used."""
        found = self._archives.get(architecture)
        if found is None:
            with self._lock:
                found = self._archives[architecture] = self._opened(architecture)
        return found if isinstance(found, Archive) else None

    def _opened(self, architecture: str) -> Archive | str:
        path = self._folder / (architecture + SUFFIX)
        try:
            return Archive(path)
        except FileNotFoundError:
            return ""
        except (ArchiveError, OSError) as error:
            why = f"the kernels of the wheel are not used, and are compiled: {error}; install its distribution again"
            _log.warning("%s", why)
            return why
