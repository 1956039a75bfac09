"""Epilogues on a real Hopper GPU: gates, pre_activation=, and a c of float32. Skips where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from gated_products import GROUPED, PRODUCTS, SPLIT
from gemmhub_hopper.candidates.candidate import Choice, runnable
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import GATED
from gemmhub_hopper.variants.shapes import GROUPED_SHAPES, SHAPES
from grouped_products import GroupedProduct
from hopper_card import WITH_KEPT_KERNELS
from products import LIMIT, EightBitProduct, Product
from test_device import TorchMemory, run
from test_device_eight_bit import result_of
from test_device_grouped import Held, ends_of

from gemmhub.testing import Case, check

pytestmark = WITH_KEPT_KERNELS
_ALPHA = 2.0**-6
"""Arguments of gates of about one, as in gated_products.py."""


@pytest.mark.parametrize("product", [*PRODUCTS, SPLIT], ids=str)
def test_gated_product(backend, product):
    seed = int(np.random.default_rng().integers(2**31))
    if isinstance(product, EightBitProduct):  # with scales
        values = product.data(seed)
        assert not product.wrong(result_of(backend, product, *values), product.exact(*values)).any()
        return
    result, exact = run(backend, product, seed)
    assert not product.wrong(result, exact).any()


@pytest.mark.parametrize("product", GROUPED, ids=str)
def test_gated_groups(backend, product):
    held = Held(backend, product, int(np.random.default_rng().integers(2**31)))
    held.start()
    held.check()


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("rows", [16, 300])
def test_gates_of_every_shape(backend, activation, rows):
    """Several work tiles of a CTA, b of either order, with split-K and without."""
    rng, ran = np.random.default_rng(), 0
    for i, shape in enumerate(SHAPES):
        product = Product(
            shape, rows, 2 * int(rng.integers(700, 1500)), 8 * int(rng.integers(20, 60)), b=("row", "col")[i % 2],
            dtype=("bfloat16", "float16")[i // 2 % 2], activation=activation, alpha=_ALPHA,
            bias=(None, "n")[i % 3 // 2], splits=(1, 3)[i % 5 // 4],
        )  # fmt: skip
        lowerings = lower.lowerings(product.problem)
        if isinstance(runnable(Choice(lowerings[0], shape, product.splits), LIMIT), str):
            continue
        result, exact = run(backend, product, int(rng.integers(2**31)))
        assert not product.wrong(result, exact).any(), str(product)
        ran += 1
    assert ran > len(SHAPES) / 3


@pytest.mark.parametrize("activation", GATED)
def test_gated_groups_of_every_shape(backend, activation):
    rng, ran = np.random.default_rng(), 0
    for count, most in ((5, 700), (60, 40)):
        for shape in GROUPED_SHAPES:
            ends, extent = ends_of(rng, count, most)
            product = GroupedProduct(
                shape, ends, extent, 2 * int(rng.integers(100, 400)), 200, b="col", activation=activation, alpha=_ALPHA
            )
            if isinstance(runnable(product.unchecked, LIMIT), str):
                continue
            held = Held(backend, product, int(rng.integers(2**31)))
            held.start()
            held.check()
            ran += 1
    assert ran > len(GROUPED_SHAPES)


def drawn(rng):
    """Return a case of random sizes, orders, data and epilogue."""
    half = ("bfloat16", "float16")[rng.integers(2)]
    out = (half, "float32")[rng.integers(2)]
    rows = int(rng.choice([1, 3, 16, 65, 300, 1025]))
    layouts = ("row", "col", "row_padded", "col_padded")
    shared = {
        "a": layouts[rng.integers(4)], "b": layouts[rng.integers(4)], "out": ("row", "col")[rng.integers(2)],
        "bias": (None, "n", "m")[rng.integers(3)], "alpha": (1, 0.7)[rng.integers(2)],
        "data": ("normal", "wide", "nonfinite", "cancelling")[rng.integers(4)],
    }  # fmt: skip
    n, k = 2 * int(rng.integers(1, 700)), int(rng.integers(0, 900))
    what = rng.integers(3)
    if what == 0:
        return Case(rows, n, k, half, half, out, activation=GATED[rng.integers(len(GATED))], **shared)
    elementwise = (None, "relu", "gelu", "silu")[rng.integers(4)]
    if what == 1:
        return Case(
            rows,
            n,
            k,
            half,
            half,
            half,
            c=shared["out"],
            c_dtype="float32",
            beta=-1.3,
            activation=elementwise,
            **shared,
        )
    return Case(rows, n, k, half, half, out, operands={"pre_activation": "matrix"}, activation=elementwise, **shared)


def test_random_epilogues(backend):
    rng, memory = np.random.default_rng(), TorchMemory()
    for _ in range(60):
        check(backend, drawn(rng), memory)
