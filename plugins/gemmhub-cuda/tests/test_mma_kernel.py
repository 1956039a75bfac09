"""The tensor-core kernel itself, compiled for the host and run by the emulator: every result against the exact one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_cuda.variants.mma import SHAPES, Shape
from mma_product import Launch, Product

pytestmark = pytest.mark.emulator

SMALL = Shape(64, 64, 32, 3, 32, 32)
DEEP = Shape(32, 64, 64, 4, 16, 32)
ORDERS = [(a, b) for a in "km" for b in "kn"]


def sizes(shape):
    """Two tiles each way, of which the last is not whole; and more of k than the ring holds, with a tail."""
    return shape.m + 8, shape.n + 8, shape.k * (shape.stages + 1) + 13


PRODUCTS = [
    # No k, less than a step of it, less than a tile, one tile, as many as are on their way, more.
    *(Product(SMALL, 64, 64, k, a, b) for a, b in ORDERS for k in (0, 1, 8, 15, 16, 31, 32, 33, 64, 65, 96, 160, 200)),
    # Tiles with a part of everything outside.
    *(Product(SMALL, m, n, 72) for m, n in ((1, 1), (7, 200), (130, 65), (64, 129), (193, 3))),
    *(Product(SMALL, m, n, 72, a, b) for a, b in ORDERS[1:] for m, n in ((8, 8), (8, 200), (136, 72), (200, 8))),
    *(Product(DEEP, 72, 136, k, a, b) for a, b in ORDERS for k in (1, 63, 64, 129, 400)),
    *(Product(shape, *sizes(shape), *ORDERS[i % 4]) for i, shape in enumerate(SHAPES)),
    *(Product(shape, *sizes(shape), *ORDERS[(i + 2) % 4], dtype="float16") for i, shape in enumerate(SHAPES[::3])),
    # Alignment: rows of any even number of bytes, and of any length where that is along k.
    *(Product(SMALL, 68, 76, 75, a, b, aligned) for a, b in ORDERS for aligned in ((2, 8), (8, 4), (4, 2))),
    *(Product(SMALL, 67, 75, 77, a, b, (2, 2)) for a, b in ORDERS),
    *(Product(DEEP, 67, 75, 77, a, b, (2, 2), "float16") for a, b in ORDERS[1:3]),
    # Order of the tiles: groups higher and lower than the product, and one that does not divide it.
    *(Product(SMALL, 300, 200, 40, group=group) for group in (1, 3, 4, 5, 8)),
    # Split-K, the first split longer than the last; splits of one step; and a single split.
    *(Product(SMALL, 72, 136, 330, a, b, splits=splits) for a, b in ORDERS[::3] for splits in (2, 4)),
    Product(SMALL, 72, 136, 330, splits=11),
    Product(SMALL, 16, 24, 64 * 127 + 8, splits=128),
    Product(SMALL, 72, 136, 330, split_k=True),
    Product(SHAPES[0], 200, 100, 150, splits=2, out="bfloat16"),
    # Batches, also with one matrix for all.
    *(Product(SMALL, 40, 70, 72, batch=3, shared=shared) for shared in ("", "a", "b")),
    Product(SMALL, 40, 70, 200, batch=2, splits=3, beta=0.5, bias="n"),
    # Results: types, addresses and rows that are aligned to less than what is stored at once.
    *(Product(SMALL, 70, n, 72, out=out, d_offset=offset, d_pad=pad)
      for out in ("bfloat16", "float16", "float32")
      for n, offset, pad in ((72, 0, 0), (71, 0, 0), (68, 1, 4), (66, 2, 6))),
    # Epilogues.
    Product(SMALL, 70, 77, 72, scaled=True, alpha=-0.5),
    Product(SMALL, 70, 77, 72, scaled=True, alpha=2.0, beta=-1.5, bias="m", activation="relu"),
    Product(SMALL, 70, 77, 72, out="bfloat16", beta=1.0, bias="n", bias_type="bfloat16", activation="gelu"),
    Product(SMALL, 70, 77, 72, out="bfloat16", beta=1.0, bias="m", activation="gelu_tanh"),
    Product(SMALL, 70, 77, 72, dtype="float16", out="float16", bias="n", bias_type="float16", activation="silu"),
]  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(product):
    Launch(product).check()


@pytest.mark.parametrize(
    "product",
    [
        Product(SMALL, 104, 88, 200, "m", "n"),
        Product(SMALL, 100, 100, 200, aligned=(2, 4)),
        Product(replace(SMALL, stages=2), 100, 100, 200),
        Product(SMALL, 100, 100, 330, splits=3),
    ],
    ids=str,
)
def test_interleavings(product):
    Launch(product).check_interleavings()


def test_split_k_is_deterministic():
    """The bits do not depend on the last split to arrive."""
    launch = Launch(Product(SMALL, 70, 70, 1000, splits=5))
    assert len({launch(seed)[0].tobytes() for seed in range(8)}) == 1


@pytest.mark.parametrize(
    "product",
    [Product(x, x.m, x.n, 2 * x.k, *ORDERS[i % 4]) for i, x in enumerate(SHAPES) if x.warp_n >= 32]
    + [Product(x, x.m, x.n, 2 * x.k, a, b) for x in (SMALL, DEEP) for a, b in ORDERS],
    ids=str,
)
def test_no_bank_conflicts(product):
    assert Launch(product).conflicts(4) == {}


def test_bank_conflicts_would_show():
    unswizzled = ("chunks.cuh", "return row / (8 / SPAN) % SPAN;", "return 0;")
    assert Launch(Product(SMALL, 64, 64, 64, "k", "n"), changes=(unswizzled,)).conflicts(4)


def test_alpha_zero_forgets_the_product():
    launch = Launch(Product(SMALL, 40, 40, 40, scaled=True, alpha=0.0, bias="n"))
    launch.values["a"][:] = np.nan
    launch.set(**launch.values)
    launch.check()


def test_nan_stays_in_its_row():
    """Infinities and NaN outside a partial tile do not reach it; relu keeps NaN."""
    product = Product(SMALL, 70, 77, 75, activation="relu")
    launch = Launch(product)
    launch.values["a"][0, 5, 74] = np.nan
    launch.values["b"][0, 74, 9] = np.inf
    launch.set(**launch.values)
    launch.check()
    result = launch()[0][0]
    assert np.isnan(result[5]).all()
    assert not np.isnan(np.delete(result, 5, 0)).any()
