"""The table of every class of product in docs/hopper.md, from results of benchmarks/run/map.py on two cards.

    python -m benchmarks.pages.map FILE ...   # prints the table of such result files

A cell is the geometric mean of torch's time over gemmhub's, and in parentheses the worst where there are several.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MAPS = (RESULTS / "h100" / "map.json", RESULTS / "h200" / "map.json")
NAMES = {"hub": "untuned", "raced": "raced"}


def ratios(rows: list[dict[str, Any]], kind: str, name: str) -> list[float]:
    """Return torch's time over that of the contender ``name``, of each product of a class."""
    return [row["torch_us"] / row["us"][name] for row in rows if row["class"] == kind and row["torch_us"] > 0]


def cell(found: list[float]) -> str:
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


def read(paths: list[Path]) -> list[dict[str, Any]]:
    return [results.load(path) for path in paths]


def classes() -> list[str]:
    """Return the table of the documentation."""
    return table(read(list(MAPS)))


if __name__ == "__main__":
    print("\n".join(table(read([Path(name) for name in sys.argv[1:]]))))
