"""``gemmhub quantize``: write a file in 8 bits, and the scales that multiply it."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np

import gemmhub
from gemmhub._base.inner_products import widen
from gemmhub._base.tables import Facts
from gemmhub._base.wording import counted
from gemmhub.cli import operands, screen
from gemmhub.cli.options import Named, dtype_option, json_option
from gemmhub.dtypes import SHORT_DTYPES, info
from gemmhub.errors import InputError
from gemmhub.quantization import BLOCKS, DTYPES, GRANULARITIES
from gemmhub.scale_layouts import spread

TARGET = Named(DTYPES, {short: name for short, name in SHORT_DTYPES.items() if name in DTYPES})
_BLOCKS = {f"{rows}x{columns}": (rows, columns) for rows, columns in BLOCKS}


@click.command("quantize")
@click.argument("x", metavar="X.npy")
@click.option("--to", type=TARGET, metavar="DTYPE", required=True, help=f"Target dtype: {', '.join(DTYPES)}.")
@click.option("--granularity", type=click.Choice(GRANULARITIES), default="tensor", help="What shares a scale.")
@click.option("--block", type=click.Choice(tuple(_BLOCKS)), help="Rows x columns of a block; 1x128 by default.")
@click.option("--scale", metavar="FILE.npy", help="Use these scales instead of those of X.")
@click.option("--out", metavar="FILE", required=True, help="Write the elements here, as .npy.")
@click.option("--out-scale", metavar="FILE", required=True, help="Write the scales here, as .npy.")
@dtype_option
@json_option
def command(
    x: str, to: str, granularity: str, block: str | None, scale: str | None, out: str, out_scale: str,
    dtype: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Quantize X.npy: write elements of 8 bits and float32 scales, whose product is about X.

    The scales of A in a product are per row, those of B per column. The commands that multiply take them as --scale-a
    and --scale-b.
    """
    targets = Path(out), Path(out_scale)
    if _same_file(*targets):
        raise click.UsageError("--out and --out-scale name one file.")
    sources = {"X.npy": x} if scale is None else {"X.npy": x, "--scale": scale}
    for option, target in zip(("--out", "--out-scale"), targets):
        for name, source in sources.items():
            if _same_file(target, Path(source)):
                raise click.UsageError(f"{option} and {name} name one file, which would be lost: name another.")
    array, given = operands.load(x, dtype), None if scale is None else operands.load(scale)
    for target in targets:
        operands.check_writable(target)
    blocks = None if block is None else _BLOCKS[block]
    elements, factors = gemmhub.quantize(array, to, granularity, block=blocks, scale=given)
    if given is not None and not np.all(np.isfinite(given) & (given > 0)):
        raise InputError("scale", "numbers that are 0, negative, infinite or NaN", "positive finite numbers")
    wide = widen(array)
    with np.errstate(all="ignore"):
        factor = spread(widen(factors), array.shape)
        result = widen(elements) * factor
        error = np.abs(wide - result)
        saturated = int(np.count_nonzero(np.abs(wide) > info(elements.dtype).largest * factor * (1 + 2.0**-22)))
    not_numbers = int(np.count_nonzero(np.isnan(result)))
    largest = float(np.max(error, initial=0.0, where=np.isfinite(error)))
    remark = operands.store(targets[0], elements)
    operands.store(targets[1], factors)
    if as_json:
        screen.print_json(
            {
                "shape": elements.shape, "dtype": elements.dtype.name, "scale": factors.shape, "error": largest,
                "saturated": saturated, "nan": not_numbers, "out": targets[0], "out_scale": targets[1],
            }
        )  # fmt: skip
        return
    screen.show(
        Facts([
            ("result", f"{screen.shape(elements.shape)} {elements.dtype.name}"),
            ("scales", f"{screen.shape(factors.shape)} float32, per {granularity}"),
            ("largest error", f"{largest:.3g}"),
            ("saturated", counted(saturated, "element")),
            *([("NaN", f"{counted(not_numbers, 'element')} without an error")] if not_numbers else []),
            ("written", click.format_filename(targets[0]) + (f" ({remark})" if remark else "")),
            ("", click.format_filename(targets[1])),
        ])
    )  # fmt: skip


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths name one file, by links too; of files that do not exist yet, whether the paths are equal."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
