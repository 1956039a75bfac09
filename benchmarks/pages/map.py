"""The table of every class of product in docs/hopper.md, from results of benchmarks/run/map.py on two cards.

    python -m benchmarks.pages.map FILE ... [--json MERGED]

prints the table of such result files, and for each card how many products are slower than torch's, with the slowest of
each class. Files of one card are one: several cards of a host measure with a seed each. ``--json`` writes them as one.

A cell is the geometric mean of torch's time over gemmhub's, and in parentheses the worst where there are several.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results
from benchmarks.pages.tables import rows

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MAPS = (RESULTS / "h100" / "map.json.xz", RESULTS / "h200" / "map.json.xz")
NAMES = {"hub": "untuned", "raced": "raced"}
LIMITS = (0.97, 0.95, 0.85)
"""Ratios below which products are counted."""


def ratios(rows: list[dict[str, Any]], kind: str, name: str) -> list[float]:
    """Return torch's time over that of the contender ``name``, of each product of a class."""
    return [ratio for row, ratio in timed(rows, name) if row["class"] == kind]


def timed(rows: list[dict[str, Any]], name: str) -> list[tuple[dict[str, Any], float]]:
    """Return the products that both torch and the contender ``name`` computed, and torch's time over its own."""
    return [(row, row["torch_us"] / row["us"][name]) for row in rows if name in row["us"] and row["torch_us"] > 0]


def cell(found: list[float]) -> str:
    if not found:
        return "-"
    mean = f"{geometric_mean(found):.3f}"
    return f"{mean} ({min(found):.3f})" if len(found) > 1 else mean


def table(files: list[dict[str, Any]]) -> list[str]:
    """Return lines of Markdown: a row for each class, two columns for each file."""
    cards = [file["device"].split()[1] for file in files]
    heads = [f"{card}, {words}" for card in cards for words in NAMES.values()]
    lines = [f"| class | {' | '.join(['products', *heads])} |", "|---" * (2 + len(heads)) + "|"]
    for kind in dict.fromkeys(row["class"] for file in files for row in file["rows"]):
        counts = [sum(row["class"] == kind for row in file["rows"]) for file in files]
        number = str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))
        cells = [cell(ratios(file["rows"], kind, name)) for file in files for name in NAMES]
        lines.append(f"| {kind} | {' | '.join([number, *cells])} |")
    return lines


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines: for each contender and class how many products there are, the geometric mean of torch's time over
    its own, how many are below each of the limits, and the worst product with what was chosen for it.
    """
    for name, words in NAMES.items():
        found = timed(rows, name)
        if not found:
            continue
        heads = "".join(f"{f'<{limit}':>7}" for limit in LIMITS)
        yield f"{words:38}{'n':>5}{'mean':>8}{heads}{'worst':>8}"
        for kind in (*dict.fromkeys(row["class"] for row, _ in found), ""):
            mine = [(row, ratio) for row, ratio in found if kind in ("", row["class"])]
            values = [ratio for _, ratio in mine]
            row, least = min(mine, key=lambda x: x[1])
            counts = "".join(f"{sum(ratio < limit for ratio in values):7}" for limit in LIMITS)
            size = f"{row['orders']} {row['batch']} x {row['m']} x {row['n']} x {row['k']}, {row['chosen'][name]}"
            mean = geometric_mean(values)
            yield f"{kind or 'all':38}{len(mine):5}{mean:8.3f}{counts}{least:8.3f}  {size}" + f" ({row['class']})" * (
                not kind
            )
        shares = ", ".join(f"{sum(x < limit for _, x in found) / len(found):.1%} below {limit}" for limit in LIMITS)
        yield f"{words}: {shares}"


def merged(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one file for each card: the header of its first one, the commands and seeds of all, and all rows.

    Classes stay together, in the order of the first file.
    """
    found = []
    for device in dict.fromkeys(file["device"] for file in files):
        mine = [file for file in files if file["device"] == device]
        kinds = list(dict.fromkeys(row["class"] for file in mine for row in file["rows"]))
        every = sorted((row for file in mine for row in file["rows"]), key=lambda row: kinds.index(row["class"]))
        more = {"command": "; ".join(file["command"] for file in mine), "seed": [file["seed"] for file in mine]}
        found.append({**mine[0], **(more if len(mine) > 1 else {}), "rows": every})
    return found


def read(paths: list[Path]) -> list[dict[str, Any]]:
    return [results.load(path) for path in paths]


def classes() -> list[str]:
    """Return the table of the documentation."""
    return table(read(list(MAPS)))


def totals() -> list[str]:
    """Return a row for each card and contender, of the products of all classes."""
    body = []
    for file in read(list(MAPS)):
        for name, words in NAMES.items():
            values = [ratio for _, ratio in timed(file["rows"], name)]
            shares = (f"{sum(x < limit for x in values)}" for limit in LIMITS)
            card = file["device"].split()[1]
            mean, worst = f"{geometric_mean(values):.3f}", f"{min(values):.3f}"
            body.append((f"{card}, {words}", len(values), mean, *shares, worst))
    return rows(("", "products", "geometric mean", *(f"below {limit}" for limit in LIMITS), "worst"), body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="MERGED", help="file for the rows of all files, of one card")
    options = parser.parse_args()
    files = merged(read(options.files))
    if options.json and len(files) > 1:
        parser.error("--json takes files of one card")
    print("\n".join(table(files)))
    for file in files:
        print("\n".join(["", file["device"], *summary(file["rows"])]))
    if options.json:
        options.json.write_text(json.dumps(files[0], indent=1) + "\n")


if __name__ == "__main__":
    main()
