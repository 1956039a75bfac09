"""``gemmhub bench``: backends timed on the same products, as tables, JSON and plots."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import numpy as np

import gemmhub
from gemmhub._base import files, processors, progress
from gemmhub._base.tables import Facts
from gemmhub.array_library import ArrayLibrary
from gemmhub.cli import by_name, measurements, operands, report, screen
from gemmhub.cli.by_name import ORDERS
from gemmhub.cli.contenders import LIBRARY_MATMULS
from gemmhub.cli.errors import WRONG, Undone, unwritable
from gemmhub.cli.measurements import Case
from gemmhub.cli.options import DTYPE, PRECISION, SHAPES, device_option, form_options, library_option

_ARGUMENTS = "gemmhub.cli.bench.arguments"


class _Remembering(click.Command):
    """A command that keeps its arguments as passed, for the JSON document; of files only their names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = ["gemmhub", "bench", *(re.sub(r"[^=]*[/\\]", "", arg) for arg in args)]
        return super().parse_args(ctx, args)


_DEFAULT = tuple((n, n, n) for n in (128, 256, 512, 1024))


@click.command("bench", cls=_Remembering)
@click.argument("what", nargs=-1, metavar="[M N K]")
@click.option(
    "--shape", "grids", type=SHAPES, metavar="MxNxK", multiple=True,
    help="Sizes of a product (one number for a cube); 64,128x512x512 for each combination; may be repeated. "
    "Default: cubes of 128 to 1024.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", type=DTYPE, multiple=True, default=["float32"], metavar="DTYPE",
    help="Dtype of the operands; may be repeated. Default: float32.",
)  # fmt: skip
@click.option(
    "--orders", "all_orders", type=click.Choice((*measurements.ORDERS, "all")), multiple=True,
    help="Storage orders of A, B and the result, a letter each: r row-major, c column-major; all for the eight; "
    "may be repeated. Default: rrr.",
)  # fmt: skip
@click.option("--b-order", type=click.Choice(ORDERS), help="Short for --orders rrr (row) and rcr (col).")
@device_option
@library_option
@click.option("--out-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the result.")
@click.option("--precision", type=PRECISION, metavar="NAME", help="Rounding of float32: ieee, bf16x3, tf32, bf16.")
@form_options
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option(
    "--baseline", metavar="NAME",
    help="The baseline of the ratios. Default: the array library's own numpy.matmul, torch.matmul or cupy.matmul.",
)  # fmt: skip
@click.option("--host", is_flag=True, help="Also time the host's part of a warm call.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Interleaved rounds.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=1, show_default=True, help="Untimed calls of each contender."
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    help="Calls of each contender in a round. Default: 2 ms of calls.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all samples here; - prints them instead.")
@click.option("--plot", metavar="FILE.png", help="Draw throughput, and ratios as bars, here (needs matplotlib).")
@click.option("--roofline", metavar="FILE.png", help="Draw throughput over arithmetic intensity, with both ceilings.")
@click.option("--heatmap", metavar="FILE.png", help="Draw ratios over two of m, n and k.")
@click.option("--html", metavar="FILE.html", help="Write a report here: one file with all tables and plots.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: tuple[str, ...],
    grids: tuple[tuple[tuple[int, int, int], ...], ...],
    dtypes: tuple[str, ...],
    all_orders: tuple[str, ...],
    b_order: str | None,
    device: str,
    library: str | None,
    out_dtype: str | None,
    precision: str | None,
    backends: tuple[str, ...],
    baseline: str | None,
    host: bool,
    rounds: int,
    warmup: int,
    iterations: int | None,
    json_file: str | None,
    plot: str | None,
    roofline: str | None,
    heatmap: str | None,
    html: str | None,
    **further: Any,
) -> None:
    """Time backends on the same random operands: medians of interleaved rounds, ratios to a baseline.

    Every result is checked before it is timed; exit code 1 when one is wrong. Further operands are given by their
    forms, as of `gemmhub explain`; the array library's own matmul runs without them.
    """
    positional = [operands.sizes(what, " or --shape MxNxK")] if what else []
    shapes = list(dict.fromkeys([*positional, *(shape for grid in grids for shape in grid)])) or list(_DEFAULT)
    if any(0 in shape for shape in shapes):
        raise click.BadParameter("sizes must be at least 1", param_hint="--shape")
    for file in (json_file if json_file != "-" else None, plot, roofline, heatmap, html):
        if file is not None:
            operands.check_writable(Path(file))
    _check_plots({"--plot": plot, "--roofline": roofline, "--heatmap": heatmap}, shapes)
    arrays = by_name.arrays_for(device, library)
    warnings = processors.disturbances(arrays.device.type)  # before this command's own load
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    orders = _orders(all_orders, b_order)
    todo = [(dtype, each, shape) for dtype in dtypes for each in orders for shape in shapes]
    cases: list[Case] = []
    with progress.bar(len(todo) * rounds) as (begin, advance):
        for dtype, each, (m, n, k) in todo:
            begin(f"{m}x{n}x{k} {dtype} {each}")
            cases.append(
                measurements.run_case(
                    m, n, k, dtype=dtype, out_dtype=out_dtype, precision=precision, backends=backends,
                    baseline=baseline, device=device, library=arrays.name, orders=each, host=host,
                    rounds=rounds, warmup=warmup, iterations=iterations, further=further, progress=advance,
                )
            )  # fmt: skip
        drawn = roofline is not None or html is not None
        if drawn:
            begin("bandwidth of a copy")
        bandwidth = measurements.copy_bandwidth(arrays) if drawn else None
    machine = by_name.device_name(arrays)
    document = {
        "command": ctx.meta[_ARGUMENTS],
        "started": started,
        "device": {"name": machine, "index": str(arrays.device), "library": arrays.name},
        "clock": measurements.clock_name(arrays),
        "versions": _versions(arrays),
        "rounds": rounds,
        "warmup": warmup,
        "iterations": iterations,
        "unit": "seconds a call",
        "warnings": warnings,
        "copy_bytes_per_second": bandwidth,
        "cases": cases,
    }
    if json_file == "-":
        screen.print_json(document)
    else:
        screen.show(report.results_table(cases), report.host_table(cases) if host else None)
        if json_file is not None:
            _write(Path(json_file), screen.as_json(document) + "\n")
    timed = {row.name for case in cases for row in case.timed}
    if timed:
        _draw(cases, machine, plot, roofline, heatmap, bandwidth)
    if html is not None:
        _write(Path(html), report.page(document, cases))
    written = [json_file, *((plot, roofline, heatmap) if timed else ()), html]
    if json_file != "-" and any(written):
        click.echo()
        screen.show(Facts([("written", click.format_filename(file)) for file in written if file]))
    if any(row.verdict == "failed" for case in cases for row in case.rows):
        ctx.exit(WRONG)
    if not timed - set(LIBRARY_MATMULS):
        raise Undone("no backend was timed; the remarks have the reasons")


