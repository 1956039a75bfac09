"""The proof of algorithms on the card: libraries that compute products with scales wrong are found out, and refused."""

from __future__ import annotations

import numpy as np
import pytest
from fake_lt import A_MODE, A_SCALE, AMAX, ANY, B_MODE, B_SCALE, D_SCALE, PARTS, PERSISTENT, TENSOR
from fakes import FakeMemory
from gemmhub_cublas import algorithm_proof as proof
from gemmhub_cublas.lower import lowered
from scaled import E4M3, GRANULARITIES, ScaledProduct

from gemmhub.backend import Offer
from gemmhub.capability import Refusal
from gemmhub.errors import AllocationError

LIMIT = 64 * 2**20
SCALED = [name for name in GRANULARITIES if name != "none"]
ALL = {TENSOR, PERSISTENT, ANY, *PARTS}


def ids(offer):
    return {int(name.split(".")[0]) for name in offer.names}


def asked(home, granularity="tensor", *, d="row", m=32, n=64, k=256, **options):
    return ScaledProduct(FakeMemory(home), m, n, k, granularity, d=d, **options).problem


@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize(("attribute", "granularity"), [
    (A_SCALE, "tensor"), (B_SCALE, "tensor"), (A_SCALE, "row"), (B_SCALE, "row"), (A_MODE, "row"), (B_MODE, "row"),
    (A_SCALE, "1x128 by 128x128"), (B_SCALE, "1x128 by 128x128"), (A_MODE, "1x128 by 128x128"),
    (B_MODE, "1x128 by 128x128"), (A_MODE, "1x128 by 128x1"), (B_MODE, "1x128 by 128x1"),
])  # fmt: skip
def test_a_library_that_ignores_scales_is_refused(home, granularity, attribute, d):
    """Or that takes those of a mode for one factor. Products without scales stay."""
    home.lt.ignored = {attribute}
    backend = home.backend()
    refused = backend.offer(asked(home, granularity, d=d))
    assert isinstance(refused, Refusal)
    assert "failed a proof" in refused.reason
    assert isinstance(backend.offer(asked(home, "none", d=d)), Offer)


@pytest.mark.parametrize(("attribute", "options"), [
    (D_SCALE, {"scale_out": True}), (AMAX, {"amax": True}), (AMAX, {"scale_out": True, "amax": True}),
])  # fmt: skip
def test_a_library_that_ignores_what_belongs_to_the_result(home, attribute, options):
    home.lt.ignored = {attribute}
    assert "failed a proof" in home.backend().offer(asked(home, out=E4M3, **options)).reason


@pytest.mark.parametrize("granularity", SCALED)
def test_algorithms_that_leave_out_the_remainder_are_excluded(home, granularity):
    """Also for a k without a remainder, as the kind of the product is proved; named, they are refused."""
    backend, plain = home.backend(), asked(home, granularity)
    assert TENSOR in ids(backend.offer(plain))
    home.lt.partial = {TENSOR, ANY}
    backend = home.backend()
    left = ids(backend.offer(plain))
    assert left
    assert not left & {TENSOR, ANY}
    refused = backend.prepare(plain, "66.20.1.0.0.0.35.0.3", LIMIT)
    assert "failed a proof" in refused.reason
    home.lt.partial = ALL
    assert "failed a proof" in home.backend().offer(plain).reason
    unscaled = home.backend().offer(asked(home, "none"))
    assert TENSOR in ids(unscaled)


def test_one_proof_for_all_sizes(home):
    backend = home.backend()
    backend.offer(asked(home, "row"))
    home.lt.products.clear()
    for m, n, k in ((64, 64, 256), (8, 128, 512)):
        backend.offer(asked(home, "row", m=m, n=n, k=k))
    assert home.lt.products == []
    backend.offer(asked(home, "row", out="float32"))
    assert len(home.lt.products) > 3, "another type of the result is another kind"


@pytest.mark.parametrize("granularity", SCALED)
def test_other_forms_are_proved_too(home, granularity):
    """Here that for alpha 0, beside a bias."""
    made = ScaledProduct(FakeMemory(home), 32, 64, 256, granularity, alpha=0.5, bias="bfloat16")
    backend = home.backend()
    assert isinstance(backend.offer(made.problem), Offer)
    forms = lowered(made.problem).forms
    assert [form.scaling is not None for form in forms] == [True, False]
    made.run(backend.prepare(made.problem, backend.offer(made.problem).first.name, LIMIT).run)
    assert made.worst() <= 1


def test_a_proof_during_a_capture(home):
    """It is done on a stream of its own, without effect on the capture, and leaves no memory behind."""
    home.cuda.captures[0x77] = 3
    before = len(home.cuda.allocated)
    assert isinstance(home.backend().offer(asked(home, "row")), Offer)
    assert home.cuda.invalidated == set()
    assert len(home.cuda.allocated) == before


def test_without_memory_it_is_tried_again(home):
    backend = home.backend()
    home.cuda.memory, memory = 1000, home.cuda.memory
    with pytest.raises(AllocationError):
        backend.offer(asked(home, "row"))
    home.cuda.memory = memory
    assert isinstance(backend.offer(asked(home, "row")), Offer)


@pytest.mark.parametrize("granularity", SCALED)
@pytest.mark.parametrize("splits", [1, 4, 32])
def test_every_element_shows_what_is_left_out(home, granularity, splits):
    """Each column of A, each factor and each block of k changes some element of the expected result."""
    form = proof.small(lowered(asked(home, granularity, out="float32")).main, splits)
    made = proof.expected(form)
    a = made.memory["a"].astype(np.float64)
    assert (a[:64] != 0).any(0).all()
    assert (a[64:128] != 0).any(0).all()
    assert form.k % 128 == 16
    assert form.k // 128 > splits
    for name in ("scale_a", "scale_b"):
        factors = made.memory.get(name, np.full(1, 2.0))
        there = factors[~np.isnan(factors)]
        assert (there != 1).any()
        assert there.size == 1 or len(set(there)) == 2
    assert np.abs(made.result.astype(np.float64)).max() < 2**24
