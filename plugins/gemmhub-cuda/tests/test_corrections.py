"""Corrections of estimates: features, where a correction serves, and what is shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, isfinite, log, log2

import numpy as np
import pytest
from fakes import Home
from gemmhub_cuda import candidate
from gemmhub_cuda.backend import MARGIN
from gemmhub_cuda.cost import corrections, model
from gemmhub_cuda.lower import lowered
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import operand, problem

from gemmhub.kit.corrections import NOTE, UNMEASURED, Origin
from gemmhub.testing.nets import shipped

NAMES = [
    "m", "n", "k", "batch", "a m-major", "b n-major", "a", "b", "output", "epilogue", "addend", "tile m", "tile n",
    "tile k", "threads", "stages", "splits", "waves", "filled", "edges", "modelled", "of peak", "of memory",
]  # fmt: skip
LIMIT = 64 * 2**20
SLOPE = 0.25
"""Logarithm of the factor for each doubling of a tile's rows from 64 on."""


@pytest.fixture
def backend():
    return Home().backend()


@pytest.fixture
def card(backend):
    return backend.machine.cards[0]


@pytest.fixture
def data(tmp_path, monkeypatch, card):
    """Corrections of every kind for that card: high tiles are slower than the model estimates."""
    monkeypatch.setattr(corrections, "DATA", tmp_path)
    folder = tmp_path / "card"
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps(vars(Origin(card.name, card.sms, card.bandwidth))))
    held = {name: np.full(len(NAMES), x) for name, x in (("least", -99), ("most", 99), ("mean", 0), ("scale", 1))}
    rows = NAMES.index("tile m")
    held["mean"][rows] = 6
    weights = np.zeros((len(NAMES), 1))
    weights[rows] = SLOPE
    for kind in corrections.KINDS:
        np.savez(folder / f"{kind}.npz", weights0=weights, biases0=[0.0], **held)
    return folder


def named(asked, card, name):
    (found,) = corrections.describe(asked, card, [name])
    (row,) = found.rows
    assert len(row) == len(NAMES)
    return dict(zip(NAMES, row))


def test_features_of_a_fixed_candidate(card):
    asked = problem(1000, 512, 4096, "bfloat16", b="col", activation="relu")
    found = named(asked, card, "mma64x64x64x4w4/3")
    assert [found[x] for x in ("m", "n", "k", "batch")] == [log(1000), log(512), log(4096), 0]
    assert [found[x] for x in ("a m-major", "b n-major", "a", "b", "output")] == [0, 0, 4, 4, 2]
    assert [found[x] for x in ("epilogue", "addend")] == [1, 0]
    assert [found[x] for x in ("tile m", "tile n", "tile k", "threads", "stages")] == [6, 6, 6, 7, 4]
    assert found["splits"] == pytest.approx(log(3))
    choice = candidate.named(lowered(asked, card.capability), "mma64x64x64x4w4/3")
    waves = 16 * 8 * 3 / (card.sms * choice.ctas_per_sm(card))
    assert (found["waves"], found["filled"]) == (pytest.approx(log(waves)), pytest.approx(waves / np.ceil(waves)))
    assert found["edges"] == pytest.approx(1000 / 1024)
    seconds = model.seconds(choice, card)
    assert found["modelled"] == pytest.approx(log(seconds))
    assert found["of peak"] == pytest.approx(log(seconds * card.sms * card.clock / (2 * 1000 * 512 * 4096)))
    assert found["of memory"] == pytest.approx(log(seconds * card.bandwidth / choice.moved_bytes))


def test_orders_alignment_and_epilogue(card):
    asked = problem(65, 67, 69, "float16", a="col", c=operand("float16", 65, 67))
    found = named(asked, card, "mma64x64x64x4w4")
    assert [found[x] for x in ("a m-major", "b n-major", "a", "b", "addend")] == [1, 1, 1, 1, 1]
    shifted = problem(64, 64, 64, "float16")
    shifted = replace(shifted, b=replace(shifted.b, alignment=8))
    assert named(shifted, card, "mma64x64x64x4w4")["b"] == 3
    assert named(problem(64, 64, 64, batch=(7,)), card, "64x64x16t128")["batch"] == log(7)


def test_unknown_names_are_left_out(card):
    asked = problem(512, 512, 512)
    names = ["nonsense", "64x64x16t128", "mma64x64x64x4w4", "64x64x16t128/600", "128x128x8t256"]
    (found,) = corrections.describe(asked, card, names)
    assert (found.kind, found.names) == ("float32", ["64x64x16t128", "128x128x8t256"])
    assert len(found.modelled) == len(found.rows) == 2


@pytest.mark.parametrize("asked", [problem(0, 64, 64), problem(64, 64, 0), problem(dtype="float64")])
def test_what_is_not_described(card, asked):
    assert corrections.describe(asked, card, ["64x64x16t128"]) == []


