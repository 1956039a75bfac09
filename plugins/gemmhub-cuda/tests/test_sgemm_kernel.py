"""The float32 kernel itself, compiled for the host and run by the emulator: every result against the exact one."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_cuda.variants.sgemm import SHAPES, Shape
from mma_product import Launch
from sgemm_product import Single

pytestmark = pytest.mark.emulator

SMALL = next(shape for shape in SHAPES if (shape.m, shape.n) == (64, 64))
LOW = next(shape for shape in SHAPES if shape.m == 16)
ORDERS = [(a, b) for a in "km" for b in "kn"]


def sizes(shape):
    """Two tiles each way, of which the last is not whole; and three of k with a tail."""
    return shape.m + 12, shape.n + 8, 3 * shape.k + 5


PRODUCTS = [
    # No k, less than a tile of it, one, more; with a tail and without.
    *(Single(SMALL, 64, 64, k, a, b) for a, b in ORDERS for k in (0, 1, 7, 15, 16, 17, 32, 40, 75)),
    # Tiles with a part of everything outside.
    *(Single(SMALL, m, n, 36, a, b) for a, b in ORDERS for m, n in ((4, 4), (8, 200), (132, 68), (64, 128), (196, 4))),
    *(Single(shape, *sizes(shape), *ORDERS[i % 4]) for i, shape in enumerate(SHAPES)),
    # Alignment, of addresses, rows and sizes: two or single elements at a time.
    *(Single(SMALL, m, n, 37, a, b, (4, 4)) for a, b in ORDERS for m, n in ((1, 1), (7, 130), (65, 67))),
    *(Single(SMALL, 66, 70, 38, a, b, (8, 8)) for a, b in ORDERS[1:3]),
    Single(LOW, 3, 131, 50, "k", "n", (16, 4)),
    Single(SHAPES[3], 131, 129, 21, "k", "n", (4, 4)),
    # Order of the tiles: groups as high as the product, and one that does not divide it.
    *(Single(SMALL, 300, 200, 20, "k", "n", group=group) for group in (1, 3, 5)),
    # Split-K, the first split longer than the last; splits of one step; and a single split.
    *(Single(SMALL, 72, 132, 165, "k", "n", splits=splits) for splits in (2, 4, 11)),
    Single(SMALL, 72, 132, 165, "k", "n", split_k=True),
    Single(LOW, 5, 132, 165, "m", "k", (4, 16), splits=3, batch=2, beta=0.5, bias="n"),
    Single(SHAPES[3], 140, 132, 45, "k", "n", splits=3),
    Single(LOW, 16, 16, 16 * 127 + 5, "k", "n", splits=128),
    # Batches, also with one matrix for all.
    *(Single(SMALL, 40, 72, 36, "k", "n", batch=3, shared=shared) for shared in ("", "a", "b")),
    # Results: addresses and rows that are aligned to less than what is stored at once.
    *(Single(SMALL, 72, n, 36, "k", "n", d_offset=offset, d_pad=pad) for n, offset, pad in ((68, 1, 4), (64, 2, 6))),
    Single(SMALL, 72, 68, 36, "k", "n", out="float16", d_offset=2),
    Single(SMALL, 72, 67, 36, "k", "k", out="bfloat16"),
    # Epilogues.
    Single(SMALL, 72, 76, 36, "k", "n", scaled=True, alpha=-0.5),
    Single(SMALL, 72, 76, 36, "k", "n", scaled=True, alpha=2.0, beta=-1.5, bias="m", activation="relu"),
    Single(SMALL, 72, 76, 36, "k", "n", bias="n", bias_type="bfloat16", activation="gelu"),
    Single(SMALL, 72, 76, 36, "k", "n", out="bfloat16", bias="m", activation="gelu_tanh"),
    Single(SMALL, 72, 76, 36, "k", "n", bias="n", bias_type="float16", activation="silu"),
]


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(product):
    Launch(product).check()


@pytest.mark.parametrize(
    "product",
    [Single(SMALL, 100, 100, 75, "k", "n"), Single(SMALL, 72, 132, 165, "k", "n", splits=4)],
    ids=str,
)
def test_interleavings(product):
    Launch(product).check_interleavings()


def test_split_k_is_deterministic():
    """The bits do not depend on the last split to arrive."""
    launch = Launch(Single(SMALL, 72, 72, 500, "k", "n", splits=5))
    assert len({launch(seed)[0].tobytes() for seed in range(8)}) == 1


@pytest.mark.parametrize(
    "product", [Single(x, x.m, x.n, 2 * x.k, *ORDERS[i % 4]) for i, x in enumerate(SHAPES)], ids=str
)
def test_no_bank_conflicts(product):
    assert Launch(product).conflicts(2) == {}


@pytest.mark.parametrize(
    "change", [("ROW = SIDE + (mn ? 0 : 4)", "ROW = SIDE"), ("(mn ? 0 : k / 8 * 8)", "0 * (k / 8 * 8)")]
)
def test_bank_conflicts_would_show(change):
    assertion = ("SHARED_BYTES == 2 * STAGE", "SHARED_BYTES >= 2 * STAGE")
    changes = ("sgemm.cu", *change), ("sgemm.cu", *assertion)
    assert Launch(Single(SMALL, 64, 64, 32, "k", "k"), changes=changes).conflicts(2)


def test_alpha_zero_forgets_the_product():
    launch = Launch(Single(SMALL, 72, 76, 36, "k", "n", scaled=True, alpha=0.0))
    launch.values["a"][:] = np.nan
    launch.set(**launch.values)
    launch.check()


def test_nan_stays_in_its_row():
    """Infinities and NaN outside a partial tile, or in rows read twice, do not reach other results; relu keeps NaN."""
    product = Single(SMALL, 72, 76, 39, "k", "n", scaled=True, alpha=1.0, beta=-1.5, bias="m", activation="relu")
    launch = Launch(product)
    launch.values["a"][0, 71, 38] = np.nan
    launch.values["b"][0, 38, 9] = np.inf
    launch.set(**launch.values)
    launch.check()
    result = launch()[0][0]
    assert np.isnan(result[71]).all()
    assert not np.isnan(np.delete(result, 71, 0)).any()


def test_resources_of_a_shape():
    shape = Shape(128, 128, 8, 32, 64, ctas_per_sm=2)
    assert (shape.threads, shape.accumulators, shape.name) == (256, 64, "128x128x8t256")
    variant = Single(shape, 128, 128, 8, "k", "n").variant
    assert variant.refusal(49152) is None
    assert "bytes of shared memory" in variant.refusal(8192)
    large = SHAPES[0]
    assert "registers" in Single(large, 256, 128, 8, "k", "n", splits=2).variant.refusal(49152)
    assert "registers" in Single(large, 256, 128, 8, "k", "n", (4, 16)).variant.refusal(49152)
    assert "float32" in Single(SMALL, 64, 64, 8, dtype="bfloat16").variant.refusal(49152)
