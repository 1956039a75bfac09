"""Random products by the kernels of each architecture: under the compiler's sanitizers, and by NEON on an emulator.

TEST_PRODUCTS is the number of products of each unit and thread.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
from pathlib import Path

import amx
import pytest
from gemmhub_cpu import sources

from gemmhub.numpy_backend.probe import cpu_flags

pytestmark = pytest.mark.compiler
PROGRAM = Path(__file__).parent / "random_products.cpp"
ARRAYS = Path(__file__).parent / "array_products.cpp"
PRODUCTS = os.environ.get("TEST_PRODUCTS", "6")
HERE = platform.machine()


def built(
    compiler: str, machine: str, options: list[str], program: Path, source: Path = PROGRAM
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Compile the program of ``source`` with the kernels of ``machine``."""
    files = [source, *sources.files(machine)[0], *([amx.SOURCE] if machine == "x86_64" else [])]
    command = [
        compiler,
        "-g",
        *sources.ARITHMETIC,
        "-std=c++17",
        "-pthread",
        *options,
        *map(str, files),
        "-o",
        str(program),
    ]
    return subprocess.run(command, capture_output=True, text=True)


# GCC 13 misaligns vectors of 64 bytes on the stack that this option replaces (its bug 110027).
SANITIZED = {**os.environ, "ASAN_OPTIONS": "detect_stack_use_after_return=0"}


def check(wrapper: list[str], program: Path, units: int) -> None:
    """Run it with a fresh seed; at least so many ``units`` must have been there."""
    seed = str(random.randrange(10**6))
    done = subprocess.run(
        [*wrapper, str(program), seed, PRODUCTS], capture_output=True, text=True, timeout=3000, env=SANITIZED
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    assert len(set(done.stdout.splitlines())) >= units


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.skipif(HERE != "aarch64" and not {"avx2", "fma", "f16c"} <= cpu_flags(), reason="the CPU has no AVX2")
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
@pytest.mark.parametrize("source", [PROGRAM, ARRAYS], ids=["matrices", "arrays"])
def test_random_products(source: Path, sanitizers: str, tmp_path: Path) -> None:
    program = tmp_path / "sanitized"
    options = ["-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    done = built("g++", HERE, options, program, source)
    if done.returncode and "cannot find" in done.stderr:
        pytest.skip(f"the compiler has no library for -fsanitize={sanitizers}")
    assert done.returncode == 0, done.stderr
    # Without randomised addresses, which the thread sanitizer of older compilers cannot place its shadow beside.
    check(
        ["setarch", "-R"] if shutil.which("setarch") else [],
        program,
        4 if HERE == "x86_64" and source is PROGRAM else 1,
    )


@pytest.mark.skipif(HERE == "aarch64", reason="this CPU has NEON: it need not be emulated")
def test_random_products_by_neon_on_an_emulator(tmp_path: Path) -> None:
    """With the cross compiler g++-aarch64-linux-gnu and qemu-user. No ARM processor has run these kernels."""
    compiler = "aarch64-linux-gnu-g++"
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if shutil.which(compiler) is None or emulator is None:
        pytest.skip(f"{compiler} or qemu-aarch64 was not found (Debian: g++-aarch64-linux-gnu, qemu-user)")
    program = tmp_path / "emulated"
    done = built(compiler, "aarch64", ["-O2", "-static", "-Wall", "-Wextra", "-Werror"], program)
    assert done.returncode == 0, done.stderr
    check([emulator, "-cpu", "max"], program, 4)
