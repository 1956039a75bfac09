"""What the other ranks see when one is killed amid products: an exception or an end of the process, and when."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed.tensor import Shard

import gemmhub
from benchmarks.gpus import rig

LIMIT = 12
"""Seconds that a collective may take: the process group's time limit."""


def work(folder: Path, backend: str, until: float) -> None:
    """Multiply until an exception; the parent kills the last rank once all have begun."""
    on = rig.joined(folder / "rows", until, backend, timeout=timedelta(seconds=LIMIT))
    size = 64 if on.small else 4096
    a, b = (on.random(size, size, dtype=torch.float32, seed=seed) for seed in (1, 2))
    x, y = rig.placed(a, on.mesh, Shard(1)), rig.placed(b, on.mesh, Shard(0))
    error = "none: the time of the test was over"
    try:
        with torch.no_grad():
            while time.time() < until:
                rig.waited(gemmhub.matmul(x, y))
                on.synchronize()
                (folder / f"running.{on.rank}").touch()
    except Exception as raised:  # what is measured
        error = f"{type(raised).__name__}: {raised}"
    (folder / f"error.{on.rank}.json").write_text(json.dumps({"error": error[:600], "at": time.time()}))
    os._exit(0 if error.startswith("none") else 3)
