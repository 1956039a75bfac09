"""A folder that looks like a checkout of MUTLASS, with plain loops behind it: for the simulated home."""

from __future__ import annotations

import shutil
from pathlib import Path

from cutlass_home import HEADERS, write_version

FAKE = Path(__file__).parent / "fake_mutlass"
OPTIONS = {
    "BUILDER_ARGUMENTS": 15,
    "MP31": 0,
    "WORKSPACE": 0,  # bytes that a run needs
    "REFUSES": 0,  # can_implement refuses everything
    "TF32_ALWAYS": 0,  # float32 is rounded although that is not allowed
    "IGNORES_BATCH": 0,  # every matrix of a batch is written over the first
}

PIPELINES = {
    "mutlass/gemm/kernel/gemm_universal.hpp": "namespace mutlass { struct Mp31PipelineTmeAsync {}; }\n",
    "mutlass/epilogue/collective/collective_builder.hpp": "using Named = mutlass::Mp31PipelineTmeAsync;\n",
}
"""A name of MUTLASS 0.3.0 that the second of these headers uses without including what declares it."""


def make(path, version=(0, 1, 1), **options):
    """The folder, for MUTLASS_HOME; ``version`` None: without version.h. ``options`` override OPTIONS."""
    later = version is not None and version >= (0, 2)
    values = {**OPTIONS, **({"BUILDER_ARGUMENTS": 13, "MP31": 1} if later else {}), **options}
    include = path / "include"
    shutil.copytree(FAKE, include)
    for name in HEADERS:
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        own = PIPELINES.get(name, "") if later else ""
        (include / name).write_text(f'#pragma once\n#include "fake/device.hpp"\n{own}')
    if version is not None:
        write_version(include, version)
    lines = (f"#define FAKE_{name} {value}\n" for name, value in values.items())
    (include / "fake" / "options.h").write_text("#pragma once\n" + "".join(lines))
    return path
