"""Candidates that state one order of addition have equal accumulators, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.candidates.candidate import named
from gemmhub_hopper.lowering import lower
from problems import problem
from products import SMALL, EightBitProduct, Product, Shape
from runs import Run

pytestmark = pytest.mark.emulator

GIVEN = {"b": "col", "out": "float32"}


class Scaled(EightBitProduct):
    """8-bit operands with scales whose products round."""

    def scales(self):
        rng = np.random.default_rng(1)
        return {name: rng.uniform(0.5, 2, x.shape).astype(np.float32) for name, x in super().scales().items()}


def eight_bit(**scales):
    """Products whose parts are 2, 2, 2 and 1 blocks of K."""
    given = {**GIVEN, "dtype": "float8_e4m3fn", **scales}
    return (
        Scaled(SMALL, 72, 40, 840, **given),
        Scaled(SMALL, 72, 40, 840, swapped=True, **given),
        Scaled(Shape(128, 32, 4, cluster_m=2), 72, 40, 840, **given),
        Scaled(SMALL, 72, 40, 840, splits=4, **given),
        Scaled(Shape(64, 16, 5, cluster_k=4, consumers=1), 72, 40, 840, swapped=True, **given),
    )


PRODUCTS = {
    "bfloat16": (
        Product(SMALL, 72, 40, 840, **GIVEN),
        Product(SMALL, 72, 40, 840, swapped=True, **GIVEN),
        Product(Shape(64, 32, 4, cluster_m=2, pingpong=True), 72, 40, 840, **GIVEN),
        Product(SMALL, 72, 40, 840, splits=4, **GIVEN),
        Product(Shape(64, 16, 5, cluster_k=4, consumers=1), 72, 40, 840, **GIVEN),
    ),
    "tf32": (
        Product(SMALL, 72, 40, 420, dtype="tf32", **GIVEN),
        Product(SMALL, 72, 40, 420, dtype="tf32", a="col", registers=True, **GIVEN),
        Product(SMALL, 72, 40, 420, dtype="tf32", splits=4, **GIVEN),
        Product(Shape(64, 16, 5, cluster_k=4, consumers=1), 72, 40, 420, dtype="tf32", **GIVEN),
    ),
    "float8": eight_bit(scale_a="row", scale_b="column", bias="n", alpha=0.7),
    "float8 by blocks": eight_bit(scale_a="1x128", scale_b="128x1"),
}
"""14 blocks of K, the last one not whole: of four parts, the first two have one more than the others."""
REVERSED = ("ranks * work.split + rank;", "ranks * work.split + (ranks - 1 - rank);")


def results(products, home):
    """The results of each order: all the same operands, whose sums round."""
    rng, found = np.random.default_rng(0), {}
    m, n, k = products[0].m, products[0].n, products[0].k
    a, b = (rng.standard_normal(shape).astype(products[0].problem.a.dtype) for shape in ((m, k), (k, n)))
    for product in products:
        bits = np.ascontiguousarray(Run(product, home).of(a, b)).tobytes()
        found.setdefault(product.choice.order, set()).add(bits)
    return found


@pytest.mark.parametrize("dtype", PRODUCTS)
def test_equal_orders_have_equal_bits(dtype):
    """Other shapes, clusters, swapped operands, registers; split-K and CTAs that share K. Two orders differ."""
    found = results(PRODUCTS[dtype], Home())
    step = {"bfloat16": "wgmma.k16", "tf32": "wgmma.k8"}.get(dtype, "wgmma.k32.p128")
    assert found.keys() == {step, f"{step}/s4"}
    assert all(len(bits) == 1 for bits in found.values())
    if dtype != "float8":  # sums of 14 bits without scales add up exactly
        assert len(set.union(*found.values())) == 2


def test_factors_in_another_order_are_noticed(monkeypatch, tmp_path):
    """One by one they round otherwise where operands are swapped."""
    factors = "v[i] *= fragment.scale_m[h] * scale_n[e];", "v[i] = v[i] * fragment.scale_m[h] * scale_n[e];"
    home = mutated(monkeypatch, tmp_path, "epilogue.cuh", factors)
    assert len(results(PRODUCTS["float8"][:2], home)["wgmma.k32.p128"]) == 2


def test_parts_in_another_order_are_noticed(monkeypatch, tmp_path):
    """CTAs that share K from its end on compute a right product, with other bits than split-K."""
    home = mutated(monkeypatch, tmp_path, "tile_scheduler.cuh", REVERSED)
    assert len(results(PRODUCTS["bfloat16"][3:], home)["wgmma.k16/s4"]) == 2


ORDERS = [
    (problem(64, 72, 100, b="row"), "64x64x12", "wgmma.k16"),  # a is copied
    (problem(64, 72, 128, "float32", precision="tf32", b="row"), "64x64x12", "wgmma.k8"),
    (problem(64, 72, 128, "float32"), "64x48x8rst", "wgmma.k16.bf16x6"),
    (problem(64, 72, 128, "float32", precision="bf16x3"), "64x64x12xt", "wgmma.k16.bf16x3"),
    (problem(64, 72, 128, "float32"), "64x64x9", None),
    (problem(64, 72, 128, "float32"), "64x48x8rs", None),
    (problem(64, 72, 128, "float32"), "64x48x10rt", None),
    (problem(64, 72, 128, "float32"), "128x96x7h", None),
    (problem(64, 72, 128, "float32", precision="bf16x3"), "64x64x12x", None),
]


@pytest.mark.parametrize(("asked", "name", "order"), ORDERS)
def test_orders_of_copied_and_split_operands(asked, name, order):
    """One lowering of split operands has a name: products of planes are added in another order by the others."""
    assert named(lower.lowerings(asked), name).order == order


def test_copies_in_several_k_passes_have_no_order():
    """Each K pass begins a sum, and the workspace decides where: the offer states no order for such candidates."""
    offer = Home().backend().offer(problem(300, 50_001, 100_001))
    assert {x.order for x in offer.candidates} == {None}
