"""A folder that looks like a checkout of MUTLASS, with CUTLASS behind it (the package nvidia-cutlass)."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

ADAPTER = Path(__file__).parent / "cutlass_adapter"
HEADERS = (
    "mutlass/mutlass.h", "mutlass/numeric_types.h", "mutlass/gemm/collective/collective_builder.hpp",
    "mutlass/epilogue/collective/collective_builder.hpp", "mutlass/gemm/device/gemm_universal_adapter.h",
    "mutlass/gemm/kernel/gemm_universal.hpp", "mute/tensor.hpp",
)  # fmt: skip


def cutlass():
    """The folder of CUTLASS's headers; None where the package is not installed."""
    found = importlib.util.find_spec("cutlass_library")
    if found is None or not found.submodule_search_locations:
        return None
    include = Path(next(iter(found.submodule_search_locations))) / "source" / "include"
    return include if (include / "cutlass" / "cutlass.h").is_file() else None


def make(path, version=(0, 1, 1)):
    """The folder, for MUTLASS_HOME; of 0.1 with 15 arguments of the mainloop's builder, later ones with 13."""
    include = path / "include"
    shutil.copytree(ADAPTER, include)
    write_version(include, version)
    for name in HEADERS:
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text('#pragma once\n#include "mutlass/over_cutlass.hpp"\n')
    for name in ("cute", "cutlass"):
        (include / name).symlink_to(cutlass() / name)
    return path


def write_version(include, version):
    """MUTLASS's header of that name, and the README of the version whose header states an older one."""
    if version == (0, 3, 0):
        (include.parent / "README.md").write_text("# MUTLASS 0.3.0\n")
        version = (0, 2, 0)
    words = zip(("MAJOR", "MINOR", "PATCH"), version)
    (include / "mutlass" / "version.h").write_text(
        "".join(f"#define MUTLASS_{name} {value}\n" for name, value in words)
    )
