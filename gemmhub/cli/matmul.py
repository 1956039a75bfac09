"""``gemmhub matmul``: multiply two files, explain, check."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import gemmhub
from gemmhub._base import units
from gemmhub._base.tables import Facts
from gemmhub._call.options import Options
from gemmhub._check.spot_check import SpotCheck
from gemmhub.cli import by_name, operands, screen
from gemmhub.cli.errors import WRONG
from gemmhub.cli.options import (
    backend_option,
    device_option,
    dtype_option,
    json_option,
    library_option,
    matmul_options,
    operand_options,
    product_options,
)
from gemmhub.problem import GemmProblem


@click.command("matmul")
@click.argument("a", metavar="A.npy")
@click.argument("b", metavar="B.npy")
@click.option("--out", metavar="FILE", help="Write the product here, as .npy.")
@product_options
@operand_options
@backend_option
@device_option
@library_option
@dtype_option
@click.option("--explain", is_flag=True, help="Show which backend was chosen, and why not the others.")
@click.option("--check", is_flag=True, help="Check the product; exit code 1 if it is wrong.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    a: str,
    b: str,
    out: str | None,
    device: str,
    library: str | None,
    dtype: str | None,
    explain: bool,
    check: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Multiply A.npy by B.npy: activation(alpha * (A * scale_a) @ (B * scale_b) + beta * C + bias).

    Prints the result's shape and dtype, the time of one call (after the decision) and the kernel.
    """
    left, right = operands.load(a, dtype), operands.load(b, dtype)
    extra = operands.load_options(chosen, dtype)
    target = None if out is None else Path(out)
    if target is not None:
        operands.check_writable(target)
    arrays = by_name.arrays_for(device, library)
    with by_name.entered(arrays):
        left, right = (by_name.place(x, arrays, argument=name) for x, name in ((left, "a"), (right, "b")))
        extra = {name: by_name.place(x, arrays, argument=name) for name, x in extra.items()}
        options = matmul_options(**chosen, **extra)
        plan = gemmhub.plan(left, right, **options)
        by_name.synchronize(arrays)
        start = time.perf_counter()
        product = plan(left, right, **extra)
        by_name.synchronize(arrays)
        seconds = time.perf_counter() - start
        result = np.asarray(arrays.to_host(product))
        remark = "" if target is None else operands.store(target, result)
        verdict = _check(left, right, product, options, plan.decision.problem) if check else None

    rate = plan.decision.problem.flops / seconds / 1e9
    unit, scale = units.rate_unit([rate])
    if as_json:
        screen.print_json(
            {
                "shape": result.shape,
                "dtype": result.dtype.name,
                "seconds": seconds,
                "gflops": rate,
                "backend": plan.decision.chosen,
                "kernel": plan.kernel.description,
                "out": target,
                "decision": plan.decision.to_dict() if explain else None,
                "check": verdict,
            }
        )
    else:
        done = [
            ("result", f"{screen.shape(result.shape)} {result.dtype.name}"),
            ("time", f"{units.duration(seconds)}, {units.number(rate * scale)} {unit}"),
            ("ran", f"{plan.decision.chosen}: {plan.kernel.description}"),
        ]
        if target is not None:
            done.append(("written", click.format_filename(target) + (f" ({remark})" if remark else "")))
        if verdict is not None:
            done += [("check", f"{verdict.verdict} ({verdict.examined})"), ("", verdict.reason)]
        screen.show(plan.decision if explain else None, Facts(done, marked=("check",)))
    if verdict is not None and not verdict:
        ctx.exit(WRONG)


def _check(a: Any, b: Any, result: Any, options: Options, problem: GemmProblem) -> SpotCheck:
    """The verdict on a product."""
    precision: Any = problem.precision
    return gemmhub.spot_check(a, b, result, **{**options, "precision": precision})
