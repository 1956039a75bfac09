"""``gemmhub audit``: tests of matrix libraries against what they claim."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from gemmhub._arrays.named_device import parse_device
from gemmhub._audit import choose, page
from gemmhub._audit.audit import audit
from gemmhub._audit.result import Audit
from gemmhub._base import files, progress
from gemmhub._base.tables import Facts
from gemmhub.cli import operands, screen
from gemmhub.cli.errors import FAILED, WRONG, unwritable


@click.command("audit")
@click.argument("implementations", metavar="[IMPLEMENTATION]...", nargs=-1)
@click.option("--device", default="cpu", metavar="NAME", help="Device: cpu (default), cuda, cuda:1, musa.")
@click.option("--quick", "effort", flag_value="quick", default="quick", help="Seconds to a minute each (default).")
@click.option("--normal", "effort", flag_value="normal", help="All cases of the conformance kit, and 300 random ones.")
@click.option("--full", "effort", flag_value="full", help="4000 random cases, and more than 2**31 elements.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the random cases (default 0).")
@click.option("--html", metavar="FILE", help="Write a report as one HTML page.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results as JSON; - prints it and nothing else.")
@click.option("--scripts", metavar="FOLDER", help="Write the script of each fault into this folder.")
@click.pass_context
def command(
    ctx: click.Context, /, implementations: tuple[str, ...], device: str, effort: str, seed: int, html: str | None,
    json_file: str | None, scripts: str | None,
) -> None:  # fmt: skip
    """Test matrix libraries that are installed, each against what it claims: numpy, torch, torch-compiled, jax, dask,
    cupy, torch-cuda, gemmhub, and gemmhub's backends (gemmhub/cpu). Without a name all of the device.

    Every result is compared with the error bound of its dtypes. A fault is reduced to a small case and printed with a
    script that repeats it without gemmhub. An exception of a library is counted as refused. The report holds versions,
    the processor and the card; it names no user, host or path.

    Exit code 0 where no fault was found, 1 where there is one, 3 where an implementation refused everything or none is
    ready on the device.
    """
    for name in (html, json_file):
        if name is not None and name != "-":
            operands.check_writable(Path(name))
    if scripts is not None:
        operands.check_folder(Path(scripts))
    chosen = choose.chosen(implementations, parse_device(device))
    with progress.bar(len(chosen)) as (begin, advance):
        done = []
        for each in chosen:
            begin(each.name)
            done.append(audit(each, effort=effort, seed=seed))
            advance()
    audited = tuple(x for one in done for x in one.implementations)
    result = Audit(effort, seed, done[0].date, done[0].system, audited)
    document = {"command": shlex.join(["gemmhub", *_arguments(ctx)]), "ok": result.ok, **screen.plain(result)}
    if json_file == "-":
        screen.print_json(document)
    else:
        screen.show(result)
        if json_file is not None:
            _write(Path(json_file), screen.as_json(document) + "\n")
    if html is not None:
        _write(Path(html), page.html(result))
    written = _scripts(result, scripts)
    names = [name for name in (json_file, html, *written) if name]
    if json_file != "-" and names:
        click.echo()
        screen.show(Facts([("written", click.format_filename(name)) for name in names]))
    if result.faults:
        ctx.exit(WRONG)
    if not result.ok:
        ctx.exit(FAILED)


def _arguments(ctx: click.Context) -> list[str]:
    """The arguments of the command without its files, whose names are private."""
    given: list[str] = ["audit", *ctx.params["implementations"]]
    defaults: dict[str, Any] = {"device": "cpu", "seed": 0}
    for name, default in defaults.items():
        if ctx.params[name] != default:
            given += [f"--{name}", str(ctx.params[name])]
    return [*given, f"--{ctx.params['effort']}"]


def _scripts(result: Audit, folder: str | None) -> list[str]:
    """Write the scripts of faults; return the names of their files."""
    names = []
    for each in result.implementations:
        for number, fault in enumerate(each.faults, 1):
            if folder is not None and fault.script is not None:
                path = Path(folder) / f"{each.name.replace('/', '-')}-{number}.py"
                _make(path.parent)
                _write(path, fault.script)
                names.append(str(path))
    return names


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(click.format_filename(folder), error) from None


def _write(path: Path, text: str) -> None:
    try:
        with files.replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise unwritable(click.format_filename(path), error) from None
