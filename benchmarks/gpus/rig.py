"""What the parts share: the mesh, the time that is left, interleaved timing on the slowest rank, rows of results."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

import gemmhub
from gemmhub.distributed import Speeds

Tensor = Any
Run = Callable[[], Any]


@dataclass
class Rig:
    """One rank's view of the measurement."""

    mesh: Any
    until: float
    """The end of this group's time, in seconds since the epoch."""
    path: Path
    """Where rank 0 appends rows, one JSON object a line."""
    speeds: Speeds = field(default_factory=lambda: Speeds(1.0, 1.0, 0.0))
    """Measured by the first part."""

    @property
    def device(self) -> str:
        return str(self.mesh.device_type)

    @property
    def small(self) -> bool:
        """Whether sizes are those of a trial on CPUs."""
        return self.device == "cpu"

    @property
    def ranks(self) -> int:
        return int(self.mesh.size())

    @property
    def rank(self) -> int:
        return int(self.mesh.get_local_rank(0))

    def report(self, part: str, what: str, **facts: Any) -> None:
        if self.rank == 0:
            with self.path.open("a") as file:
                file.write(json.dumps({"part": part, "what": what, **facts}) + "\n")
            print(f"{self.until - time.time():6.1f} s left: {part}, {what}", flush=True)

    def attempt(self, part: str, what: str, run: Callable[..., Any], *given: Any, seconds: float = 3.0) -> Any:
        """The result of ``run(*given)``; None, and a row, where it fails or less than ``seconds`` are left."""
        if self.left() < seconds:
            self.report(part, what, skipped="no time left")
            return None
        try:
            return run(*given)
        except Exception as error:  # every failure is a row of the result
            self.report(part, what, failed=f"{type(error).__name__}: {error}"[:400])
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return None

    def left(self) -> float:
        """Seconds left, the same on every rank."""
        return -self.largest(time.time() - self.until)

    def largest(self, value: float) -> float:
        """The largest of the ranks' values."""
        mine = torch.tensor([value], dtype=torch.float64, device=self.device)
        return float(waited(functional.all_reduce(mine, "max", (self.mesh, 0))))

    def seconds(self, run: Run, repeat: int = 1) -> float:
        """Of one call, on the slowest rank; all begin together."""
        self.largest(0.0)
        start = time.perf_counter()
        for _ in range(repeat):
            waited(run())
        self.synchronize()
        return self.largest((time.perf_counter() - start) / repeat)

    def timed(self, runs: dict[str, Run], rounds: int = 5, least: float = 0.02) -> dict[str, float]:
        """Medians of calls that take turns; short ones are repeated for ``least`` seconds."""
        repeats = {}
        for name, run in runs.items():
            waited(run()), waited(run())
            repeats[name] = max(1, min(200, int(least / self.seconds(run))))
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                found[name].append(self.seconds(run, repeats[name]))
        return {name: statistics.median(x) for name, x in found.items()}

    def synchronize(self) -> None:
        torch.get_device_module(self.device).synchronize()

    def predicted(self, decision: Any) -> float:
        """Seconds of a product of DTensors: the backend's estimate of the local one, and transfers as measured."""
        local = decision.local[decision.local.chosen].seconds
        if local is None:
            local = decision.split.operations / self.speeds.rate
        return float(local + self.moved(decision.split.received, decision.split.collectives))

    def moved(self, received: float, collectives: int) -> float:
        """Predicted seconds of transfers."""
        return received / self.speeds.bandwidth + collectives * self.speeds.latency

    def random(self, *shape: int, dtype: Any, seed: int = 0) -> Tensor:
        """Normal numbers, the same on every rank that passes the same seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.empty(shape, dtype=dtype, device=self.device).normal_(generator=generator)


def placed(x: Tensor, mesh: Any, placement: Any) -> DTensor:
    """``x``, which every rank has, with this placement; where it is Partial, rank 0 has all of the sum."""
    if not isinstance(placement, Partial):
        return distribute_tensor(x, mesh, [placement])
    mine = x if mesh.get_local_rank(0) == 0 else torch.zeros_like(x)
    return DTensor.from_local(mine, mesh, [placement], shape=x.shape, stride=x.stride())


def waited(x: Any) -> Any:
    """A tensor that collectives have left."""
    local = x.to_local() if isinstance(x, DTensor) else x
    return local.wait() if isinstance(local, functional.AsyncCollectiveTensor) else local


def whole(x: DTensor) -> Tensor:
    return waited(x.redistribute(placements=[Replicate()]))


def host(x: Tensor) -> Any:
    """A tensor of floats as a NumPy array of the same values."""
    return x.double().cpu().numpy()


def worst(a: Tensor, b: Tensor, computed: Tensor) -> float:
    """The largest error of ``computed = a @ b`` over the bound of :mod:`gemmhub.accuracy`; right where at most 1."""
    from gemmhub import accuracy

    reference = reference_of(a, b, accuracy)
    return float(np.max(reference.ratio(host(computed))))


def reference_of(a: Tensor, b: Tensor, accuracy: Any) -> Any:
    kind = gemmhub.dtypes.as_dtype(str(a.dtype).removeprefix("torch."))
    model = accuracy.error_model(kind, kind, kind, gemmhub.dtypes.compute_dtype(kind, kind, kind))
    return accuracy.reference(host(a), host(b), model=model)


def joined(path: Path, until: float, backend: str, **options: Any) -> Rig:
    """Join the process group that the environment describes."""
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(backend, **options)
    device = "cuda" if backend == "nccl" else "cpu"
    return Rig(init_device_mesh(device, (torch.distributed.get_world_size(),)), until, path)
