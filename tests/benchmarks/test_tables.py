"""The tables of the documentation are those of the result files, as benchmarks/pages/tables.py makes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pages import tables

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(tables.DOCS.glob("*.md"))}
BLOCKS = [pytest.param(page, found, id=f"{page}-{found['name']}") for page, text in PAGES.items()
          for found in tables.BLOCK.finditer(text)]  # fmt: skip


@pytest.mark.parametrize(("page", "found"), BLOCKS)
def test_a_table_is_that_of_its_result_files(page, found):
    try:
        expected = tables.text(found["name"])
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("gemmhub_"):
            raise
        pytest.skip(f"{error.name} is not installed: its own tests compare this table")
    assert found["text"].strip("\n") == expected


@pytest.mark.parametrize("page", PAGES)
def test_every_marker_belongs_to_a_block(page):
    starts, ends = (len(re.findall(mark, PAGES[page])) for mark in ("<!-- table: ", "<!-- end of table -->"))
    assert starts == ends == len(tables.BLOCK.findall(PAGES[page]))


def test_a_page_is_filled_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "text", lambda name: f"made by {name}")
    page: Path = tmp_path / "page.md"
    page.write_text("a\n\n<!-- table: x.y -->\nold\n<!-- end of table -->\n\nb\n")
    tables.write(page)
    assert page.read_text() == "a\n\n<!-- table: x.y -->\n\nmade by x.y\n\n<!-- end of table -->\n\nb\n"


def test_a_table_of_markdown():
    assert tables.rows(("a", "b"), [(1, "x")]) == ["| a | b |", "|---|---|", "| 1 | x |"]
