"""``gemmhub doctor``: the facts for a bug report, and a self-test."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

import gemmhub
from gemmhub import config
from gemmhub._base import processors, progress
from gemmhub._choice import records, registry
from gemmhub._choice.status import BackendStatus
from gemmhub._measure.compare import Comparison
from gemmhub.cli import doctor_advice, doctor_probe, doctor_report, doctor_screen, operands, screen
from gemmhub.cli.by_name import library_statuses
from gemmhub.cli.errors import FAILED, UNUSABLE, WRONG
from gemmhub.cli.options import json_option
from gemmhub.dtypes import as_dtype
from gemmhub.errors import GemmhubError
from gemmhub.numpy_backend.probe import cores, cpu_name

_LIBRARIES = (
    "ml_dtypes", "pluggy", "platformdirs", "filelock", "click", "rich", "matplotlib", "scipy", "torch", "torch_musa",
    "cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "nvmath-python",
)  # fmt: skip
_VARIABLES = (*processors.VARIABLES, "CUDA_VISIBLE_DEVICES")
"""The only variables reported besides gemmhub's own settings: those that affect speed."""
_SELF_TESTS = (("float32", None), ("float16", None), ("bfloat16", None), ("int8", None), ("float16", "float32"))
_SIZES = (67, 45, 130)


@click.command("doctor")
@click.argument("name", required=False)
@click.option(
    "--report",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="With a NAME: also run what takes minutes (conformance, speed), and write all findings to FILE as JSON.",
    metavar="FILE",
)
@json_option
@click.pass_context
def command(ctx: click.Context, name: str | None, file: Path | None, as_json: bool) -> None:
    """Report versions, devices, settings, records and backends, recommend plugins for this machine, and run a small
    product on every ready CPU backend.

    With a NAME that an installed plugin provides ("musa"), report about that instead, in depth; with --report, run the
    conformance kit and a benchmark, too, and write one file to send.

    The report contains no environment variables but those that set gemmhub, thread counts and, in a plugin's report,
    its subject. Plugins are probed in a child process first: one that hangs or ends the process is named, with the
    switch that turns it off, and left out of the rest. Exit code 1 when a product of the self-test is wrong, 2 when
    the configuration cannot be read, 3 when there is such a plugin or a failed self-test. A plugin that raises is
    listed, and changes no exit code.
    """
    if file is not None and name is None:
        raise click.UsageError("--report needs a NAME, such as musa")
    report = _full() if name is None else _about(name, file)
    report = _anonymous(screen.plain(report))
    if as_json:
        screen.print_json(report)
    elif name is None:
        screen.show(*doctor_screen.parts(report))
    else:
        screen.show(*doctor_screen.system(report), *doctor_report.parts(report["findings"]))
    if not report["ok"]:
        ctx.exit(_code(report))


def _code(report: dict[str, Any]) -> int:
    """The exit code of a report with failures."""
    if "error" in report.get("settings", {}):
        return UNUSABLE
    rows = [row for test in report.get("self_test", ()) for row in test["rows"]]
    return WRONG if any(row["wrong"] for row in rows) else FAILED


def _about(name: str, file: Path | None) -> dict[str, Any]:
    about = {"system": _system(), "libraries": _libraries()}

    def report(findings: list[doctor_report.Finding], complete: bool) -> dict[str, Any]:
        made = about | {"findings": findings, "ok": complete and doctor_report.fine(findings)}
        if file is not None:  # after each finding: the next one may end the process
            made["complete"] = complete
            file.write_text(json.dumps(_anonymous(screen.plain(made)), indent=1) + "\n", encoding="utf-8")
        return made

    findings = doctor_report.gather(name, file is not None, lambda so_far: report(so_far, complete=False))
    return report(findings, complete=True)


def _full() -> dict[str, Any]:
    with progress.bar(3) as (begin, advance):
        begin("looking for devices")
        report: dict[str, Any] = {
            "system": _system(),
            "libraries": _libraries(),
            "devices": library_statuses(),
            "recommended": doctor_advice.advice(),
            "settings": _settings(),
            "warnings": processors.disturbances(),
        }
        advance()
        broken = "error" in report["settings"]
        if not broken:
            begin("probing plugins")
            culprits = _culprits()
            with _switched_off([culprit.plugin for culprit in culprits]):
                report |= {"records": _records(), "culprits": culprits, "backends": _backends(culprits)}
                report["warnings"] += [*_misspelt(), *_not_ready(report["backends"])]
                report["warnings"] += [f"{x.name}: {text}" for x in report["backends"] for text in x.warnings]
                advance()
                begin("self-test")
                report["self_test"] = _self_test({x.name for x in report["backends"] if x.state == "ready"})
    report["ok"] = not broken and not report["culprits"] and all(test["ok"] for test in report["self_test"])
    return report


