"""The kernels, their packing and their threads under the sanitizers of the compiler."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from gemmhub_cpu import native_engine

from gemmhub.numpy_backend.probe import cpu_flags

pytestmark = pytest.mark.compiler
FOLDER = Path(__file__).parent
KERNELS = Path(native_engine.__file__).parent / "kernels"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.skipif(not {"avx2", "fma", "f16c"} <= cpu_flags(), reason="the CPU has no AVX2")
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_random_products(sanitizers: str, tmp_path: Path) -> None:
    program = tmp_path / "sanitized"
    options = ["-O1", "-g", "-std=c++17", "-pthread", "-DGEMMHUB_MODEL_AMX", f"-fsanitize={sanitizers}"]
    sources = [FOLDER / "sanitized.cpp", *sorted(KERNELS.glob("*.cpp"))]
    command = ["g++", *options, "-fno-sanitize-recover=all", *map(str, sources), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip(f"the compiler has no library for -fsanitize={sanitizers}")
    assert built.returncode == 0, built.stderr
    seed = str(random.randrange(10**6))
    # Without randomised addresses, which the thread sanitizer of older compilers cannot place its shadow beside.
    wrapped = ["setarch", "-R", str(program), seed] if shutil.which("setarch") else [str(program), seed]
    done = subprocess.run(wrapped, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
