"""``gemmhub explain``: the decision for a product, without computing it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

import gemmhub
from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub._call.options import Options
from gemmhub._call.options import request as parse_request
from gemmhub._choice import registry
from gemmhub._choice.decide import decide
from gemmhub.capability import CPU, Device
from gemmhub.cli import operands, screen
from gemmhub.cli.by_name import ORDERS, parse_device
from gemmhub.cli.options import (
    BATCH,
    DTYPE,
    b_order_option,
    backend_option,
    device_option,
    json_option,
    matmul_options,
    product_options,
)
from gemmhub.verdict import Decision


@click.command("explain")
@click.argument("what", nargs=-1, required=True, metavar="M N K | A.npy B.npy")
@click.option("--dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the operands (float32), or of raw files.")
@click.option("--b-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of B where it differs.")
@click.option("--a-order", type=click.Choice(ORDERS), default="row", help="Storage order of A: col for K x M.")
@b_order_option
@click.option("--batch", type=BATCH, help="Batch dimensions of both operands.")
@device_option
@product_options
@backend_option
@json_option
def command(
    what: tuple[str, ...],
    dtype: str | None,
    b_dtype: str | None,
    a_order: str,
    b_order: str,
    batch: tuple[int, ...] | None,
    device: str,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show which backend would run a product, and every other backend's answer. Computes nothing.

    Only backends are asked about a device: neither the device nor an array library is needed.
    """
    target = parse_device(device, registry.device_types())
    sizes = operands.sizes_or_files(what)
    if len(sizes) == 2:
        if "col" in (a_order, b_order) or batch:
            raise click.UsageError("--a-order, --b-order and --batch go with sizes, not with files.")
        a, b = operands.load(sizes[0], dtype), operands.load(sizes[1], b_dtype or dtype)
    else:
        m, n, k = sizes
        outer = batch or ()
        a = operands.unfilled((*outer, m, k), dtype or "float32", a_order)
        b = operands.unfilled((*outer, k, n), b_dtype or dtype or "float32", b_order)
    decision = _explained(a, b, target, matmul_options(**chosen))
    if as_json:
        screen.print_json(decision.to_dict())
    else:
        screen.show(*screen.decision_parts(decision))


def _explained(a: Any, b: Any, device: Device, options: Options) -> Decision:
    """The decision for operands like the ndarrays ``a`` and ``b``, newly allocated on ``device``."""
    if device == CPU:
        return gemmhub.explain(a, b, **options)
    from gemmhub._call.describe import describe

    request = parse_request(options)
    problem = describe(a, b, None, request).problem
    a_there, b_there, out = (replace(x, alignment=MAX_ALIGNMENT) for x in (problem.a, problem.b, problem.out))
    return decide(replace(problem, device=device, a=a_there, b=b_there, out=out), request.settings)
