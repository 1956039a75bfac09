"""DTensors: processes over gloo compute what one process does, and the choice between the ways to split a product."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")

from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: E402

from gemmhub._doors.torch.placements import Sizes, choose  # noqa: E402

HERE = Path(__file__).parent
CHECKS = (
    "products", "repeats", "exact", "shapes", "options", "wide_sums", "gradients", "gates", "narrow_gradients",
    "two_dimensions", "counted", "chunks", "layers", "measured", "refused", "pinned", "compiled",
)  # fmt: skip


OF_FOUR = CHECKS if "TEST_VARIANTS" in os.environ else (
    "products", "exact", "shapes", "wide_sums", "gradients", "two_dimensions", "chunks", "layers",
)  # fmt: skip
"""Checks that depend on the number of processes; with TEST_VARIANTS (``make test-all``) everything."""


@pytest.mark.parametrize(("ranks", "names"), [(2, CHECKS), (4, OF_FOUR)], ids=["2", "4"])
def test_processes(ranks, names, tmp_path):
    """Two and four processes over gloo; tests/doors/multiply_in_parallel.py has the checks."""
    root = HERE.parents[1]
    command = [sys.executable, str(HERE / "multiply_in_parallel.py"), str(ranks), str(tmp_path / "store"), *names]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONPATH": paths})
    said = done.stdout.split("\n")
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert [f"{name} passed" for name in names] == [line for line in said if line.endswith(" passed")]


def sizes(m, n, k, mesh=(8,), device="cuda"):
    return Sizes((m, k), (k, n), (m, n), mesh, 2, 4, device)


@pytest.mark.parametrize(
    ("shape", "a", "b", "axes"),
    [
        ((8192, 8192, 8192), Shard(0), Replicate(), ("m",)),
        ((8192, 8192, 8192), Replicate(), Shard(1), ("n",)),
        ((2048, 2048, 65536), Shard(1), Shard(0), ("k",)),
        ((65536, 512, 512), Shard(0), Shard(0), ("m",)),  # b is the smaller one to gather
        ((512, 65536, 512), Shard(1), Shard(1), ("n",)),
        ((8192, 8192, 8192), Shard(0), Shard(1), ("n",)),  # rows of a are gathered in place, columns of b by a copy
        ((8192, 8192, 8192), Replicate(), Replicate(), ("m",)),  # nothing moves, and each does an eighth
        ((4, 4, 4), Replicate(), Replicate(), ("",)),  # too small to split
    ],
)
def test_choice(shape, a, b, axes):
    assert choose(sizes(*shape), (a,), (b,)).axes == axes


def test_a_mesh_of_two_dimensions_splits_rows_and_columns():
    found = choose(sizes(8192, 8192, 8192, (2, 4)), (Shard(0), Replicate()), (Replicate(), Shard(1)))
    assert found.axes == ("m", "n")
    assert found.received == 0
    assert found.out == (Shard(0), Shard(1))


def test_what_moves():
    """Partial sums of float32, scattered: seven eighths of the result for each device."""
    found = choose(sizes(1024, 1024, 65536), (Shard(1),), (Shard(0),))
    assert (found.partial, found.out) == ((Partial(),), (Shard(0),))
    assert found.received == 1024 * 1024 * 4 * 7 // 8
