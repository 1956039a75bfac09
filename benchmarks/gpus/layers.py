"""The pair of linear layers of a Llama 70B block, split by columns and rows, and how much of its communication hides.

Two forms. Replicated: every rank has all rows of x and gets all of the result. Sequence parallel: a rank has a part of
the rows of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gemmhub
import gemmhub.torch
from benchmarks.gpus import rig
from benchmarks.gpus.rig import Rig
from gemmhub._doors.torch import collectives

Tensor = Any
DTYPE = torch.bfloat16


def sizes(on: Rig) -> tuple[int, int, tuple[int, ...]]:
    """Columns of the model, columns of the hidden layer, and rows."""
    return (64, 96 * on.ranks, (16, 32)) if on.small else (8192, 28672, (16, 512, 8192))


def measure(on: Rig) -> None:
    width, wide, counts = sizes(on)
    with torch.no_grad():
        weights, locals_ = whole_weights(on, width, wide), local_weights(on, width, wide)
        for count in counts:
            x = on.random(count, width, dtype=DTYPE, seed=count)
            on.attempt("layers", f"replicated, {count} rows", replicated, on, x, weights, locals_)
            on.attempt("layers", f"sequence, {count} rows", sequence, on, x, weights, locals_)


def variants(on: Rig) -> None:
    """The sequence parallel pair of most rows by other process groups and by cuBLAS."""
    width, wide, counts = sizes(on)
    quiet = quiet_meshes(on)
    meshes: list[tuple[str, DeviceMesh, str | None]] = [(name, mesh, None) for name, mesh in quiet]
    if "cublas" in (backends := gemmhub.backends()) and backends["cublas"].state == "ready":
        meshes += [(f"{name}, cublas", mesh, "cublas") for name, mesh in (("plain", on.mesh), *quiet[:2])]
    with torch.no_grad():
        locals_ = tuple(local_weights(on, width, wide))
        x = on.random(counts[-1], width, dtype=DTYPE, seed=counts[-1])
        for name, mesh, backend in meshes:
            what = f"{name}, {counts[-1]} rows"
            on.attempt("layers", what, variant, on, x, locals_, mesh, what, backend)
        for name, mesh in quiet[-1:]:
            for free in (8, 16):
                what = f"{name}, {free} multiprocessors left free, {counts[-1]} rows"
                on.attempt("layers", what, variant, on, x, locals_, mesh, what, None, free)


def whole_weights(on: Rig, width: int, wide: int) -> list[Tensor]:
    """Weights of both layers, (features out, features in), the same on every rank."""
    return [on.random(n, k, dtype=DTYPE, seed=n).mul_(k**-0.5) for n, k in ((wide, width), (width, wide))]


def local_weights(on: Rig, width: int, wide: int) -> list[Tensor]:
    """This rank's part of each."""
    return [w.chunk(on.ranks, dim)[on.rank].clone() for dim, w in enumerate(whole_weights(on, width, wide))]


def model(on: Rig, weights: Any, column: Any, row: Any) -> Any:
    with torch.device("meta"):
        layers = [torch.nn.Linear(*reversed(w.shape), bias=False, dtype=DTYPE) for w in weights]
    for layer, w in zip(layers, weights):
        layer.weight = torch.nn.Parameter(w, requires_grad=False)
    return parallelize_module(
        torch.nn.Sequential(layers[0], torch.nn.SiLU(), layers[1]), on.mesh, {"0": column, "2": row}
    )


def placed(on: Rig, mesh: Any, x: Tensor, locals_: Any) -> tuple[DTensor, DTensor, DTensor]:
    """Rows of x in parts, and both weights as b of a product."""
    width = x.shape[1]
    wide = locals_[0].shape[0] * on.ranks
    mine = x.chunk(on.ranks)[on.rank].contiguous()
    return (
        DTensor.from_local(mine, mesh, [Shard(0)], shape=x.shape, stride=x.stride()),
        DTensor.from_local(locals_[0].t(), mesh, [Shard(1)], shape=torch.Size((width, wide)), stride=(1, width)),
        DTensor.from_local(locals_[1].t(), mesh, [Shard(0)], shape=torch.Size((wide, width)), stride=(1, wide)),
    )


def pair(x: DTensor, up: DTensor, down: DTensor, **options: Any) -> DTensor:
    """The two products as users write them."""
    return gemmhub.matmul(gemmhub.matmul(x, up, activation="silu", **options), down, **options)


