"""A few vectors times a matrix on a Hopper GPU, beside kernels that only read as many bytes.

    python benchmarks/hopper_read.py FILE.json [--dtype bfloat16] [--seed 1] [--seconds 40]

Needs torch and gemmhub-hopper. What memory delivers depends on how much is asked of it: a matrix of 32 MB is read in
7 us, of which the first loads' latency is a part. So random matrices of 4096 x 4096 and more are multiplied by 1 to 16
vectors by the plugin's first choice and by torch.matmul, and read by a kernel written here, in each of several ways,
which writes nothing; all of them as cuda_graphs.py says. The kernels of gemmhub and those that read let the next one
start early.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from ctypes import c_uint64
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from cuda_graphs import Call, Rig
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.launch import Function
from hopper_fit import problem
from hopper_torch import caller, close, few_vectors

from gemmhub.capability import Absent
from gemmhub.native import nvrtc

_READ = """
extern "C" __global__ void __launch_bounds__(THREADS) read(const uint4* from, unsigned long long count, unsigned* to) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const unsigned long long stride = 1ull * gridDim.x * THREADS;
    unsigned found = 0;
    for (unsigned long long at = 1ull * blockIdx.x * THREADS + threadIdx.x; at < count; at += LOADS * stride) {
        uint4 loaded[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) loaded[i] = at + i * stride < count ? __ldcs(from + at + i * stride) : uint4{};
#pragma unroll
        for (int i = 0; i < LOADS; ++i) found ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
    if (found == 0x5eed5eed) *to = found;  // or else nothing would have to be read
}
"""
_WAYS = [(threads, blocks, loads) for threads in (256, 512, 1024) for blocks in (1, 2, 4, 8) for loads in (4, 8, 16)]
"""Threads of a block, blocks of a multiprocessor, loads of 16 bytes that a thread asks for at once."""
_MOST_THREADS = 2048
"""Of a multiprocessor."""
_BOUNDS = (50e6, 100e6, 200e6, 1e9)
"""Of the printed table, bytes of the matrix."""


class _Arguments(ctypes.Structure):
    _fields_ = (("start", c_uint64), ("count", c_uint64), ("to", c_uint64))


def readers(backend: HopperBackend) -> dict[str, Any]:
    """The kernels, by how they read: each a function of a matrix's size in bytes, that gives a call."""
    gpu, compiler, found = backend.machine.gpus[0], nvrtc.load(), {}
    for threads, blocks, loads in _WAYS:
        if threads * blocks <= _MOST_THREADS:
            macros = (f"-DTHREADS={threads}", f"-DLOADS={loads}")
            source = nvrtc.Source("read", "read.cu", {"read.cu": _READ}, ("--gpu-architecture=sm_90a", *macros))
            function = gpu.function(nvrtc.cubin(compiler, source), "read", 0)
            found[f"{threads} x {blocks} x {loads}"] = reader(gpu, function, threads, blocks)
    return found


def reader(gpu: Any, function: int, threads: int, blocks: int) -> Any:
    def of(nbytes: int) -> Call:
        kernel = Function(gpu, function, _Arguments(count=nbytes // 16), gpu.sms * blocks, threads, 0)
        slot = kernel.slot()

        def call(_: Any, b: Any, out: Any) -> None:
            slot.arguments.start, slot.arguments.to = b.data_ptr(), out.data_ptr()
            kernel.check(kernel.start(slot, torch.cuda.current_stream().cuda_stream))

        return call

    return of


def measure(backend: HopperBackend, reading: dict[str, Any], size: Any, dtype: str) -> dict[str, Any]:
    m, n, k, order = size
    asked = problem(m, n, k, order, dtype)
    nbytes = k * n * 2
    rig = Rig(m, n, k, order, getattr(torch, dtype), nbytes / 4e12)
    name = backend.candidates(asked)[0]
    call = caller(backend, asked, name)
    right = close(call, rig, dtype)
    numbers = {"torch": rig.add(lambda a, b, out: torch.matmul(a, b, out=out)), "hopper": rig.add(call)}
    numbers |= {way: rig.add(of(nbytes)) for way, of in reading.items()}
    times = dict(zip(numbers, rig.medians(list(numbers.values()), 7)))
    us = {x: float(f"{seconds * 1e6:.4g}") for x, seconds in times.items()}
    return {"m": m, "n": n, "k": k, "order": order, "choice": name, "right": right, "us": us}


def fastest(row: dict[str, Any]) -> float:
    """Microseconds of reading."""
    return min(us for way, us in row["us"].items() if way not in ("torch", "hopper"))


def table(rows: list[dict[str, Any]]) -> None:
    for low, high in zip((0.0, *_BOUNDS), (*_BOUNDS, 1e12)):
        within = [x for x in rows if low <= 2 * x["n"] * x["k"] < high]
        if within:
            share = {name: [fastest(x) / x["us"][name] for x in within] for name in ("hopper", "torch")}
            rate = geometric_mean(2e-6 * x["n"] * x["k"] / fastest(x) for x in within)
            words = (f"{name} {geometric_mean(x):.3f} of that, least {min(x):.3f}" for name, x in share.items())
            print(f"from {low / 1e6:4.0f} MB: {len(within):3} read at {rate:.2f} TB/s;", "; ".join(words))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=40.0, help="begin no product after this time")
    options = parser.parse_args()
    backend, rng, rows = HopperBackend(), random.Random(options.seed), []
    found = backend.probe()
    if isinstance(found, Absent):
        print(f"{found.reason}; {found.remedy}")
        return 1
    reading, end = readers(backend), time.monotonic() + options.seconds
    while time.monotonic() < end:
        rows.append(measure(backend, reading, few_vectors(rng), options.dtype))
    table(rows)
    result = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": options.dtype,
        "command": " ".join(["python", *sys.argv]), "rows": rows,
    }  # fmt: skip
    options.file.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    alarms = [x for x in rows if not x["right"]]
    for x in alarms:
        print(f"WRONG: {x}")
    return int(bool(alarms))


if __name__ == "__main__":
    raise SystemExit(main())
