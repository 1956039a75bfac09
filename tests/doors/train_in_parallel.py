"""Two processes over gloo: an accelerated model under DDP or FSDP has the gradients of one process with all data."""

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


def work(rank: int, wrapper: str, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    data = torch.randn(RANKS, 6, 16, generator=torch.Generator().manual_seed(1))
    alone = model()
    alone(data.flatten(0, 1)).square().mean().backward()
    ours = model()
    if wrapper == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(ours)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in (ours[0], ours[2]):
            fully_shard(layer, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,)))
        wrapped = fully_shard(ours, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,)))
    wrapped(data[rank]).square().mean().backward()
    for mine, expected in zip(ours.parameters(), alone.parameters()):
        grad = mine.grad.full_tensor() if wrapper == "fsdp" else mine.grad
        torch.testing.assert_close(grad, expected.grad)
    print("agrees", flush=True)
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo that still run abort a process that ends as usual


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1], sys.argv[2]), nprocs=RANKS)
