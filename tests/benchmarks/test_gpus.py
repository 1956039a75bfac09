"""The tables of several GPUs: what the page has, and what is made of a result file."""

from __future__ import annotations

import pytest

from benchmarks.pages import gpus


def test_the_page_has_the_tables_of_the_result_files():
    page = gpus.PAGE.read_text(encoding="utf-8")
    assert gpus.filled(page) == page


def layer(**more):
    return {
        "what": "sequence, 8192 rows", "torch": 0.008, "gemmhub": 0.006, "compute": 0.0055, "communication": 0.001,
        "torch compute": 0.0075, "torch communication": 0.001, "predicted": 0.0066, **more,
    }  # fmt: skip


def test_what_is_hidden():
    """0.5 ms of 1 ms of transfers show."""
    assert gpus.hidden(layer(), "gemmhub", "compute", "communication") == pytest.approx(0.5)
    assert gpus.hidden({"gemmhub": 1.0}, "gemmhub", "compute", "communication") is None


def test_tables_of_a_file():
    file = {
        "ranks": 2, "device": "NVIDIA H100", "torch": "2.11.0", "nccl": "2.28.9",
        "large": [
            {"what": "bfloat16", "size": 1024, "bytes": 2**30, "algorithm": "1D columns", "gemmhub": 2.0, "rate": 1e15,
             "efficiency": 0.95, "predicted": 1.9, "worst": 0.5},
            {"what": "bfloat16, torch", "torch": 3.0},
            {"what": "float32", "failed": "OutOfMemoryError: CUDA"},
        ],
        "layers": [layer(), {"what": "variant", "gemmhub": 0.006, "compute": 0.005, "communication": 0.001}],
        "pairs": [
            {"what": f"{size} cubed, Replicate by Partial", "torch": 3e-4, "gemmhub": 2e-4, "predicted": 1e-4,
             "worst": 0.9, "different": 0}
            for size in (512, 8192)
        ],
        "symmetric": [{"what": "fused", "rows": 8192, "seconds": 0.005}, {"what": "copies", "skipped": "no time left"}],
        "killed": [{"what": "default, rank 0", "seconds": 12.5, "error": "DistBackendError: a | b\nmore"}],
    }  # fmt: skip
    lines = gpus.tables(file)
    assert lines[0] == "**2 x NVIDIA H100** (torch 2.11.0, NCCL 2.28.9)"
    for line in (
        "| 1024 cubed, bfloat16 | 1 GiB | 1D columns | 2 s | 1000 | 0.950 | 1.50 | 0.95 | 0.5 |",
        "Not measured: float32: OutOfMemoryError: CUDA",
        "| sequence, 8192 rows | 6 ms | 1.33 | 1 ms | 0.50 | 0.50 | 1.10 |",
        "| variant | 6 ms | - | 1 ms | 0.00 | - | - |",
        "| Replicate by Partial | 1.50 | 200 | 0.50 | 1.50 | 200 | 0.50 |",
        "| torch's fused operators, 8192 rows | 5 ms | - |",
        "Not measured: copies: no time left",
        "| default, rank 0 | 12.5 s | DistBackendError: a / b |",
    ):
        assert line in lines
