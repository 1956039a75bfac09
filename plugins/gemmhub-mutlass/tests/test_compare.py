"""Every MUSA plugin on one product, and NumPy: the table that ``gemmhub compare`` prints."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

PLUGINS = {
    "gemmhub_mublas": ("mublas", "mublaslt"),
    "gemmhub_mudnn": ("mudnn",),
    "gemmhub_musa_kernels": ("musa-kernels",),
    "gemmhub_mutlass": ("mutlass",),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_one_table(home, dtype):
    if home is None:
        pytest.skip("not the simulator")
    missing = [name for name in PLUGINS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    command = [sys.executable, "-m", "gemmhub", "compare", "64", "48", "80", "--device", "musa", "--dtype", dtype]
    done = subprocess.run(
        [*command, "--seed", "1", "--json"], env=dict(os.environ), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["rows"]
    expected = {backend for backends in PLUGINS.values() for backend in backends} | {"numpy"}
    assert {row["backend"] for row in rows} == expected
    assert all(row["status"] == "passed" and row["ratio"] <= 1 for row in rows)
