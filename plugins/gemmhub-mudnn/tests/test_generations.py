"""The other SDK generations, each in a process of its own: the stub libraries of one would hide those of the next's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import GENERATION

HERE = Path(__file__).parent
TESTS = "test_conformance.py", "test_backend.py", "test_library.py::test_the_right_generation_is_used"


@pytest.mark.skipif(GENERATION != "4.3", reason="runs from the default generation only")
@pytest.mark.parametrize("generation", ["3.1", "5.1", "5.1-c"])
def test_generation(generation):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        env={**os.environ, "GEMMHUB_TEST_MUSA_SDK": generation}, cwd=HERE, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
