"""The bits of rows on the simulator: one order for all storage orders and sizes, and rows of many products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_musa import from_numpy
from gemmhub_musa.testing import MusaMemory
from gemmhub_musa_kernels import choose, tiles
from gemmhub_musa_kernels.backend import MusaKernelsBackend
from simulator import problem

import gemmhub
from conftest import INSTALLED
from gemmhub.backend import answer
from gemmhub.capability import Ready, Refusal
from gemmhub.testing import Case, check

pytestmark = pytest.mark.skipif(INSTALLED, reason="needs the simulator")


@pytest.fixture
def backend(sim):
    made = MusaKernelsBackend()
    assert isinstance(made.probe(), Ready)
    return made


def pinned(*sizes, **changes):
    return problem(*sizes, reproducible="batch", **changes)


@pytest.mark.parametrize(("arch", "order"), [(22, "mma.32x32x16.arow.brow.k32"), (31, "mma.16x16x16.arow.brow.k32")])
def test_the_first_order_is_that_of_the_card(sim, arch, order):
    sim.set(ARCH=arch)
    backend = MusaKernelsBackend()
    backend.probe()
    rng = np.random.default_rng()
    for _ in range(60):
        m, n, k = (int(2 ** rng.uniform(0, 12)) for _ in range(3))
        orders = {name: str(rng.choice(["row", "col"])) for name in "abd"}
        asked = pinned(m, n, k, dtype=str(rng.choice(["float16", "bfloat16"])), **orders)
        offer = answer(backend, asked)
        assert offer.first.order == order, (asked, offer)
        copied = [copy.operand for copy in offer.first.copies]
        assert ("a" in copied) == (orders["a"] == "col" and m > 1 and k > 1)
        assert ("b" in copied) == (orders["b"] == "col" and n > 1 and k > 1)
    assert answer(backend, replace(asked, reproducible="scalar.chain")).names == ("scalar",)


def test_mp_21_has_the_scalar_kernel(sim):
    sim.set(ARCH=21)
    backend = MusaKernelsBackend()
    backend.probe()
    assert answer(backend, pinned(8, 8, 8, a="col", d="col")).first.order == "scalar.chain"


def test_stacks_in_other_storage_orders_are_refused(backend):
    refusal = answer(backend, pinned(8, 8, 8, a="col", batch=(3,)))
    assert isinstance(refusal, Refusal)
    assert "a is a stack of others" in refusal.reason
    assert "pass a contiguous copy" in refusal.remedy
    assert not isinstance(answer(backend, pinned(8, 8, 8, batch=(3,))), Refusal)


EPILOGUE = {"alpha": -0.7, "c": "row", "beta": -1.3, "bias": "m", "activation": "silu"}


@pytest.mark.parametrize(
    ("arch", "out", "epilogue"), [(22, "float16", {}), (22, "float16", EPILOGUE), (31, "float32", EPILOGUE)], ids=str
)
def test_the_kit(sim, arch, out, epilogue):
    sim.set(ARCH=arch)
    backend = MusaKernelsBackend()
    backend.probe()
    case = Case(33, 40, 72, "float16", "float16", out, reproducible="batch", seed=arch, **epilogue)
    assert check(backend, case, MusaMemory()).accepted


@pytest.fixture
def few_tiles(monkeypatch):
    """One tile beside the usual ones: to prove another takes half a minute."""
    monkeypatch.setattr(tiles, "OTHERS", {warp: others[2:3] for warp, others in tiles.OTHERS.items()})


def test_the_kit_on_every_candidate(backend, few_tiles):
    case = Case(70, 64, 96, "float16", "float16", "float16", b="col", reproducible="batch", every_candidate=True)
    assert check(backend, case, MusaMemory()).accepted


def test_products_of_any_number_of_rows(sim):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((130, 100)).astype(np.float16)
    b = from_numpy(rng.standard_normal((100, 48)).astype(np.float16))
    multiply = lambda rows: gemmhub.matmul(from_numpy(rows), b, reproducible="batch")  # noqa: E731
    whole = np.asarray(multiply(a).numpy())
    for m in (1, 5, 33, 130):
        rows = rng.integers(0, 130, m)
        assert np.array_equal(multiply(a[rows]).numpy(), whole[rows])
    assert np.array_equal(multiply(a[7]).numpy(), whole[7])


def test_one_name_for_two_orders_is_noticed(backend, few_tiles, monkeypatch):
    """The scalar kernel adds products one by one, a matrix kernel those of a fragment."""
    monkeypatch.setattr(choose, "order", lambda candidate, gemm, arch: "mma.any")
    case = Case(33, 40, 72, "float16", "float16", "float16", reproducible="batch", every_candidate=True)
    with pytest.raises(AssertionError, match="have other bits"):
        check(backend, case, MusaMemory())
