"""Compile the program that runs native code first into the wheel, where there is g++: an executable for this platform.

The wheel is then ``py3-none-manylinux_2_<version>_<machine>``, by the symbols of glibc that the program needs. It is
pure, and the program is compiled on first use, where there is no g++, and for editable installs.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-std=c++17", "-O1", "-static-libstdc++", "-static-libgcc", "-s", "-ldl")


class Program(BuildHookInterface[Any]):
    """See the module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        compiler, glue = shutil.which("g++"), Path(self.root, "gemmhub_musa", "glue")
        if compiler is None or platform.system() != "Linux":
            self.app.display_warning("gemmhub-musa: a wheel without its program (it takes Linux and g++)")
            return
        self._folder = tempfile.TemporaryDirectory()
        made = Path(self._folder.name, "first_run")
        command = [compiler, str(glue / "first_run.cpp"), "-o", str(made), *FLAGS]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.app.display_warning(f"gemmhub-musa: a wheel without its program: {done.stderr[-2000:]}")
            return
        content = made.read_bytes()
        minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)]
        name = f"first_run.{hashlib.sha256(content).hexdigest()[:32]}.run"  # as gemmhub.kit.native.shipped finds it
        build_data["force_include"][str(made)] = f"gemmhub_musa/glue/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{f'manylinux_2_{max(minors)}' if minors else 'linux'}_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
