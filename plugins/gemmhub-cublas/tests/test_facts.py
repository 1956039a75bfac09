"""What is known of an algorithm: facts of known products, and the tables that the plugin ships."""

from __future__ import annotations

import json
from importlib.resources import files
from math import ceil, isfinite, log

import numpy as np
import pytest
from gemmhub_cublas import facts
from gemmhub_cublas.facts import Size, Tables
from gemmhub_cublas.heuristics import text
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = files("gemmhub_cublas") / "data"
SHIPPED = facts.tables()
TABLES = Tables(
    tiles={18: (128, 64), 20: (128, 128), 23: (128, 256), 15: (64, 64)},
    clusters={2: (1, 1), 3: (2, 1), 5: (1, 2), 4: (4, 1)},
    sms=132,
)
SQUARE, NARROW = "66.20.1.0.0.1.35.0.3", "66.18.1.0.1.3.35.0.5"


def one(size, config, tables=TABLES):
    return facts.facts(size, config, tables)


# Facts


def test_a_product_of_less_than_one_round():
    """m, n = 1000, 500 is 8 x 4 tiles of 128 x 128, on 132 multiprocessors."""
    found = one(Size(1000, 500, 256, False, False), SQUARE)
    assert found["rounds"] == pytest.approx(32 / 132)
    assert found["filled"] == pytest.approx(32 / 132)
    assert found["edges"] == pytest.approx(1000 * 500 / (1024 * 512))
    assert (found["rows"], found["cols"]) == (128, 128)
    assert (found["across"], found["down"]) == (2, 1)
    assert (found["split"], found["swizzle"], found["custom1"]) == (1, 0, 1)
    assert (found["id"], found["reduction"], found["stages"]) == (66, 0, 35)
    assert found["k"] == pytest.approx(log(256))
    assert [found[f"custom{i}"] for i in range(8)] == [0, 1, 0, 0, 0, 0, 0, 0]
    logs = ("tiles_m", "tiles_n", "blocks", "whole", "area", "parts", "cluster")
    assert [found[name] for name in logs] == pytest.approx([log(x) for x in (8, 4, 32, 1, 128 * 128, 1, 2)])
    assert (found["last_m"], found["last_n"]) == pytest.approx((1000 / 128 - 8, 500 / 128 - 4))
    assert (found["share"], found["one_round"], found["two_rounds"]) == (1, 1, 0)
    assert found["idle"] == pytest.approx(100 / 132)


def test_options_that_nobody_has_seen():
    found = one(Size(1000, 500, 256, False, False), "66.20.1.0.0.8.35.0.3")
    assert not any(found[f"custom{i}"] for i in range(8))


def test_a_product_of_several_rounds():
    """32 x 32 tiles take 8 rounds, of which the last is filled to three quarters."""
    found = one(Size(4096, 4096, 64, False, False), SQUARE)
    assert found["rounds"] == pytest.approx(1024 / 132)
    assert found["filled"] == pytest.approx(1024 / 132 / 8)
    assert found["edges"] == 1
    assert (found["share"], found["one_round"], found["two_rounds"]) == (1 / 8, 0, 0)
    assert found["idle"] == pytest.approx(8 - 1024 / 132)


@pytest.mark.parametrize("whole", [1, 2, 3, 49])
def test_full_rounds(whole):
    """Exactly so many rounds are not one more."""
    found = one(Size(132 * 128, 128 * whole, 64, False, False), SQUARE)
    assert found["rounds"] == pytest.approx(whole)
    assert found["filled"] == pytest.approx(1)


@pytest.mark.parametrize(("config", "blocks", "at_once"), [
    ("66.20.1.0.0.0.35.0.2", 15, 132), ("66.20.1.0.0.0.35.0.3", 20, 132), ("66.20.1.0.0.0.35.0.5", 18, 132),
    ("66.20.1.0.0.0.35.0.4", 20, 120), ("66.18.1.0.0.0.35.0.5", 30, 132), ("66.23.1.0.0.0.35.0.3", 12, 132),
])  # fmt: skip
def test_clusters_are_whole(config, blocks, at_once):
    """3 x 5 tiles of 128 x 128 in clusters of 1x1, 2x1, 1x2, 4x1; 3 x 10 and 3 x 3 of other tiles."""
    found = one(Size(384, 640, 64, False, False), config)
    assert found["rounds"] == pytest.approx(blocks / at_once)
    assert found["blocks"] == pytest.approx(log(blocks))


def test_large_clusters_leave_multiprocessors_idle():
    """512 x 1984 was seen to take 1.6 times as long as in clusters of two: sixteen of eight are two rounds."""
    found = facts.facts(Size(1984, 512, 12432, False, False), "66.18.1.0.0.3.35.0.9", SHIPPED)
    assert found["rounds"] == pytest.approx(16 / 15)
    assert (found["two_rounds"], found["blocks"]) == (1, pytest.approx(log(128)))


