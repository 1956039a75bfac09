"""The epilogue on vectors: the same bits by eight lanes and by sixteen, and no steps that are subnormal numbers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from gemmhub_cpu import sources

from gemmhub.numpy_backend.probe import cpu_flags

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="lanes of AVX2 and AVX-512"),
    pytest.mark.skipif("avx2" not in cpu_flags(), reason="the CPU has no AVX2"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]
PROGRAM = Path(__file__).parent / "finish_lanes.cpp"


@pytest.mark.parametrize("options", [["-O2"], ["-O1", "-fsanitize=address,undefined"]], ids=["plain", "sanitizers"])
def test_lanes(options: list[str], tmp_path: Path) -> None:
    program = tmp_path / "lanes"
    files = [PROGRAM, sources.FOLDER / "finish.cpp", sources.FOLDER / "x86_64" / "finish_avx512.cpp"]
    command = [
        "g++",
        *options,
        *sources.ARITHMETIC,
        "-std=c++17",
        f"-I{sources.FOLDER}",
        *map(str, files),
        "-o",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "-O1" in options and done.returncode and "cannot find" in done.stderr:
        pytest.skip("the compiler has no libraries of sanitizers")
    assert done.returncode == 0, done.stderr
    # GCC 13 misaligns vectors of 64 bytes on the stack that this option replaces (its bug 110027).
    environment = {**os.environ, "ASAN_OPTIONS": "detect_stack_use_after_return=0"}
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
