"""One rank: ``python -m benchmarks.gpus.worker``; :mod:`benchmarks.gpus.__main__` starts them, options are its own."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

import gemmhub
from benchmarks.gpus import killed, large, layers, pairs, rig, symmetric
from gemmhub.distributed import measure


def links(on: rig.Rig) -> None:
    """The speeds that predictions rest on, and transfers of several sizes."""
    on.speeds = measure(on.mesh)
    on.report("links", "bfloat16", **asdict(on.speeds))


PARTS = {
    "links": links, "pairs": pairs.measure, "layers": layers.measure, "variants": layers.variants,
    "large": large.measure, "symmetric": symmetric.measure,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args()
    faulthandler.dump_traceback_later(max(1.0, asked.until - time.time() + 2.0))
    if asked.parts == ["killed"]:
        killed.work(asked.folder, asked.backend, asked.until)
    on = rig.joined(asked.folder / "rows", asked.until, asked.backend)
    card = {}
    if on.device == "cuda":
        card = {"device": torch.cuda.get_device_name(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    on.report(
        "versions", "torch", torch=torch.__version__, backend=asked.backend, ranks=on.ranks,
        backends=[name for name, x in gemmhub.backends().items() if x.state == "ready"], **card,
    )  # fmt: skip
    if on.small:
        torch.set_num_threads(1)
    for part in asked.parts:
        if part == "links" or on.left() > 3:
            on.attempt(part, "the whole part", PARTS[part], on)
    on.report("versions", "end", parts=asked.parts)
    sys.stdout.flush()
    on.largest(0.0)
    os._exit(0)  # threads of gloo that still run abort a process that ends as usual


if __name__ == "__main__":
    main()
