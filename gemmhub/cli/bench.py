"""``gemmhub bench``: backends side by side, as a table, JSON and a plot."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import gemmhub
from gemmhub import bench
from gemmhub.bench import NUMPY_MATMUL, Case
from gemmhub.cli import operands, screen
from gemmhub.cli.errors import WRONG, Failure
from gemmhub.cli.options import DTYPE, SHAPE
from gemmhub.dtypes import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable

_ARGUMENTS = "gemmhub.cli.bench.arguments"


class _Remembering(click.Command):
    """Keeps its arguments as they were given, for the JSON document."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = ["gemmhub", "bench", *args]
        return super().parse_args(ctx, args)


@click.command("bench", cls=_Remembering)
@click.option(
    "--shape", "shapes", type=SHAPE, metavar="MxNxK", multiple=True, default=[(n, n, n) for n in (128, 256, 512, 1024)],
    help="Sizes of a product (one number for a cube); may be repeated. Default: cubes of 128 to 1024.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", type=DTYPE, multiple=True, default=["float32"], metavar="DTYPE",
    help="Dtype of the operands; may be repeated. Default: float32.",
)  # fmt: skip
@click.option("--out-dtype", type=DTYPE, metavar="DTYPE", help="Dtype of the result.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="What float32 may be rounded to.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--baseline", default=NUMPY_MATMUL, metavar="NAME", help="What ratios refer to. Default: numpy.matmul.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Interleaved rounds.")
@click.option("--json", "json_file", metavar="FILE", help="Write all samples here; - prints them instead.")
@click.option("--plot", metavar="FILE.png", help="Draw throughput and ratios here (needs matplotlib).")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    shapes: tuple[tuple[int, int, int], ...],
    dtypes: tuple[str, ...],
    out_dtype: str | None,
    precision: str | None,
    backends: tuple[str, ...],
    baseline: str,
    rounds: int,
    json_file: str | None,
    plot: str | None,
) -> None:
    """Time backends side by side on random operands: medians of interleaved rounds, ratios to a baseline.

    Every result is checked before it is timed; exit code 1 when one is wrong.
    """
    if any(0 in shape for shape in shapes):
        raise click.BadParameter("sizes must be at least 1", param_hint="--shape")
    for file in (json_file if json_file != "-" else None, plot):
        if file is not None:
            operands.check_writable(Path(file))
    if plot is not None:
        from gemmhub.cli.plot import draw, require

        require(plot)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    todo = [(dtype, shape) for dtype in dtypes for shape in shapes]
    cases: list[Case] = []
    with _progress(len(todo) * rounds) as (begin, advance):
        for dtype, (m, n, k) in todo:
            begin(f"{m}x{n}x{k} {dtype}")
            cases.append(
                bench.run_case(
                    m, n, k, dtype=dtype, out_dtype=out_dtype, precision=precision, backends=backends,
                    baseline=baseline, rounds=rounds, progress=advance,
                )
            )  # fmt: skip
    document = {
        "command": ctx.meta[_ARGUMENTS],
        "started": started,
        "versions": _versions(),
        "rounds": rounds,
        "unit": "seconds a call",
        "cases": cases,
    }
    if json_file == "-":
        screen.print_json(document)
    else:
        screen.show(_table(cases, baseline))
        if json_file is not None:
            _write(Path(json_file), screen.as_json(document) + "\n")
    timed = {row.name for case in cases for row in case.timed}
    if plot is not None and timed:
        draw(cases, baseline, _machine(), Path(plot))
    if any(row.verdict == "wrong" for case in cases for row in case.rows):
        ctx.exit(WRONG)
    if not timed - {NUMPY_MATMUL}:
        raise Failure("no backend was timed; the remarks say why")


def _versions() -> dict[str, Any]:
    """gemmhub, Python, NumPy, and what the ready backends report of themselves."""
    return {
        "gemmhub": gemmhub.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "backends": {s.name: s.versions for s in gemmhub.backends() if s.state == "ready"},
    }


def _machine() -> str:
    from gemmhub.numpy_backend.probe import cores, cpu_name

    return f"{cpu_name()}, {cores()} cores"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{click.format_filename(path)}: cannot be written: {error.strerror or error}") from None


def _table(cases: list[Case], baseline: str) -> Any:
    rows: list[tuple[str, ...]] = []
    for case in cases:
        if rows:
            rows.append(("",) * 8)
        title, dtype = f"{case.m}x{case.n}x{case.k}", case.dtype
        if case.out_dtype != case.dtype:
            dtype += f" -> {case.out_dtype}"
        for row in case.rows:
            spread, rate = "-", "-"
            if row.minimum is not None and row.maximum is not None and row.gflops is not None:
                spread = f"{screen.duration(row.minimum)} .. {screen.duration(row.maximum)}"
                rate = screen.number(row.gflops)
            remark = f"wrong: {row.remark}" if row.verdict == "wrong" else row.remark
            rows.append(
                (title, dtype, row.name, screen.duration(row.median), spread, rate, screen.multiple(row.ratio), remark)
            )
            title = dtype = ""
    header = ("m x n x k", "dtype", "contender", "median", "range", "GFLOP/s", f"vs {baseline}", "remarks")
    return screen.table(header, rows, right=("median", "range", "GFLOP/s", f"vs {baseline}"))


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
