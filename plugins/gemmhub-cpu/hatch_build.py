"""Compile the kernels and their self-check into the wheel, where there is g++: without Python's ABI, for this platform.

The wheel is then ``py3-none-manylinux_2_<version>_<machine>``, by the newest symbols of glibc that the files need;
old_glibc.h has them linked by their oldest versions.
It is pure, and the kernels are compiled on first use, where there is no g++, on architectures without kernels, and
for editable installs.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_OLD_LIBRARIES = ("-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2", "-Wl,--as-needed")
"""Libraries that have the functions of old_glibc.h before glibc 2.34."""
_OWN_START = ("-nostartfiles", "-DGEMMHUB_OWN_START")


class Kernels(BuildHookInterface[Any]):
    """See the module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        spec = importlib.util.spec_from_file_location("sources", Path(self.root, "gemmhub_cpu", "sources.py"))
        assert spec is not None
        assert spec.loader is not None
        sources = sys.modules["sources"] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
        spec.loader.exec_module(sources)
        compiler, machine = shutil.which("g++"), platform.machine()
        if compiler is None or platform.system() != "Linux" or not (sources.FOLDER / machine).is_dir():
            self.app.display_warning("gemmhub-cpu: a wheel without compiled kernels (it takes Linux and g++)")
            return
        self._folder = tempfile.TemporaryDirectory()
        included, minors = {}, {0}
        for part in (sources.library(), sources.self_check()):
            made = Path(self._folder.name, part.stem)
            old = ["-include", str(Path(self.root, "old_glibc.h")), *_OLD_LIBRARIES]
            old += _OWN_START if part.suffix == ".bin" else ()
            command = [compiler, *map(str, part.sources), "-o", str(made), *part.flags, *old]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                self.app.display_warning(f"gemmhub-cpu: a wheel without compiled kernels: {done.stderr[-2000:]}")
                return
            content = made.read_bytes()
            minors |= {int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)}
            target = sources.FOLDER / part.shipped_name(content)
            included[str(made)] = target.relative_to(self.root).as_posix()
        build_data["force_include"] |= included
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(minors)}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
