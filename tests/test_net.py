"""Small networks: sums by hand, features that are out of range, and reading."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gemmhub.kit.net import Net
from gemmhub.testing.nets import check_net


def silu(x):
    return x / (1 + math.exp(-x))


def arrays(**changes):
    """Two features, two hidden layers of two and three weights that are not 0."""
    found = {
        "least": [-1, 0], "most": [1, 10], "mean": [0, 5], "scale": [1, 0.25], "weights0": [[1, 0], [0, 2]],
        "biases0": [0.5, 0], "weights1": [[0, 1], [0, 0]], "biases1": [0, -1], "weights2": [[1], [3]], "biases2": [7],
    }  # fmt: skip
    return {name: np.array(value, np.float16) for name, value in {**found, **changes}.items()}


def by_hand(first, second):
    hidden = [silu(first + 0.5), silu(2 * (second - 5) * 0.25)]
    hidden = [hidden[0] + silu(0.0), hidden[1] + silu(hidden[0] - 1)]
    return hidden[0] + 3 * hidden[1] + 7


@pytest.mark.parametrize("row", [(0, 5), (1, 0), (-1, 10), (0.25, 7.5)])
def test_by_hand(row):
    found = Net.of(arrays()).predict(np.array([row, row]))
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx([by_hand(*row)] * 2, rel=1e-5)


@pytest.mark.parametrize(("row", "held"), [
    ((-5, 5), (-1, 5)), ((1e30, 1e9), (1, 10)), ((math.inf, -math.inf), (1, 0)), ((0, -3), (0, 0)),
])  # fmt: skip
def test_features_are_held_in_range(row, held):
    net = Net.of(arrays())
    assert net.predict(np.array([row])) == net.predict(np.array([held]))


def test_constant_features_are_ignored():
    net = Net.of(arrays(least=[-1, 5], most=[1, 5], scale=[1, 0]))
    assert (
        net.predict(np.array([(0, 5)])) == net.predict(np.array([(0, 1e6)])) == pytest.approx(by_hand(0, 5), rel=1e-5)
    )


def test_large_sums_do_not_overflow():
    """filterwarnings makes an error of a warning."""
    net = Net.of(arrays(scale=[6e4, 6e4]))
    assert np.isfinite(net.predict(np.array([(-1, 0), (1, 10)]))).all()


def test_no_rows():
    assert Net.of(arrays()).predict(np.empty((0, 2))).shape == (0,)


def test_from_a_file(tmp_path):
    np.savez(tmp_path / "net.npz", **arrays())
    with np.load(tmp_path / "net.npz") as data:
        net = Net.of(data)
    row = np.array([(0.5, 3)])
    assert net.predict(row) == Net.of(arrays()).predict(row)
    assert len(net.layers) == 3


@pytest.mark.parametrize("changes", [
    {"min": np.zeros(3)}, {"min": np.array([2, 0])}, {"mean": np.array([0, math.nan])}, {"scale": np.ones(1)},
    {"layers": ((np.ones((3, 1)), np.zeros(1)),)}, {"layers": ((np.ones((2, 2)), np.zeros(2)),)},
    {"layers": ((np.ones((2, 1)), np.zeros(2)),)}, {"layers": ((np.ones((2, 1)), np.array([math.inf])),)},
    {"layers": ((np.ones((2, 4)), np.zeros(4)), (np.ones((3, 1)), np.zeros(1)))},
])  # fmt: skip
def test_what_is_no_net(changes):
    """The check that plugins make of their networks can fail."""
    net = Net.of(arrays())
    check_net(net, 2)
    with pytest.raises(AssertionError):
        check_net(replace(net, **changes), 2)
