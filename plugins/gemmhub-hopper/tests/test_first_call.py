"""On a real Hopper GPU: what the first product of a process costs, with an empty cache of kernels and a full one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hopper_card import ON_CARD

pytestmark = ON_CARD

FIRST = """
import sys, time, torch, gemmhub
dtype, precision = sys.argv[1:]
a, b = (torch.randn(768, 768, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
gemmhub.backends()
torch.cuda.synchronize()
start = time.perf_counter()
gemmhub.matmul(a, b, backend="hopper", precision=precision)
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""
"""Seconds of a first call, when CUDA and the backends have been looked at."""


@pytest.mark.parametrize(
    ("dtype", "precision"), [("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "tf32"), ("float32", "ieee")]
)
def test_first_call(isolated, tmp_path, dtype, precision):
    """``isolated`` sets an empty cache, which the second process finds full. Without other plugins: a call asks all of
    them for an estimate, and cuBLASLt alone takes 75 ms for its first answer.
    """
    command = [sys.executable, "-c", FIRST, dtype, precision]
    environment = {**os.environ, "GEMMHUB_PLUGINS": "hopper", "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment) for _ in range(2)]
    assert all(run.returncode == 0 for run in runs), runs
    cold, warm = (float(run.stdout) for run in runs)
    print(f"{dtype} {precision}: cold {cold:.3f} s, with a full cache {1e3 * warm:.1f} ms")
    assert cold < 2
    assert warm < 0.05