@pytest.mark.parametrize(("split", "parts"), [(0, 1), (1, 1), (2, 2), (6, 6), (-1, 1)])
def test_parts_of_k(split, parts):
    found = one(Size(256, 256, 6000, False, False), f"66.20.{split}.2.0.0.35.0.2")
    assert found["split"] == parts
    assert found["rounds"] == pytest.approx(4 * parts / 132)
    assert found["k"] == pytest.approx(log(6000 / parts))


def test_batches_fill_the_machine():
    one_of, many = (one(Size(256, 256, 64, False, False, count=count), SQUARE) for count in (1, 33))
    assert many["rounds"] == pytest.approx(33 * one_of["rounds"])
    assert many["traffic"] - one_of["traffic"] == pytest.approx(log(33))
    assert many["k"] == one_of["k"]


def test_work():
    """At the pace of the last block: a tile's in each round."""
    # 1000 tiles in 8 rounds instead of 512 of double size in 4, of the same area: rounds are rounded up.
    size = Size(4096, 4096, 64, False, False)
    assert one(size, SQUARE)["work"] == pytest.approx(log(8 * 128 * 128 * 64))
    assert one(size, NARROW)["work"] == pytest.approx(log(16 * 128 * 64 * 64))
    halves = one(Size(256, 256, 6000, False, False), "66.20.2.2.0.0.35.0.2")
    assert halves["work"] == pytest.approx(log(128 * 128 * 3000))


def test_traffic():
    """Bytes through the cache: a tile's rows of A are shared down a cluster, its columns of B across."""
    size = Size(1000, 500, 256, False, False)
    assert one(size, SQUARE)["traffic"] == pytest.approx(log(8 * 4 * (128 + 128 / 2) * 256 * 2))
    assert one(size, NARROW)["traffic"] == pytest.approx(log(8 * 8 * (128 / 2 + 64) * 256 * 2))
    assert one(Size(1000, 500, 256, False, False, 1), SQUARE)["traffic"] == pytest.approx(log(8 * 4 * 192 * 256))


EXTENT = st.one_of(st.sampled_from([1, 2, 7, 8, 127, 128, 129]), st.integers(1, 2**20))
SIZES = st.builds(
    Size, EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), st.just(2), st.one_of(st.just(1), st.integers(1, 4096))
)
CONFIGS = st.builds(
    lambda *numbers: text((66, numbers[0], numbers[1], 2, numbers[2], numbers[3], 35, 0, numbers[4])),
    st.sampled_from(sorted(SHIPPED.tiles)), st.integers(0, 64), st.integers(0, 1), st.integers(0, 7),
    st.sampled_from(sorted(SHIPPED.clusters)),
)  # fmt: skip


@given(SIZES, CONFIGS)
@settings(deadline=None)
def test_any_product(size, config):
    """Finite for every extent, 1 included; shares are shares."""
    found = one(size, config, SHIPPED)
    assert all(isfinite(value) for value in found.values())
    assert 0 < found["filled"] <= 1 + 1e-9
    assert 0 < found["edges"] <= 1
    # Counted again, from the configuration.
    numbers = [int(word) for word in config.split(".")]
    (rows, cols), (across, down) = SHIPPED.tiles[numbers[1]], SHIPPED.clusters[numbers[8]]
    clusters = ceil(size.m / (rows * across)) * ceil(size.n / (cols * down)) * max(1, numbers[2]) * size.count
    at_once = max(1, (132 if across * down <= 2 else 120) // (across * down))
    assert found["rounds"] == pytest.approx(clusters / at_once)


# Tables and files


@pytest.mark.parametrize(("config", "known"), [
    (SQUARE, True), (NARROW, True), ("66.19.1.0.0.1.35.0.3", False), ("66.20.1.0.0.1.35.0.6", False),
    ("66.0.1.0.0.1.35.0.0", False), ("5.20.9.2.1.1.0.0.2", False),
])  # fmt: skip
def test_known_tiles_and_clusters(config, known):
    assert TABLES.knows(config) is known


@pytest.mark.parametrize("config", ["", "default", "66.20.1.0.0.1.35.0", "66.20.1.0.0.1.35.0.x"])
def test_what_is_no_configuration(config):
    with pytest.raises(ValueError, match="is no configuration"):
        TABLES.knows(config)


def test_the_shipped_file_holds_no_objects():
    with np.load(DATA / facts.DATA, allow_pickle=False) as data:
        assert {name: data[name].dtype.kind for name in data.files} == {"tiles": "i", "clusters": "i", "sms": "i"}
    assert facts.tables() is SHIPPED
    assert SHIPPED.sms == 132


def test_without_the_file(monkeypatch):
    monkeypatch.setattr(facts, "DATA", "no such file.npz")
    assert facts.tables.__wrapped__() is None


def test_tiles_of_the_shipped_records():
    """Each record's algorithm can be described."""
    for line in (DATA / "hopper132.jsonl").read_text(encoding="utf-8").splitlines():
        assert SHIPPED.knows(json.loads(line)["config"]), line


def test_tiles_that_are_known():
    """Some sizes from cublasLt.h, and every cluster is at most 16 blocks."""
    tables = SHIPPED
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
