"""The documentation's claims on memory traffic, checked on small sizes; its tables are those of the record."""

from __future__ import annotations

import json
from math import ceil

import pytest
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.sources import PIPELINED
from gemmhub_musa_kernels.tiles import USUAL
from simulator import Bench, problem

from benchmarks.pages import tables
from benchmarks.run import musa_kernels_counts


def test_the_page_has_the_tables_of_the_record():
    assert tables.text("musa_kernels.counts") in musa_kernels_counts.PAGE.read_text()


def test_the_record_keeps_its_promises():
    """Against the draft at each size: no more bytes, no more bank conflicts, no more barriers a step."""
    data = json.loads(musa_kernels_counts.RESULT.read_text())
    for size in {x["size"] for x in data["counts"]}:
        draft, *ours = (x for x in data["counts"] if x["size"] == size)
        assert draft["way"].startswith("first draft")
        usual = next(x for x in ours if x["orders"] == draft["orders"])
        assert usual["read_bytes"] + usual["written_bytes"] <= draft["read_bytes"] + draft["written_bytes"]
        assert all(x["barriers_per_step"] <= draft["barriers_per_step"] for x in ours)
        assert all(x["bank_conflicts"] <= draft["bank_conflicts"] for x in ours)
    whole = [x for x in data["counts"] if x["size"] == "1024x1024x1024" and "draft" not in x["way"]]
    assert all(x["spare_lines"] == x["copied_spare_lines"] == 0 for x in whole if x["way"] != "as it lies")
    if not isinstance(data["resources"], str):
        assert all(x["spilled_bytes"] == 0 for x in data["resources"] if "whole tiles" in x["kernel"])
        assert all(x["blocks"] >= 1 for x in data["resources"])


@pytest.fixture
def counted(sim, checking_sdk):
    from gemmhub_musa_sim import counters

    bench = Bench(sim, checking_sdk)

    def count(asked, way):
        product = bench.product(asked, way)
        with counters.counting(sim.rt):
            assert bench.wrong(asked, way, run=product.run) == 0
        return {x.kernel.split("<")[0]: x for x in counters.read(sim.rt)}

    return count


def test_whole_tiles(counted):
    m, n, k = 256, 128, 96
    way = Candidate(PIPELINED, USUAL[128])
    found = counted(problem(m, n, k, a="col"), way)["pipelined_gemm"]
    tiles, steps = (m // 128) * (n // 128), k // 32
    assert found.bank_bytes == 8
    assert found.bank_conflicts_8 == 0
    assert found.barriers == tiles * (steps + 4)
    assert found.async_bytes == found.read_bytes == tiles * steps * 32 * 256 * 2
    assert found.written_bytes == m * n * 2
    assert all(site.transactions == site.ideal_transactions for site in found.sites if site.space == "global")


def test_operands_along_k_are_read_in_halves_of_lines(counted):
    m, n, k = 128, 128, 64
    found = counted(problem(m, n, k, b="col"), Candidate(PIPELINED, USUAL[128]))["pipelined_gemm"]
    assert found.read_bytes == 2 * (m * k + k * n) * 2
    assert found.bank_conflicts_8 == 0


def test_copies_are_made_in_whole_lines(counted):
    m, n, k = 128, 128, 128
    found = counted(problem(m, n, k, b="col"), Candidate(PIPELINED, USUAL[128], ("a", "b")))
    assert found["copy_matrix"].read_bytes == found["copy_matrix"].written_bytes == 2 * (m * k + k * n)
    assert found["pipelined_gemm"].read_bytes == 2 * (m * k + k * n)


def test_rows_that_are_not_aligned_cost_half_as_much_again(counted):
    """128 elements at any address span three lines, not two."""
    m, n, k = 129, 131, 64
    found = counted(problem(m, n, k, a="col"), Candidate(PIPELINED, USUAL[128]))["pipelined_gemm"]
    lines = k * (ceil(m / 128) * 5 + ceil(n / 128) * 5)
    assert found.read_bytes <= 128 * lines
