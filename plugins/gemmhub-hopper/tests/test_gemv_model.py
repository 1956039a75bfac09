"""The model of a few vectors by a matrix, and the trees that correct it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gemmhub_hopper import forms, gemv, gemv_model
from gemmhub_hopper.cost_model import Card
from problems import H200, problem

from gemmhub.testing.trees import check_trees, walked


def choices(*given, **changes):
    return gemv.choices(forms.lowered(problem(*given, **changes)))


def features(choice):
    estimate = gemv_model.seconds(choice, H200, gemv_model.fitted().constants)
    return gemv_model.features(choice, estimate), estimate


def test_the_trees():
    check_trees(gemv_model.fitted().trees, len(features(choices(1, 64, 64)[0])[0]))


def test_features_of_every_choice_are_finite():
    for given in ({}, {"b": "col"}, {"dtype": "float32"}, {"batch": (5,)}):
        for m, n, k in ((1, 1, 1), (8, 8192, 512), (1, 8, 2**20), (5, 4096, 0)):
            for choice in choices(m, n, k, **given):
                assert np.isfinite(features(choice)[0]).all()


def test_estimates_are_corrected_as_the_trees_say():
    found = gemv_model.timed(choices(1, 4096, 4096, b="col"), H200)
    assert len(found) == 9
    assert [t for t, _ in found] == sorted(t for t, _ in found)
    for seconds, choice in found:
        row, estimate = features(choice)
        correction = np.clip(walked(gemv_model.fitted().trees, row), -gemv_model.MOST, gemv_model.MOST)
        assert seconds == pytest.approx(estimate * math.exp(correction))


def test_other_cards_have_the_model_alone():
    card = Card(sms=114, clock=1.98e9, bandwidth=2e12)
    for seconds, choice in gemv_model.timed(choices(1, 4096, 4096), card):
        assert seconds == gemv_model.seconds(choice, card, gemv_model.fitted().constants)
    assert gemv_model.timed([], card) == []


@pytest.mark.parametrize("m", [1, 8])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_large_matrices_take_what_memory_allows(m, b, dtype):
    """Of one vector; several may be slower, but not faster."""
    ((seconds, choice), *_) = gemv_model.timed(choices(m, 16384, 8192, dtype, b=b), H200)
    assert 0.95 < seconds / (choice.moved / H200.bandwidth) < (1.25 if m == 1 else 4)
