"""The part that plugins share of the build hooks of their wheels: it runs the build of their cubins in a clone.

A plugin's ``hatch_build.py`` imports this file from the folder beside its own, before anything is installed: it imports
nothing that is not in Python.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "GEMMHUB_CUBINS"
"""Environment variable of a build: "all", or the number of cubins of each architecture. Without it a wheel has none."""
NVRTC = "nvidia-cuda-nvrtc-cu12==12.8.93"
"""The oldest NVRTC with which no more kernels for Hopper spill than with 13.5: with 12.4 and 12.6 more of them do, and
12.5 serializes their wgmmas. A driver of CUDA 12 loads the cubins of any NVRTC 12. One version makes the same bytes.
"""


def requirements(root: Path) -> list[str]:
    """Return what the build of the plugin in the folder ``root`` imports: NVRTC, and what gemmhub needs.

    Empty where :data:`VARIABLE` asks for no cubins.
    """
    if not os.environ.get(VARIABLE):
        return []
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((_clone(root) / "pyproject.toml").read_text())["project"]
    return [NVRTC, *project["dependencies"]]


def build(root: Path, package: str, folder: Path) -> dict[str, str]:
    """Build the archives that :data:`VARIABLE` asks for in ``folder``; return their paths in the wheel by those here.

    Raises subprocess.CalledProcessError: a wheel without the cubins that were asked for is not built.
    """
    number = os.environ.get(VARIABLE, "")
    if not number:
        return {}
    path = [_clone(root), _clone(root) / "plugins" / "gemmhub-nvidia", root, *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-m", "gemmhub_nvidia.build_cubins", package, str(folder)]
    subprocess.run([*command, *([] if number == "all" else [number])], check=True, env=environment)
    return {str(made): f"{package}/cubins/{made.name}" for made in sorted(folder.iterdir())}


def _clone(root: Path) -> Path:
    return root.resolve().parents[1]
