"""``gemmhub backends``: the states of all backends, with reasons and remedies."""

from __future__ import annotations

import click

import gemmhub
from gemmhub.cli import screen
from gemmhub.cli.options import json_option


@click.command("backends")
@click.option("--verbose", "-v", is_flag=True, help="Show summaries, features and tracebacks.")
@json_option
def command(verbose: bool, as_json: bool) -> None:
    """List all backends: ready, absent, failed or not installed, each with reason and remedy."""
    statuses = gemmhub.backends()
    if as_json:
        screen.print_json(statuses.rows)
        return
    tracebacks = [f"{s.name}: {s.traceback.rstrip()}" for s in statuses.rows if s.traceback]
    if verbose:
        screen.show(statuses, *statuses.rows, *tracebacks)
    else:
        screen.show(statuses)
