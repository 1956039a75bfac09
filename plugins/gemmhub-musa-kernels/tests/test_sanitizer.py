"""Each kernel under NVIDIA's compute-sanitizer, where MUSA_HOME is an installation of the simulator's CUDA engine.

gemmhub-musa-sim ~/musa --engine cuda
MUSA_HOME=~/musa GEMMHUB_TEST_MUSA_SDK=installed python -m pytest plugins/gemmhub-musa-kernels/tests/test_sanitizer.py
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import INSTALLED

_PRODUCTS = """
from gemmhub_musa.testing import MusaMemory
from gemmhub_musa_kernels.source import PIPELINED, SCALAR, WMMA
from test_conformance import Restricted, _chosen
from gemmhub.testing import check

memory = MusaMemory()
for start in (PIPELINED, WMMA, SCALAR):
    backend = type(f"Only_{start}", (Restricted,), {"start": start})()
    backend.probe()
    print(start, sum(check(backend, case, memory).accepted for case in _chosen(24)), "products", flush=True)
"""


@pytest.mark.skipif(not INSTALLED, reason="GEMMHUB_TEST_MUSA_SDK is not 'installed'")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_the_sanitizer_finds_nothing(tool):
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None:
        pytest.skip("there is no compute-sanitizer")
    options = ["--tool", tool, "--target-processes", "application-only", "--error-exitcode", "9"]
    command = [program, *options, sys.executable, "-c", _PRODUCTS]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report[-4000:]
    counts = [int(count) for count in re.findall(r"(\d+) products", report)]
    assert len(counts) == 3, report[-4000:]
    assert min(counts) > 0, report[-4000:]
