"""The cost model: the shipped trees, and what the features of known products are."""

from __future__ import annotations

import json
from importlib.resources import files
from math import ceil, inf, isfinite, log

import numpy as np
import pytest
from gemmhub_cublas.cost_model import CostModel, Size, Tables, features, load
from gemmhub_cublas.heuristics import text
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmhub.testing.trees import check_trees, walked
from gemmhub.trees import Trees

DATA = files("gemmhub_cublas") / "data"
SHIPPED = load(DATA / "hopper132.npz")
TABLES = Tables(
    tiles={18: (128, 64), 20: (128, 128), 23: (128, 256), 15: (64, 64)},
    clusters={2: (1, 1), 3: (2, 1), 5: (1, 2), 4: (4, 1)},
    sms=132,
)
SQUARE, NARROW = "66.20.1.0.0.1.35.0.3", "66.18.1.0.1.3.35.0.5"
PAIRS = (
    "rounds", "filled", "edges", "rows", "cols", "across", "down", "split", "swizzle", "custom", "k",
)  # fmt: skip
NAMES = [
    "work", "traffic", *(f"{name}{which}" for name in PAIRS for which in (0, 1)),
    "log m", "log n", "log k", "log flops", "intensity", "trans a", "trans b",
]  # fmt: skip


def named(size, first, other, tables=TABLES):
    found = features(size, first, other, tables)
    assert len(found) == len(NAMES)
    return dict(zip(NAMES, found))


def one(size, config, tables=TABLES):
    """The facts of one algorithm."""
    found = named(size, config, config, tables)
    assert all(found[f"{name}0"] == found[f"{name}1"] for name in PAIRS)
    return {name: found[f"{name}0"] for name in PAIRS}


# Trees


def test_shipped_trees_against_a_walk():
    """Features drawn from the thresholds themselves, on either side of them and exactly there."""
    trees, rng = SHIPPED.trees, np.random.default_rng(5)
    inner = trees.left != np.arange(len(trees.left))
    columns = len(NAMES) + 1  # and the load
    rows = np.empty((24, columns))
    for feature in range(columns):
        known = trees.threshold[inner & (trees.feature == feature)].astype(float)
        chosen = rng.choice(known if len(known) else np.zeros(1), len(rows))
        rows[:, feature] = chosen + rng.choice([-1e-3, 0, 1e-3, 1], len(rows))
    rows[0], rows[1] = -1e9, 1e9
    found = trees.predict(rows)
    assert found.shape == (24,)
    assert np.allclose(found, [walked(trees, row) for row in rows], rtol=0, atol=2e-6)
    assert np.ptp(found) > 0.05, "not the same for everything"
    assert np.array_equal(trees.predict(rows[3:4]), found[3:4]), "rows do not depend on each other"


def test_shipped_trees_are_trees():
    check_trees(SHIPPED.trees, len(NAMES) + 1)  # the last is the load


# Features


def test_a_product_of_less_than_one_round():
    """m, n = 1000, 500 is 8 x 4 tiles of 128 x 128, on 132 multiprocessors."""
    found = one(Size(1000, 500, 256, False, False), SQUARE)
    assert found["rounds"] == pytest.approx(32 / 132)
    assert found["filled"] == pytest.approx(32 / 132)
    assert found["edges"] == pytest.approx(1000 * 500 / (1024 * 512))
    assert (found["rows"], found["cols"]) == (128, 128)
    assert (found["across"], found["down"]) == (2, 1)
    assert (found["split"], found["swizzle"], found["custom"]) == (1, 0, 1)
    assert found["k"] == pytest.approx(log(256))


def test_a_product_of_several_rounds():
    """32 x 32 tiles take 8 rounds, of which the last is filled to three quarters."""
    found = one(Size(4096, 4096, 64, False, False), SQUARE)
    assert found["rounds"] == pytest.approx(1024 / 132)
    assert found["filled"] == pytest.approx(1024 / 132 / 8)
    assert found["edges"] == 1


@pytest.mark.parametrize("whole", [1, 2, 3, 49])
def test_full_rounds(whole):
    """Exactly so many rounds are not one more."""
    found = one(Size(132 * 128, 128 * whole, 64, False, False), SQUARE)
    assert found["rounds"] == pytest.approx(whole)
    assert found["filled"] == pytest.approx(1)


@pytest.mark.parametrize(("config", "blocks"), [
    ("66.20.1.0.0.0.35.0.2", 15), ("66.20.1.0.0.0.35.0.3", 20), ("66.20.1.0.0.0.35.0.5", 18),
    ("66.20.1.0.0.0.35.0.4", 20), ("66.18.1.0.0.0.35.0.5", 30), ("66.23.1.0.0.0.35.0.3", 12),
])  # fmt: skip
def test_clusters_are_whole(config, blocks):
    """3 x 5 tiles of 128 x 128 in clusters of 1x1, 2x1, 1x2, 4x1; 3 x 10 and 3 x 3 of other tiles."""
    assert one(Size(384, 640, 64, False, False), config)["rounds"] == pytest.approx(blocks / 132)


