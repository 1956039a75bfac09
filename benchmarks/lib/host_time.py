"""Host time of calls on an NVIDIA card: the time until a call returns, not until the card has finished.

Calls are made in interleaved batches that fit into the device's queue, with the device idle before each batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_WARM_UP = 20


def samples(calls: dict[str, Callable[[], object]], batches: int = 60, batch: int = 100) -> dict[str, list[float]]:
    """Return, for each of ``calls``, the microseconds of one call in each of ``batches`` batches."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    for _ in range(batches):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(batch):
                call()
            found[name].append((time.perf_counter() - start) / batch * 1e6)
    return found


def print_least(calls: dict[str, Callable[[], object]]) -> None:
    """Print the least of each call's samples."""
    for name, found in samples(calls, batches=20, batch=200).items():
        print(f"{name:32} {min(found):6.2f} us")
