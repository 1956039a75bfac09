"""Learned corrections: they serve where they were fitted, on that card and with that library, and nowhere else."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from gemmhub.kit import corrections
from gemmhub.kit.corrections import LIMIT, UNMEASURED, Origin
from gemmhub.kit.net import Net

CARD = Origin("Card 1", 132, 3.35e12, "13.1", "13.0", "python fit.py")


@pytest.fixture
def data(tmp_path):
    """A plugin's data with one card, whose correction for "half" is 0.2 times the only feature."""
    folder = tmp_path / "card1"
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps(vars(CARD)))
    single = {"least": [-10.0], "most": [10.0], "mean": [0.0], "scale": [1.0]}
    np.savez(folder / "half.npz", weights0=[[0.2]], biases0=[0.0], **single)
    return tmp_path


def test_a_correction_serves_where_it_was_measured(data):
    found = corrections.find(data, "half", "Card 1", 132, 3.35e12, "13.1.0.3")
    assert found is not None
    assert found.origin == CARD
    assert found.factors([[1.0], [-1.0]]) == pytest.approx([math.exp(0.2), math.exp(-0.2)])
    assert found.factors([[10.0]]) == pytest.approx([math.exp(LIMIT)])
    assert found.factors([]).shape == (0,)


def net(slope=0.2, least=-10.0, most=10.0):
    arrays = {"least": [least], "most": [most], "mean": [0.0], "scale": [1.0], "weights0": [[slope]], "biases0": [0.0]}
    return Net.of(arrays)


@pytest.mark.parametrize("beyond", [10.001, -10.001, math.inf, math.nan])
def test_beyond_its_range_a_correction_is_silent(beyond):
    """The model alone serves, with a margin."""
    assert corrections.factors(net(), [[beyond]], [0]) == pytest.approx([UNMEASURED])
    assert corrections.factors(net(), [[beyond], [beyond]], [0, 0], alone=1.0) == pytest.approx([1.0, 1.0])


def test_candidates_beside_covered_ones_of_their_product():
    """They have no smaller factor than the median of the covered ones of their product; others do not matter."""
    rows, products = [[2.0], [11.0], [3.0], [-12.0], [-2.0], [11.0], [12.0], [-9.0]], [0, 0, 0, 0, 1, 1, 2, 0]
    found = corrections.factors(net(), rows, products)
    assert found == pytest.approx([
        math.exp(0.4), math.exp(0.4), math.exp(0.6), math.exp(0.4), math.exp(-0.4), UNMEASURED, UNMEASURED,
        math.exp(-LIMIT),
    ])  # fmt: skip


def test_features_that_the_caller_handles():
    """Where the network has one value of them, others are covered."""
    assert corrections.factors(net(least=1.0, most=1.0), [[2.0]], [0], handled=(0,)) == pytest.approx([math.exp(0.2)])
    assert corrections.factors(net(least=1.0, most=1.5), [[2.0]], [0], handled=(0,)) == pytest.approx([UNMEASURED])
    assert corrections.factors(net(least=1.0, most=1.0), [[2.0]], [0]) == pytest.approx([UNMEASURED])


@pytest.mark.parametrize("other", [
    ("Card 2", 132, 3.35e12, "13.1"), ("Card 1", 114, 3.35e12, "13.1"), ("Card 1", 132, 4.8e12, "13.1"),
    ("Card 1", 132, 3.35e12, "13.2"), ("Card 1", 132, 3.35e12, ""),
], ids=str)  # fmt: skip
def test_it_serves_nowhere_else(data, other):
    assert corrections.find(data, "half", *other) is None


def test_other_kinds_and_folders_have_none(data, tmp_path):
    assert corrections.find(data, "tf32", "Card 1", 132, 3.35e12, "13.1") is None
    assert corrections.find(tmp_path / "missing", "half", "Card 1", 132, 3.35e12, "13.1") is None


def test_small_differences_of_the_clock_are_the_same_card(data):
    assert corrections.find(data, "half", "Card 1", 132, 3.40e12, "13.1") is not None
