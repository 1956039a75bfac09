"""Cards of every architecture, by descriptions of them: what is offered fits, and estimates follow their figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_cuda import FakeCuda
from fakes import Home
from gemmhub_cuda.candidate import SHAPES, Choice, named
from gemmhub_cuda.cost import model, traffic
from gemmhub_cuda.lower import Lowering, lowered
from gemmhub_cuda.variants import limits, mma, sources
from problems import problem

from benchmarks.lib.nvidia_cards import CARDS, EVERY, H100
from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal

LIMIT = 64 * 2**20
SIZES = ((1, 1, 1), (16, 4096, 4096), (33, 65, 129), (257, 300, 5000), (2048, 2048, 2048), (8192, 8192, 8192))
RESULTS = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16", "int8": "int32"}
every_card = pytest.mark.parametrize("card", EVERY.values(), ids=EVERY)


def attributes(card):
    """Return what the driver of such a card reports, by CUdevice_attribute."""
    return {
        16: card.sms, 75: card.capability[0], 76: card.capability[1], 13: int(card.clock / 1e3),
        36: int(card.bandwidth / 2e3 / 512 * 8), 37: 512, 97: card.shared_per_block, 81: card.shared_per_sm,
        39: card.threads_per_sm, 106: card.ctas_per_sm, 111: card.shared_reserved, 38: card.l2_bytes,
    }  # fmt: skip


@every_card
def test_the_driver_reports_the_card(card, monkeypatch):
    monkeypatch.setattr(FakeCuda, "card", attributes(card))
    found = Home().backend().machine.cards[0]
    assert replace(found, name=card.name, bandwidth=card.bandwidth) == card
    assert found.bandwidth == pytest.approx(card.bandwidth, rel=1e-4)


@every_card
@pytest.mark.parametrize("dtype", RESULTS)
def test_every_candidate_fits(card, dtype):
    """Shared memory, threads and registers of the CTAs that an SM is said to run are there."""
    for size in SIZES:
        for orders in ({}, {"a": "col", "b": "col"}):
            lowering = lowered(problem(*size, dtype, RESULTS[dtype], **orders), card.capability)
            if card.capability < (8, 0) and dtype != "float32":
                assert isinstance(lowering, Refusal)
                continue
            assert isinstance(lowering, Lowering)
            offered = model.choices(lowering, card, LIMIT)
            assert offered
            unsplit = model.choices(lowering, card, 0)
            assert unsplit
            for _, choice in offered + unsplit:
                check_room(choice, card)


def check_room(choice, card):
    """Check that the CTAs of a choice fit an SM of ``card``, and that none more would be claimed by the compiler."""
    variant, ctas = choice.variant, choice.ctas_per_sm(card)
    assert ctas >= 1
    assert variant.shared_bytes <= card.shared_per_block
    assert ctas * (variant.shared_bytes + card.shared_reserved) <= card.shared_per_sm
    assert ctas * variant.threads <= card.threads_per_sm
    assert ctas <= card.ctas_per_sm
    assert "BLOCKS" not in variant.macros
    source = sources.source(variant, card.capability)
    assert f"-DBLOCKS={ctas}" in source.options, source.options


@every_card
def test_a_shape_that_does_not_fit_is_refused(card):
    """By name, too, with the bytes that it needs and those that there are."""
    lowering = lowered(problem(512, 512, 512, "bfloat16"), (8, 0))
    for shape in SHAPES.values():
        variant = Choice(lowering, shape, 1).variant
        fits = variant.ctas_per_sm(card.sm) > 0
        assert fits == (variant.shared_bytes <= card.shared_per_block)
        reason = variant.refusal(card.shared_per_block)
        assert fits or reason
        if not fits and shape in mma.SHAPES:
            assert f"{shape.shared_bytes} bytes of shared memory: a CTA has at most" in reason


@pytest.mark.parametrize("card", [EVERY["A100"], EVERY["RTX 3090"], EVERY["RTX 4090"], EVERY["RTX 5090"]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_launches_ask_for_their_shared_memory(card, dtype, monkeypatch):
    """The function may have the shared memory that its launch asks for, which a CTA of the card may have."""
    monkeypatch.setattr(FakeCuda, "card", attributes(card))
    home = Home()
    backend, asked = home.backend(), problem(4096, 4096, 4096, dtype)
    offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    for name in offer.names:
        assert isinstance(backend.prepare(asked, name, LIMIT), Kernel)
    choices = [named(lowered(asked, card.capability), name) for name in offer.names]
    assert {choice.variant.shared_bytes for choice in choices} == set(home.cuda.allowed)
    assert max(home.cuda.allowed) <= card.shared_per_block


@pytest.mark.parametrize("name", CARDS)
def test_peak_rates_are_those_published(name):
    """Within 2 %: by multiply-adds per cycle and SM, SMs and clock."""
    card, published = CARDS[name]
    peak = {field: 2e-12 * rate * card.sms * card.clock for field, rate in card.rates._asdict().items()}
    for field, value in published._asdict().items():
        assert peak[field] == (pytest.approx(value, rel=0.02) if value else 0)


@pytest.mark.parametrize("name", [name for name in CARDS if name != "T4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_estimates_of_large_products_approach_the_peak(name, dtype):
    """Below it, and above half of it."""
    card, published = CARDS[name]
    lowering = lowered(problem(8192, 8192, 8192, dtype), card.capability)
    rate = 2e-12 * 8192**3 / model.choices(lowering, card, LIMIT)[0][0]
    peak = published.float32 if dtype == "float32" else published.half
    assert 0.5 * peak < rate < peak


@every_card
def test_estimates_of_few_rows_approach_the_bandwidth(card):
    lowering = lowered(problem(4, 8192, 8192), card.capability)
    seconds, least = model.choices(lowering, card, LIMIT)[0][0], 4 * 8192 * 8192 / card.bandwidth
    assert least < seconds < 2.5 * least


def test_a_small_l2_is_read_again():
    """Products whose operands L2 holds move each once; others more, and the more the smaller it is."""
    card = EVERY["L4"]

    def moved(size, l2):
        lowering = lowered(problem(*size, "bfloat16"), card.capability)
        choice = Choice(lowering, SHAPES["mma128x128x32x4w8"], 1)
        return traffic.nbytes(choice, replace(card, l2_bytes=l2)) / choice.moved_bytes

    assert moved((1024, 1024, 1024), 48 * 2**20) == 1
    assert moved((8192, 8192, 8192), 0) == 1
    ratios = [moved((8192, 8192, 8192), l2 * 2**20) for l2 in (512, 48, 6)]
    assert ratios[0] == 1 < ratios[1] < ratios[2] < 20


def test_geforce_cards_add_to_float32_at_half_the_rate():
    half = {name: facts.rates.half for name, facts in EVERY.items()}
    assert half["RTX 3090"] * 2 == half["A10"]
    assert half["RTX 4090"] * 2 == half["L40S"] == half["L4"]
    assert EVERY["RTX 4090"].rates.int8 == EVERY["L40S"].rates.int8
    assert H100.rates.half == 1270


def test_an_unknown_architecture_is_compiled_for_what_all_have():
    sm = limits.of((99, 0))
    assert sm.shared_per_block == min(x.shared_per_block for x in limits.SMS.values())
    assert sm.threads == min(x.threads for x in limits.SMS.values())
