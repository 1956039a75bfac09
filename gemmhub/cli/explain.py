"""``gemmhub explain``: the decision for a product, without computing it."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

import gemmhub
from gemmhub._arrays.named_device import parse_device
from gemmhub._choice import registry
from gemmhub.cli import operands, screen
from gemmhub.cli.options import (
    DTYPE,
    backend_option,
    device_option,
    form_options,
    json_option,
    layout_options,
    matmul_options,
    product_options,
)

_ORDERS = {"row": "C", "col": "F"}


@click.command("explain")
@click.argument("what", nargs=-1, required=True, metavar="M N K | A.npy B.npy")
@click.option("--dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the operands (float32), or of raw files.")
@click.option("--b-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of B where it differs.")
@layout_options
@device_option
@product_options
@form_options
@backend_option
@json_option
def command(
    what: tuple[str, ...],
    dtype: str | None,
    b_dtype: str | None,
    a_order: str,
    b_order: str,
    batch: tuple[int, ...],
    device: str,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show which backend would run a product, and every other backend's answer. Computes nothing.

    Backends answer for a device by name: neither the device nor an array library is needed. An operand beside A and B
    is a file, or a form: --bias n, --c matrix, --scale-b 128x128.
    """
    target = parse_device(device, registry.device_types())
    sizes = operands.sizes_or_files(what)
    new = partial(gemmhub.ArraySpec, device=target)

    def like(array: Any) -> gemmhub.ArraySpec:
        return array if isinstance(array, gemmhub.ArraySpec) else new(array.shape, array.dtype, strides=array.strides)

    if len(sizes) == 2:
        operands.no_layout(a_order, b_order, batch)
        a, b = like(operands.load(sizes[0], dtype)), like(operands.load(sizes[1], b_dtype or dtype))
    else:
        m, n, k = sizes
        a = new((*batch, m, k), dtype or "float32", order=_ORDERS[a_order])
        b = new((*batch, k, n), b_dtype or dtype or "float32", order=_ORDERS[b_order])
    others = {name: like(x) for name, x in operands.further(chosen, dtype, a, b, new).items()}
    decision = gemmhub.explain(a, b, **matmul_options(**chosen, **others))
    if as_json:
        screen.print_json(decision.to_dict())
    else:
        screen.show(decision)
