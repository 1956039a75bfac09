"""Every class of product that a user meets, against the best call of torch's for it, on an NVIDIA card, by CUDA graphs.

    python benchmarks/map.py [--seed N] [--draws 8] [--classes TEXT ...] [--raced] [--alone hopper cublas]
                             [--seconds 600] [--json FILE]

Each class draws fresh sizes from ``--seed``: large and small, aligned and odd, operands stored by rows and by columns,
batches, few rows, tall and narrow, long k, every dtype, and epilogues. "hub" is a plan that names no backend and uses
no records; with ``--raced`` "raced" is a plan under the setting ``tune = "first"``. torch's best call is the fastest of
those listed in :func:`torch_calls`. All are timed in one run as benchmarks/cuda_graphs.py says, and the results are
compared with float64. The table has, for each class, the geometric mean and the worst of torch's time over gemmhub's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda_graphs import Rig
from drawn import FP8, Product, Sizes, classes, cuda_l2

import gemmhub

RATES = {
    "bfloat16": 6e14, "float16": 6e14, "tf32": 3e14, "float32": 5e13, "float64": 5e13, "complex64": 4e13,
    "int8": 1.1e15, "float8_e4m3fn": 1.1e15,
}  # fmt: skip
"""Operations a second that a good call reaches, roughly: they decide how many calls a graph has."""
_ROWS = 8
"""Rows of a result that are compared with float64."""


class Setup(Rig):
    """A rig whose operands are those of a product."""

    def __init__(self, product: Product) -> None:
        self.product = product
        batch, m, n, k = product.sizes
        seconds = max(3e-6, product.flops / RATES[product.dtype])
        super().__init__(m, n, k, product.orders, _kind(product.dtype), seconds, batch)

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        batch = self.product.sizes.batch
        a, b = _random(batch, m, k, order[0], dtype), _random(batch, k, n, order[1], dtype)
        result = {"int8": torch.int32, FP8: torch.bfloat16}.get(self.product.dtype, dtype)
        return a, b, torch.empty((batch, m, n) if batch > 1 else (m, n), device="cuda", dtype=result)


def _kind(dtype: str) -> torch.dtype:
    kind: torch.dtype = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    return kind


def _random(batch: int, rows: int, cols: int, order: str, dtype: torch.dtype) -> Any:
    shape = (cols, rows) if order == "t" else (rows, cols)
    shape = (batch, *shape) if batch > 1 else shape
    if dtype == torch.int8:
        made = torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
    elif dtype.is_floating_point and dtype.itemsize == 1:
        made = torch.randn(shape, device="cuda").to(dtype)
    else:
        made = torch.randn(shape, device="cuda", dtype=dtype)
    return made.transpose(-1, -2) if order == "t" else made


def extras(product: Product) -> dict[str, Any]:
    """Operands of the epilogue, as options of gemmhub.matmul."""
    _, m, n, _ = product.sizes
    if not product.epilogue:
        return {}
    if product.epilogue == "beta c":
        return {"c": torch.randn(m, n, device="cuda", dtype=_kind(product.dtype)), "beta": 0.5}
    activation = product.epilogue.partition("+")[2] or None
    return {"bias": torch.randn(n, device="cuda", dtype=_kind(product.dtype)), "activation": activation}


def torch_calls(product: Product, more: dict[str, Any]) -> dict[str, Callable[[Any, Any, Any], object]]:
    """What a user of torch could call for it."""
    if product.dtype == "int8":
        return {"_int_mm": lambda a, b, out: torch._int_mm(a, b, out=out)}
    if product.dtype == FP8:
        one = torch.ones((), device="cuda")
        return {
            "_scaled_mm": lambda a, b, out: torch._scaled_mm(a, b, one, one, out_dtype=out.dtype, out=out),
        }
    if product.epilogue == "beta c":
        return {"addmm": lambda a, b, out: torch.addmm(more["c"], a, b, beta=0.5, out=out)}
    if product.epilogue == "bias":
        return {"addmm": lambda a, b, out: torch.addmm(more["bias"], a, b, out=out)}
    if product.epilogue:
        gelu = product.epilogue.endswith("gelu")
        return {
            "_addmm_activation": lambda a, b, out: torch._addmm_activation(more["bias"], a, b, use_gelu=gelu, out=out)
        }
    return {"matmul": lambda a, b, out: torch.matmul(a, b, out=out)}


def right(product: Product, rig: Setup, call: Callable[[Any, Any, Any], object], more: dict[str, Any]) -> bool:
    """Whether some rows of the result are near float64's."""
    a, b, out = rig.sets[0]
    out.fill_(float("nan") if out.is_floating_point() or out.is_complex() else 77)
    call(a, b, out)
    if product.sizes.batch > 1:
        a, b, out = a[-1], b[-1], out[-1]
    rows = torch.linspace(0, product.sizes.m - 1, min(_ROWS, product.sizes.m), device="cuda").long()
    wide = torch.complex128 if out.is_complex() else torch.float64
    exact = a[rows].to(wide) @ b.to(wide)
    if "c" in more:
        exact = exact + 0.5 * more["c"][rows].double()
    if "bias" in more:
        exact = exact + more["bias"].double()
    if more.get("activation") == "relu":
        exact = exact.relu()
    if more.get("activation") == "gelu":
        exact = torch.nn.functional.gelu(exact, approximate="tanh")
    tolerance = {"float64": 1e-11, "float32": 1e-4, "complex64": 1e-4, "int8": 0.0}.get(product.dtype, 0.05)
    scale = exact.abs().square().mean().sqrt()
    return bool(((out[rows].to(wide) - exact).abs() <= tolerance * (scale + 0.4 * exact.abs())).all())


