"""Host time of warm calls on a GPU, with and without options, in one run: gemmhub against torch.

    python -m benchmarks.run.overhead_device [--size 64] [--backend NAME] [--json FILE]

A call is timed until it returns: batches of 50 fit into the device's queue, with the device idle before each, taken in
turn; the result is the least of the means over batches. Each call is listed with its parts: the allocation of the
result by torch.empty, and the bare launch, which is the prepared kernel called with addresses. gemmhub's addition to
these is limited to 2 us a call, and to 1.5 us a plan.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gemmhub
from benchmarks.lib import results
from gemmhub._base.timing import host_times

LIMITS = {"call": 2.0, "plan": 1.5}
"""Limits in microseconds over the allocation of the result and the bare launch."""


def cases(size: int, backend: str | None) -> dict[str, dict[str, Any]]:
    """Return, by name, operands and options, torch's own call, and whether the result is new."""
    half = {"device": "cuda", "dtype": torch.bfloat16}
    a, b, c, out = (torch.randn(size, size, **half) for _ in range(4))
    weight, bias = b.t(), torch.randn(size, **half)
    gelu = torch.nn.functional.gelu
    eighth = [torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2)]
    one = torch.ones((), device="cuda")
    named = {} if backend is None else {"backend": backend}
    found: dict[str, dict[str, Any]] = {
        "matmul": {"torch": lambda: torch.matmul(a, b)},
        "out=": {"out": out, "torch": lambda: torch.matmul(a, b, out=out)},
        "bias=": {"bias": bias, "torch": lambda: torch.nn.functional.linear(a, weight, bias)},
        "bias= out=": {"bias": bias, "out": out, "torch": lambda: torch.addmm(bias, a, b, out=out)},
        "bias= gelu_tanh": {
            "bias": bias, "activation": "gelu_tanh",
            "torch": lambda: gelu(torch.nn.functional.linear(a, weight, bias), approximate="tanh"),
        },
        "alpha= beta= c=": {
            "alpha": 0.5, "beta": 2.0, "c": c, "torch": lambda: torch.addmm(c, a, b, alpha=0.5, beta=2.0),
        },
        "beta= c=out": {"beta": 1, "c": out, "out": out, "torch": lambda: torch.addmm(out, a, b, out=out)},
        "out_dtype= (fp8)": {
            "operands": (eighth[0], eighth[1].t()), "out_dtype": "bfloat16",
            "torch": lambda: torch._scaled_mm(
                eighth[0], eighth[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
            ),
        },
    }  # fmt: skip
    for case in found.values():
        case.setdefault("operands", (a, b))
        case["options"] = {**{k: v for k, v in case.items() if k not in ("torch", "operands", "options")}, **named}
    return found


def rows(size: int, backend: str | None) -> dict[str, dict[str, float]]:
    """Return the microseconds by case and contender."""
    contenders: dict[tuple[str, str], Callable[[], object]] = {}
    for name, case in cases(size, backend).items():
        (a, b), options = case["operands"], case["options"]
        out, arrays = options.get("out"), {k: v for k, v in options.items() if k in ("c", "bias")}
        alpha, beta = options.get("alpha", 1), options.get("beta", 0)
        if gemmhub.explain(a, b, **options).chosen is None:
            print(f"{name}: refused by {backend}")
            continue
        planned = gemmhub.plan(a, b, **options)
        result = planned(a, b, out, **arrays)
        stream = torch.cuda.current_stream().cuda_stream
        launch = a.data_ptr(), b.data_ptr(), result.data_ptr(), alpha, beta, stream
        kernel, others = planned.kernel.run, {k: v.data_ptr() for k, v in arrays.items()}

        def call(a: Any = a, b: Any = b, options: Any = options) -> object:
            return gemmhub.matmul(a, b, **options)

        def plan(planned: Any = planned, a: Any = a, b: Any = b, out: Any = out, arrays: Any = arrays) -> object:
            return planned(a, b, out, **arrays)

        def allocate(
            shape: Any = tuple(result.shape), dtype: Any = result.dtype, device: Any = result.device
        ) -> object:
            return torch.empty(shape, dtype=dtype, device=device)

        def bare(kernel: Any = kernel, launch: Any = launch, others: Any = others) -> object:
            return kernel(*launch, **others)

        contenders |= {(name, "torch"): case["torch"], (name, "gemmhub"): call, (name, "plan"): plan}
        contenders |= {(name, "launch"): bare}
        if out is None:
            contenders[name, "allocation"] = allocate
    for function in contenders.values():
        function(), function()
    times = host_times(list(contenders.values()), synchronize=torch.cuda.synchronize, batches=60)
    found: dict[str, dict[str, float]] = {}
    for (name, contender), seconds in zip(contenders, times):
        found.setdefault(name, {"allocation": 0.0})[contender] = seconds * 1e6
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--backend", help="measure this backend instead of the chosen one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = rows(arguments.size, arguments.backend)
    within = True
    columns = ("torch", "gemmhub", "plan", "allocation", "launch")
    print(f"{'us':18}" + "".join(f"{x:>12}" for x in (*columns, "gemmhub adds", "plan adds")))
    for name, row in found.items():
        parts = row["allocation"] + row["launch"]
        over, planned = row["gemmhub"] - parts, row["plan"] - parts
        within &= over <= LIMITS["call"] and planned <= LIMITS["plan"] and row["gemmhub"] <= row["torch"]
        print(f"{name:18}" + "".join(f"{row[x]:12.2f}" for x in columns) + f"{over:12.2f}{planned:12.2f}")
    print("within the limits" if within else "OVER A LIMIT")
    if arguments.json:
        results.save(
            arguments.json,
            backends=[name for name, x in gemmhub.backends().items() if x.state == "ready"],
            microseconds=found,
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
