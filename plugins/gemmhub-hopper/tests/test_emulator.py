"""What the emulator knows of a card besides instructions: how TMA rounds, and how tensor cores align products."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_hopper.variants import tensor_map
from products import SMALL, Product
from runs import Run

pytestmark = pytest.mark.emulator

TF32 = {
    "contiguous along K": Product(SMALL, 72, 64, 64, b="col", dtype="tf32"),
    "copied": Product(SMALL, 72, 64, 64, dtype="tf32"),
    "registers": Product(SMALL, 72, 64, 64, a="col", b="col", dtype="tf32", registers=True),
}


def rounded(x):
    """To the nearest tf32 number, of two the even one."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(np.float32)


def truncated(x):
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def elements():
    """Of 24 significant bits, and those in the middle of two tf32 numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((72, 64), np.float32)
    x[:8] = np.ldexp(np.float32(1), rng.integers(-20, 20, (8, 64))) * (2 * rng.integers(1024, 2048, (8, 64)) + 1) / 2048
    return x


@pytest.mark.parametrize("name", TF32, ids=lambda name: name.replace(" ", "-"))
def test_tma_rounds_to_tf32(name, monkeypatch):
    x, identity = elements(), np.eye(64, dtype=np.float32)
    assert (rounded(x) != truncated(x)).any()
    assert (Run(TF32[name]).of(x, identity) == rounded(x)).all()
    monkeypatch.setitem(tensor_map.TYPES, "tf32", tensor_map.TYPES["float32"])
    assert (Run(TF32[name]).of(x, identity) == truncated(x)).all()


def test_a_subnormal_factor_counts_as_the_least_normal_number():
    """2^-24 times 1 is aligned as 2^-14: of the other product, what is below 2^-39 is cut off."""
    run = Run(Product(SMALL, 64, 64, 64, dtype="float16", out="float32"))
    a, b = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    a[:, 0], b[0] = 2.0**-24, 1
    a[:, 1], b[1] = 2.0**-14 * (1 + 2.0**-7), 2.0**-24
    assert (run.of(a, b) == np.float32(2.0**-24 + 2.0**-38)).all()
    a[:, 0], b[0] = 2.0**-12, 2.0**-12  # the same product of normal numbers
    assert (run.of(a, b) == np.float32(2.0**-24 + 2.0**-38 + 2.0**-45)).all()
