"""``gemmhub explain``: the decision for a product, without computing it."""

from __future__ import annotations

from typing import Any

import click

import gemmhub
from gemmhub.cli import operands, screen
from gemmhub.cli.options import BATCH, DTYPE, backend_option, given, json_option, product_options


@click.command("explain")
@click.argument("what", nargs=-1, required=True, metavar="M N K | A.npy B.npy")
@click.option("--dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the operands (float32), or of raw files.")
@click.option("--b-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of B where it differs.")
@click.option("--transpose-a", is_flag=True, help="A lies in memory as K x M.")
@click.option("--transpose-b", is_flag=True, help="B lies in memory as N x K.")
@click.option("--batch", type=BATCH, help="Batch dimensions of both operands.")
@product_options
@backend_option
@json_option
def command(
    what: tuple[str, ...],
    dtype: str | None,
    b_dtype: str | None,
    transpose_a: bool,
    transpose_b: bool,
    batch: tuple[int, ...] | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Say which backend would run a product, and what every other one says to it. Computes nothing."""
    sizes = operands.sizes_or_files(what)
    if len(sizes) == 2:
        if transpose_a or transpose_b or batch:
            raise click.UsageError("--transpose-a, --transpose-b and --batch go with sizes, not with files.")
        a, b = operands.load(sizes[0], dtype), operands.load(sizes[1], b_dtype or dtype)
    else:
        m, n, k = sizes
        outer = batch or ()
        a = operands.unfilled((*outer, m, k), dtype or "float32", transpose_a)
        b = operands.unfilled((*outer, k, n), b_dtype or dtype or "float32", transpose_b)
    decision = gemmhub.explain(a, b, **given(**chosen))
    if as_json:
        screen.print_json(decision.to_dict())
    else:
        screen.show(*screen.decision_parts(decision))
