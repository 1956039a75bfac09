"""The figures of docs/dask.md are those of its result files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lib import results

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "dask.md").read_text(encoding="utf-8").split())
RUN = results.load(results.FOLDER / "cpu" / "dask.json")
(OUT_OF_CORE,) = results.load(results.FOLDER / "cpu" / "dask_out_of_core.json")["rows"]
NAMES = {"numpy": "one process of NumPy, two threads", "gemmhub": "gemmhub.matmul", "da.matmul": "da.matmul"}


@pytest.mark.parametrize("row", [row for row in RUN["rows"] if "ratio" in row], ids=lambda row: row["contender"])
def test_the_table(row):
    engine, dtype = row["contender"].split()
    assert f"| {NAMES[engine]}, {dtype} | {row['median']:.1f} | {row['ratio']:.2f} |" in PAGE


def test_verdicts():
    assert {row["checked"] for row in RUN["rows"] if row.get("checked") and row["right"]} == {
        "float32",
        "float16",
        "int8",
    }
    small = {row["contender"]: row["right"] for row in RUN["rows"] if "contender" in row and "ratio" not in row}
    assert small == {"da.matmul float16": True, "gemmhub float16": True, "da.matmul int8": False, "gemmhub int8": True}


def test_out_of_core():
    assert OUT_OF_CORE["bytes"] == 4 * OUT_OF_CORE["limit"]
    assert OUT_OF_CORE["right"]
    assert OUT_OF_CORE["spilled"] == 0
    assert f"a limit of {OUT_OF_CORE['limit'] / 2**20:.0f} MiB" in PAGE
    assert f"its memory reached {OUT_OF_CORE['peak'] / 2**20:.0f} MiB at most" in PAGE
