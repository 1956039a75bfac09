"""Fill the tables of the documentation from result files. Needs no card.

    python -m benchmarks.pages.tables                 # fills every page of docs/
    python -m benchmarks.pages.tables docs/cuda.md    # fills one

A block of a page from ``<!-- table: MODULE.FUNCTION -->`` to ``<!-- end of table -->`` holds what
``benchmarks.pages.MODULE.FUNCTION()`` returns: lines of Markdown, made of files under benchmarks/results. A test
compares each block of each page with what its function returns.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"<!-- table: (?P<name>[\w.]+) -->\n(?P<text>.*?)<!-- end of table -->", re.DOTALL)


def rows(head: Sequence[object], body: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    first, *others = [f"| {' | '.join(map(str, line))} |" for line in (head, *body)]
    return [first, "|---" * len(head) + "|", *others]


def text(name: str) -> str:
    """Return the Markdown of one table, by its name ``MODULE.FUNCTION``."""
    module, _, function = name.rpartition(".")
    lines: list[str] = getattr(importlib.import_module(f"benchmarks.pages.{module}"), function)()
    return "\n".join(lines)


def filled(page: str) -> str:
    """Return the page with each of its blocks made anew."""
    return BLOCK.sub(lambda x: f"<!-- table: {x['name']} -->\n\n{text(x['name'])}\n\n<!-- end of table -->", page)


def write(*paths: Path) -> None:
    """Fill these pages in place."""
    for path in paths:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(*(map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(DOCS.glob("*.md"))))
