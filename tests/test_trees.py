"""Regression trees: against small ones by hand, a walk of a node at a time, and how they are read from arrays."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from gemmhub.testing.trees import check_trees, walked
from gemmhub.trees import Trees


def grown(depth, base=0.0):
    """Two trees. feature 1 <= 2 ? (feature 0 <= -1 ? 1 : 10) : 100; and a single leaf of 1000."""
    return Trees(
        roots=np.array([0, 5]),
        feature=np.array([1, 0, 0, 0, 0, 0]),
        threshold=np.array([2.0, -1.0, inf, inf, inf, inf]),
        left=np.array([1, 3, 2, 3, 4, 5]),
        right=np.array([2, 4, 2, 3, 4, 5]),
        value=np.array([0.0, 0.0, 100.0, 1.0, 10.0, 1000.0]),
        base=base,
        depth=depth,
    )


@pytest.mark.parametrize("depth", [2, 3, 9])
@pytest.mark.parametrize(("row", "expected"), [
    ((-1, 2), 1), ((-5, -5), 1), ((-0.5, 2), 10), ((-1, 2.001), 100), ((9, 9), 100), ((-inf, 0), 1), ((inf, 0), 10),
])  # fmt: skip
def test_trees_by_hand(row, expected, depth):
    """A feature that equals the threshold goes left."""
    trees = grown(depth, base=0.5)
    assert trees.predict(np.array([row, (9, 9)], float)).tolist() == [expected + 1000.5, 1100.5]
    assert walked(trees, row) == expected + 1000.5
    check_trees(trees, 2)


@pytest.mark.parametrize("changes", [
    {"left": np.array([1, 0, 2, 3, 4, 5])}, {"right": np.array([2, 4, 2, 3, 4, 4])}, {"roots": np.array([0, 0])},
    {"feature": np.array([1, 2, 0, 0, 0, 0])}, {"threshold": np.array([2.0, inf, inf, inf, inf, inf])},
    {"value": np.array([0.5, 0.0, 100.0, 1.0, 10.0, 1000.0])}, {"base": inf}, {"depth": 0},
])  # fmt: skip
def test_what_are_no_trees(changes):
    """The check that plugins make of what they ship can fail."""
    with pytest.raises(AssertionError):
        check_trees(replace(grown(2), **changes), 2)


def test_no_rows():
    assert grown(2).predict(np.empty((0, 2))).shape == (0,)


ARRAYS = ("roots", "feature", "threshold", "left", "right", "value")


def arrays_of(trees, prefix=""):
    return {prefix + name: np.asarray(getattr(trees, name)) for name in (*ARRAYS, "base", "depth")}


def same(one, other):
    return (one.base, one.depth) == (other.base, other.depth) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS
    )


def test_read_from_arrays():
    """Other names beside them do not matter; numbers are Python's own."""
    found = Trees.of({**arrays_of(grown(2, base=0.5)), "tiles": np.zeros(3), "sms": np.array(132)})
    assert same(found, grown(2, base=0.5))
    assert type(found.base) is float
    assert type(found.depth) is int


def test_read_from_a_file_of_several(tmp_path):
    first, other = grown(2, base=0.5), grown(3, base=-1.0)
    np.savez(tmp_path / "trees.npz", **arrays_of(first, "first."), **arrays_of(other, "other."))
    with np.load(tmp_path / "trees.npz") as data:
        assert same(Trees.of(data, "first."), first)
        assert same(Trees.of(data, "other."), other)
        with pytest.raises(KeyError):
            Trees.of(data)
