"""The figure of docs/cpu.md is what benchmarks/pages/cpu.py draws from the result files; scores are those of rows."""

from __future__ import annotations

from benchmarks.lib.cpu_products import products, scores
from benchmarks.pages import cpu, tables


def test_the_figure_is_that_of_the_result_files() -> None:
    assert cpu.FIGURE.read_text(encoding="utf-8") == cpu.drawn()
    assert f"](figures/{cpu.FIGURE.name})" in (tables.DOCS / "cpu.md").read_text(encoding="utf-8")


def test_scores_are_geometric_means_of_the_rows_that_have_a_ratio() -> None:
    rows = [{"class": "x", "ratio": 2.0}, {"class": "x", "ratio": 8.0}, {"class": "x", "ratio": None}]
    assert scores(rows) == {"x": [4.0, 2.0, 8.0, 2]}


def test_operands_beyond_the_caches_are_several_sets() -> None:
    one = next(x for x in products() if x.beyond_cache)
    sets = one.operands()
    assert len(sets) > 1
    assert sum(x.nbytes for operands in sets for x in operands) >= 2**28
    assert len({x.ctypes.data for operands in sets for x in operands}) == 3 * len(sets)