EXTENT = st.one_of(st.sampled_from([1, 2, 7, 8, 127, 128, 129]), st.integers(1, 2**14))
CARD = Home().backend().machine.cards[0]


@settings(deadline=None, max_examples=30)
@given(m=EXTENT, n=EXTENT, k=EXTENT, batch=st.sampled_from([(), (3,)]), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_any_product(m, n, k, batch, dtype):
    asked = problem(m, n, k, dtype, batch=batch)
    names = [choice.name for _, choice in model.choices(lowered(asked, CARD.capability), CARD, LIMIT)]
    found = corrections.describe(asked, CARD, names)
    assert {x.kind for x in found} <= set(corrections.KINDS)
    assert sorted(name for x in found for name in x.names) == sorted(names)
    assert all(isfinite(value) for x in found for row in x.rows for value in row)


def test_kernels_have_networks(card):
    """Aligned and misaligned rows, the kernel for batches, and int8, each in its own."""
    small, names = problem(48, 48, 48, "bfloat16", batch=(9,)), ["mma64x64x64x4w4", "batch64x64x32x2w2"]
    assert {x.kind: x.names for x in corrections.describe(small, card, names)} == {
        "aligned": names[:1], "batches": names[1:]
    }  # fmt: skip
    assert [x.kind for x in corrections.describe(problem(48, 47, 48, "bfloat16"), card, names[:1])] == ["half"]
    whole = problem(64, 64, 64, "int8", out="int32")
    every = [choice.name for _, choice in model.choices(lowered(whole, card.capability), card, LIMIT)]
    assert [(x.kind, x.names) for x in corrections.describe(whole, card, every)] == [("bytes", every)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_correction_decides_what_runs(backend, card, data, dtype):
    asked = problem(511, 511, 511, dtype)
    offer = backend.offer(asked)
    (described,) = corrections.describe(asked, card, list(offer.names))
    expected = [x * exp(SLOPE * (row[11] - 6)) for x, row in zip(described.modelled, described.rows)]
    assert expected == pytest.approx(sorted(expected))
    assert [x.seconds for x in offer.candidates] == pytest.approx([seconds * MARGIN for seconds in expected])
    assert NOTE not in offer.remark(described.names[0])
    alone = [choice.name for _, choice in model.choices(lowered(asked, card.capability), card, LIMIT)]
    assert described.names[0] != alone[0]


@pytest.mark.parametrize("changes", [{"card": "Other"}, {"sms": 114}, {"bandwidth": 1e12}])
def test_elsewhere_the_model_serves_with_a_margin(backend, card, data, changes):
    origin = {**json.loads((data / "card.json").read_text()), **changes}
    (data / "card.json").write_text(json.dumps(origin))
    asked = problem(512, 512, 512)
    seconds, choice = model.choices(lowered(asked, card.capability), card, LIMIT)[0]
    offer = backend.offer(asked)
    assert offer.first.name == choice.name
    assert offer.first.seconds == pytest.approx(seconds * MARGIN * UNMEASURED)
    assert offer.remark(choice.name).endswith(NOTE)


def test_without_an_inner_dimension(backend, data):
    assert backend.offer(problem(64, 64, 0)).first.seconds > 0


def test_what_is_shipped():
    assert list(shipped(corrections.DATA, dict.fromkeys(corrections.KINDS, len(NAMES))))


def test_a_candidate_without_a_network_has_a_margin(backend, card, data):
    """Beside corrected ones: here aligned products have none."""
    (data / "aligned.npz").unlink()
    for side, shown in ((512, True), (511, False)):
        offer = backend.offer(problem(side, side, side, "bfloat16"))
        assert (NOTE in offer.remark(offer.first.name)) == shown
    asked = problem(48, 48, 48, "bfloat16", batch=(9,))
    lowering = lowered(asked, card.capability)
    modelled = {choice.name: seconds for seconds, choice in model.choices(lowering, card, LIMIT)}
    for seconds, choice in corrections.ranked(lowering, card, LIMIT):
        rows = choice.shape.m
        factor = UNMEASURED if choice.name.startswith("mma") else exp(SLOPE * (log2(rows) - 6))
        assert seconds == pytest.approx(factor * modelled[choice.name])


def test_beyond_what_was_measured_the_model_serves(backend, card, data):
    """K beyond the range of the network: no learned correction, and a margin."""
    with np.load(data / "float32.npz") as arrays:
        narrow = {**arrays, "most": np.where(np.arange(len(NAMES)) == 2, log(4096), arrays["most"])}
    np.savez(data / "float32.npz", **narrow)
    for k in (4096, 4097):
        asked = problem(512, 512, k)
        for seconds, choice in corrections.ranked(lowered(asked, card.capability), card, LIMIT):
            factor = exp(SLOPE * (log2(choice.shape.m) - 6)) if k == 4096 else UNMEASURED
            assert seconds == pytest.approx(factor * model.seconds(choice, card), rel=1e-6)
