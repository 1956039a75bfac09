"""The products of lib/drawn.py on a card: operands, torch's calls, gemmhub's plans, and a check by float64."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cuda_graphs import Rig
from benchmarks.lib.drawn import FP8, Product, padded
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import BLOCK, blocks

RATES = {
    "bfloat16": 6e14, "float16": 6e14, "tf32": 3e14, "float32": 5e13, "float64": 5e13, "complex64": 4e13,
    "int8": 1.1e15, "float8_e4m3fn": 1.1e15,
}  # fmt: skip
"""Approximate operations a second of a good call, which determine the number of calls in a graph."""
_ROWS = 8
"""Number of rows of a result that are compared with float64."""


class Setup(Rig):
    """A rig whose operands are those of a product."""

    def __init__(self, product: Product) -> None:
        self.product = product
        batch, m, n, k = product.sizes
        seconds = max(3e-6, product.flops / RATES[product.dtype])
        super().__init__(m, n, k, product.orders, call_key(product.dtype), seconds, batch)

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        batch = self.product.sizes.batch
        a, b = _random(batch, m, k, order[0], dtype), _random(batch, k, n, order[1], dtype)
        shape = (batch, m, n) if batch > 1 else (m, n)
        return a, b, torch.empty(shape, device="cuda", dtype=call_key(self.product.result))


def call_key(dtype: str) -> torch.dtype:
    """Return the torch dtype of a name; that of "tf32" is float32."""
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
    """Return the operands of the epilogue, as options of gemmhub.matmul."""
    _, m, n, _ = product.sizes
    if product.scales:
        return dict(zip(("scale_a", "scale_b"), scales(*product.sizes[1:], product.scales)))
    if not product.epilogue:
        return {}
    if product.epilogue == "beta c":
        return {"c": torch.randn(m, n, device="cuda", dtype=call_key(product.dtype)), "beta": 0.5}
    return {"bias": torch.randn(n, device="cuda", dtype=call_key(product.result)), "activation": product.activation}


def scales(m: int, n: int, k: int, granularity: str) -> tuple[Any, Any]:
    """Return random scales of a and b, in the shapes that torch and gemmhub take and the strides of cuBLASLt."""
    deep = blocks(k)

    def drawn_scales(*shape: int) -> Any:
        return torch.rand(shape, device="cuda") + 0.5

    if granularity == "tensor":
        return drawn_scales(), drawn_scales()
    if granularity == "row":
        return drawn_scales(m, 1), drawn_scales(1, n)
    return drawn_scales(deep, m).t(), drawn_scales(blocks(n), padded(deep))[:, :deep].t()


def scaled(a: Any, b: Any, more: dict[str, Any], rows: Any) -> tuple[Any, Any]:
    """Return rows of a, and b, in float64 (complex128) and times the scales that ``more`` has."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    left, other = a[rows].to(wide), b.to(wide)
    if "scale_a" not in more:
        return left, other
    of_a, of_b = more["scale_a"].double(), more["scale_b"].double()
    k, n = other.shape
    if of_b.ndim and of_b.shape != (1, n):
        of_a = of_a.repeat_interleave(BLOCK, 1)[:, :k]
        of_b = of_b.repeat_interleave(BLOCK, 0)[:k].repeat_interleave(BLOCK, 1)[:, :n]
    return left * (of_a[rows] if of_a.ndim else of_a), other * of_b


def torch_calls(product: Product, more: dict[str, Any]) -> dict[str, Callable[[Any, Any, Any], object]]:
    """Return the calls of torch that compute a product."""
    if product.out:
        return {}  # torch.mm(out_dtype=) has no out=
    if product.dtype == "int8":
        single = not product.scales and product.sizes.batch == 1
        return {"_int_mm": lambda a, b, out: torch._int_mm(a, b, out=out)} if single else {}
    if product.dtype == FP8:
        one = torch.ones((), device="cuda")
        factors = more.get("scale_a", one), more.get("scale_b", one)
        return {
            "_scaled_mm": lambda a, b, out: torch._scaled_mm(a, b, *factors, out_dtype=out.dtype, out=out),
        }
    if product.epilogue == "beta c":
        return {"addmm": lambda a, b, out: torch.addmm(more["c"], a, b, beta=0.5, out=out)}
    if product.epilogue == "bias":
        return {"addmm": lambda a, b, out: torch.addmm(more["bias"], a, b, out=out)}
    if product.epilogue:
        gelu = {"bias+relu": False, "bias+gelu_tanh": True}[product.epilogue]
        return {
            "_addmm_activation": lambda a, b, out: torch._addmm_activation(more["bias"], a, b, use_gelu=gelu, out=out)
        }
    return {"matmul": lambda a, b, out: torch.matmul(a, b, out=out)}


