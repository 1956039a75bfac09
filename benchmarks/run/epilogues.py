"""Epilogues on an NVIDIA card beside torch: what c, a bias and activations add to a plain product.

    python -m benchmarks.run.epilogues [--seed N] [--seconds 120] [--backend hopper] [--rounds 5] [--json FILE]

The first product is bfloat16 of 4096 x 4096 x 4096; others have new sizes, large and small, aligned and odd, until the
time is over. Each is timed plain, with beta * c, with a bias, with gelu and with silu, by torch and by a plan of
gemmhub, all in one interleaved run. torch adds c and the bias by ``torch.addmm``; it has no product with these
activations, and a second kernel applies them in place. "added" is the time over that of the same library's plain
product. No records are used; what is fastest by the estimates is compiled. Some rows of every result are compared with
float64.

Before them, swiglu of the first product of a feed-forward block of Llama 3 8B, for several numbers of rows: by one plan
of gemmhub, by torch's linear, chunk, silu and product, one after another, and by the same under torch.compile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.lib.cuda_graphs import Call
from benchmarks.lib.drawn import Product, Sizes, between
from benchmarks.lib.torch_calls import Setup, chosen, planned, report, right, without_records

KINDS = ("plain", "beta c", "bias", "gelu", "silu")
_APPLIED = {"gelu": torch.ops.aten.gelu.out, "silu": torch.ops.aten.silu.out}
GATED_ROWS, GATED_WIDTH, GATED_DEPTH = (16, 300, 2048, 8192), 2 * 14336, 4096
"""Rows, columns and inner dimension of the products with a gate."""
_UNITS = (1, 8, 64)
"""Sizes are multiples of one of these."""


def drawn(seed: int) -> Iterator[Product]:
    """Yield products without end."""
    yield Product("4096", "bfloat16", "nt", Sizes(1, 4096, 4096, 4096))
    for i in range(10**6):
        rng = np.random.default_rng((seed, i))
        orders, (low, high) = ("nn", "nt")[rng.integers(2)], ((1e8, 1e10), (1e10, 2e12))[i % 2]
        sizes = between(low, high, int(rng.choice(_UNITS)))(rng)
        yield Product("large" if i % 2 else "small", "bfloat16", orders, sizes)


def operands(kind: str, product: Product) -> dict[str, Any]:
    """Return the operands and the activation of an epilogue, as options of gemmhub.matmul."""
    _, m, n, _ = product.sizes
    if kind == "beta c":
        return {"c": torch.randn(m, n, device="cuda", dtype=torch.bfloat16), "beta": 0.5}
    if kind == "bias":
        return {"bias": torch.randn(n, device="cuda", dtype=torch.bfloat16)}
    return {} if kind == "plain" else {"activation": kind}


def torch_call(kind: str, more: dict[str, Any]) -> Call:
    """Return torch's product with an epilogue."""
    if kind == "beta c":
        return lambda a, b, out: torch.addmm(more["c"], a, b, beta=0.5, out=out)
    if kind == "bias":
        return lambda a, b, out: torch.addmm(more["bias"], a, b, out=out)
    if kind == "plain":
        return lambda a, b, out: torch.matmul(a, b, out=out)
    applied = _APPLIED[kind]
    return lambda a, b, out: applied(torch.matmul(a, b, out=out), out=out)


