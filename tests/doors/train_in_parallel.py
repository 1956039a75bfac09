"""Two processes over gloo: an accelerated model under DDP or FSDP learns what one process does with all data."""

from __future__ import annotations

import os
import sys

import torch
import torch.multiprocessing

import gemmhub.torch

RANKS = 2


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    assert len(gemmhub.torch.accelerate(made).replaced) == 2
    return made


def learn(ours: torch.nn.Module, alone: torch.nn.Module, data: torch.Tensor, wrapper: str) -> None:
    """Compare gradients under DistributedDataParallel, or under fully_shard, whose parameters are DTensors."""
    if wrapper == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(ours)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
        for layer in (ours[0], ours[2]):
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(ours, mesh=mesh)
    wrapped(data).square().mean().backward()
    for mine, expected in zip(ours.parameters(), alone.parameters()):
        grad = mine.grad.full_tensor() if wrapper == "fsdp" else mine.grad
        torch.testing.assert_close(grad, expected.grad)


def learn_flat(ours: torch.nn.Module, alone: torch.nn.Module, data: torch.Tensor) -> None:
    """Compare parameters after a step, under FullyShardedDataParallel: the weights of its layers are views of one
    parameter, and no parameters themselves.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    wrapped = FullyShardedDataParallel(ours, use_orig_params=False, device_mesh=mesh, device_id=torch.device("cpu"))
    wrapped(data).square().mean().backward()
    for each in (wrapped, alone):
        torch.optim.SGD(each.parameters(), 0.1).step()
    with FullyShardedDataParallel.summon_full_params(wrapped):
        for mine, expected in zip(wrapped.parameters(), alone.parameters()):
            torch.testing.assert_close(mine, expected)


def work(rank: int, wrapper: str, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    data = torch.randn(RANKS, 6, 16, generator=torch.Generator().manual_seed(1))
    alone = model()
    alone(data.flatten(0, 1)).square().mean().backward()
    ours = model()
    if wrapper == "flat":
        learn_flat(ours, alone, data[rank])
    else:
        learn(ours, alone, data[rank], wrapper)
    print("agrees", flush=True)
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo that still run abort a process that ends as usual


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1], sys.argv[2]), nprocs=RANKS)
