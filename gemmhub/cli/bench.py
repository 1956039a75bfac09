"""``gemmhub bench``: backends side by side, as tables, JSON and plots."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import gemmhub
from gemmhub._arrays import by_name
from gemmhub._arrays.by_name import ORDERS
from gemmhub._base import files, units
from gemmhub._measure import bench, contenders
from gemmhub._measure.bench import Case
from gemmhub._measure.contenders import LIBRARY_MATMULS
from gemmhub.array_library import ArrayLibrary
from gemmhub.cli import operands, screen
from gemmhub.cli.errors import WRONG, Undone, unwritable
from gemmhub.cli.options import DTYPE, PRECISION, SHAPES, device_option, library_option

if TYPE_CHECKING:
    from collections.abc import Callable

_ARGUMENTS = "gemmhub.cli.bench.arguments"


class _Remembering(click.Command):
    """Keeps its arguments as they were given, for the JSON document; of files only their names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = ["gemmhub", "bench", *(re.sub(r"[^=]*[/\\]", "", arg) for arg in args)]
        return super().parse_args(ctx, args)


@click.command("bench", cls=_Remembering)
@click.option(
    "--shape", "grids", type=SHAPES, metavar="MxNxK", multiple=True, default=["128,256,512,1024"],
    help="Sizes of a product (one number for a cube); 64,128x512x512 for each combination; may be repeated. "
    "Default: cubes of 128 to 1024.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", type=DTYPE, multiple=True, default=["float32"], metavar="DTYPE",
    help="Dtype of the operands; may be repeated. Default: float32.",
)  # fmt: skip
@click.option(
    "--orders", "all_orders", type=click.Choice((*bench.ORDERS, "all")), multiple=True,
    help="How A, B and the result lie in memory, a letter each: r by rows, c by columns; all for each of the eight; "
    "may be repeated. Default: rrr.",
)  # fmt: skip
@click.option("--b-order", type=click.Choice(ORDERS), help="Short for --orders rrr (row) and rcr (col).")
@device_option
@library_option
@click.option("--out-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the result.")
@click.option("--precision", type=PRECISION, metavar="NAME", help="What float32 may be rounded to: ieee, tf32, bf16.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option(
    "--baseline", metavar="NAME",
    help="What ratios refer to. Default: the array library's own numpy.matmul, torch.matmul or cupy.matmul.",
)  # fmt: skip
@click.option("--host", is_flag=True, help="Time the host's part of a warm call, too.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Interleaved rounds.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=1, show_default=True, help="Untimed calls of each contender."
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    help="Calls of each contender in a round. Default: as many as take 2 ms.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all samples here; - prints them instead.")
@click.option("--plot", metavar="FILE.png", help="Draw throughput, and ratios as bars, here (needs matplotlib).")
@click.option("--roofline", metavar="FILE.png", help="Draw throughput over arithmetic intensity, with both ceilings.")
@click.option("--heatmap", metavar="FILE.png", help="Draw ratios over two of m, n and k.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
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
) -> None:
    """Time backends side by side on random operands: medians of interleaved rounds, ratios to a baseline.

    Every result is checked before it is timed; exit code 1 when one is wrong.
    """
    shapes = list(dict.fromkeys(shape for grid in grids for shape in grid))
    if any(0 in shape for shape in shapes):
        raise click.BadParameter("sizes must be at least 1", param_hint="--shape")
    for file in (json_file if json_file != "-" else None, plot, roofline, heatmap):
        if file is not None:
            operands.check_writable(Path(file))
    _check_plots({"--plot": plot, "--roofline": roofline, "--heatmap": heatmap}, shapes)
    arrays = by_name.arrays_for(device, library)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    orders = _orders(all_orders, b_order)
    todo = [(dtype, each, shape) for dtype in dtypes for each in orders for shape in shapes]
    cases: list[Case] = []
    with _progress(len(todo) * rounds) as (begin, advance):
        for dtype, each, (m, n, k) in todo:
            begin(f"{m}x{n}x{k} {dtype} {each}")
            cases.append(
                bench.run_case(
                    m, n, k, dtype=dtype, out_dtype=out_dtype, precision=precision, backends=backends,
                    baseline=baseline, device=device, library=arrays.name, orders=each, host=host,
                    rounds=rounds, warmup=warmup, iterations=iterations, progress=advance,
                )
            )  # fmt: skip
    bandwidth = bench.copy_bandwidth(arrays) if roofline is not None else None
    machine = by_name.device_name(arrays)
    document = {
        "command": ctx.meta[_ARGUMENTS],
        "started": started,
        "device": {"name": machine, "index": str(arrays.device), "library": arrays.name},
        "clock": bench.clock_name(arrays),
        "versions": _versions(arrays),
        "rounds": rounds,
        "warmup": warmup,
        "iterations": iterations,
        "unit": "seconds a call",
        "copy_bytes_per_second": bandwidth,
        "cases": cases,
    }
    if json_file == "-":
        screen.print_json(document)
    else:
        screen.show(_table(cases), _host_table(cases) if host else None)
        if json_file is not None:
            _write(Path(json_file), screen.as_json(document) + "\n")
    timed = {row.name for case in cases for row in case.timed}
    if timed:
        _draw(cases, machine, plot, roofline, heatmap, bandwidth)
    if any(row.verdict == "wrong" for case in cases for row in case.rows):
        ctx.exit(WRONG)
    if not timed - set(LIBRARY_MATMULS):
        raise Undone("no backend was timed; the remarks say why")


