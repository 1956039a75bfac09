"""Batches of small matrices, and rows by one matrix, on an NVIDIA card beside torch.bmm and torch.matmul.

    python -m benchmarks.run.batches [--seconds 120] [--kind squares] [--every] [--json FILE]

It needs torch and the plugins to be measured. Nothing is tuned: the backend is the one with the least estimate. Device
time is measured by CUDA graphs (benchmarks/lib/cuda_graphs.py). torch has no product of int8 batches on CUDA: int8 is
compared with the bfloat16 batch of the same sizes. ``--every`` times gemmhub-cuda's candidates for batches too, and
gemmhub-cublas alone.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cuda_graphs import Call, launching
from benchmarks.lib.drawn import Product, Sizes
from benchmarks.lib.drawn import problem as problem_of
from benchmarks.lib.one_backend import prepared
from benchmarks.lib.torch_calls import Setup
from gemmhub.backend import Backend, Offer

SQUARES = [(count, side) for count in (1000, 4096, 20000) for side in (16, 32, 64) if count * side**2 <= 5e7]
OTHERS = (
    (4096, 17, 17, 17), (1000, 33, 33, 33), (2000, 8, 64, 64), (4096, 16, 64, 32), (1024, 64, 64, 128),
    (4096, 24, 24, 24),
)  # fmt: skip
"""(count, m, n, k)."""
BROADCAST = ((1000, 16, 64, 64), (4096, 64, 64, 64), (512, 128, 256, 256))
ROWS = ((4096, 1, 512, 512), (512, 1, 4096, 4096))
INTEGERS = ((1000, 16), (4096, 32), (4096, 64), (20000, 16), (1000, 33), (256, 256))


class Item(NamedTuple):
    """One product of the grid."""

    kind: str
    dtype: str
    sizes: Sizes
    orders: str = "nn"
    shared: bool = False
    """Whether b is one matrix for the whole batch."""


def grid() -> Iterator[Item]:
    """Yield the products."""
    for count, side in SQUARES:
        yield Item("squares", "bfloat16", Sizes(count, side, side, side))
    for count, side in INTEGERS:
        for orders in ("nn", "nt"):
            yield Item("int8", "int8", Sizes(count, side, side, side), orders)
    for dtype in ("bfloat16", "float32"):
        for sizes in OTHERS:
            yield Item("other sizes", dtype, Sizes(*sizes))
        for sizes in BROADCAST:
            yield Item("one b", dtype, Sizes(*sizes), shared=True)
        for sizes in ROWS:
            yield Item("rows by one b", dtype, Sizes(*sizes), shared=True)
    for dtype, orders in (("bfloat16", "nt"), ("float16", "nn"), ("float32", "nn")):
        for count, side in SQUARES:
            yield Item("squares", dtype, Sizes(count, side, side, side), orders)


class Rig(Setup):
    """Operands of an item; where b is shared, it has two dimensions."""

    def __init__(self, item: Item) -> None:
        self.item = item
        super().__init__(Product("", item.dtype, item.orders, item.sizes))

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        a, b, out = super()._operands(m, n, k, order, dtype)
        return a, b[0].clone() if self.item.shared else b, out


def torch_call(item: Item, rig: Rig) -> Call:
    """Return torch's product; for int8, that of bfloat16 operands of the same sizes."""
    if item.dtype == "int8":
        twins = {a.data_ptr(): (a.bfloat16(), b.bfloat16(), out.bfloat16()) for a, b, out in rig.sets}
        return lambda a, b, out: torch.bmm(*twins[a.data_ptr()][:2], out=twins[a.data_ptr()][2])
    return lambda a, b, out: torch.matmul(a, b, out=out)


def wrong(item: Item, rig: Rig, call: Call) -> bool:
    """Return whether a result differs from float64's by more than rounding; for int8, whether it differs at all."""
    a, b, out = rig.sets[0]
    out.fill_(-1)
    call(a, b, out)
    exact = torch.matmul(a[:64].double(), (b if item.shared else b[:64]).double())
    difference = (out[:64].double() - exact).abs()
    tolerance = {"int8": 0.0, "float32": 1e-5}.get(item.dtype, 1e-2)
    scale = math.sqrt(item.sizes.k)
    return bool((difference > tolerance * (scale + exact.abs())).any())


@cache
def alone() -> dict[str, Backend]:
    """Return gemmhub-cuda and gemmhub-cublas on their own."""
    from gemmhub_cublas.backend import CublasBackend
    from gemmhub_cuda.backend import CudaBackend

    found: dict[str, Backend] = {"cuda": CudaBackend(), "cublas": CublasBackend()}
    for backend in found.values():
        backend.probe()
    return found


def candidates(item: Item) -> Iterator[tuple[str, Call]]:
    """Yield the names and calls of gemmhub-cuda's candidates, and gemmhub-cublas's choice."""
    asked = problem_of(Product("", item.dtype, item.orders, item.sizes))
    for name, backend in alone().items():
        offer = backend.offer(asked)
        if isinstance(offer, Offer):
            own = [x for x in offer.names if x.startswith(("batch", "bytes"))]
            for candidate in own if name == "cuda" else offer.names[:1]:
                yield f"{name} {candidate}", launching(prepared(backend, asked, candidate, offer.workspace).run)


def row(item: Item, every: bool) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    rig = Rig(item)
    calls: dict[str, Call] = {"torch": torch_call(item, rig), "gemmhub": _own}
    if every and not item.shared:
        calls |= dict(candidates(item))
    a, b, _ = rig.sets[0]
    chosen = gemmhub.explain(a, b)
    faults = [name for name, call in calls.items() if name != "torch" and wrong(item, rig, call)]
    contenders = {name: rig.add(call) for name, call in calls.items()}
    times = dict(zip(contenders, rig.medians(list(contenders.values()), 5)))
    own = times["gemmhub"]
    found = {
        "kind": item.kind, "dtype": item.dtype, "sizes": list(item.sizes), "orders": item.orders,
        "us": own * 1e6, "ratio": times["torch"] / own, "chosen": chosen.chosen, "wrong": faults,
    }  # fmt: skip
    if every:
        found["candidates"] = {name: seconds * 1e6 for name, seconds in times.items()}
    words = "x".join(map(str, item.sizes))
    print(
        f"{item.kind:14}{item.dtype:9} {item.orders} {words:18}{own * 1e6:8.2f} us  torch / gemmhub"
        f" {found['ratio']:5.2f}  {chosen.chosen}{'  WRONG ' + str(faults) if faults else ''}",
        flush=True,
    )
    return found


def _own(a: Any, b: Any, out: Any) -> None:
    gemmhub.matmul(a, b, out=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no product after this time")
    parser.add_argument("--kind", help="only products of this kind")
    parser.add_argument("--every", action="store_true", help="time every candidate of gemmhub-cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    end, rows = time.monotonic() + options.seconds, []
    for item in grid():
        if options.kind in (None, item.kind) and time.monotonic() < end:
            rows.append(row(item, options.every))
    for kind in dict.fromkeys(found["kind"] for found in rows):
        ratios = [found["ratio"] for found in rows if found["kind"] == kind]
        mean = geometric_mean(ratios)
        print(f"{kind}: {len(ratios)} products, geometric mean {mean:.2f}, least {min(ratios):.2f}")
    if options.json:
        results.save(options.json, products=rows)


if __name__ == "__main__":
    main()
