"""The kernel for batches, compiled for the host and run by the emulator: every result against the exact one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_cuda.variants.batch import SHAPES, Shape
from mma_product import Launch, Product

pytestmark = pytest.mark.emulator

SMALL = Shape(16, 16, 16, 2, 4, 4)
WIDE = Shape(32, 64, 32, 2, 3, 2)
BYTES = Shape(16, 32, 32, 1, 3, 4)
LONG_BYTES = Shape(64, 64, 64, 1, 2, 2)
ORDERS = [(a, b) for a in "km" for b in "kn"]


def integers(shape, m, n, k, *more, **changes):
    return Product(shape, m, n, k, *more, dtype="int8", out="int32", **changes)


def every(shape, index):
    """A product for a shape of the plugin: tiles that are not whole, and several steps along K."""
    a, b = ORDERS[index % 4]
    kind = {"dtype": "int8", "out": "int32"} if shape.itemsize == 1 else {"dtype": ("bfloat16", "float16")[index % 2]}
    return Product(
        shape, shape.m - 16 // shape.itemsize % shape.m or 16, shape.n, 2 * shape.k + 5, a, b, batch=5, **kind
    )


PRODUCTS = [
    # No k, less than a step of it, one step, several; fewer and more tiles than warps.
    *(Product(SMALL, 16, 16, k, a, b, batch=batch)
      for a, b in ORDERS for k, batch in ((0, 3), (1, 5), (16, 11), (45, 9))),
    *(integers(BYTES, 16, 32, k, a, b, batch=batch)
      for a, b in ORDERS for k, batch in ((0, 3), (1, 5), (32, 11), (77, 9))),
    *(Product(SMALL, 16, 16, 16, batch=batch, ctas=ctas) for batch, ctas in ((1, 1), (3, 2), (40, 2), (40, 3))),
    # Sizes below a tile and beyond it.
    *(Product(WIDE, m, n, 40, batch=3) for m, n in ((1, 1), (7, 33), (32, 64), (33, 65), (70, 130))),
    *(Product(WIDE, m, n, 40, "m", "n", batch=3) for m, n in ((8, 8), (24, 56), (72, 136))),
    *(integers(LONG_BYTES, m, n, 100, batch=2) for m, n in ((1, 1), (7, 33), (70, 130))),
    *(integers(LONG_BYTES, m, n, 100, "m", "n", batch=2) for m, n in ((16, 16), (48, 80), (80, 144))),
    # Every shape that the plugin has.
    *(every(shape, i) for i, shape in enumerate(SHAPES[::2])),
    # Alignment.
    *(Product(WIDE, 28, 52, 45, a, b, aligned, batch=3) for a, b in ORDERS for aligned in ((2, 8), (8, 4), (4, 2))),
    *(Product(WIDE, 27, 53, 45, a, b, (2, 2), batch=3) for a, b in ORDERS),
    *(integers(BYTES, 12, 28, 45, a, b, aligned, batch=3) for a, b in ORDERS for aligned in ((1, 4), (4, 2))),
    *(integers(BYTES, 13, 29, 45, a, b, (1, 1), batch=3) for a, b in ORDERS),
    # One operand for all.
    *(Product(SMALL, 16, 16, 40, batch=7, shared=shared) for shared in ("a", "b")),
    *(integers(BYTES, 16, 32, 40, "m", "n", batch=7, shared=shared) for shared in ("a", "b")),
    # Results: types, addresses and rows that are aligned to less than what is stored at once.
    *(Product(WIDE, 30, n, 72, out=out, d_offset=offset, d_pad=pad, batch=2)
      for out in ("bfloat16", "float32")
      for n, offset, pad in ((64, 0, 0), (63, 0, 0), (60, 1, 4), (58, 2, 6))),
    *(integers(BYTES, 14, n, 72, batch=3, d_offset=offset, d_pad=pad) for n, offset, pad in ((31, 0, 0), (28, 1, 4))),
    # Epilogues.
    Product(WIDE, 30, 60, 33, batch=3, scaled=True, alpha=-0.7, beta=1.3, bias="m", activation="gelu", out="bfloat16"),
    Product(WIDE, 30, 60, 33, batch=3, scaled=True, alpha=1.7, beta=-1.3, bias="n", activation="silu"),
    Product(WIDE, 30, 60, 33, batch=3, bias="n", activation="gelu_tanh"),
    Product(WIDE, 30, 60, 33, batch=3, bias="n", activation="gelu"),
    Product(SMALL, 9, 5, 33, batch=7, bias="n", bias_type="bfloat16", activation="relu", dtype="float16",
            out="float16"),
]  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_products(product):
    Launch(product).check(seed=1)


@pytest.mark.parametrize("product", [PRODUCTS[3], replace(PRODUCTS[19], batch=30)], ids=str)
def test_any_order_of_threads(product):
    """The same bits for every interleaving and every number of CTAs."""
    first = Launch(product)(seed=0)[0]
    for seed in range(1, 8):
        assert np.array_equal(Launch(replace(product, ctas=1 + seed % 3))(seed)[0], first)


@pytest.mark.parametrize("order", ["kk", "mn"])
def test_extreme_integers(order):
    """-128 by -128, summed beyond 2^31: exact modulo 2^32."""
    launch = Launch(integers(LONG_BYTES, 32, 32, 140000, *order))
    for name in "ab":
        launch.values[name][:] = -128
    launch.set(launch.values["a"], launch.values["b"], None, None)
    launch.check()


@pytest.mark.parametrize("product", [
    Product(WIDE, 32, 64, 64, "k", "n", batch=4), Product(WIDE, 32, 64, 64, "m", "k", batch=4),
    integers(LONG_BYTES, 64, 64, 64, "m", "n", batch=2), integers(LONG_BYTES, 64, 64, 64, batch=2),
], ids=str)  # fmt: skip
def test_bank_conflicts(product):
    """Neither copies nor fragments have any. (The results of a tile of 16 columns do.)"""
    report = Launch(product)(count=True)[1]
    assert report.requests
    assert not any(report.conflicts.values()), report.conflicts
