"""Measured speeds of the devices of a mesh and of the links between them: rate, bandwidth and latency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional

from gemmhub import api, dtypes
from gemmhub._arrays.torch.operands import torch_dtypes
from gemmhub._doors.torch import collectives
from gemmhub.errors import InputError

SIZES = {"cpu": 1024}
"""Sizes of the measured product, by device type; 8192 for others."""
BYTES = {"cpu": (2**12, 2**24)}
"""Received by one device in the two gathers; others: 64 KiB and 256 MiB."""


@dataclass(frozen=True)
class Speeds:
    """The result of :func:`measure`; its fields are parameters of :func:`gemmhub.distributed.predict`."""

    rate: float
    """Operations a second of one device, 2 m n k of them for a product."""
    bandwidth: float
    """Bytes a second that one device receives in a large all-gather."""
    latency: float
    """Seconds of a small all-gather, its host time included."""


def measure(mesh: Any, dtype: Any = "bfloat16", size: int | None = None, *, rounds: int = 5) -> Speeds:
    """Measure one local product and two all-gathers on a mesh of one dimension; every rank calls it.

    Parameters
    ----------
    mesh : a torch DeviceMesh of one dimension.
    dtype : of the operands.
    size : rows, columns and k of the local product; by default 8192, and 1024 on CPUs.
    rounds : the median of so many is taken.

    Returns
    -------
    :class:`Speeds`, the same on every rank: those of the slowest. With one rank, bandwidth is infinite.

    Raises
    ------
    InputError : a mesh of several dimensions.
    """
    if mesh.ndim != 1:
        raise InputError("mesh", f"{mesh.ndim} dimensions", "one dimension", "pass a part of it: mesh['name']")
    device_type, ranks = mesh.device_type, mesh.size()
    size = size or SIZES.get(device_type, 8192)
    options = {"device": device_type, "dtype": torch_dtypes()[1][dtypes.as_dtype(dtype)]}
    a, b = (torch.randn(size, size, device=device_type).to(**options) for _ in range(2))
    rate = 2.0 * size**3 / slowest(lambda: api.matmul(a, b), mesh, rounds)
    if ranks == 1:
        return Speeds(rate, float("inf"), 0.0)
    seconds, received = [], []
    for count in BYTES.get(device_type, (2**16, 2**28)):
        mine = torch.zeros(max(1, count // (ranks - 1)), dtype=torch.uint8, device=device_type)
        received.append(mine.numel() * (ranks - 1))
        seconds.append(
            slowest(lambda x=mine: collectives.waited(collectives.gathered(x, 0, (mesh, 0))), mesh, rounds)  # type: ignore[misc]
        )
    bandwidth = (received[1] - received[0]) / max(1e-9, seconds[1] - seconds[0])
    return Speeds(rate, bandwidth, max(0.0, seconds[0] - received[0] / bandwidth))


def slowest(run: Callable[[], Any], mesh: Any, rounds: int = 5, repeat: int = 1) -> float:
    """The median over rounds of the seconds of one call on the slowest rank, after two calls."""
    run(), run()
    seconds = []
    for _ in range(rounds):
        _synchronize(mesh)
        start = time.perf_counter()
        for _ in range(repeat):
            run()
        torch.get_device_module(mesh.device_type).synchronize()
        spent = torch.tensor([(time.perf_counter() - start) / repeat], dtype=torch.float64, device=mesh.device_type)
        seconds.append(float(collectives.waited(functional.all_reduce(spent, "max", (mesh, 0)))))
    return statistics.median(seconds)


def _synchronize(mesh: Any) -> None:
    """Let all ranks begin together."""
    float(collectives.waited(functional.all_reduce(torch.zeros(1, device=mesh.device_type), "sum", (mesh, 0))))
