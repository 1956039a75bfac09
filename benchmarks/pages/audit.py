"""The tables of docs/audit-results.md, from the results of ``gemmhub audit --json``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.lib import results
from benchmarks.pages import tables

FILES = sorted(results.FOLDER.glob("*/audit_*.json.xz"))


def runs() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each implementation of each file, with its file."""
    for path in FILES:
        file = results.load(path)
        for audited in file["implementations"]:
            yield file, audited


def machines() -> list[str]:
    """Return a row for each file: its command, date and machine."""
    body = []
    for path in FILES:
        file = results.load(path)
        system = file["system"]
        command = f"`{file['command']}`"
        body.append((command, file["date"], system["processor"], system["python"]))
    return tables.rows(("command", "date", "processor", "Python"), dict.fromkeys(body))


def summary() -> list[str]:
    """Return a row for each implementation, and one of all."""
    head = ("implementation", "versions", "trials", "refused", "faults", "largest error/bound of a right result")
    body: list[tuple[object, ...]] = []
    totals = [0, 0, 0]
    for _, audited in runs():
        counts = [audited["trials"], sum(audited["refused"].values()), len(audited["faults"])]
        totals = [total + count for total, count in zip(totals, counts)]
        versions = ", ".join(f"{name} {version}" for name, version in audited["versions"].items() if name != "cpu")
        body.append((f"`{audited['name']}`", versions, *counts, f"{audited['worst']:.2g}"))
    return tables.rows(head, [*body, ("all", "", *totals, "")])


def bits() -> list[str]:
    """Return a row for each implementation: trials with equal bits of all, for each promise."""
    head = ("implementation", "equal calls", "beside other threads", "rows among others")
    body = []
    for _, audited in runs():
        cells = [_bits(audited["bits"].get(name)) for name in ("run", "threads", "rows")]
        body.append((f"`{audited['name']}`", *cells))
    return tables.rows(head, body)


def _bits(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"{found['equal']}/{found['equal'] + found['differed']}" + ", claimed" * found["claimed"]


def faults() -> list[str]:
    """Return a row for each fault."""
    head = ("implementation", "fault", "trials", "smallest case", "failure", "the script alone")
    body = []
    for _, audited in runs():
        for fault in audited["faults"]:
            first = fault["text"].splitlines()[0]
            script = "-" if fault["script"] is None else "fails" if fault["repeated"] else "does not fail"
            case = f"`{fault['smallest']}`"
            body.append((f"`{audited['name']}`", fault["kind"], fault["count"], case, first.replace("|", "/"), script))
    return tables.rows(head, body) if body else ["No fault was found."]


def scripts() -> list[str]:
    """Return the scripts of the faults that one repeats, as blocks of text."""
    lines: list[str] = []
    for _, audited in runs():
        for fault in audited["faults"]:
            if fault["repeated"]:
                lines += [] if not lines else [""]
                lines += ["```text", *fault["script"].rstrip().splitlines(), "```"]
    return lines or ["None."]
