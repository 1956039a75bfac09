"""``gemmhub tune``: measure candidates, and list, merge and import records."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

import gemmhub
from gemmhub._base import progress
from gemmhub._base.tables import Facts
from gemmhub._choice import records
from gemmhub._choice.records import RecordFile
from gemmhub._measure.tune import TuneResult, import_times
from gemmhub.array_library import ArrayLibrary
from gemmhub.cli import operands, screen
from gemmhub.cli.by_name import arrays_for, entered, place
from gemmhub.cli.errors import Failure
from gemmhub.cli.options import (
    DTYPE,
    SHAPES,
    backend_option,
    device_option,
    form_options,
    json_option,
    layout_options,
    library_option,
    matmul_options,
    product_options,
)
from gemmhub.dtypes import as_dtype

_OTHERWISE = " or --shape MxNxK (files go with --show, --merge and --import)"


@click.command("tune")
@click.argument("what", nargs=-1, metavar="[M N K | FILE...]")
@click.option(
    "--shape", "grids", type=SHAPES, metavar="MxNxK", multiple=True,
    help="A product to time (one number for a cube); several with commas; may be repeated.",
)  # fmt: skip
@click.option("--dtype", type=DTYPE, default="float32", metavar="DTYPE", help="Dtype of the operands (float32).")
@click.option("--b-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of B where it differs.")
@layout_options
@device_option
@library_option
@product_options
@form_options
@backend_option
@click.option("--show", is_flag=True, help="List the records in force (or those of FILE...); time nothing.")
@click.option("--merge", is_flag=True, help="Merge the records of FILE... into those in force.")
@click.option("--import", "imports", is_flag=True, help="Record times of the profiler of --backend NAME in FILE...")
@click.option("--into", metavar="FILE", help="With --merge or --import: write to this file instead.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: tuple[str, ...],
    grids: tuple[tuple[tuple[int, int, int], ...], ...],
    dtype: str,
    b_dtype: str | None,
    a_order: str,
    b_order: str,
    batch: tuple[int, ...],
    device: str,
    library: str | None,
    show: bool,
    merge: bool,
    imports: bool,
    into: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Time every backend, and each of its candidates, on random operands, and record the results.

    Later calls like these, in every process, use the fastest. Wrong candidates are reported, not recorded. Operands
    beside A and B are files, or forms as of `gemmhub explain`.
    """
    if show + merge + imports > 1:
        raise click.UsageError("--show, --merge and --import exclude each other.")
    if into is not None and not (merge or imports):
        raise click.UsageError("--into goes with --merge or --import.")
    if show or merge or imports:
        _check_unused(ctx, "--import" if imports else "--merge" if merge else "--show")
    if show:
        _show([Path(file) for file in what], as_json)
        return
    if merge or imports:
        if not what:
            raise click.UsageError("--merge and --import need files.")
        target = _in_force() if into is None else Path(into)
        files = [Path(file) for file in what]
        if merge:
            merged = records.merge(files, target)
            _merged(target, len(merged.records), merged.skipped, as_json)
            return
        if chosen["backend"] is None:
            raise click.UsageError("--import needs --backend NAME, whose profiler wrote the files.")
        imported = [import_times(file, chosen["backend"], device) for file in files]
        records.write(target, [record for one in imported for record in one.records])
        records.forget()
        skipped = [f"{file}: {n} rows: {why}" for file, one in zip(files, imported) for why, n in one.skipped.items()]
        _merged(target, sum(len(one.records) for one in imported), skipped, as_json)
        return
    positional = [operands.sizes(what, _OTHERWISE)] if what or not grids else []
    todo = [*positional, *(shape for grid in grids for shape in grid)]
    arrays = arrays_for(device, library)
    results = []
    with entered(arrays), progress.bar(len(todo)) as (begin, advance):
        for size in todo:
            begin("tuning " + "x".join(map(str, size)))
            results.append(_tune(size, batch, (dtype, b_dtype or dtype), (a_order, b_order), arrays, chosen))
            advance()
    if as_json:
        screen.print_json(results)
    else:
        screen.show(*results)


def _merged(target: Path, count: int, skipped: list[str], as_json: bool) -> None:
    if as_json:
        screen.print_json({"into": target, "records": count, "skipped": skipped})
        return
    facts = [("into", str(target)), ("records", str(count)), *(("skipped", reason) for reason in skipped)]
    screen.show(Facts(facts))


def _check_unused(ctx: click.Context, mode: str) -> None:
    """Raise UsageError for options of a product, which ``mode`` ("--show") would ignore."""
    used = {"what", "show", "merge", "imports", "into", "as_json"}
    used |= {"backend", "device"} if mode == "--import" else set()
    unused = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name not in used and ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if unused:
        raise click.UsageError(f"{', '.join(unused)}: not used by {mode}, which times nothing; omit it.")


def _tune(
    size: tuple[int, int, int],
    batch: tuple[int, ...],
    dtypes: tuple[str, str],
    orders: tuple[str, str],
    arrays: ArrayLibrary,
    options: dict[str, Any],
) -> TuneResult:
    m, n, k = size
    rng, chosen = np.random.default_rng(), dict(options)
    a = operands.random_operand(rng, (*batch, m, k), as_dtype(dtypes[0]))
    b = operands.random_operand(rng, (*batch, k, n), as_dtype(dtypes[1]))
    extra = operands.further(chosen, dtypes[0], a, b, partial(operands.random_operand, rng))
    extra = {name: place(x, arrays, argument=name) for name, x in extra.items()}
    a, b = place(a, arrays, orders[0], "a"), place(b, arrays, orders[1], "b")
    tuned: TuneResult = gemmhub.tune(a, b, **matmul_options(**chosen, **extra))
    return tuned


def _in_force() -> Path:
    path = records.path()
    if path is None:
        raise Failure("records are off (setting records); name a file")
    return path


def _show(named: list[Path], as_json: bool) -> None:
    paths = named or [_in_force()]
    content = RecordFile()
    for path in paths:
        if named and not path.exists():
            raise Failure(f"{click.format_filename(path)}: no such file")
        one = records.read(path)
        if named and one.skipped and not one.all:
            raise Failure(f"no line is a tuning record that this gemmhub reads: {one.skipped[0]}")
        content.skipped += one.skipped
        for entry in one.all:
            content.add(entry)
    if as_json:
        measured, failures = content.ordered
        failed = [{**vars(r), "seconds": None} for r in failures]
        screen.print_json({"files": paths, "records": measured, "failures": failed, "skipped": content.skipped})
        return
    named_files = [("file", str(path) + ("" if path.exists() else " (does not exist)")) for path in paths]
    screen.show(Facts(named_files), content)
