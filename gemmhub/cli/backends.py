"""``gemmhub backends``: the states of all backends, with reasons and remedies."""

from __future__ import annotations

from typing import Any

import click

import gemmhub
from gemmhub._choice.status import BackendStatus
from gemmhub.cli import screen
from gemmhub.cli.options import json_option


@click.command("backends")
@click.option("--verbose", "-v", is_flag=True, help="Show summaries, features and tracebacks.")
@json_option
def command(verbose: bool, as_json: bool) -> None:
    """List all backends: ready, absent, failed or not installed, each with reason and remedy."""
    statuses = gemmhub.backends()
    if as_json:
        screen.print_json(statuses)
        return
    rows = [(s.name, s.distribution, screen.styled(s.state), s.details) for s in statuses]
    parts: list[Any] = [screen.table(("backend", "distribution", "state", "details"), rows)]
    if verbose:
        parts += [screen.facts(_long(status)) for status in statuses]
        parts += [f"{s.name}: {s.traceback.rstrip()}" for s in statuses if s.traceback]
    screen.show(*parts)


def _long(status: BackendStatus) -> list[tuple[str, str] | None]:
    return [
        (status.name, status.summary or "no summary"),
        ("", "features: " + ", ".join(status.features)) if status.features else None,
    ]