def parts(x: Tensor, locals_: Any, mesh: Any, **options: Any) -> dict[str, Any]:
    """Products alone and transfers alone: gemmhub's, whose sums travel in float32, and torch's."""
    up, down = (w.t() for w in locals_)
    group = (mesh, 0)
    mine = x.chunk(mesh.size())[mesh.get_local_rank(0)].contiguous()
    sums = torch.zeros_like(x)
    wide = sums.float()

    def together(*moves: Any) -> Any:
        return lambda: [rig.waited(move()) for move in moves]

    def torchs() -> Tensor:
        return torch.matmul(torch.nn.functional.silu(torch.matmul(x, up)), down)

    return {
        "compute": lambda: gemmhub.matmul(
            gemmhub.matmul(x, up, activation="silu", **options), down, out_dtype="float32", **options
        ),
        "torch compute": torchs,
        "gather": together(lambda: collectives.gathered(mine, 0, group)),
        "scatter float32": together(lambda: collectives.summed(wide, 0, group)),
        "scatter": together(lambda: collectives.summed(sums, 0, group)),
        "reduce": together(lambda: functional.all_reduce(sums, "sum", group)),
    }


def replicated(on: Rig, x: Tensor, weights: Any, locals_: Any) -> None:
    theirs = model(on, weights, ColwiseParallel(), RowwiseParallel())
    ours = model(on, weights, gemmhub.torch.ColumnParallel(), gemmhub.torch.RowParallel())
    found = on.timed({"torch": lambda: theirs(x), "gemmhub": lambda: ours(x), **parts(x, locals_, on.mesh)})
    _, up, down = placed(on, on.mesh, x, locals_)
    given = DTensor.from_local(x, on.mesh, [Replicate()])
    predicted = products(on, given, up, down) + on.moved(x.nbytes * (on.ranks - 1) / on.ranks, 1)
    communication = {
        "communication": found["scatter float32"] + found["gather"], "torch communication": found["reduce"]
    }  # fmt: skip
    on.report(
        "layers", f"replicated, {len(x)} rows", **found, **communication, predicted=predicted,
        difference=difference(theirs(x), ours(x)),
    )  # fmt: skip


def sequence(on: Rig, x: Tensor, weights: Any, locals_: Any) -> None:
    theirs = model(
        on, weights, ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))
    )  # fmt: skip
    given = placed(on, on.mesh, x, locals_)
    mine = given[0].to_local()
    runs = {"torch": lambda: theirs(mine), "gemmhub": lambda: pair(*given), **parts(x, locals_, on.mesh)}
    found = on.timed(runs)
    communication = {
        "communication": found["scatter float32"] + found["gather"],
        "torch communication": found["scatter"] + found["gather"],
    }
    on.report(
        "layers", f"sequence, {len(x)} rows", **found, **communication, predicted=products(on, *given),
        difference=difference(theirs(mine), pair(*given).to_local()),
    )  # fmt: skip


def variant(on: Rig, x: Tensor, locals_: Any, mesh: Any, what: str, backend: str | None, free: int = 0) -> None:
    """The sequence parallel pair with another process group, another backend, or kernels that leave multiprocessors."""
    options = {"backend": backend} if backend else {}
    given = placed(on, mesh, x, locals_)
    wanted = {
        name: run
        for name, run in parts(x, locals_, mesh, **options).items()
        if name in ("compute", "gather", "scatter float32")
    }
    found = on.timed(wanted)
    with left_free(free):
        found |= on.timed({"gemmhub": lambda: pair(*given, **options)})
    on.report("layers", what, **found, communication=found["scatter float32"] + found["gather"])


@contextmanager
def left_free(multiprocessors: int) -> Iterator[None]:
    """Let persistent kernels of gemmhub-hopper run on fewer multiprocessors: a trial, not a setting that users have."""
    if not multiprocessors:
        yield
        return
    from gemmhub_hopper.cost.model import Card

    whole = Card.max_active_clusters
    Card.max_active_clusters = lambda self, size: max(1, whole(self, size) * (self.sms - multiprocessors) // self.sms)
    gemmhub.reload()
    try:
        yield
    finally:
        Card.max_active_clusters = whole
        gemmhub.reload()


def products(on: Rig, x: DTensor, up: DTensor, down: DTensor) -> float:
    """Predicted seconds of both products."""
    hidden = gemmhub.matmul(x, up, activation="silu")
    return on.predicted(gemmhub.explain(x, up, activation="silu")) + on.predicted(gemmhub.explain(hidden, down))


def difference(theirs: Tensor, ours: Tensor) -> float:
    """The largest, relative to the largest element."""
    theirs, ours = rig.waited(theirs), rig.waited(ours)
    return float((theirs.float() - ours.float()).abs().max() / theirs.float().abs().max())


def quiet_meshes(on: Rig) -> list[tuple[str, DeviceMesh]]:
    """Meshes whose process groups leave multiprocessors to the product: streams of high priority, few CTAs."""
    if on.device != "cuda":
        return []
    found = []
    for ctas in (0, 4, 8):
        options = torch.distributed.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = True
        if ctas:
            options.config.max_ctas = ctas
        group = torch.distributed.new_group(pg_options=options, backend="nccl")
        name = "high priority" + (f", {ctas} CTAs" if ctas else "")
        found.append((name, DeviceMesh.from_group(group, "cuda")))
    return found
