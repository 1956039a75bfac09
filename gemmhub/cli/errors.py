"""Errors as the command line says them: one message on stderr, an exit code, no traceback."""

from __future__ import annotations

from typing import IO, Any

import click

WRONG = 1
"""Exit code: a wrong product, a deviating backend, a failed self-test."""
UNUSABLE = 2
"""Exit code: input, options or configuration that cannot be used; nothing that can run the product."""


class Failure(click.ClickException):
    """Ends the command with exit code 2; printed as ``error: message``."""

    exit_code = UNUSABLE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.format_message()}", file=file, err=file is None)
