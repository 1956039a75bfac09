"""Corrections of estimates: features, where a correction serves, and what is shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, isfinite, log

import numpy as np
import pytest
from fakes import Home, bias, operand, problem
from gemmhub_cublas import corrections, lower, model
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmhub.kit.corrections import NOTE, Origin, find
from gemmhub.kit.net import Net
from gemmhub.layout import MatrixLayout
from gemmhub.testing.nets import check_net, shipped

NAMES = [
    "m", "n", "k", "batch", "trans a", "trans b", "a", "b", "out", "itemsize", "epilogue", "addend",
    *(f"{name} {rows}x{cols}" for rows, cols in corrections._TILES for name in ("waves", "used")),
    "modelled", "of memory", "of peak", "intensity",
]  # fmt: skip
FACTOR = 1.5
VERSION = "13.1.0"


@pytest.fixture
def backend():
    return Home().backend()


@pytest.fixture
def card(backend):
    """An H200 of the fake driver."""
    (gpu,) = backend.machine.gpus
    return gpu


@pytest.fixture
def data(tmp_path, monkeypatch, card):
    """Corrections of every kind for that card, which are a factor of 1.5."""
    monkeypatch.setattr(corrections, "DATA", tmp_path)
    folder = tmp_path / "h200"
    folder.mkdir()
    origin = Origin(card.name, card.sms, card.bandwidth, "13.1")
    (folder / "card.json").write_text(json.dumps(vars(origin)))
    held = {name: np.full(len(NAMES), x) for name, x in (("least", -99), ("most", 99), ("mean", 0), ("scale", 1))}
    for kind in corrections.KINDS:
        weights = np.zeros((len(NAMES), 1))
        np.savez(folder / f"{kind}.npz", weights0=weights, biases0=[log(FACTOR)], **held)
    return folder


def lowered(asked):
    return lower.lowered(asked)


def modelled(asked, card):
    return model.seconds(asked, lowered(asked), card)


def named(asked, card):
    found = corrections.describe(asked, card, [corrections.FIRST])
    (row,) = found.rows
    assert len(row) == len(NAMES)
    return dict(zip(NAMES, row))


# Features


def test_features_of_a_fixed_product(card):
    """A row-major result is computed as its transpose: the library's a is b."""
    asked = problem(1000, 520, 256, "bfloat16")
    found = named(asked, card)
    assert found["m"] == pytest.approx(log(520))
    assert found["n"] == pytest.approx(log(1000))
    assert found["k"] == pytest.approx(log(256))
    assert (found["batch"], found["itemsize"], found["epilogue"], found["addend"]) == (0, 2, 0, 0)
    # Columns of 1040, 512 and 1040 bytes.
    assert (found["a"], found["b"], found["out"]) == (4, 7, 4)
    # 5 x 8 tiles, less than one wave.
    assert found["waves 128x128"] == pytest.approx(log(40 / 132))
    assert found["used 128x128"] == pytest.approx(520 * 1000 / (132 * 128 * 128))
    # 9 x 16 tiles, two waves.
    assert found["used 64x64"] == pytest.approx(520 * 1000 / (2 * 132 * 64 * 64))
    assert found["waves 256x128"] == pytest.approx(log(24 / 132))
    seconds, nbytes = modelled(asked, card), 2 * (1000 * 256 + 256 * 520 + 1000 * 520)
    assert found["modelled"] == pytest.approx(log(seconds))
    assert found["of memory"] == pytest.approx(log(seconds * card.bandwidth / nbytes))
    assert found["of peak"] == pytest.approx(log(seconds * 4096 * 132 * card.clock / (2 * 1000 * 520 * 256)))
    assert found["intensity"] == pytest.approx(log(2 * 1000 * 520 * 256 / nbytes))