@pytest.mark.parametrize(("split", "parts"), [(0, 1), (1, 1), (2, 2), (6, 6), (-1, 1)])
def test_parts_of_k(split, parts):
    found = one(Size(256, 256, 6000, False, False), f"66.20.{split}.2.0.0.35.0.2")
    assert found["split"] == parts
    assert found["rounds"] == pytest.approx(4 * parts / 132)
    assert found["k"] == pytest.approx(log(6000 / parts))


def test_batches_fill_the_machine():
    one_of, many = (Size(256, 256, 64, False, False, count=count) for count in (1, 33))
    assert one(many, SQUARE)["rounds"] == pytest.approx(33 * one(one_of, SQUARE)["rounds"])
    single, batch = named(one_of, SQUARE, NARROW), named(many, SQUARE, NARROW)
    assert batch["log flops"] - single["log flops"] == pytest.approx(log(33))
    for name in ("log m", "log n", "log k", "intensity"):
        assert batch[name] == single[name]


def test_differences_of_a_pair():
    """Logarithms of ratios: of work at the pace of the last block, and of bytes through the cache."""
    size = Size(1000, 500, 256, False, False)
    found = named(size, SQUARE, NARROW)
    # Both are done in one round: a block of half the size is half the work.
    assert found["work"] == pytest.approx(log(128 * 64) - log(128 * 128))
    # A tile's rows of A are shared down a cluster, its columns of B across.
    first, other = 8 * 4 * (128 + 128 / 2), 8 * 8 * (128 / 2 + 64)
    assert found["traffic"] == pytest.approx(log(other / first))
    # 1000 tiles in 8 rounds instead of 512 of double size in 4.
    assert named(Size(4096, 4096, 64, False, False), SQUARE, NARROW)["work"] == pytest.approx(log(16 * 64 / (8 * 128)))


def test_what_the_product_is():
    found = named(Size(100, 200, 300, True, False), SQUARE, NARROW)
    assert found["log m"] == pytest.approx(log(100))
    assert found["log n"] == pytest.approx(log(200))
    assert found["log k"] == pytest.approx(log(300))
    assert found["log flops"] == pytest.approx(log(6e6))
    assert found["intensity"] == pytest.approx(log(6e6 / (100 * 300 + 300 * 200 + 100 * 200)))
    assert (found["trans a"], found["trans b"]) == (1, 0)
    other = named(Size(100, 200, 300, False, True), SQUARE, NARROW)
    assert {name for name in NAMES if found[name] != other[name]} == {"trans a", "trans b"}


EXTENT = st.one_of(st.sampled_from([1, 2, 7, 8, 127, 128, 129]), st.integers(1, 2**20))
SIZES = st.builds(
    Size, EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), st.just(2), st.one_of(st.just(1), st.integers(1, 4096))
)
CONFIGS = st.builds(
    lambda *numbers: text((66, numbers[0], numbers[1], 2, numbers[2], numbers[3], 35, 0, numbers[4])),
    st.sampled_from(sorted(SHIPPED.tables.tiles)), st.integers(0, 64), st.integers(0, 1), st.integers(0, 7),
    st.sampled_from(sorted(SHIPPED.tables.clusters)),
)  # fmt: skip


@given(SIZES, CONFIGS, CONFIGS)
@settings(deadline=None)
def test_features_of_any_product(size, first, other):
    """Finite for every extent, 1 included; shares are shares."""
    found = named(size, first, other, SHIPPED.tables)
    assert all(isfinite(value) for value in found.values())
    for which in (0, 1):
        assert 0 < found[f"filled{which}"] <= 1 + 1e-9
        assert 0 < found[f"edges{which}"] <= 1
        assert found[f"rounds{which}"] > 0
    assert isfinite(SHIPPED.gains(size, first, [other])[0])


@given(SIZES, CONFIGS, CONFIGS)
@settings(deadline=None)
def test_exchanging_the_two(size, first, other):
    """Differences change their sign, the two's own facts change places, the product's stay."""
    there, back = (named(size, *pair, SHIPPED.tables) for pair in ((first, other), (other, first)))
    for name in ("work", "traffic"):
        assert there.pop(name) == -back.pop(name)
    for name in PAIRS:
        assert there.pop(f"{name}0") == back.pop(f"{name}1")
        assert there.pop(f"{name}1") == back.pop(f"{name}0")
    assert there == back


