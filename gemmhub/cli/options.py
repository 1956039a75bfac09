"""Options and parameter types that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gemmhub._base.digits import whole
from gemmhub._call.options import Options
from gemmhub.cli.by_name import ORDERS
from gemmhub.dtypes import PRECISIONS, SHORT_DTYPES, SUPPORTED
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import OPERANDS

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType  # generic since click 8.2 only
    Choice = click.Choice

SHORT_PRECISIONS = {"bfloat16": "bf16", "tfloat32": "tf32", "float32": "ieee", "fp32": "ieee", "f32": "ieee"}


class Named(Choice):
    """A choice by name or by short name, in upper or lower case."""

    def __init__(self, names: Sequence[str], short: Mapping[str, str]) -> None:
        super().__init__(names)
        self.short = short

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = str(value).lower()
        name = self.short.get(name, name)
        if name in self.choices:
            return name
        self.fail(f"{value!r}; allowed: {', '.join(self.choices)}; short: {', '.join(self.short)}", param, ctx)


DTYPE = Named(SUPPORTED, SHORT_DTYPES)
PRECISION = Named(PRECISIONS, SHORT_PRECISIONS)


class Number(ParamType):
    """An int, a float or a complex number ("2", "0.5", "1+2j")."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for number_type in (int, float, complex):
            try:
                return number_type(value)
            except ValueError:
                continue
        self.fail(f"{value!r} is not a number", param, ctx)


class Sizes(ParamType):
    """Whole numbers separated by commas."""

    def __init__(self, name: str, example: str) -> None:
        self.name = name
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [whole(part.strip()) for part in str(value).split(",")]
        sizes = tuple(part for part in parts if part is not None)
        if len(sizes) < len(parts):
            self.fail(f"{value!r} is not of the form {self.example}", param, ctx)
        return sizes


class Shapes(ParamType):
    """Sizes of products: MxNxK, or N for a cube; each may be several numbers, which gives every combination."""

    name = "MxNxK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        lists = [[whole(x.strip()) for x in part.split(",")] for part in str(value).split("x")]
        numbers = [[x for x in part if x is not None] for part in lists]
        if len(lists) not in (1, 3) or numbers != lists:
            self.fail(
                f"{value!r} is not of the form 512x256x1024 (or 512 for 512x512x512; 512,1024 for several)", param, ctx
            )
        return tuple((n, n, n) for n in numbers[0]) if len(numbers) == 1 else tuple(product(*numbers))


NUMBER = Number()
SHAPES = Shapes()
BATCH = Sizes("B,...", "4 or 4,2")
POINT = Sizes("I,J", "3,17")

dtype_option = click.option(
    "--dtype",
    type=DTYPE,
    metavar="DTYPE",
    help="Dtype of files that NumPy saved as raw bytes (bfloat16, fp8). Converts nothing.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
backend_option = click.option("--backend", metavar="NAME", help="Use this backend or fail.")
device_option = click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    help="Device of the operands: cpu (default), cuda, cuda:1, musa.",
)
library_option = click.option(
    "--library",
    metavar="NAME",
    help="Array library of the operands on a device: torch (default), cupy, or a plugin's.",
)


def layout_options(function: F) -> F:
    """Add the options of operands that sizes stand for: their storage orders, and batch dimensions."""
    for option in reversed(
        (
            click.option(
                "--a-order", type=click.Choice(ORDERS), default="row", help="Storage order of A: col for K x M."
            ),
            click.option(
                "--b-order", type=click.Choice(ORDERS), default="row",
                help="Storage order of B: row for K x N (default), col for N x K.",
            ),
            click.option("--batch", type=BATCH, default=(), help="Batch dimensions of both operands: 4 or 4,2."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def product_options(function: F) -> F:
    """Add the options of a product without further operands; ``matmul_options`` converts them to matmul's."""
    for option in reversed(
        (
            click.option("--out-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the result."),
            click.option("--alpha", type=NUMBER, help="Factor of the product."),
            click.option("--activation", type=click.Choice(tuple(EPILOGUES)), help="Applied to the result."),
            click.option(
                "--precision", type=PRECISION, metavar="NAME", help="Rounding of float32: ieee, bf16x3, tf32, bf16."
            ),
            click.option(
                "--reproducible",
                metavar="PROMISE",
                help="Bits: run (equal from run to run), batch (a row's depend on no other row), or an order's name.",
            ),
        )
    ):
        function = option(function)
    return function


def operand_options(function: F, metavar: str = "FILE.npy") -> F:
    """Add an option for the file of each further operand of a product, and ``--beta``."""
    for name, row in reversed(OPERANDS.items()):
        if not row.written:
            option = f"--{name.replace('_', '-')}"
            function = click.option(option, name, metavar=metavar, help=f"Operand {name}: {row.summary}.")(function)
    return click.option("--beta", type=NUMBER, help="Factor of the addend.")(function)


def form_options(function: F) -> F:
    """Add the options of :func:`operand_options`, which take the name of a form, too: "n" for a bias of n elements."""
    return operand_options(function, "FORM|FILE.npy")


def matmul_options(**values: Any) -> Options:
    """The options that the user passed, as keyword arguments of :func:`gemmhub.matmul`."""
    return cast("Options", {name: value for name, value in values.items() if value is not None and value is not False})
