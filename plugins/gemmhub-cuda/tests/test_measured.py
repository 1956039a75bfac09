"""The cost model against what was measured on an H200, and what follows for the choice of a backend."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from gemmhub_cuda.cost import fitted
from gemmhub_cuda.cost import model as cost_model
from problems import problem

from benchmarks.fit import cuda_model
from benchmarks.lib import results
from benchmarks.pages import cuda as cuda_page
from benchmarks.pages import tables

READ = {
    "float32": results.load(results.FOLDER / "h200" / "cuda_f32.json"),
    "bfloat16": results.load(results.FOLDER / "h200" / "cuda_bf16.json"),
}
ROWS = [
    pytest.param(dtype, row, timed, id=f"{dtype}-{row['m']}x{row['n']}x{row['k']}")
    for dtype, record in READ.items()
    for row, timed in zip(record["rows"], cuda_model.rows(record))
]


def test_there_are_rows():
    assert all(len(record["rows"]) >= 7 for record in READ.values())
    assert all(
        record["dtype"] == dtype and not row["wrong"] for dtype, record in READ.items() for row in record["rows"]
    )


@pytest.mark.parametrize(("dtype", "row", "timed"), ROWS)
def test_little_is_lost(dtype, row, timed):
    """The shape that the model estimates as fastest loses little, and its estimates are near."""
    lost, error = cuda_model.losses(timed)
    assert lost < 0.05
    assert error**0.5 < 0.15


@pytest.mark.parametrize(("dtype", "row", "timed"), ROWS)
def test_cublas_is_preferred_where_it_is_faster(dtype, row, timed):
    """The estimates prefer cuBLAS where it is faster. (Where this plugin is faster, tuning finds that out.)"""
    model = pytest.importorskip("gemmhub_cublas.model", reason="gemmhub-cublas is not installed")
    forms = pytest.importorskip("gemmhub_cublas.lower")
    asked = problem(row["m"], row["n"], row["k"], dtype, b="col" if row["order"] == "nt" else "row")
    card = cuda_model.H200
    gpu = SimpleNamespace(sms=card.sms, clock=card.clock, bandwidth=card.bandwidth, capability=card.capability)
    own = cost_model.choices(timed[0][0].lowering, card, 2**26)[0][0]
    if row["ratio"] < 0.95:
        assert model.seconds(asked, forms.lowered(asked), gpu) < own


def test_the_page_has_the_tables_of_the_records():
    text = (tables.DOCS / "cuda.md").read_text()
    assert "<!-- table: cuda.measured -->" in text
    assert tables.filled(text) == text


def test_a_table():
    rows = [{**row, "order": order} for row, order in zip(READ["bfloat16"]["rows"], ("nn", "nt"))]
    rows[0].pop("triton", None)
    rows[1]["triton"] = {"best": "triton1", "us": {"triton1": 50.0, "triton2": 60.0}}
    lines = cuda_page.table({"dtype": "bfloat16", "rows": rows})
    assert lines[0].endswith("| of Triton |")
    assert lines[2].startswith("| 2048, 2048, 2048 | ")
    assert lines[2].endswith(" - |")
    assert lines[3].startswith("| 4096, 4096, 4096, nt |")
    name = lines[3].split("`")[1]
    assert lines[3].endswith(f" {50.0 / rows[1]['us'][name]:.3f} |")


def distorted(constants):
    return replace(constants, clock=0.6, l2_latency=1000.0, efficiency={})


@pytest.mark.parametrize("dtype", READ)
def test_the_fit(dtype):
    """Constants that are far off come near again, and the text that is written is Python for them."""
    data, name = cuda_model.rows(READ[dtype]), cuda_model.KERNELS[dtype]
    start = distorted(getattr(fitted, name))
    found = cuda_model.fit(data, start, 400)
    assert cuda_model._badness(data, found) < 0.5 * cuda_model._badness(data, start)
    space = {"Fitted": fitted.Fitted}
    exec(cuda_model.text(name, found), space)
    assert space[name].clock == pytest.approx(found.clock, rel=1e-3)
    assert set(space[name].efficiency) == set(found.efficiency)
