"""The report of ``gemmhub doctor`` as facts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemmhub._base.tables import Facts, Part, Table, folded
from gemmhub._measure.compare import shown


def system(report: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the versions of the system and of libraries."""
    yield Facts(list(report["system"].items()))
    yield Facts(list(report["libraries"].items()))


def parts(report: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the parts of a report, which is in JSON's types."""
    yield from system(report)
    yield Facts([(s["library"], _devices(s)) for s in report["devices"]] or [("devices", _NO_LIBRARY)])
    if report["warnings"]:
        yield Facts([("warning", text) for text in report["warnings"]])
    if report["recommended"]:
        yield Table(("found", "recommended"), [(x["found"], x["command"]) for x in report["recommended"]])
    settings = report["settings"]
    if "error" in settings:
        yield Facts([("settings", "failed"), ("", settings["error"])], marked=("settings",))
        return
    yield Table(("setting", "value", "from"), [(key, _value(x["value"]), x["origin"]) for key, x in settings.items()])
    kept = report["records"]
    where = "off" if kept["file"] is None else f"{kept['count']} in {kept['file']}"
    yield Facts([("records", where), *(("skipped", reason) for reason in kept["skipped"])])
    states = [
        (s["name"], s["state"], "; ".join(x for x in (s["reason"], s["remedy"]) if x) or ", ".join(s["features"]))
        for s in report["backends"]
        if s["state"] != "not installed"
    ]
    yield Table(("backend", "state", "details"), folded(states), marked=("state",))
    for culprit in report["culprits"]:
        plugin = f"plugin {culprit['plugin']}" if culprit["plugin"] else "plugins"
        yield Facts([(plugin, "failed"), ("", culprit["reason"]), ("", culprit["remedy"])], marked=(plugin,))
    yield from (f"{s['name']}: {s['traceback'].rstrip()}" for s in report["backends"] if s["traceback"])
    header = ("self-test", "backend", "verdict", "error/bound", "remarks")
    yield Table(header, list(_tests(report["self_test"])), right=("error/bound",), marked=("verdict",))


_NO_LIBRARY = "none: neither torch nor cupy is installed"


def _devices(status: Mapping[str, Any]) -> str:
    return ", ".join(status["devices"]) if status["devices"] else f"no device: {status['reason']}"


def _tests(tests: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    failed: dict[str, list[str]] = {}
    """Products that were not computed, by their errors."""
    for test in tests:
        for row in test["rows"]:
            yield test["product"], row["backend"], row["status"], shown(float(row["ratio"])), row["remark"]
        if not test["rows"]:
            failed.setdefault(test["error"], []).append(test["product"])
    for error, products in failed.items():
        yield products[0] if len(products) == 1 else f"{len(products)} products", "-", "failed", "-", error


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)