def planned(product: Product, rig: Setup, more: dict[str, Any], **settings: Any) -> Any:
    """A plan, or None where no backend runs the product."""
    a, b, out = rig.sets[0]
    precision = "tf32" if product.dtype == "tf32" else "ieee"
    try:
        with gemmhub.use(**settings):
            return gemmhub.plan(a, b, out=out, precision=precision, **more)
    except gemmhub.GemmhubError as error:
        print(f"{product.name}: {str(error).splitlines()[0]}")
        return None


def measure(product: Product, options: argparse.Namespace) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = product.dtype == "tf32"
    rig, more = Setup(product), extras(product)
    scalars = {name: value for name, value in more.items() if name in ("c", "bias")}
    plans = {"hub": planned(product, rig, more)}
    plans |= {name: planned(product, rig, more, backend=name) for name in options.alone}
    if options.raced:
        plans["raced"] = planned(product, rig, more, tune="first")
    plans = {name: made for name, made in plans.items() if made is not None}
    calls = {name: (lambda a, b, out, made=made: made(a, b, out, **scalars)) for name, made in plans.items()}
    wrong = [name for name, call in calls.items() if not right(product, rig, call, more)]
    theirs: dict[str, int] = {}
    for name, call in torch_calls(product, more).items():
        try:
            theirs[name] = rig.add(call)
        except RuntimeError as error:
            print(f"{product.name} {product.sizes}: torch.{name}: {str(error).splitlines()[0][:100]}")
    ours = {name: rig.add(call) for name, call in calls.items()}
    times = dict(zip([*theirs, *ours], rig.medians([*theirs.values(), *ours.values()], options.rounds)))
    best = min((times[name] for name in theirs), default=math.nan)
    row = {
        "class": product.name, "dtype": product.dtype, "orders": product.orders, **product.sizes._asdict(),
        "torch_us": best * 1e6, "us": {name: times[name] * 1e6 for name in ours},
        "chosen": {name: _chosen(made) for name, made in plans.items()},
        "estimates_us": {
            v.backend: v.seconds * 1e6 for v in plans["hub"].decision.verdicts if v.seconds is not None
        } if "hub" in plans else {},
        "race": plans["raced"].decision.race if "raced" in plans else "",
        "wrong": wrong,
    }  # fmt: skip
    words = "  ".join(f"{name} {best / times[name]:.3f} ({row['chosen'][name]})" for name in ours)
    alarm = f"  WRONG: {', '.join(wrong)}" if wrong else ""
    print(
        f"{product.name:24} {product.orders} {tuple(product.sizes)}  {best * 1e6:9.1f} us  {words}{alarm}", flush=True
    )
    return row