def _orders(names: tuple[str, ...], b_order: str | None) -> tuple[str, ...]:
    """The combinations to measure, once each."""
    if b_order is not None:
        if names:
            raise click.UsageError("--b-order and --orders exclude each other; --orders rcr is --b-order col.")
        return ("rcr" if b_order == "col" else "rrr",)
    return measurements.ORDERS if "all" in names else tuple(dict.fromkeys(names)) or ("rrr",)


def _check_plots(files: dict[str, str | None], shapes: Sequence[tuple[int, int, int]]) -> None:
    """Raise Failure for plots that could not be drawn, before the measurement. Imports only what it needs."""
    wanted = {option: file for option, file in files.items() if file is not None}
    if wanted:
        from gemmhub.cli import figures, heatmap

        for option, file in wanted.items():
            figures.require(option, file)
        if "--heatmap" in wanted:
            heatmap.axes(shapes)


def _draw(
    cases: Sequence[Case],
    machine: str,
    plot_file: str | None,
    roofline_file: str | None,
    heatmap_file: str | None,
    bandwidth: float | None,
) -> None:
    if plot_file is not None:
        from gemmhub.cli import plot

        plot.draw(cases, machine, Path(plot_file))
    if roofline_file is not None and bandwidth is not None:
        from gemmhub.cli import roofline

        roofline.draw(cases, bandwidth, machine, Path(roofline_file))
    if heatmap_file is not None:
        from gemmhub.cli import heatmap

        heatmap.draw(cases, machine, Path(heatmap_file))


def _versions(arrays: ArrayLibrary) -> dict[str, Any]:
    """The versions of gemmhub, Python, NumPy, the operands' library, and those that ready backends report."""
    return {
        "gemmhub": gemmhub.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **by_name.library_versions(arrays),
        "platform": platform.platform(),
        "backends": {name: s.versions for name, s in gemmhub.backends().items() if s.state == "ready"},
    }


def _write(path: Path, text: str) -> None:
    try:
        with files.replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise unwritable(click.format_filename(path), error) from None