@pytest.mark.parametrize(("a", "b"), [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")])
def test_orders(card, a, b):
    found = named(problem(512, 128, 320, "bfloat16", a=a, b=b), card)
    assert (found["trans a"], found["trans b"]) == (b == "col", a == "col")
    columns = named(problem(512, 128, 320, "bfloat16", a=a, b=b, d="col"), card)
    assert (columns["trans a"], columns["trans b"]) == (a == "row", b == "row")
    assert (columns["m"], columns["n"]) == (found["n"], found["m"])


@pytest.mark.parametrize(("asked", "classes"), [
    (problem(64, 64, 64, "float16"), (7, 7, 7)), (problem(64, 24, 48, "float16"), (4, 5, 4)),
    (problem(64, 7, 9, "float16"), (1, 1, 1)), (problem(64, 7, 9), (2, 2, 2)), (problem(64, 10, 64), (3, 7, 3)),
    (problem(64, 7, 9, "float8_e4m3fn", "bfloat16"), (0, 0, 1)),
    (replace(problem(64, 64, 64), a=operand("float32", 64, 64, alignment=8)), (7, 3, 7)),
])  # fmt: skip
def test_alignments(card, asked, classes):
    found = named(asked, card)
    assert (found["a"], found["b"], found["out"]) == classes


def test_a_batch_and_a_fused_epilogue(card):
    one, many = (named(problem(256, 256, 64, "float16", batch=batch), card) for batch in ((), (33,)))
    assert many["batch"] == pytest.approx(log(33))
    assert many["waves 128x128"] == pytest.approx(log(33) + one["waves 128x128"])
    asked = problem(64, 64, 64, "float16", c=operand("float16", 64, 64), activation="relu")
    assert (named(asked, card)["epilogue"], named(asked, card)["addend"]) == (1, 1)
    with_bias = problem(64, 64, 64, "float16", out="float32", bias=bias())
    assert (named(with_bias, card)["epilogue"], named(with_bias, card)["itemsize"]) == (1, 4)


EXTENT = st.one_of(st.sampled_from([1, 2, 7, 8, 127, 128, 129]), st.integers(1, 2**18))
ORDER = st.sampled_from(["row", "col"])
H200 = Home().backend().machine.gpus[0]


@given(
    m=EXTENT, n=EXTENT, k=EXTENT, a=ORDER, b=ORDER, d=ORDER, batch=st.sampled_from([(), (3,), (100_000,)]),
    types=st.sampled_from([("float16", None, "ieee"), ("bfloat16", "float32", "ieee"), ("float32", None, "tf32"),
                           ("float32", None, "ieee"), ("float8_e4m3fn", "bfloat16", "ieee")]),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_any_product(m, n, k, a, b, d, batch, types):
    dtype, out, precision = types
    asked = problem(m, n, k, dtype, out, a=a, b=b, d=d, batch=batch, precision=precision)
    assert all(isfinite(value) for value in named(asked, H200).values())


def test_int8_has_features(card):
    asked = problem(64, 64, 64, "int8", out="int32", b="col")
    assert corrections.describe(asked, card, ["first"]).kind == "byte"
    assert named(asked, card)["itemsize"] == 4


def test_names(card):
    """There is one candidate; other names are left out."""
    asked = problem(64, 64, 64, "float16")
    found = corrections.describe(asked, card, ["66.20.1.0.0.0.35.0.3", "first"])
    assert (found.kind, found.names, found.modelled) == ("half", ["first"], [modelled(asked, card)])
    assert corrections.describe(asked, card, []).rows == []


@pytest.mark.parametrize("changes", [
    {"dtype": "float64"}, {"dtype": "complex128"}, {"m": 0}, {"k": 0}, {"dtype": "uint8"},
])  # fmt: skip
def test_what_is_not_described(card, changes):
    given = problem(**{"m": 512, "n": 256, "k": 128, "dtype": "bfloat16", **changes})
    assert corrections.describe(given, card, ["first"]) is None


# Where they serve


PRODUCTS = (
    problem(512, 512, 512, "bfloat16"), problem(511, 513, 515, "float16", a="col"), problem(64, 64, 64, batch=(50,)),
    problem(512, 512, 512, precision="tf32"), problem(512, 512, 512, "complex64"),
    problem(64, 64, 64, "float8_e4m3fn", out="bfloat16", b="col"),
)  # fmt: skip


@pytest.mark.parametrize("asked", PRODUCTS, ids=corrections.network_of)
def test_a_correction_is_a_factor(backend, card, data, asked):
    assert backend.offer(asked).first.seconds == pytest.approx(FACTOR * modelled(asked, card))
    assert NOTE not in backend.offer(asked).remark(backend.offer(asked).first.name)


@pytest.mark.parametrize("asked", PRODUCTS, ids=corrections.network_of)
def test_without_one_the_model_alone_serves(backend, card, asked, monkeypatch, tmp_path):
    """cuBLASLt is the vendor's library: its estimate has no margin."""
    monkeypatch.setattr(corrections, "DATA", tmp_path)
    assert backend.offer(asked).first.seconds == modelled(asked, card)
    assert backend.offer(asked).remark(backend.offer(asked).first.name).endswith(NOTE)


@pytest.mark.parametrize("changes", [{"card": "Other"}, {"sms": 114}, {"bandwidth": 3.35e12}, {"library": "12.9"}])
def test_other_cards_and_versions_have_none(backend, card, data, changes):
    origin = {**json.loads((data / "card.json").read_text()), **changes}
    (data / "card.json").write_text(json.dumps(origin))
    asked = problem(512, 512, 512, "bfloat16")
    assert backend.offer(asked).first.seconds == modelled(asked, card)
    assert backend.offer(asked).remark(backend.offer(asked).first.name).endswith(NOTE)


@pytest.mark.parametrize("changes", [{"dtype": "float64"}, {"dtype": "complex128"}, {"k": 0}])
def test_what_has_no_kind_is_not_corrected(backend, card, data, changes):
    asked = problem(**{"m": 512, "n": 256, "k": 128, **changes})
    assert backend.offer(asked).first.seconds == modelled(asked, card)


@pytest.mark.parametrize("feature", ["k", "modelled", "a"])
def test_beyond_what_was_measured_the_model_alone_serves(backend, card, data, feature):
    asked = problem(512, 512, 512, "bfloat16")
    value = named(asked, card)[feature]
    with np.load(data / "half.npz") as arrays:
        held = dict(arrays)
    for most, factor in ((value + 1e-3, FACTOR), (value - 1e-3, 1.0)):
        at_most = np.where(np.array(NAMES) == feature, most, held["most"])
        np.savez(data / "half.npz", **{**held, "most": at_most})
        find.cache_clear()
        assert backend.offer(asked).first.seconds == pytest.approx(factor * modelled(asked, card))


def test_one_value_of_a_feature_that_the_model_accounts_for(backend, card, data):
    """A network that has seen no epilogue serves products with one; one that has seen one k does not serve another."""
    asked = problem(64, 64, 64, "float16", out="float32", bias=bias())
    with np.load(data / "half.npz") as arrays:
        held = dict(arrays)
    for feature, factor in (("epilogue", FACTOR), ("k", 1.0)):
        fixed = {end: np.where(np.array(NAMES) == feature, 0.0, held[end]) for end in ("least", "most")}
        np.savez(data / "half.npz", **{**held, **fixed})
        find.cache_clear()
        assert backend.offer(asked).first.seconds == pytest.approx(factor * modelled(asked, card))


@pytest.mark.parametrize(("feature", "changes"), [("batch", {"batch": (50,)}), ("trans a", {"b": "row"})])
@pytest.mark.parametrize(
    ("dtype", "out", "factor"),
    [("int8", "int32", FACTOR), ("complex64", None, 1.0), ("float8_e4m3fn", "bfloat16", 1.0)],
)
def test_one_batch_and_one_order_serve_others_of_int8_alone(card, data, feature, changes, dtype, out, factor):
    """The model has factors for those of int8, and none for others."""
    asked = problem(**{"m": 80, "n": 96, "k": 64, "dtype": dtype, "out": out, "b": "col", **changes})
    file = data / f"{corrections.network_of(asked)}.npz"
    with np.load(file) as arrays:
        held = dict(arrays)
    measured = named(problem(80, 96, 64, dtype, out, b="col"), card)[feature]
    fixed = {end: np.where(np.array(NAMES) == feature, measured, held[end]) for end in ("least", "most")}
    np.savez(file, **{**held, **fixed})
    find.cache_clear()
    assert named(asked, card)[feature] != measured
    expected = factor * model.byte_order(asked, lowered(asked)) * modelled(asked, card)
    assert corrections.seconds(asked, lowered(asked), card, VERSION) == pytest.approx(expected)


def test_several_launches(backend, card, data):
    asked = problem(batch=(3,))
    asked = replace(asked, a=replace(asked.a, layout=MatrixLayout(16, 16, 16, 1, (3,), (-256,))))
    assert len(lowered(asked).offsets) == 3
    assert named(asked, card)["batch"] == pytest.approx(log(3))
    assert backend.offer(asked).first.seconds == pytest.approx(FACTOR * modelled(asked, card))


def test_what_is_shipped():
    assert all(origin.library for origin, _ in shipped(corrections.DATA, dict.fromkeys(corrections.KINDS, len(NAMES))))


def test_the_net_of_these_tests_is_one(data):
    with np.load(data / "half.npz") as arrays:
        net = Net.of(arrays)
    check_net(net, len(NAMES))
    assert exp(net.predict(np.zeros((1, len(NAMES))))[0]) == pytest.approx(FACTOR)
