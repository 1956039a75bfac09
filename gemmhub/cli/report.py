"""The tables of ``gemmhub bench``, on terminals and in the HTML report of ``--html``.

The report is one self-contained file: tables, plots as inline SVG (where matplotlib is installed), no script.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemmhub._base import markup, units
from gemmhub._base.tables import Facts, Table
from gemmhub.cli import figures
from gemmhub.cli.contenders import label
from gemmhub.cli.measurements import Case
from gemmhub.kit import install

Rows = list[tuple[str, ...]]

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
.wide { overflow-x: auto }
thead th { border-bottom: 1px solid }
td { font-variant-numeric: tabular-nums }
figure { margin: 1.5rem 0 }
figure svg { background: white; max-width: 100%; height: auto }
"""


def results(cases: Sequence[Case]) -> tuple[tuple[str, ...], list[Rows]]:
    """The header, and the rows of each case."""
    unit, scale = units.rate_unit(row.gflops for case in cases for row in case.timed)
    header = ("m x n x k", "dtype", "contender", "median", "range", unit, f"vs {label(cases[0].baseline)}", "remarks")
    return header, [_titled(case, [(row.label, *row.cells(scale)) for row in case.rows]) for case in cases]


def host(cases: Sequence[Case]) -> tuple[tuple[str, ...], list[Rows]]:
    """Host times: the header, and the rows of each case."""
    header = ("m x n x k", "dtype", "contender", "call", "host time", f"vs {label(cases[0].baseline)}")
    return header, [
        _titled(case, [(label(h.name), h.call, units.duration(h.seconds), units.multiple(h.ratio)) for h in case.host])
        for case in cases
    ]


def _titled(case: Case, rows: Rows) -> Rows:
    dtype = case.dtype if case.out_dtype == case.dtype else f"{case.dtype} -> {case.out_dtype}"
    orders = "" if case.orders == "rrr" else f" {case.orders}"
    title = f"{case.m}x{case.n}x{case.k}{orders}", dtype
    return [(*(title if number == 0 else ("", "")), *row) for number, row in enumerate(rows)]


def results_table(cases: Sequence[Case]) -> Table:
    """The table of results for a terminal, with an empty line between cases."""
    header, groups = results(cases)
    rows = [row for group in groups for row in (*group, ("",) * len(header))][:-1]
    return Table(header, rows, right=header[3:7])


def host_table(cases: Sequence[Case]) -> Table:
    """The table of host times for a terminal."""
    header, groups = host(cases)
    return Table(header, [row for group in groups for row in group], right=header[4:])


def page(document: Mapping[str, Any], cases: Sequence[Case]) -> str:
    """The HTML report; ``document`` is the content of ``--json``."""
    machine = document["device"]["name"]
    title = markup.text(f"gemmhub bench on {machine}")
    header, groups = results(cases)
    body = [f"<h1>{title}</h1>", markup.facts(Facts(list(_facts(document)))), "<h2>Times</h2>"]
    body.append("<p>Medians of interleaved rounds; a ratio above 1 is faster than the baseline.</p>")
    body.append(_wide(markup.table(Table(header, _flat(groups), right=header[3:7]))))
    if any(case.host for case in cases):
        header, groups = host(cases)
        body += ["<h2>Host times</h2>", _wide(markup.table(Table(header, _flat(groups), right=header[4:])))]
    body.append("<h2>Plots</h2>")
    if figures.available():
        bandwidth = document["copy_bytes_per_second"]
        body += [f"<figure>{drawn}</figure>" for drawn in _pictures(cases, machine, bandwidth)] or ["<p>None.</p>"]
    else:
        remedy = install.command("gemmhub[plot]")
        body.append(f"<p>Not drawn: matplotlib is not installed. {markup.text(remedy)}</p>")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        "<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    device, versions = document["device"], document["versions"]
    yield "command", shlex.join(document["command"])
    yield "started", document["started"]
    yield "device", f"{device['name']} ({device['index']}), {device['library']} arrays"
    yield "clock", f"{document['clock']}, {document['rounds']} rounds"
    if document["copy_bytes_per_second"] is not None:
        yield "copy", f"{units.number(document['copy_bytes_per_second'] / 1e9)} GB/s, read and write together"
    yield from (("warning", text) for text in document["warnings"])
    yield "versions", ", ".join(f"{name} {value}" for name, value in versions.items() if isinstance(value, str))
    for name, parts in versions["backends"].items():
        yield f"backend {name}", ", ".join(f"{part} {version}" for part, version in parts.items()) or "ready"


def _flat(groups: Sequence[Rows]) -> Rows:
    return [row for group in groups for row in group]


def _wide(table: str) -> str:
    return f'<div class="wide">{table}</div>'


def _pictures(cases: Sequence[Case], machine: str, bandwidth: float | None) -> Iterator[str]:
    """Yield the plots that have numbers, as SVG."""
    from gemmhub.cli import heatmap, plot, roofline

    timed = [case for case in cases if case.timed]
    if not timed:
        return
    yield figures.svg(plot.figure(timed, machine), "plot", "Throughput, and ratios to the baseline")
    if bandwidth is not None:
        drawn = roofline.figure(timed, bandwidth, machine)
        yield figures.svg(drawn, "roofline", "Throughput over arithmetic intensity, with both ceilings")
    if heatmap.possible(timed):
        yield figures.svg(heatmap.figure(timed, machine), "heatmap", "Ratios to the baseline over two sizes")
