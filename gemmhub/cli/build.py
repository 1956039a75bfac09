"""``gemmhub build NAME``: work that a plugin otherwise does at first use, such as compiling its kernels.

A distribution names a function in the entry-point group ``gemmhub.build``::

    [project.entry-points."gemmhub.build"]
    hopper = "gemmhub_hopper.build:jobs"

It takes no arguments and returns :class:`Job` objects. They run in parallel processes, each of which imports what it
needs: functions and arguments must be importable and picklable.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import click

from gemmhub._base import printing, units
from gemmhub._base.tables import Facts, Table
from gemmhub._base.wording import instance
from gemmhub.cli import screen
from gemmhub.cli.by_name import one_line
from gemmhub.cli.errors import FAILED, Failure, Undone
from gemmhub.cli.options import json_option
from gemmhub.numpy_backend.probe import cores

GROUP = "gemmhub.build"


@dataclass(frozen=True)
class Job:
    """``function(*arguments)`` does the work and returns its outcome in a word or two: "compiled"."""

    name: str
    function: Callable[..., str]
    arguments: tuple[Any, ...] = ()


@click.command("build")
@click.argument("name")
@click.option("--jobs", "count", type=click.IntRange(min=1), help="Processes; by default one for each processor.")
@json_option
@click.pass_context
def command(ctx: click.Context, name: str, count: int | None, as_json: bool) -> None:
    """Do work in advance that an installed plugin otherwise does at first use, such as compiling its kernels.

    NAME is the plugin's name for it ("hopper"). Each part is listed on stderr when it is done. Exit code 3 when one
    fails.
    """
    jobs = gather(name)
    start = time.perf_counter()
    results = _done(jobs, count or cores())
    report = {
        "name": name,
        "seconds": time.perf_counter() - start,
        "ok": all(result["ok"] for result in results),
        "results": results,
    }
    if as_json:
        screen.print_json(report)
    else:
        _show(report)
    if not report["ok"]:
        ctx.exit(FAILED)


def gather(name: str) -> list[Job]:
    """The jobs of every plugin that builds ``name``. Failure, naming what can be built, where none does."""
    points = importlib.metadata.entry_points(group=GROUP)
    chosen = sorted((point for point in points if point.name == name), key=lambda point: point.value)
    if not chosen:
        names = ", ".join(sorted({point.name for point in points})) or "none, as no installed plugin builds anything"
        raise Failure(f"no installed plugin builds {name!r}; allowed: {names}")
    jobs: list[Job] = []
    for point in chosen:
        try:
            jobs += _of(point.load())
        except Exception as error:  # a plugin's code, on a machine that may lack what it needs
            raise Undone(f"{point.value}: {one_line(error)}") from error
    return jobs


def _of(function: Callable[[], Iterable[Job]]) -> list[Job]:
    jobs = list(function())
    for job in jobs:
        if not isinstance(job, Job):
            raise TypeError(f"it returned {instance(type(job))}, not a Job")
    return jobs


def _done(jobs: list[Job], count: int) -> list[dict[str, Any]]:
    """The outcome of each job, in the order of ``jobs``."""
    results: dict[int, dict[str, Any]] = {}
    # Spawned: a forked process would share libraries that this one may have loaded.
    with ProcessPoolExecutor(min(count, max(1, len(jobs))), multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(job.function, *job.arguments): i for i, job in enumerate(jobs)}
        for future in as_completed(futures):
            i = futures[future]
            ok, text = _outcome(future)
            results[i] = {"job": jobs[i].name, "ok": ok, "text": text}
            click.echo(printing.line(f"[{len(results)}/{len(jobs)}] {jobs[i].name}: {text}"), err=True)
    return [results[i] for i in range(len(jobs))]


def _outcome(future: Future[str]) -> tuple[bool, str]:
    try:
        return True, str(future.result())
    except Exception as error:
        return False, one_line(error)


def _show(report: dict[str, Any]) -> None:
    results = report["results"]
    outcomes = [result["text"] for result in results if result["ok"]]
    counts = [(text, str(outcomes.count(text))) for text in sorted(set(outcomes))]
    failed = [result for result in results if not result["ok"]]
    head = Facts([("built", report["name"]), *counts, ("time", units.duration(report["seconds"]))])
    rows = [(result["job"], "failed", result["text"]) for result in failed]
    screen.show(head, Table(("job", "verdict", "reason"), rows, marked=("verdict",)) if rows else None)