def _orders(given: tuple[str, ...], b_order: str | None) -> tuple[str, ...]:
    """Every combination to measure, once each."""
    if b_order is not None:
        if given:
            raise click.UsageError("--b-order and --orders exclude each other; --orders rcr is --b-order col.")
        return ("rcr" if b_order == "col" else "rrr",)
    return bench.ORDERS if "all" in given else tuple(dict.fromkeys(given)) or ("rrr",)


def _check_plots(files: dict[str, str | None], shapes: Sequence[tuple[int, int, int]]) -> None:
    """Raise Failure for what could not be drawn, before anything is measured. Nothing is imported without need."""
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
    """gemmhub, Python, NumPy, the operands' library, and what the ready backends report of themselves."""
    return {
        "gemmhub": gemmhub.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **by_name.library_versions(arrays),
        "platform": platform.platform(),
        "backends": {s.name: s.versions for s in gemmhub.backends() if s.state == "ready"},
    }


def _write(path: Path, text: str) -> None:
    try:
        with files.replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise unwritable(click.format_filename(path), error) from None


def _table(cases: Sequence[Case]) -> Any:
    unit, scale = units.rate_unit(row.gflops for case in cases for row in case.timed)
    rows: list[tuple[str, ...]] = []
    for case in cases:
        if rows:
            rows.append(("",) * 8)
        title, dtype = _title(case)
        for row in case.rows:
            rows.append((title, dtype, row.label, *row.cells(scale)))
            title = dtype = ""
    header = ("m x n x k", "dtype", "contender", "median", "range", unit, f"vs {cases[0].baseline}", "remarks")
    return screen.table(header, rows, right=header[3:7])


def _host_table(cases: Sequence[Case]) -> Any:
    """What the host spends in a call."""
    rows: list[tuple[str, ...]] = []
    for case in cases:
        title, dtype = _title(case)
        for row in case.host:
            rows.append(
                (
                    title,
                    dtype,
                    contenders.label(row.name),
                    row.call,
                    units.duration(row.seconds),
                    units.multiple(row.ratio),
                )
            )
            title = dtype = ""
    header = ("m x n x k", "dtype", "contender", "call", "host time", f"vs {cases[0].baseline}")
    return screen.table(header, rows, right=header[4:])


def _title(case: Case) -> tuple[str, str]:
    dtype = case.dtype if case.out_dtype == case.dtype else f"{case.dtype} -> {case.out_dtype}"
    orders = "" if case.orders == "rrr" else f" {case.orders}"
    return f"{case.m}x{case.n}x{case.k}{orders}", dtype


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A bar on stderr, if that is a terminal: functions that name the case and count a round."""
    console = screen.console(stderr=True)
    if not console.is_terminal:
        yield (lambda title: None), (lambda: None)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Drawn between rounds only: a drawing thread would disturb what is measured.
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)
        yield (
            lambda title: bar.update(task, description=title, refresh=True),
            lambda: bar.update(task, advance=1, refresh=True),
        )
