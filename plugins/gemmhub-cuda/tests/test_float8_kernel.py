"""The kernel for 8-bit floats, run by the emulator: every result against the exact one, by the bound of float8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_cuda.variants.batch import SHAPES, Shape
from mma_product import Launch, Product

pytestmark = pytest.mark.emulator

SMALL = Shape(16, 32, 32, 1, 3, 4, promoted=True)
LONG = Shape(32, 64, 64, 1, 2, 2, promoted=True)
WHOLE = Shape(32, 16, 128, 1, 2, 4, promoted=True)
FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
PAIRS = [(a, b) for a in FORMATS for b in FORMATS]
ORDERS = [(a, b) for a in "km" for b in "kn"]
BLOCKS = ("each x 128", "blocks x 128")


def floats(shape, m, n, k, *more, pair=("e4m3", "e4m3"), **changes):
    """A product of 8-bit floats."""
    a, b = (FORMATS[x] for x in pair)
    return Product(shape, m, n, k, *more, **{"dtype": a, "b_dtype": b, "out": "bfloat16", **changes})


def every(shape, index):
    """A product for a shape of the plugin: tiles that are not whole, several steps along K, scales of blocks."""
    a, b = ORDERS[index % 4]
    scales = ((None, None), BLOCKS, ("each", "each"), ("tensor", "each x 128"))[index % 4]
    return floats(shape, shape.m + 16, shape.n, 261, a, b, batch=2, pair=PAIRS[(index + index // 4) % 4], scales=scales)


PRODUCTS = [
    # No k, less than a block of it, one block, several; and each order.
    *(floats(SMALL, 16, 32, k, a, b, batch=3) for a, b in ORDERS for k in (0, 1, 128, 129, 300)),
    *(floats(WHOLE, 33, 17, k, batch=2, out="float32") for k in (127, 128, 129, 385)),
    # Formats and results.
    *(floats(SMALL, 20, 36, 140, pair=pair, out=out) for pair in PAIRS for out in ("bfloat16", "float16", "float32")),
    # Every shape that the plugin has.
    *(every(shape, i) for i, shape in enumerate(x for x in SHAPES if x.promoted)),
    # Alignment.
    *(floats(SMALL, 12, 28, 45, a, b, aligned, batch=3) for a, b in ORDERS for aligned in ((1, 4), (4, 2))),
    *(floats(SMALL, 13, 29, 145, a, b, (1, 1), batch=3, scales=BLOCKS) for a, b in ORDERS),
    # Scales: each granularity of a and of b.
    *(floats(LONG, 48, 208, 300, a, b, batch=2, scales=scales)
      for (a, b), scales in zip(ORDERS * 3, (
          ("tensor", "tensor"), ("each", "each"), ("each", None), (None, "each"), BLOCKS, ("each x 128", "each x 128"),
          ("tensor x 128", "blocks x 128"), ("each", "blocks"), ("each", "blocks x 128"), ("each x 128", "each"),
          (None, "each x 128"), ("tensor x 128", None),
      ))),
    # Epilogues.
    floats(SMALL, 30, 60, 133, batch=3, scaled=True, alpha=-0.7, beta=1.3, bias="m", activation="gelu", scales=BLOCKS),
    floats(SMALL, 30, 60, 133, batch=3, scaled=True, alpha=1.7, beta=-1.3, bias="n", activation="silu", out="float32",
           scales=("each", "each")),
]  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_products(product):
    Launch(product).check(seed=1)


def test_long_sums_are_promoted():
    """Sums of equal terms would truncate each of them more and more: promoted, they are exact."""
    launch = Launch(floats(SMALL, 16, 32, 4096, out="float32"))
    for name in "ab":
        launch.values[name][:] = 1.375
    launch.set(launch.values["a"], launch.values["b"], None, None)
    launch.check()
    assert (launch()[0] == 4096 * 1.375**2).all()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("order", ["kk", "mn"])
def test_every_code(pair, order):
    """Products of every finite code with 1, exactly: of NaN and infinities themselves."""
    launch = Launch(floats(LONG, 64, 64, 128, *order, pair=pair, out="float32"))
    a, b = (launch.values[name] for name in "ab")
    a[:], b[:] = 0, np.eye(128, 64)
    a[0].view(np.uint8)[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4)
    launch.set(a, b, None, None)
    result, exact = launch()[0][0, :, :4], a[0, :, :4].astype(np.float32)
    finite = np.isfinite(exact).all(axis=1)
    assert np.array_equal(result[finite], exact[finite])
    assert (~np.isfinite(result[~np.isfinite(exact)])).all()


@pytest.mark.parametrize("product", [every(SMALL, 1), every(LONG, 3)], ids=str)
def test_any_order_of_threads(product):
    """The same bits for every interleaving and every number of CTAs."""
    first = Launch(product)(seed=0)[0]
    for seed in range(1, 6):
        assert np.array_equal(Launch(replace(product, ctas=1 + seed % 3))(seed)[0].view("V2"), first.view("V2"))


@pytest.mark.parametrize("orders", ORDERS)
def test_equal_bits_of_all_shapes_and_orders(orders):
    """The order of addition has one name: tiles, storage orders and a swap of the operands change no bits."""
    wanted = None
    for shape in (SMALL, LONG, WHOLE):
        product = floats(shape, 48, 64, 300, *orders, scales=BLOCKS, out="float32")
        launch = Launch(product)
        result = launch()[0]
        wanted = result if wanted is None else wanted
        assert np.array_equal(wanted.view(np.uint32), result.view(np.uint32))
        swapped = Launch(replace(product, m=64, n=48, scales=("blocks x 128", "each x 128")))
        swapped.scale_a, swapped.scale_b = launch.scale_b, launch.scale_a
        a, b = (launch.values[name].swapaxes(1, 2).copy() for name in "ba")
        swapped.set(a, b, None, None)
        assert np.array_equal(wanted.view(np.uint32), swapped()[0].swapaxes(1, 2).copy().view(np.uint32))
