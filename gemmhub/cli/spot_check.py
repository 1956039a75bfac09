"""``gemmhub spot-check``: the check that C is the product of A and B."""

from __future__ import annotations

import click

import gemmhub
from gemmhub.cli import operands, screen
from gemmhub.cli.errors import WRONG
from gemmhub.cli.options import POINT, PRECISION, dtype_option, json_option


@click.command("spot-check")
@click.argument("a", metavar="A.npy")
@click.argument("b", metavar="B.npy")
@click.argument("c", metavar="C.npy")
@click.option(
    "--precision", type=PRECISION, metavar="NAME", help="Rounding of float32 operands: ieee, bf16x3, tf32, bf16."
)
@click.option("--points", type=POINT, multiple=True, help="Recompute only this element of C; may be repeated.")
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
    c: str,
    precision: str | None,
    points: tuple[tuple[int, ...], ...],
    samples: int | None,
    seed: int | None,
    dtype: str | None,
    as_json: bool,
) -> None:
    """Check that C.npy is A.npy @ B.npy, within the error bound of its dtypes, in O(n^2).

    Exit code 0 when it is, 1 when it is not. C may come from any program.
    """
    left, right, product = (operands.load(file, dtype) for file in (a, b, c))
    found = gemmhub.spot_check(
        left, right, product, precision=precision, points=points or None, samples=samples, seed=seed
    )
    if as_json:
        screen.print_json(found)
    else:
        examined = f"{found.checked} elements recomputed" + (f", {found.sums} sums compared" if found.sums else "")
        screen.show(
            screen.facts(
                [
                    ("verdict", screen.styled("right" if found.ok else "wrong")),
                    ("method", f"{found.method}: {examined}"),
                    ("reason", found.reason),
                ]
            )
        )
    if not found.ok:
        ctx.exit(WRONG)
