"""``gemmhub compare``: one product on every backend, with each result checked."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import numpy as np

import gemmhub
from gemmhub._base import progress
from gemmhub.cli import operands, screen
from gemmhub.cli.by_name import arrays_for, entered, place
from gemmhub.cli.errors import FAILED, WRONG
from gemmhub.cli.options import (
    DTYPE,
    device_option,
    form_options,
    json_option,
    layout_options,
    library_option,
    matmul_options,
    product_options,
)
from gemmhub.dtypes import as_dtype


@click.command("compare")
@click.argument("what", nargs=-1, required=True, metavar="M N K | A.npy B.npy")
@click.option("--dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the operands (float32), or of raw files.")
@click.option("--b-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of B where it differs.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@layout_options
@device_option
@library_option
@product_options
@form_options
@click.option("--seed", type=click.IntRange(min=0), help="Makes random operands and checks repeatable.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: tuple[str, ...],
    dtype: str | None,
    b_dtype: str | None,
    backends: tuple[str, ...],
    a_order: str,
    b_order: str,
    batch: tuple[int, ...],
    device: str,
    library: str | None,
    seed: int | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Run one product on every capable backend (or on those named) and check each result.

    Sizes M N K stand for random operands; other operands are files, or forms as of `gemmhub explain`. Exit code 1 when
    a result is wrong, 3 when a backend fails otherwise.
    """
    sizes = operands.sizes_or_files(what)
    arrays = arrays_for(device, library)
    rng = np.random.default_rng(seed)
    if len(sizes) == 2:
        operands.no_layout(a_order, b_order, batch)
        a, b = operands.load(sizes[0], dtype), operands.load(sizes[1], b_dtype or dtype)
    else:
        m, n, k = sizes
        a = operands.random_operand(rng, (*batch, m, k), as_dtype(dtype or "float32"))
        b = operands.random_operand(rng, (*batch, k, n), as_dtype(b_dtype or dtype or "float32"))
    extra = operands.further(chosen, dtype, a, b, partial(operands.random_operand, rng))
    with entered(arrays), progress.bar(1) as (begin, _):
        begin("comparing")
        a, b = place(a, arrays, a_order, "a"), place(b, arrays, b_order, "b")
        extra = {name: place(x, arrays, argument=name) for name, x in extra.items()}
        comparison = gemmhub.compare(a, b, backends=backends or None, seed=seed, **matmul_options(**chosen, **extra))
    if as_json:
        screen.print_json({"ok": bool(comparison), "deviating": comparison.deviating, **screen.plain(comparison)})
    else:
        screen.show(comparison)
    if not comparison:
        ctx.exit(WRONG if comparison.wrong else FAILED)
