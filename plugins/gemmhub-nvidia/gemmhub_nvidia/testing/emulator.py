"""The kernels of a plugin, compiled for the host with the plugin's own emulator of instructions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from gemmhub.testing.host_kernels import HostKernels
from gemmhub_nvidia import sources


class EmulatedKernels(HostKernels):
    """The kernels of ``package`` and the shared headers, compiled with the files of the folder ``emulator``."""

    def __init__(self, package: str, generated: Mapping[str, str], emulator: Path) -> None:
        """``generated``: texts of headers by file name."""
        self._kernels = tempfile.TemporaryDirectory(prefix=f"{package}-kernels-")
        for name, text in {**sources.shared(), **sources.files(package), **generated}.items():
            Path(self._kernels.name, name).write_text(text)
        super().__init__(Path(self._kernels.name), emulator)
