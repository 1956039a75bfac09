"""Float32 by two bfloat16 planes: sums, special values, which problems, errors within the bound, and mistakes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from fakes import mutated
from gemmhub_hopper.candidates.candidate import named
from gemmhub_hopper.cost import choose, corrections, model
from gemmhub_hopper.cost.fitted import CONSTANTS
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import BF16X3, Shape
from ml_dtypes import bfloat16
from problems import H200, LIMIT, operand, problem
from products import BF16X3_PRODUCTS, SMALL, TURNS, Bf16x3Product
from runs import HOME, Run, detected

from gemmhub.accuracy import problem_model, reference
from gemmhub.dtypes import PRECISIONS


@pytest.mark.parametrize("asked", BF16X3_PRODUCTS, ids=str)
def test_exact_products(asked):
    run = Run(asked)
    assert asked.choice.lowering.form.input == BF16X3
    for _ in range(2):
        run.check()


def ratios(asked, a, b, result):
    """Errors over the bound of the precision."""
    return reference(a, b, model=problem_model(asked.problem)).ratio(result)


@pytest.mark.parametrize("width", [0, 40, 250])
@pytest.mark.parametrize("splits", [1, 3])
def test_errors(width, splits):
    rng = np.random.default_rng(width)
    asked = Bf16x3Product(SMALL, 72, 72, 300, splits=splits)

    def drawn(*shape):
        exponents = rng.integers(-width // 2, width // 2 + 1, shape)
        return np.ldexp(rng.standard_normal(shape), exponents).astype(np.float32)

    a, b = drawn(72, 300), drawn(300, 72)
    found = ratios(asked, a, b, Run(asked).of(a, b))
    assert found.max() <= 1
    if width == 0:
        assert found.max() > 2**-10  # nothing else is computed


SHARED_K = Shape(64, 64, 3, consumers=1, cluster_k=4)


def specials():
    """Operands with infinities, NaN, zeros beside them, and numbers that rounding to bfloat16 would make infinite."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((72, 300)).astype(np.float32), rng.standard_normal((300, 72)).astype(np.float32)
    a[3, 5], a[4, 299], a[6, [7, 100]], a[9, 0] = np.inf, -np.inf, [np.inf, -np.inf], np.nan
    a[11, 17] = np.frombuffer(np.uint32(0x7F800001).tobytes(), np.float32)[0]  # a NaN in its last bit
    b[17, 8], b[200, 9], b[5, 10], a[12, 200] = np.inf, np.nan, 0, 0
    b[:, 11] = b[:, 11].astype(bfloat16)  # its low plane is 0
    a[20, 30], b[30, :] = 3.4e38, 1e-30
    return a, b


@pytest.mark.parametrize(("shape", "splits"), [*product((SMALL, TURNS), (1, 2, 5)), (SHARED_K, 1)], ids=str)
def test_special_values(shape, splits):
    a, b = specials()
    asked = Bf16x3Product(shape, 72, 72, 300, splits=splits)
    result = Run(asked).of(a, b)
    found = ratios(asked, a, b, result)
    assert found.max() <= 1, np.argwhere(found > 1)
    assert np.isfinite(np.delete(result[20], [8, 9])).all()  # rounded to infinity, nothing would be
    assert np.isinf(result[3, 11])  # infinity times a low plane of zeros is NaN


def overflowing(last):
    """Operands whose products l_a h_b overflow in sum, while those of the high planes alternate between +-2^127."""
    a, b = np.zeros((72, 1152), np.float32), np.full((1152, 72), 2.0**64, np.float32)
    a[:, :1024:2], a[:, 1:1024:2] = 1 + 2.0**-8, -(1 - 2.0**-9)
    a[:, 1024] = last
    return a * np.float32(2.0**63), b


@pytest.mark.parametrize(("shape", "splits"), [(SMALL, 1), (SMALL, 3), (SHARED_K, 1)], ids=str)
@pytest.mark.parametrize("last", [0, -2])
def test_overflow_of_small_products_is_seen(shape, splits, last):
    a, b = overflowing(last)
    asked = Bf16x3Product(shape, 72, 72, 1152, splits=splits)
    assert ratios(asked, a, b, Run(asked).of(a, b)).max() <= 1


def test_it_is_proposed_for_its_precision_only():
    for precision in PRECISIONS:
        lowerings = lower.lowerings(problem(4096, 4096, 4096, "float32", precision=precision))
        kinds = {x.form.input for x in lowerings}
        assert (BF16X3 in kinds) == (precision == "bf16x3")
        assert ("tf32" in kinds) == (precision in ("tf32", "bf16"))
    asked = problem(4096, 4096, 4096, "float32", precision="bf16x3")
    few = [x for x in lower.lowerings(asked) if x.form.input == BF16X3]
    _, first = choose.choices(tuple(few), H200, LIMIT * 8)[0]
    assert first == named(lower.lowerings(asked), first.name)
    assert "x" in first.name[first.name.index(str(first.shape.stages)) :]


