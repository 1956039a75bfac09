"""``gemmhub spot-check``: the check that a result is the product of A and B."""

from __future__ import annotations

from typing import Any

import click

import gemmhub
from gemmhub.cli import operands, screen
from gemmhub.cli.errors import WRONG
from gemmhub.cli.options import POINT, dtype_option, json_option, matmul_options, operand_options, product_options


@click.command("spot-check")
@click.argument("a", metavar="A.npy")
@click.argument("b", metavar="B.npy")
@click.argument("result", metavar="RESULT.npy")
@product_options
@operand_options
@click.option("--points", type=POINT, multiple=True, help="Recompute only this element; may be repeated.")
@click.option("--samples", type=click.IntRange(min=1), help="Recompute only this number of random elements.")
@click.option("--seed", type=click.IntRange(min=0), help="Makes the random choices repeatable.")
@dtype_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    a: str,
    b: str,
    result: str,
    points: tuple[tuple[int, ...], ...],
    samples: int | None,
    seed: int | None,
    dtype: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Check that RESULT.npy is the product of A.npy and B.npy, within the error bound of its dtypes, in O(n^2).

    The product is that of `gemmhub matmul` with the same options. Exit code 0 when it is, 1 when it is not. The result
    may come from any program.
    """
    extra = operands.load_options(chosen, dtype)
    left, right = (operands.load(file, dtype) for file in (a, b))
    claimed = operands.load(result, chosen.get("out_dtype") or dtype)
    verdict = gemmhub.spot_check(
        left, right, claimed, points=points or None, samples=samples, seed=seed, **matmul_options(**chosen, **extra)
    )
    if as_json:
        screen.print_json(verdict)
    else:
        screen.show(verdict)
    if not verdict.ok:
        ctx.exit(WRONG)