class GatedSetup(Setup):
    """A rig whose results have half of the product's columns."""

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        a, b, _ = super()._operands(m, n, k, order, dtype)
        return a, b, torch.empty(m, n // 2, device="cuda", dtype=dtype)


def _gated(a: Any, weights: Any) -> Any:
    gate, up = functional.linear(a, weights).chunk(2, dim=-1)
    return functional.silu(gate) * up


def measure_gate(rows: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time swiglu of a product of so many rows, print a line, and return the row of the result file."""
    product = Product("swiglu", "bfloat16", "nt", Sizes(1, rows, GATED_WIDTH, GATED_DEPTH))
    rig, more = GatedSetup(product), {"activation": "swiglu"}
    settings = {} if options.backend is None else {"backend": options.backend}
    made = planned(product, rig, more, **settings)
    if made is None:
        return []
    compiled = torch.compile(_gated, dynamic=False)
    calls: dict[str, Call] = {
        "gemmhub": lambda a, b, out: made(a, b, out),
        "torch": lambda a, b, out: _gated(a, b.t()),
        "torch.compile": lambda a, b, out: compiled(a, b.t()),
    }
    wrong = not right(product, rig, calls["gemmhub"], more)
    times = dict(zip(calls, rig.medians([rig.add(call) for call in calls.values()], options.rounds)))
    us = {name: t * 1e6 for name, t in times.items()}
    words = "  ".join(f"{name} {t:8.1f} us" for name, t in us.items())
    print(f"{tuple(product.sizes[1:])} nt swiglu {words}  ({chosen(made)}){'  WRONG' * wrong}", flush=True)
    return [{
        "class": f"swiglu {rows}", "orders": product.orders, **product.sizes._asdict(), "torch_us": us.pop("torch"),
        "us": us, "chosen": chosen(made), "wrong": ["gemmhub"] * wrong,
    }]  # fmt: skip


def measure(product: Product, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time a product with every epilogue, print a line for each, and return the rows of the result file."""
    rig, calls, plans, wrong = Setup(product), {}, {}, {}
    settings = {} if options.backend is None else {"backend": options.backend}
    for kind in KINDS:
        more = operands(kind, product)
        made = planned(product, rig, more, **settings)
        if made is None:
            continue
        scalars = {name: value for name, value in more.items() if name in ("c", "bias")}

        def own(a: Any, b: Any, out: Any, made: Any = made, scalars: dict[str, Any] = scalars) -> None:
            made(a, b, out, **scalars)

        plans[kind], wrong[kind] = made, not right(product, rig, own, more)
        calls["torch", kind], calls["gemmhub", kind] = torch_call(kind, more), own
    numbers = {name: rig.add(call) for name, call in calls.items()}  # the calls keep what the graphs read
    times = dict(zip(numbers, rig.medians(list(numbers.values()), options.rounds))) if numbers else {}
    rows = []
    for kind, made in plans.items():
        us = {name: times[name, kind] * 1e6 for name in ("torch", "gemmhub")}
        added = {name: t - times[name, "plain"] * 1e6 for name, t in us.items()} if "plain" in plans else {}
        rows.append({
            "class": f"{product.name} {kind}", "orders": product.orders, **product.sizes._asdict(),
            "torch_us": us["torch"], "us": {"gemmhub": us["gemmhub"]}, "added_us": added, "chosen": chosen(made),
            "wrong": ["gemmhub"] * wrong[kind],
        })  # fmt: skip
        words = "  ".join(f"{name} {t:8.1f} us, {added.get(name, 0.0):6.1f} added" for name, t in us.items())
        alarm = "  WRONG" * wrong[kind]
        print(f"{tuple(product.sizes[1:])} {product.orders} {kind:7} {words}  ({chosen(made)}){alarm}", flush=True)
    return rows


def main() -> int:
    """Measure until the time is over, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no product after this time")
    parser.add_argument("--backend", help="this backend alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records(compiling=True)
    gated, end = [], time.monotonic() + options.seconds
    for count in GATED_ROWS:
        gated += measure_gate(count, options)
        torch.cuda.empty_cache()
    rows = []
    for product in drawn(options.seed):
        if time.monotonic() >= end:
            break
        rows += measure(product, options)
        torch.cuda.empty_cache()
    rows.sort(key=lambda row: ["4096", "small", "large"].index(row["class"].split()[0]))
    return report(gated + rows, options)


if __name__ == "__main__":
    raise SystemExit(main())
