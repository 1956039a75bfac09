"""Put compiled kernels into the wheel where GEMMHUB_CUBINS asks for them: "all", or a number for tests of the build.

Without it, and for editable installs, the wheel has none: NVRTC compiles at first use. Cubins are code of a GPU alone:
one wheel serves every processor. The build imports the packages beside this one in a clone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "gemmhub_hopper"


class Cubins(BuildHookInterface[Any]):
    """See the module."""

    def dependencies(self) -> list[str]:
        """Return what the build of the kernels imports."""
        return _shared(self.root).requirements(Path(self.root)) if _asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not _asked():
            return
        self._folder = tempfile.TemporaryDirectory()
        made = _shared(self.root).build(Path(self.root), PACKAGE, Path(self._folder.name))
        build_data["force_include"] |= made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _asked() -> bool:
    return bool(os.environ.get("GEMMHUB_CUBINS"))


def _shared(root: str) -> Any:
    """Return the module of gemmhub-nvidia that both plugins' builds use; it is not installed yet."""
    folder = str(Path(root).parent / "gemmhub-nvidia")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from gemmhub_nvidia import cubin_hook

    return cubin_hook
