"""Options and parameter types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gemmhub.dtypes import ACTIVATIONS, PRECISIONS, SUPPORTED
from gemmhub.options import Options

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic since click 8.2 only

DTYPE = click.Choice(SUPPORTED)


class Number(ParamType):
    """An int, a float or a complex number ("2", "0.5", "1+2j")."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for kind in (int, float, complex):
            try:
                return kind(value)
            except ValueError:
                continue
        self.fail(f"{value!r} is not a number", param, ctx)


class Sizes(ParamType):
    """Whole numbers with a separator between them. ``count`` of them, where that is given."""

    def __init__(self, name: str, separator: str, example: str, count: int | None = None, cube: bool = False) -> None:
        self.name = name
        self.separator = separator
        self.example = example
        self.count = count
        self.cube = cube
        """Whether one number stands for three equal ones."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(self.separator)
        if self.cube and len(parts) == 1:
            parts *= 3
        if not all(part.strip().isdecimal() for part in parts) or self.count not in (None, len(parts)):
            self.fail(f"{value!r} is not of the form {self.example}", param, ctx)
        return tuple(int(part) for part in parts)


NUMBER = Number()
SHAPE = Sizes("MxNxK", "x", "512x256x1024 (or 512 for 512x512x512)", 3, cube=True)
BATCH = Sizes("B,...", ",", "4 or 4,2")
POINT = Sizes("I,J", ",", "3,17")

dtype_option = click.option(
    "--dtype",
    type=DTYPE,
    metavar="DTYPE",
    help="What the elements are of files that NumPy saved as raw bytes (bfloat16, fp8). Converts nothing.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
backend_option = click.option("--backend", metavar="NAME", help="Use this backend or fail.")


def product_options(function: F) -> F:
    """What changes a product without further operands: ``given`` turns them into matmul's options."""
    for option in reversed(
        (
            click.option("--out-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the result."),
            click.option("--alpha", type=NUMBER, help="Factor of the product."),
            click.option("--activation", type=click.Choice(ACTIVATIONS), help="Applied to the result."),
            click.option("--precision", type=click.Choice(PRECISIONS), help="What float32 may be rounded to."),
            click.option("--deterministic", is_flag=True, help="Demand bitwise equal results from run to run."),
        )
    ):
        function = option(function)
    return function


def given(**values: Any) -> Options:
    """The options that were given, as keyword arguments of :func:`gemmhub.matmul`."""
    return cast("Options", {name: value for name, value in values.items() if value is not None and value is not False})
