"""The entry point ``gemmhub``: a group whose commands are imported when they are called."""

from __future__ import annotations

import difflib
import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from gemmhub import __version__
from gemmhub.cli import errors

COMMANDS = {
    "matmul": ("matmul", "Multiply two .npy files."),
    "quantize": ("quantize", "Write a .npy file in 8 bits, and its scales."),
    "explain": ("explain", "Show which backend would run a product, and why not the others."),
    "backends": ("backends", "List all backends and their states."),
    "compare": ("compare", "Run one product on every backend and check each result."),
    "spot-check": ("spot_check", "Check that RESULT.npy is the product of A.npy and B.npy."),
    "audit": ("audit", "Test the matrix libraries that are installed."),
    "tune": ("tune", "Time every backend on a product and record the results."),
    "bench": ("bench", "Time backends on the same products; JSON and plots."),
    "build": ("build", "Do in advance what a plugin does at first use."),
    "new-plugin": ("new_plugin", "Write a plugin to put a kernel into."),
    "doctor": ("doctor", "Report on this installation, and test it."),
}
"""Name: (module, summary). The summaries are here so that ``gemmhub --help`` imports no command."""


class Commands(click.Group):
    """A group that imports a command when it is called, and turns gemmhub's exceptions into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gemmhub.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise _unknown(ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(Commands, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return run()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a character that the terminal's encoding lacks is not an error
                stream.reconfigure(errors="backslashreplace")
        sys.exit(errors.run(run))

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with errors.pipes():  # it prints --help and --version
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with (
            errors.pipes(),
            np.errstate(all="ignore"),
        ):  # an infinite or undefined result is a result: no warning on stderr
            return super().invoke(ctx)


def _unknown(ctx: click.Context, name: str) -> click.UsageError:
    """The error for a command that does not exist, with the most similar one."""
    likely = difflib.get_close_matches(name.lower().replace("_", "-"), COMMANDS, n=1, cutoff=0.5)
    meant = f"Did you mean {likely[0]!r}?" if likely else f"Allowed: {', '.join(COMMANDS)}."
    return click.UsageError(f"No such command {name!r}. {meant}", ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """One matmul that runs on the best GEMM backend present, reports why, and lets you check the answer.

    Exit codes: 0 success; 1 a wrong product; 2 input, options or settings that cannot be used; 3 any other
    failure; 130 Ctrl-C; 141 a closed pipe. Results go to stdout, errors and progress to stderr.
    """
