"""Symmetric products on a real Hopper GPU. Skips where there is none.

Results are equal to their transposes in all bits, and within the bound. Sizes are drawn; and every shape has exact
products whose operands break the promise, as those of tests/test_symmetric.py do.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace
from typing import Any

import pytest
from gemmhub_hopper.candidates.candidate import Choice, runnable
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape
from gemmhub_hopper.variants.shapes import shapes
from hopper_card import ON_CARD, torch
from test_symmetric import PRODUCTS, SLICES, product

import gemmhub

test_device = pytest.importorskip("test_device")
pytestmark = ON_CARD

SEED = int(os.environ.get("TEST_SEED", "0")) or None
"""Seed of sizes; they are drawn anew where the environment names none."""
OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {}, "float16": {}, "tf32": {"precision": "tf32"}, "float32": {}, "bf16x3": {"precision": "bf16x3"},
}  # fmt: skip
COUNT = 12
SCALARS = {"alpha": 0.5, "beta": -1.25}


def drawn(rng: random.Random) -> tuple[int, int]:
    """Return n and k, from 1 to 5000: of all magnitudes, half of them multiples of 64."""
    n, k = (int(2 ** rng.uniform(0, 12.28)) for _ in range(2))
    return (n, k) if rng.random() < 0.5 else (-(-n // 64) * 64, -(-k // 64) * 64)


def tensor(dtype: str, *shape: int) -> Any:
    kind = getattr(torch, dtype) if dtype in ("bfloat16", "float16") else torch.float32
    return torch.randn(shape, device="cuda").to(kind)


def symmetric(dtype: str, *shape: int) -> Any:
    x = tensor(dtype, *shape)
    return torch.tril(x) + torch.tril(x, -1).mT


def check(a: Any, b: Any, dtype: str, c: Any = None) -> None:
    """Run the product, and compare all bits with those of the transpose and the values with the bound."""
    options = {**OPTIONS[dtype], **({} if c is None else {"c": c, **SCALARS})}
    out = torch.full((*a.shape[:-1], a.shape[-2]), float("nan"), device="cuda", dtype=a.dtype)
    gemmhub.matmul(a, b, out=out, symmetric=True, backend="hopper", **options)
    assert torch.equal(out, out.mT), (a.shape, dtype)
    verdict = gemmhub.spot_check(a, b, out, **options)
    assert verdict, (a.shape, dtype, verdict)


@pytest.mark.parametrize("dtype", OPTIONS)
def test_random_products(dtype: str) -> None:
    rng = random.Random(SEED)
    for _ in range(COUNT):
        n, k = drawn(rng)
        a, square = tensor(dtype, n, k), symmetric(dtype, n, n)
        check(a, a.t(), dtype)
        check(a, a.t().contiguous(), dtype, square)
        check(a.t(), a, dtype)
        check(square, square, dtype, square)


@pytest.mark.parametrize("dtype", OPTIONS)
def test_stacks(dtype: str) -> None:
    rng = random.Random(SEED)
    for _ in range(3):
        count, n, k = rng.randint(2, 5), rng.randint(1, 700), rng.randint(1, 700)
        a = tensor(dtype, count, n, k)
        check(a, a.mT, dtype, symmetric(dtype, count, n, n))


def test_infinities_and_nans() -> None:
    for dtype in OPTIONS:
        a = tensor(dtype, 500, 300)
        a[3, 7], a[400, 9] = float("nan"), float("inf")
        out = gemmhub.matmul(a, a.t(), symmetric=True, backend="hopper", **OPTIONS[dtype])
        assert torch.equal(torch.isnan(out), torch.isnan(out).t())
        assert torch.isnan(out[3]).all()
        others = torch.tensor([i for i in range(500) if i not in (3, 400)], device="cuda")
        assert torch.isfinite(out[others][:, others]).all()


def test_c_is_the_result() -> None:
    for dtype in OPTIONS:
        a, c = tensor(dtype, 777, 200), symmetric(dtype, 777, 777)
        options = {**SCALARS, "c": c, "symmetric": True, "backend": "hopper", **OPTIONS[dtype]}
        apart = gemmhub.matmul(a, a.t(), **options)
        gemmhub.matmul(a, a.t(), out=c, **options)
        assert torch.equal(apart, c)


@pytest.mark.parametrize("asked", [*PRODUCTS, *SLICES], ids=str)
def test_exact_products(backend, asked) -> None:
    result, exact = test_device.run(backend, asked)
    assert not asked.wrong(result, exact).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
@pytest.mark.parametrize("n", [1032, 1001])
def test_every_shape(backend, dtype, n) -> None:
    """Several work tiles of a CTA, split-K and not, with c and without; results by TMA and by warps."""
    plain = product(Shape(64, 64, 3, consumers=1), n, 584, b="col", dtype=dtype)
    for shape in shapes(plain.choice.lowering.form):
        for splits, beta in itertools.product((1, 3), (0, 2)):
            some = replace(plain, shape=shape, splits=splits, beta=beta)
            if isinstance(runnable(Choice(lower.lowerings(some.problem)[0], shape, splits), some.limit), str):
                continue
            result, exact = test_device.run(backend, some)
            assert not some.wrong(result, exact).any(), some