def reference(a: Any, b: Any, more: dict[str, Any], rows: Any) -> Any:
    """Return these rows of the result of a matrix product with the operands of ``more``, in float64 or complex128."""
    exact = torch.matmul(*scaled(a, b, more, rows))
    if "c" in more:
        exact = exact + 0.5 * more["c"][rows].double()
    if "bias" in more:
        exact = exact + more["bias"].double()
    if more.get("activation") is not None:
        exact = torch.from_numpy(EPILOGUES[more["activation"]](exact.cpu().numpy())).to(exact.device)
    return exact


def right(product: Product, rig: Setup, call: Callable[[Any, Any, Any], object], more: dict[str, Any]) -> bool:
    """Compare some rows of the result with float64's."""
    a, b, out = rig.sets[0]
    out.fill_(float("nan") if out.is_floating_point() or out.is_complex() else 77)
    call(a, b, out)
    if product.sizes.batch > 1:
        a, b, out = a[-1], b[-1], out[-1]
    rows = torch.linspace(0, product.sizes.m - 1, min(_ROWS, product.sizes.m), device="cuda").long()
    exact = reference(a, b, more, rows)
    tolerance = {"float64": 1e-11, "float32": 1e-4, "complex64": 1e-4, "int8": 0.0}.get(product.dtype, 0.05)
    scale = exact.abs().square().mean().sqrt()
    return bool(((out[rows].to(exact.dtype) - exact).abs() <= tolerance * (scale + 0.4 * exact.abs())).all())


def planned(product: Product, rig: Setup, more: dict[str, Any], **settings: Any) -> Any:
    """Plan a product; None where no backend runs it."""
    a, b, out = rig.sets[0]
    precision = "tf32" if product.dtype == "tf32" else "ieee"
    try:
        with gemmhub.use(**settings):
            return gemmhub.plan(a, b, out=out, precision=precision, **more)
    except gemmhub.GemmhubError as error:
        print(f"{product.name}: {str(error).splitlines()[0]}")
        return None


def chosen(made: Any) -> str:
    """Return the backend and the candidate of a plan."""
    name = made.decision.chosen
    return f"{name} {made.decision[name].candidate}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines: for each class and contender, the geometric mean of torch's time over its own, and the worst."""
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    lines = [f"{'class':26}{'n':>5}" + "".join(f"{name:>10}{'worst':>8}" for name in names)]
    for kind in dict.fromkeys(row["class"] for row in rows):
        mine = [row for row in rows if row["class"] == kind]
        cells = ""
        for name in names:
            ratios = [row["torch_us"] / row["us"][name] for row in mine if name in row["us"] and row["torch_us"] > 0]
            mean = geometric_mean(ratios) if ratios else math.nan
            cells += f"{mean:10.3f}{min(ratios, default=math.nan):8.3f}"
        lines.append(f"{kind:26}{len(mine):5}{cells}")
    return lines


def without_records(compiling: bool = False) -> None:
    """Let gemmhub choose by its estimates alone, whatever this machine has recorded.

    ``compiling``: gemmhub-hopper compiles its fastest candidate of each product, where a call would take one that is
    compiled already and nearly as fast by the estimates.
    """
    os.environ["GEMMHUB_RECORDS"] = "off"
    gemmhub.reload()
    if compiling:
        try:
            from gemmhub_hopper.cost import shortlist
        except ImportError:
            return
        shortlist.NEARLY = 1.0


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Print the table of ``rows``, write the result file that ``--json`` names, and return the exit code."""
    print("\n".join(table(rows)))
    if options.json:
        ready = {name: s.versions for name, s in gemmhub.backends().items() if s.state == "ready"}
        results.save(options.json, seed=options.seed, backends=ready, rows=rows)
    return int(any(row["wrong"] for row in rows))
