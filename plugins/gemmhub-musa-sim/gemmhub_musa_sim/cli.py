"""The command `gemmhub-musa-sim`."""

from __future__ import annotations

from typing import get_args

import click

from gemmhub.errors import GemmhubError
from gemmhub_musa_sim.home import make_home
from gemmhub_musa_sim.mcc import Engine
from gemmhub_musa_sim.profiles import PROFILES, Symbols


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--sdk", type=click.Choice(list(PROFILES)), default="4.3", show_default=True, help="SDK generation.")
@click.option(
    "--engine",
    type=click.Choice(get_args(Engine)),
    default="simt",
    show_default=True,
    help="What runs compiled kernels: the CPU simulator, or an NVIDIA GPU through nvcc.",
)
@click.option(
    "--symbols",
    type=click.Choice(get_args(Symbols)),
    help="How libmublas exports its Ex functions; by default as that generation does.",
)
@click.option("--checks", is_flag=True, help="Compile kernels with the hooks of the race checker and the counters.")
def main(directory: str, sdk: str, engine: Engine, symbols: Symbols | None, checks: bool) -> None:
    """Make DIRECTORY look like a MUSA installation whose device is simulated.

    Then point MUSA_HOME at it.
    """
    try:
        home = make_home(directory, sdk=sdk, engine=engine, symbols=symbols, checks=checks)
    except GemmhubError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"export MUSA_HOME={home}")
