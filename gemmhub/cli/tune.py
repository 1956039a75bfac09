"""``gemmhub tune``: measure candidates, and list, merge and import records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

import gemmhub
from gemmhub._base import units
from gemmhub._choice import records
from gemmhub._choice.records import RecordFile
from gemmhub._measure.tune import TuneResult, import_times
from gemmhub.array_library import ArrayLibrary
from gemmhub.cli import operands, progress, screen
from gemmhub.cli.by_name import arrays_for, entered, place
from gemmhub.cli.errors import Failure
from gemmhub.cli.options import (
    DTYPE,
    SHAPES,
    b_order_option,
    backend_option,
    device_option,
    json_option,
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
@b_order_option
@device_option
@library_option
@product_options
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
    b_order: str,
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

    Later calls of this kind, in every process, use the fastest. Wrong candidates are reported, not recorded.
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
            results.append(_tune(size, dtype, b_dtype, b_order, arrays, chosen))
            advance()
    if as_json:
        screen.print_json(results)
    else:
        screen.show(*(part for size, result in zip(todo, results) for part in _parts(size, result)), _where(results))


def _merged(target: Path, count: int, skipped: list[str], as_json: bool) -> None:
    if as_json:
        screen.print_json({"into": target, "records": count, "skipped": skipped})
        return
    facts = [("into", str(target)), ("records", str(count)), *(("skipped", reason) for reason in skipped)]
    screen.show(screen.facts(facts))


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
    dtype: str,
    b_dtype: str | None,
    b_order: str,
    arrays: ArrayLibrary,
    chosen: dict[str, Any],
) -> TuneResult:
    m, n, k = size
    rng = np.random.default_rng()
    a = place(operands.random_operand(rng, (m, k), as_dtype(dtype)), arrays, argument="a")
    b = place(operands.random_operand(rng, (k, n), as_dtype(b_dtype or dtype)), arrays, b_order, "b")
    return gemmhub.tune(a, b, **matmul_options(**chosen))


def _parts(size: tuple[int, int, int], result: TuneResult) -> tuple[Any, Any]:
    m, n, k = size
    rates = [None if row.seconds is None else 2e-9 * m * n * k / row.seconds for row in result.rows]
    unit, scale = units.rate_unit(rates)
    rows = [
        (
            row.backend,
            row.candidate,
            units.duration(row.seconds),
            "-" if rate is None else units.number(rate * scale),
            row.remark,
        )
        for row, rate in zip(result.rows, rates)
    ]
    header = ("backend", "candidate", "time", unit, "remarks")
    return screen.facts([("problem", result.problem)]), screen.table(header, rows, right=("time", unit))


def _where(results: list[TuneResult]) -> Any:
    path = results[-1].path
    warnings = [("warning", result.warning) for result in results if result.warning]
    return screen.facts([("recorded", str(path) if path else "no: records are off"), *warnings])


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
        content.skipped += one.skipped
        for entry in one.all:
            content.add(entry)
    both = content.records, content.failures
    measured, failures = (sorted(x.values(), key=lambda r: (r.problem, r.seconds)) for x in both)
    if as_json:
        failed = [{**vars(r), "seconds": None} for r in failures]
        screen.print_json({"files": paths, "records": measured, "failures": failed, "skipped": content.skipped})
        return
    head = [("file", str(path) + ("" if path.exists() else " (does not exist)")) for path in paths]
    head += [("records", str(len(measured)))] + [("skipped", reason) for reason in content.skipped]
    head += [("failed", f"{r.backend} {r.candidate}, {r.problem}: {r.failure}") for r in failures]
    rows = [(units.duration(r.seconds), r.backend, r.candidate, r.device, r.recorded[:10], r.problem) for r in measured]
    header = ("time", "backend", "candidate", "device", "recorded", "problem")
    screen.show(screen.facts(head), screen.table(header, rows, right=("time",)) if rows else None)