def _chosen(made: Any) -> str:
    name = made.decision.chosen
    return f"{name} {made.decision[name].candidate}"


def synchronised(options: argparse.Namespace) -> list[dict[str, Any]]:
    """CUDA-L2's protocol: the host's clock around one synchronised call at a time, with a cold L2 cache."""
    rows = []
    end = time.monotonic() + options.seconds
    todo = list(cuda_l2())
    np.random.default_rng(options.seed).shuffle(todo)  # where time runs out, what was measured is a fair sample
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    for sizes in todo[: options.cuda_l2]:
        if time.monotonic() > end:
            break
        sizes = Sizes(*map(int, sizes))
        product = Product("cuda-l2", "float16", "nn", sizes)
        rig = Setup(product)
        plans = {"hub": planned(product, rig, {})}
        if options.raced:
            plans["raced"] = planned(product, rig, {}, tune="first")
        calls = {"torch": lambda a, b, out: torch.matmul(a, b, out=out), **plans}
        wrong = [name for name, made in plans.items() if not right(product, rig, made, {})]
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(options.rounds + 2):
            for name, call in calls.items():
                flush.zero_()
                torch.cuda.synchronize()
                start = time.perf_counter()
                call(*rig.sets[turn % len(rig.sets)])
                torch.cuda.synchronize()
                samples[name].append(time.perf_counter() - start)
        times = {name: float(np.median(found[2:])) for name, found in samples.items()}
        best = times.pop("torch")
        rows.append(
            {"class": "cuda-l2", "dtype": "float16", "orders": "nn", **sizes._asdict(), "torch_us": best * 1e6,
             "us": {name: t * 1e6 for name, t in times.items()}, "wrong": wrong,
             "chosen": {name: _chosen(made) for name, made in plans.items()}}
        )  # fmt: skip
        del rig
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines: for each class and contender, the geometric mean of torch's time over its own, and the worst."""
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    lines = [f"{'class':26}{'n':>5}" + "".join(f"{name:>10}{'worst':>8}" for name in names)]
    for kind in dict.fromkeys(row["class"] for row in rows):
        mine = [row for row in rows if row["class"] == kind]
        cells = ""
        for name in names:
            ratios = [row["torch_us"] / row["us"][name] for row in mine if name in row["us"] and row["torch_us"] > 0]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
            cells += f"{mean:10.3f}{min(ratios, default=math.nan):8.3f}"
        lines.append(f"{kind:26}{len(mine):5}{cells}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--draws", type=int, default=8, help="products of each class")
    parser.add_argument("--classes", nargs="*", default=[], metavar="TEXT", help="only those whose name has a TEXT")
    parser.add_argument("--cuda-l2", type=int, default=0, metavar="N", help="CUDA-L2's protocol on N of its products")
    parser.add_argument("--raced", action="store_true")
    parser.add_argument("--alone", nargs="*", default=[], metavar="BACKEND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no product after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["GEMMHUB_RECORDS"] = "off"
    gemmhub.reload()
    if options.cuda_l2:
        rows = synchronised(options)
    else:
        rows, end = [], time.monotonic() + options.seconds
        chosen = [x for x in classes() if not options.classes or any(text in x[0] for text in options.classes)]
        for draw in range(options.draws):
            for name, dtype, orders, sizes, epilogue in chosen:
                if time.monotonic() < end:
                    rng = np.random.default_rng((options.seed, draw, zlib.crc32(name.encode())))
                    product = Product(name, dtype, orders[draw % len(orders)], sizes(rng), epilogue)
                    rows.append(measure(product, options))
                    torch.cuda.empty_cache()
        rows.sort(key=lambda row: [x[0] for x in chosen].index(row["class"]))
    print("\n".join(table(rows)))
    if options.json:
        result = {
            "command": " ".join(["python", *sys.argv]), "seed": options.seed, "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "backends": {s.name: s.versions for s in gemmhub.backends() if s.state == "ready"}, "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
