"""The cost model compared with measurements; alignment, batches and launches."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from fakes import operand, problem
from gemmhub_cublas import corrections, lower, model

from gemmhub.layout import MatrixLayout
from gemmhub.testing import problems


class Card:
    """A device for the model, without a driver."""

    name, sms, capability, clock = "NVIDIA H200", 132, (9, 0), 1.98e9

    def __init__(self, bandwidth):
        self.bandwidth = bandwidth


H200, H100 = Card(4.8e12), Card(3.35e12)

# Recorded on an H200: m, n, k, how b is stored ("nt": columns), microseconds of the plugin.
RECORDED = (
    (1485, 3984, 384, "nt", "float16", 11.5), (128, 608, 1024, "nn", "bfloat16", 4.6),
    (15360, 1792, 256, "nn", "bfloat16", 27.2), (1, 26552, 576, "nn", "float16", 10.6),
    (1, 10008, 4736, "nn", "float16", 27.4), (88, 30640, 584, "nt", "bfloat16", 14.4),
    (392, 3776, 4888, "nn", "bfloat16", 23.7), (6133, 1664, 25600, "nt", "bfloat16", 677.2),
    (7168, 28560, 4352, "nn", "bfloat16", 2532.3), (1, 3968, 4224, "nn", "float16", 11.1),
    (8960, 1504, 1024, "nn", "bfloat16", 41.8), (384, 5120, 5632, "nn", "bfloat16", 32.4),
    (128, 256, 832, "nn", "tf32", 6.5), (1, 352, 27712, "nt", "tf32", 14.6), (3248, 1408, 11520, "nt", "tf32", 302.1),
    (1, 14592, 4096, "nn", "tf32", 58.0), (9664, 256, 128, "nn", "tf32", 9.7),
    (7472, 2136, 15296, "nn", "tf32", 1486.5), (1, 1024, 8896, "nt", "tf32", 13.4),
    (3904, 192, 1056, "nn", "tf32", 14.6), (4096, 384, 816, "nt", "float32", 70.8),
    (1792, 192, 384, "nn", "float32", 13.6), (64, 752, 176, "nn", "float32", 5.8),
    (16, 4576, 1288, "nt", "float32", 23.9), (640, 32544, 256, "nt", "float32", 255.3),
    (744, 11928, 128, "nt", "float32", 71.1), (640, 7552, 1504, "nn", "float32", 358.9),
    (16, 2728, 1072, "nn", "float32", 14.4),
)  # fmt: skip
# Recorded: card, dtype, how a and b are stored, m, n, k, microseconds of cuBLAS. Rows that are not aligned to 16 bytes.
MISALIGNED = (
    (H100, "bfloat16", "nn", 891, 6883, 4826, 579.0), (H100, "bfloat16", "tn", 754, 3742, 4937, 171.7),
    (H100, "float16", "nt", 1506, 5118, 959, 131.9), (H100, "float16", "tn", 631, 7288, 2812, 309.7),
    (H100, "bfloat16", "nt", 651, 380, 1725, 19.9), (H100, "float16", "tn", 10444, 92, 2919, 47.8),
    (H100, "tf32", "nn", 3393, 1151, 3252, 221.6), (H100, "tf32", "tn", 5914, 112, 8071, 144.7),
    (H200, "bfloat16", "nn", 4095, 4097, 4099, 858.0), (H200, "bfloat16", "tn", 655, 3056, 6464, 274.0),
    (H200, "bfloat16", "tt", 843, 3840, 6336, 416.0), (H200, "bfloat16", "nn", 2048, 4097, 2048, 281.0),
    (H200, "bfloat16", "nn", 1001, 1003, 1005, 26.0), (H200, "bfloat16", "nn", 2048, 4100, 2048, 129.0),
)  # fmt: skip
# Recorded on an H100: batch, m, n, k, microseconds of cuBLAS for bfloat16.
BATCHES = ((334, 448, 656, 752, 317.4), (102, 768, 96, 240, 26.2), (515, 520, 384, 472, 236.0))


def stored(dtype, orders, m, n, k, **more):
    names = {"n": "row", "t": "col"}
    elements, precision = ("float32", "tf32") if dtype == "tf32" else (dtype, "ieee")
    return problems.problem(m, n, k, elements, a=names[orders[0]], b=names[orders[1]], precision=precision, **more)


def microseconds(asked, card=H200):
    return 1e6 * model.seconds(asked, lower.lowered(asked), card)


@pytest.mark.parametrize("kind", ["half", "tf32", "single"])
def test_recorded_products(kind):
    """The typical error is below 25 %, and no estimate is off by a factor of 1.6."""
    asked = [(stored(dtype, orders, m, n, k), measured) for m, n, k, orders, dtype, measured in RECORDED]
    errors = [log(microseconds(given) / measured) for given, measured in asked if model.dtype_class(given) == kind]
    assert len(errors) >= 8
    assert np.mean(np.abs(errors)) < log(1.25)
    assert np.max(np.abs(errors)) < log(1.6)


@pytest.mark.parametrize(("card", "dtype", "orders", "m", "n", "k", "measured"), MISALIGNED)
def test_misaligned_rows_are_slow(card, dtype, orders, m, n, k, measured):
    """Within a factor of 1.4; without the factor estimates are 1.8 to 7.3 times too low."""
    assert measured / 1.4 < microseconds(stored(dtype, orders, m, n, k), card) < measured * 1.4


@pytest.mark.parametrize(("batch", "m", "n", "k", "measured"), BATCHES)
def test_batches(batch, m, n, k, measured):
    found = microseconds(problems.problem(m, n, k, "bfloat16", batch=(batch,)), H100)
    assert measured / 1.3 < found < measured * 1.3


@pytest.mark.parametrize(("given", "expected"), [
    (stored("bfloat16", "nn", 7, 16, 24), 16), (stored("bfloat16", "tn", 7, 16, 24), 2),
    (stored("bfloat16", "nn", 8, 16, 12), 8), (stored("tf32", "nn", 8, 6, 12), 8),
    (stored("bfloat16", "nn", 8, 16, 12, d="col"), 8), (stored("bfloat16", "nn", 7, 16, 24, d="col"), 2),
    # One row: none follows it.
    (stored("bfloat16", "nn", 1, 16, 7), 16), (stored("bfloat16", "nn", 16, 1, 8), 16),
], ids=str)  # fmt: skip
def test_alignment(given, expected):
    assert model.alignment(lower.lowered(given).main) == expected


def test_alignment_of_addresses_and_batches():
    asked = stored("bfloat16", "nn", 8, 16, 16)
    assert model.alignment(lower.lowered(replace(asked, b=replace(asked.b, alignment=4))).main) == 4
    batched = stored("bfloat16", "nn", 8, 16, 16, batch=(3,))
    apart = replace(batched.a, layout=MatrixLayout(8, 16, 16, 1, (3,), (132,)))
    assert model.alignment(lower.lowered(batched).main) == 16
    assert model.alignment(lower.lowered(replace(batched, a=apart)).main) == 8


def test_launches_are_paid_for():
    asked = problem(64, 64, 64, batch=(3,))
    backwards = replace(asked, a=replace(operand("float32", 64, 64, batch=(3,)), layout=MatrixLayout(
        64, 64, 64, 1, (3,), (-4096,))))  # fmt: skip
    assert len(lower.lowered(backwards).offsets) == 3
    assert microseconds(backwards) == pytest.approx(microseconds(asked) + 2e6 * model.LAUNCH)


@pytest.mark.parametrize(("dtype", "kind"), [
    ("int8", "byte"), ("float8_e4m3fn", "byte"), ("float16", "half"), ("bfloat16", "half"), ("float32", "single"),
    ("float64", "single"), ("complex64", "single"),
])  # fmt: skip
def test_kinds(dtype, kind):
    assert model.dtype_class(problem(16, 16, 16, dtype, out="int32" if dtype == "int8" else None)) == kind
    assert model.dtype_class(problem(precision="tf32")) == "tf32"
    assert model.dtype_class(problem(precision="bf16x3")) == "single"


@pytest.mark.parametrize("attribute", ["sms", "clock", "bandwidth"])
def test_cards_without_reported_rates(attribute):
    card = Card(4.8e12)
    assert model.rated(card)
    setattr(card, attribute, 0)
    assert not model.rated(card)


def test_int8_of_row_major_operands_is_slow():
    """The library's fast int8 kernels take operands that are contiguous along K."""
    times = {}
    for b in ("row", "col"):
        asked = problem(256, 256, 256, "int8", out="int32", b=b, batch=(256,))
        found = lower.lowered(asked)
        times[b] = corrections.seconds(asked, found, H100, "13.1.0")
    assert times["row"] > 2 * times["col"]


@pytest.mark.parametrize(("side", "measured"), [(32, 23.0e-6), (64, 36.8e-6)])
def test_int8_batches_of_small_matrices(side, measured):
    """Measured on an H100, 4096 products, benchmarks/results/h100/batches.json.xz."""
    asked = problem(side, side, side, "int8", out="int32", b="col", batch=(4096,))
    assert corrections.seconds(asked, lower.lowered(asked), H100, "13.1.0") > 0.6 * measured