def _culprits() -> list[doctor_probe.Culprit]:
    """Plugins that must not be loaded into this process. They are probed only where there are any."""
    return doctor_probe.culprits(config.root().deny) if importlib.metadata.entry_points(group="gemmhub") else []


def _backends(culprits: list[doctor_probe.Culprit]) -> list[BackendStatus]:
    """The states of all backends; a plugin that this report left out has failed, for the reported reason."""
    reasons = {culprit.plugin: culprit for culprit in culprits}
    return [
        replace(status, state="failed", reason=reasons[status.name].reason, remedy=reasons[status.name].remedy)
        if status.name in reasons
        else status
        for status in gemmhub.backends().rows
    ]


def _misspelt() -> list[str]:
    """Sentences on environment variables that nothing reads, and on switches of plugins that are not there."""
    settings = config.root()
    switches = registry.misnamed(settings).items()
    return [*registry.unknown_variables(), *(f"{settings.origin.get(key, key)}: {text}" for key, text in switches)]


def _not_ready(backends: list[BackendStatus]) -> list[str]:
    """A sentence for each backend that the settings prefer and that is listed but not ready."""
    settings = config.root()
    where = settings.origin.get("backend", "backend")
    preferred = [x for x in backends if x.name in settings.backend and x.state != "ready"]
    return [f"{where}: {x.name} is {x.state}" + f"; {x.details}" * bool(x.details) for x in preferred]


@contextmanager
def _switched_off(plugins: list[str]) -> Iterator[None]:
    """Disable these plugins in this process."""
    variable = config.KEYS["deny"].variable
    before = os.environ.get(variable)
    if not plugins:
        yield
        return
    os.environ[variable] = ",".join((*config.root().deny, *plugins))
    gemmhub.reload()
    try:
        yield
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before
        gemmhub.reload()


def _system() -> dict[str, str]:
    built: Any = np.show_config(mode="dicts")
    blas = built["Build Dependencies"]["blas"]
    versions = {
        "gemmhub": gemmhub.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "cpu": f"{cpu_name()}, {cores()} cores",
        "numpy": f"{np.__version__} with {blas.get('name', 'unknown')} {blas.get('version', '')}".rstrip(),
    }
    return versions | {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def _libraries() -> dict[str, str]:
    """Versions of relevant installed libraries, and of the distributions that provide backends or reports."""
    points = [
        point for group in ("gemmhub", doctor_report.GROUP) for point in importlib.metadata.entry_points(group=group)
    ]
    plugins = {point.dist.name for point in points if point.dist is not None}
    versions = {}
    for name in (*sorted(plugins), *_LIBRARIES):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _settings() -> dict[str, Any]:
    """Each setting with its value and its source; or the error of its file or variable."""
    try:
        settings = config.root()
    except GemmhubError as error:
        return {"error": str(error)}
    return {
        key: {"value": getattr(settings, key), "origin": settings.origin.get(key, "default")} for key in config.KEYS
    }


def _records() -> dict[str, Any]:
    path = records.path()
    if path is None:
        return {"file": None, "count": 0, "skipped": []}
    try:
        content = records.read(path)
    except GemmhubError as error:
        return {"file": path, "count": 0, "skipped": [str(error)]}
    return {"file": path, "count": len(content.records), "skipped": content.skipped}


def _self_test(ready: Collection[str]) -> list[dict[str, Any]]:
    """Small products on the backends that are ``ready``, those that only settings name left out."""
    m, n, k = _SIZES
    rng = np.random.default_rng()
    tests = []
    for dtype, out_dtype in _SELF_TESTS:
        element = as_dtype(dtype)
        a, b = operands.random_operand(rng, (m, k), element), operands.random_operand(rng, (k, n), element)
        title = f"{dtype} -> {out_dtype}" if out_dtype else dtype
        try:
            comparison: Comparison = gemmhub.compare(a, b, out_dtype=out_dtype)
        except GemmhubError as error:
            tests.append({"product": title, "ok": False, "error": str(error), "rows": []})
            continue
        rows = [row for row in comparison.rows if row.backend in ready]
        # A product that no backend ran is a failure: the built-in backend runs every one.
        tests.append({"product": title, "ok": bool(comparison) and bool(rows), "error": "", "rows": rows})
    return tests


def _anonymous(value: Any) -> Any:
    """``value`` with the home directory, which names the user, written as ~ in every text."""
    if isinstance(value, dict):
        return {key: _anonymous(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_anonymous(item) for item in value]
    home = str(Path.home())
    return value.replace(home, "~") if isinstance(value, str) and len(home) > 1 else value