def test_what_does_not_take_it():
    asked = problem(4096, 4096, 4096, "float32", precision="bf16x3")
    others = (
        replace(asked, packed_by="hopper"),
        problem(4096, 4096, 4096, "complex64", precision="bf16x3"),
        replace(asked, a=operand("bfloat16", 4096, 4096)),
    )
    for other in others:
        assert not any(x.form.input == BF16X3 for x in lower.lowerings(other))


def test_it_is_described():
    backend = HOME.backend()
    asked = problem(4096, 4096, 4096, "float32", precision="bf16x3")
    offer = backend.offer(asked)
    name = next(name for name in offer.names if re.search(r"\dxt?$", name))
    assert "float32 split into two bfloat16 planes, three products, planes of" in offer.remark(name)
    assert corrections.describe(asked, H200, [name]) == []


def test_features_are_those_of_planes(monkeypatch):
    """As of a 16-bit product with three times the K, whose operands need no copy; the pre-pass is not corrected."""

    class Doubling:
        def factors(self, rows, handled=()):
            assert all(row[10] == 0 for row in rows)  # bytes of copies
            assert all(row[2] == math.log(3 * 4096) for row in rows)
            return np.full(len(rows), 2.0)

    asked = problem(4096, 4096, 4096, "float32", precision="bf16x3")
    few = tuple(x for x in lower.lowerings(asked) if x.form.input == BF16X3)
    before = {x.choice.name: x for x in choose.ranked(few, H200, 2**30)}
    monkeypatch.setattr(corrections, "find", lambda kind, card: Doubling() if kind == "half" else None)
    for x in choose.corrected(few, H200, 2**30):
        seconds, copying = before[x.choice.name].seconds, model.copying(x.work, H200, CONSTANTS[BF16X3])
        assert copying > 1e-5
        assert x.seconds == pytest.approx(2 * seconds - copying)


def test_chains_are_short():
    asked = problem(1024, 1024, 40000, "float32", precision="bf16x3")
    few = tuple(x for x in lower.lowerings(asked) if x.form.input == BF16X3)
    found = choose.choices(few, H200, 2**30)
    assert found
    assert all(8192 * x.splits * x.shape.cluster_k >= 40000 for _, x in found)
    asked = problem(8192, 8192, 2**19, "float32", precision="bf16x3")
    assert choose.choices(tuple(x for x in lower.lowerings(asked) if x.form.input == BF16X3), H200, 2**28) == []


MUTATIONS = {
    "the small sums are not cleared": ("mainloop.cuh", ("        cleared.clear(acc);\n", "")),
    "infinities stay": ("bf16x3.cuh", ("if (fabsf(sum) < infinity()) continue;", "if (sum == sum) continue;")),
    "sums of the first product only": (
        "mainloop.cuh",
        ("accumulate_blocks(acc, 0, SMALL *", "accumulate_blocks(acc, 0, 1 *"),
        ("accumulate_blocks(acc, SMALL *", "accumulate_blocks(acc, 1 *"),
    ),
    "rounding to infinity": (
        "split_planes.cuh",
        ("if (finite && (plane[0] & 0x7f80) == 0x7f80) plane", "if (false) plane"),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_special_values_detect(monkeypatch, tmp_path, name):
    file, *changes = MUTATIONS[name]
    a, b = specials()
    asked = Bf16x3Product(SMALL, 72, 72, 300)
    result = Run(asked, mutated(monkeypatch, tmp_path, file, *changes)).of(a, b)
    assert ratios(asked, a, b, result).max() > 1 or not (np.isfinite(result[20, 0]) and np.isinf(result[3, 11]))


def test_overflow_detects(monkeypatch, tmp_path):
    restored = "if constexpr (kBf16x3) cleared.restore_nonfinite(acc);"
    home = mutated(monkeypatch, tmp_path, "mainloop.cuh", (restored, ""))
    a, b = overflowing(0)
    asked = Bf16x3Product(SMALL, 72, 72, 1152)
    assert ratios(asked, a, b, Run(asked, home).of(a, b)).max() > 1


PLANES = {
    "the first product has both high planes": ("return {1, 0, work", "return {0, 0, work"),
    "the second product has both high planes": ("return {0, 1, work", "return {0, 0, work"),
    "the last product has a low plane": ("return {0, 0, work", "return {1, 0, work"),
    "K begins again too late": (
        "return {0, 1, work.first_k_block + block}",
        "return {0, 1, work.first_k_block + block + 1}",
    ),
    "a plane of the next matrix": ("kStoredPlanes = 2", "kStoredPlanes = 1"),
}


@pytest.mark.parametrize("name", PLANES)
def test_exact_products_detect(monkeypatch, tmp_path, name):
    home = mutated(monkeypatch, tmp_path, "bf16x3.cuh", PLANES[name])
    assert detected(Run(Bf16x3Product(SMALL, 72, 72, 136, batch=(2,)), home), 1)