@given(SIZES, CONFIGS)
@settings(deadline=None)
def test_an_algorithm_against_itself(size, config):
    found = named(size, config, config, SHIPPED.tables)
    assert found["work"] == found["traffic"] == 0
    # Counted again, from the configuration.
    numbers = [int(word) for word in config.split(".")]
    (rows, cols), (across, down) = SHIPPED.tables.tiles[numbers[1]], SHIPPED.tables.clusters[numbers[8]]
    clusters = ceil(size.m / (rows * across)) * ceil(size.n / (cols * down)) * max(1, numbers[2]) * size.count
    assert found["rounds0"] == pytest.approx(clusters * across * down / 132)


# Tables and files


@pytest.mark.parametrize(("config", "known"), [
    (SQUARE, True), (NARROW, True), ("66.19.1.0.0.1.35.0.3", False), ("66.20.1.0.0.1.35.0.6", False),
    ("66.0.1.0.0.1.35.0.0", False), ("5.20.9.2.1.1.0.0.2", True),
])  # fmt: skip
def test_known_tiles_and_clusters(config, known):
    assert TABLES.knows(config) is known


@pytest.mark.parametrize("config", ["", "default", "66.20.1.0.0.1.35.0", "66.20.1.0.0.1.35.0.x"])
def test_what_is_no_configuration(config):
    with pytest.raises(ValueError, match="is no configuration"):
        TABLES.knows(config)


def test_gains():
    """One number for each of the others, from the pair's features."""
    # "rows" of the other tells the tiles 128 and 64 apart; custom options do not matter.
    which = NAMES.index("rows1")
    trees = Trees(
        np.array([0]), np.array([which, 0, 0]), np.array([100.0, inf, inf]), np.array([1, 1, 2]), np.array([2, 1, 2]),
        np.array([0.0, 0.25, -0.25]), 0.0, 1,
    )  # fmt: skip
    model, size = CostModel(trees, TABLES), Size(512, 512, 512, False, False)
    assert model.gains(size, SQUARE, [NARROW, "66.15.1.0.0.1.35.0.2", SQUARE]).tolist() == [-0.25, 0.25, -0.25]
    assert model.gains(size, SQUARE, []).shape == (0,)


def test_the_shipped_file_holds_no_objects():
    with np.load(DATA / "hopper132.npz", allow_pickle=False) as data:
        kinds = {name: data[name].dtype.kind for name in data.files}
    assert set(kinds.values()) <= {"i", "f"}
    assert {"roots", "feature", "threshold", "left", "right", "value", "base", "depth", "tiles", "clusters", "sms"} == {
        *kinds
    }


def arrays():
    with np.load(DATA / "hopper132.npz") as data:
        return dict(data)


def test_a_file_is_read_as_it_was_written(tmp_path):
    np.savez_compressed(tmp_path / "model.npz", **arrays())
    model = load(tmp_path / "model.npz")
    assert model.tables == SHIPPED.tables
    assert model.tables.sms == 132
    size = Size(1000, 2000, 3000, True, False)
    assert np.array_equal(model.gains(size, SQUARE, [NARROW]), SHIPPED.gains(size, SQUARE, [NARROW]))
    with (tmp_path / "model.npz").open("rb") as file:
        assert load(file).tables == SHIPPED.tables


def test_objects_in_a_file_are_refused(tmp_path):
    """Unpickling them would run what the file says."""
    np.savez(tmp_path / "model.npz", **{**arrays(), "tiles": np.array([{}], object)})
    with pytest.raises(ValueError, match="allow_pickle"):
        load(tmp_path / "model.npz")


def test_tiles_that_the_model_knows():
    """Some sizes from cublasLt.h, and every cluster is at most 16 blocks."""
    tables = SHIPPED.tables
    for number, size in {
        10: (64, 8),
        15: (64, 64),
        18: (128, 64),
        20: (128, 128),
        23: (128, 256),
        24: (256, 128),
    }.items():
        assert tables.tiles[number] == size
    assert tables.clusters[2] == (1, 1)
    assert tables.clusters[3] == (2, 1)
    assert tables.clusters[5] == (1, 2)
    assert all(1 <= across * down <= 16 for across, down in tables.clusters.values())


def test_the_model_fits_the_shipped_records():
    """Features and trees belong together: were one changed without the other, this would be noise."""
    lines = [json.loads(line) for line in (DATA / "hopper132.jsonl").read_text(encoding="utf-8").splitlines()]
    told, predicted = [], []
    for x in lines:
        if x["config"] != x["first"]:
            size = Size(x["m"], x["n"], x["k"], x["trans_a"], x["trans_b"])
            told.append(log(x["gain"]))
            predicted.append(SHIPPED.gains(size, x["first"], [x["config"]])[0])
    told, predicted = np.clip(told, -0.3, 0.3), np.array(predicted)
    assert np.corrcoef(told, predicted)[0, 1] > 0.8
    assert np.median(np.abs(told - predicted)) < 0.05  # the lower of two loads is predicted
