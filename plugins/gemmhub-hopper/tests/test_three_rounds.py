"""Float32 by two bfloat16 planes: sums, special values, which problems, errors within the bound, and mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import mutated
from gemmhub_hopper import choose, lower
from gemmhub_hopper.candidate import named
from gemmhub_hopper.config import BF16X3, Shape
from problems import H200, LIMIT, problem
from products import BF16X3_PRODUCTS, SMALL, TURNS, ThreeRounds
from runs import HOME, Run, detected

from gemmhub.accuracy import problem_model, reference

EVERY = ("bf16x3", "ieee", "tf32", "bf16")


@pytest.mark.parametrize("product", BF16X3_PRODUCTS, ids=str)
def test_exact_products(product):
    run = Run(product)
    assert product.choice.lowering.form.input == BF16X3
    for _ in range(2):
        run.check()


def ratios(product, a, b, home=HOME):
    """Errors over the bound of the precision."""
    run = Run(product, home)
    run.give(a, b)
    return reference(a, b, model=problem_model(product.problem)).ratio(run())


@pytest.mark.parametrize("width", [0, 40, 250])
@pytest.mark.parametrize("splits", [1, 3])
def test_errors(width, splits):
    rng = np.random.default_rng(width)
    product = ThreeRounds(SMALL, 72, 72, 300, splits=splits)

    def drawn(*shape):
        exponents = rng.integers(-width // 2, width // 2 + 1, shape)
        return np.ldexp(rng.standard_normal(shape), exponents).astype(np.float32)

    found = ratios(product, drawn(72, 300), drawn(300, 72))
    assert found.max() <= 1
    if width == 0:
        assert found.max() > 2**-10  # nothing else is computed


@pytest.mark.parametrize("shape", [SMALL, TURNS, Shape(64, 64, 3, consumers=1, cluster_k=4)], ids=str)
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_special_values(shape, splits):
    if splits > 1 and shape.cluster_k > 1:
        pytest.skip("CTAs that share K do not split it further")
    rng = np.random.default_rng(splits)
    a, b = rng.standard_normal((72, 300)).astype(np.float32), rng.standard_normal((300, 72)).astype(np.float32)
    a[3, 5], a[4, 299], a[6, [7, 100]], a[9, 0] = np.inf, -np.inf, [np.inf, -np.inf], np.nan
    a[11, 17] = np.frombuffer(np.uint32(0x7F800001).tobytes(), np.float32)[0]  # a NaN in its last bit
    b[17, 8], b[200, 9], b[5, 10], a[12, 200] = np.inf, np.nan, 0, 0
    b[:, 11] = b[:, 11].astype(np.float16)  # planes of zeros
    a[20, 30], b[30, 20] = 3.4e38, 1e-30  # rounding to bfloat16 would overflow
    found = ratios(ThreeRounds(shape, 72, 72, 300, splits=splits), a, b)
    assert found.max() <= 1, np.argwhere(found > 1)


def test_it_is_proposed_for_its_precision_only():
    for precision in EVERY:
        lowerings = lower.lowerings(problem(4096, 4096, 4096, "float32", precision=precision))
        kinds = {x.form.input for x in lowerings}
        assert (BF16X3 in kinds) == (precision == "bf16x3")
        assert ("tf32" in kinds) == (precision in ("tf32", "bf16"))
    asked = problem(4096, 4096, 4096, "float32", precision="bf16x3")
    few = [x for x in lower.lowerings(asked) if x.form.input == BF16X3]
    _, first = choose.choices(tuple(few), H200, LIMIT * 8)[0]
    assert first == named(lower.lowerings(asked), first.name)
    assert "x" in first.name[first.name.index(str(first.shape.stages)) :]


def test_chains_are_short():
    asked = problem(1024, 1024, 40000, "float32", precision="bf16x3")
    few = tuple(x for x in lower.lowerings(asked) if x.form.input == BF16X3)
    found = choose.choices(few, H200, 2**30)
    assert found
    assert all(8192 * x.splits * x.shape.cluster_k >= 40000 for _, x in found)
    asked = problem(8192, 8192, 2**19, "float32", precision="bf16x3")
    assert choose.choices(tuple(x for x in lower.lowerings(asked) if x.form.input == BF16X3), H200, 2**28) == []


MUTATIONS = {
    "the small products are not cleared": ("mainloop.cuh", ("            clear_not_finite(acc);\n", "")),
    "infinities stay": ("three_rounds.cuh", ("!(fabsf(acc[i][j]) < infinity())", "acc[i][j] != acc[i][j]")),
    "they are cleared in the last round": ("three_rounds.cuh", ("left = 2 * (", "left = 3 * (")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_special_values_detect(monkeypatch, tmp_path, name):
    file, *changes = MUTATIONS[name]
    home = mutated(monkeypatch, tmp_path, file, *changes)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((72, 300)).astype(np.float32), rng.standard_normal((300, 72)).astype(np.float32)
    a[3, 5], b[5, 10], a[6, 200] = np.inf, 2, np.nan
    b[5, 9] = 1 + 2.0**-9
    assert ratios(ThreeRounds(SMALL, 72, 72, 300), a, b, home).max() > 1


PLANES = {
    "the first round has both high planes": ("return {1, 0, block};", "return {0, 0, block};"),
    "the second round has both high planes": ("return {0, 1, block - blocks};", "return {0, 0, block - blocks};"),
    "the last round has a low plane": ("return {0, 0, block - 2 * blocks};", "return {1, 0, block - 2 * blocks};"),
    "K begins again too late": ("return {0, 1, block - blocks};", "return {0, 1, block - blocks + 1};"),
    "a plane of the next matrix": ("kStoredPlanes = 2", "kStoredPlanes = 1"),
}


@pytest.mark.parametrize("name", PLANES)
def test_exact_products_detect(monkeypatch, tmp_path, name):
    home = mutated(monkeypatch, tmp_path, "three_rounds.cuh", PLANES[name])
    assert detected(Run(ThreeRounds(SMALL, 72, 72, 136, batch=(2,)), home), 1)
