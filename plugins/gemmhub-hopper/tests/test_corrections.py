"""Corrections of the models: what the networks see, where they serve, and how they re-order candidates."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.cost import choose, corrections, gemv_model, model
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape
from problems import H200, LIMIT, problem

from gemmhub.kit.corrections import LIMIT as MOST
from gemmhub.kit.corrections import UNMEASURED, Correction, Origin, find
from gemmhub.kit.net import Net
from gemmhub.testing.nets import shipped

MEASURED = replace(H200, name="Card 1")
WIDTHS = {"half": 31, "odd": 31, "tf32": 31, "tf32_odd": 31, "float32": 31, "f16x3": 31, "rows": 31, "vectors": 24,
          "float8": 31, "float8_blocks": 31, "int8": 31}  # fmt: skip
"""Features by kind."""
A_ROWS, B_ROWS, COPIED, TMA_STORE, WIDTH, PINGPONG, SPLITS = 8, 9, 10, 11, 14, 17, 22
"""Positions of features."""
ASKED = {
    "half": {},
    "odd": {"k": 1025},
    "tf32": {"dtype": "float32", "precision": "tf32"},
    "float32": {"dtype": "float32"},
    "f16x3": {"dtype": "float32"},
}


def lowered(m=2048, n=4096, k=1024, **given):
    return lower.lowerings(problem(m, n, k, **given))


def by_kind(lowerings):
    """The lowerings of a problem by the kind of their candidates."""
    found = {}
    for lowering in lowerings:
        kind = corrections.network_of(Choice(lowering, Shape(64, 64, 3, consumers=1), 1))
        found[kind] = (*found.get(kind, ()), lowering)
    return found


def ranked(lowerings, card=H200):
    """All candidates: those of one scheme are ranked together."""
    schemes = dict.fromkeys(x.form.scheme for x in lowerings)
    some = [tuple(x for x in lowerings if x.form.scheme == scheme) for scheme in schemes]
    return [x for these in some for x in choose.ranked(these, card, LIMIT)]


def lowered_as(kind):
    return by_kind(lowered(**ASKED[kind]))[kind]


def described(asked, card=H200):
    """All candidates of a problem, by kind."""
    found = lower.lowerings(asked)
    names = [x.choice.name for x in ranked(found, card)]
    names += [choice.name for _, choice in choose.vectors(found, card) if not choice.kernel.staged]
    return {x.kind: x for x in corrections.describe(asked, card, names, LIMIT)}


def features(choice, seconds=1e-4, card=H200):
    return corrections.features(choice, model.work(choice, choice.k_passes(LIMIT), card), seconds, card)


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    """Ships a network: the logarithm of the factor is ``slope`` times a feature, plus ``bias``."""

    def ship(kind, feature=0, slope=0.0, bias=0.0, **limits):
        width = WIDTHS[kind]
        folder = tmp_path / "card1"
        folder.mkdir(exist_ok=True)
        origin = Origin(MEASURED.name, MEASURED.sms, MEASURED.bandwidth)
        (folder / "card.json").write_text(json.dumps(vars(origin)))
        weights = np.zeros((width, 1))
        weights[feature] = slope
        ranges = {"least": np.full(width, -1e9), "most": np.full(width, 1e9)}
        for name, value in limits.items():
            ranges[name][feature] = value
        told = {"mean": np.zeros(width), "scale": np.ones(width)}
        np.savez(folder / f"{kind}.npz", weights0=weights, biases0=[bias], **ranges, **told)

    monkeypatch.setattr(corrections, "DATA", tmp_path)
    return ship


def test_features():
    """16 x 11 tiles on 132 SMs are a wave and a third of another."""
    lowering = lowered(2048, 11 * 192 - 64, 1024)[0]
    choice = Choice(lowering, Shape(128, 192, 5, pingpong=True), 1)
    work = model.work(choice, choice.k_passes(LIMIT), H200)
    found = features(choice)
    assert found[:8] == [
        math.log(2048),
        math.log(2048),
        math.log(1024),
        0,
        lowering.form.mn_major_a,
        lowering.form.mn_major_b,
        False,
        0,
    ]
    assert found[8:13] == [7, 7, 0, True, 2]
    assert found[13:19] == [128, 192, 6, 2, True, 5]
    assert found[19:23] == [0, 0, 0, 0]
    assert found[23:26] == [
        pytest.approx(2048 / (11 * 192)), pytest.approx(math.log(4 / 3)), pytest.approx(88 / 132)
    ]  # fmt: skip
    assert found[26:28] == [math.log(16), math.log(choice.group(H200))]
    assert found[28:30] == [math.log(1e-4), pytest.approx(math.log(2 * 2048**2 * 1024 / 1e-4))]
    assert found[30] == pytest.approx(math.log((work.read_bytes + work.written_bytes) / 1e-4))


@pytest.mark.parametrize(
    ("k", "alignment", "copied"),
    [(1024, 7, False), (1056, 6, False), (1032, 4, False), (1028, 3, True), (1025, 1, True)],
)
def test_alignment_of_rows(k, alignment, copied):
    """The alignment is that of the caller's a, whose rows are k long, also where the kernel reads a copy."""
    for lowering in lowered(k=k):
        found = features(Choice(lowering, Shape(128, 128, 6), 1))
        a, b = (B_ROWS, A_ROWS) if lowering.swapped else (A_ROWS, B_ROWS)
        assert (found[a], found[b]) == (alignment, 7)
        assert (found[COPIED] > 0) == (copied and not lowering.form.registers_a)


def test_features_of_clusters_splits_and_unaligned_results():
    lowering = lowered(256, 256, 8192)[0]
    assert features(Choice(lowering, Shape(128, 128, 6), 4))[SPLITS] == 2
    assert features(Choice(lowering, Shape(192, 160, 4, 3, cluster_m=2, cluster_n=2), 1))[19:22] == [1, 1, 0]
    assert features(Choice(lowering, Shape(64, 64, 12, 1, cluster_k=4), 1))[19:22] == [0, 0, 2]
    assert not features(Choice(lowered(256, 255, 8192)[0], Shape(128, 128, 6), 1))[TMA_STORE]


@pytest.mark.parametrize("size", [(1, 1, 1), (8, 8192, 512), (1, 8, 2**20), (300, 500, 70), (4096, 4096, 0)], ids=str)
@pytest.mark.parametrize("given", [{}, {"b": "col"}, {"dtype": "float32"}, {"batch": (5,)}, ASKED["tf32"]], ids=str)
def test_every_candidate_is_described(size, given):
    """Candidates are described as they are ranked: the same modelled seconds, finite features of the kind's width."""
    asked = problem(*size, **given)
    found = described(asked)
    assert set(found) <= set(corrections.KINDS)
    lowerings = lower.lowerings(asked)
    modelled = {x.choice.name: x.seconds for x in ranked(lowerings)}
    modelled |= {choice.name: t for t, choice in choose.vectors(lowerings, H200) if not choice.kernel.staged}
    assert {name for x in found.values() for name in x.names} == set(modelled)
    for kind, x in found.items():
        assert x.modelled == pytest.approx([modelled[name] for name in x.names], rel=1e-9)
        rows = np.array(x.rows, float)
        assert rows.shape == (len(x.names), WIDTHS[kind])
        assert np.isfinite(rows).all()


def test_what_is_not_described():
    """Names of no kernel, kernels that need more workspace, and products that there is no kernel for."""
    asked = problem(1, 2048, 2048)
    names = ["nonsense", "64x16x13", "gemv64", "64x16x12t", "64x16x12t/4", "64x16x12t/99"]
    found = corrections.describe(asked, H200, names)
    assert [(x.kind, x.names) for x in found] == [("vectors", ["gemv64"]), ("half", ["64x16x12t", "64x16x12t/4"])]
    assert [x.names for x in corrections.describe(asked, H200, names, workspace=0)] == [["gemv64"], ["64x16x12t"]]
    assert corrections.describe(asked, H200, ["nonsense"]) == []
    assert corrections.describe(problem(dtype="float64"), H200, names) == []


@pytest.mark.parametrize("kind", ASKED)
def test_a_correction_reorders(fitted, kind):
    """Here wide tiles are slower than the model estimates."""
    slope = 5e-3 if kind == "f16x3" else 1e-3  # which has few shapes
    fitted(kind, WIDTH, slope)
    before = choose.ranked(lowered_as(kind), MEASURED, LIMIT, corrections.CORRECTED)
    after = choose.corrected(lowered_as(kind), MEASURED, LIMIT)
    assert [x.seconds for x in after] == sorted(x.seconds for x in after)
    old = {x.choice: x.seconds for x in before}
    assert [x.choice for x in after] != list(old)
    assert {x.choice for x in after} == set(old)
    for x in after:
        assert x.seconds == pytest.approx(math.exp(slope * x.choice.shape.n) * old[x.choice])


def test_corrections_are_bounded(fitted):
    fitted("half", bias=3.0)
    before = choose.ranked(lowered(), MEASURED, LIMIT, corrections.CORRECTED)
    after = choose.corrected(lowered(), MEASURED, LIMIT)
    assert [x.seconds for x in after] == pytest.approx([math.exp(MOST) * x.seconds for x in before])


def test_beyond_what_was_measured_the_model_serves(fitted):
    """K beyond the range of the network: the order is the model's, with a margin."""
    for k, factor in ((1024, math.exp(0.4)), (1032, UNMEASURED)):
        fitted("half", feature=2, bias=0.4, most=math.log(1025))
        find.cache_clear()
        before = choose.ranked(lowered(k=k), MEASURED, LIMIT, corrections.CORRECTED)
        after = choose.corrected(lowered(k=k), MEASURED, LIMIT)
        assert [x.choice for x in after] == [x.choice for x in before]
        assert [x.seconds for x in after] == pytest.approx([factor * x.seconds for x in before])


def test_a_candidate_unlike_the_measured_ones_has_no_advantage(fitted):
    """Those with wide tiles are outside of the network's range: they have the others' factor."""
    fitted("half", feature=WIDTH, bias=0.4, most=128)
    before = choose.ranked(lowered(), MEASURED, LIMIT, corrections.CORRECTED)
    assert {x.choice.shape.n <= 128 for x in before} == {False, True}
    after = choose.corrected(lowered(), MEASURED, LIMIT)
    assert [x.choice for x in after] == [x.choice for x in before]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "half"),
        ({"m": 2047}, "half"),
        ({"k": 1025}, "odd"),
        ({"n": 4095}, "odd"),
        ({"n": 4095, "b": "col"}, "odd"),
        ({"n": 63}, "half"),
        ({"k": 63}, "half"),
        ({"n": 4095, "batch": (3,)}, "half"),
    ],
    ids=str,
)
def test_rows_that_tma_cannot_take_have_a_network(fitted, given, kind):
    """Rows of a are k long, those of the result n; the 16-bit network serves where there is no other."""
    fitted("half", bias=0.2)
    before = choose.ranked(lowered(**given), MEASURED, LIMIT)[0].seconds
    assert {corrections.network_of(x.choice) for x in choose.ranked(lowered(**given), MEASURED, LIMIT)} == {kind}
    assert choose.corrected(lowered(**given), MEASURED, LIMIT)[0].seconds == pytest.approx(math.exp(0.2) * before)
    fitted("odd", bias=0.3)
    find.cache_clear()
    factor = math.exp({"half": 0.2, "odd": 0.3}[kind])
    assert choose.corrected(lowered(**given), MEASURED, LIMIT)[0].seconds == pytest.approx(factor * before)


def test_one_network_for_all_layouts_of_16_bits(fitted):
    fitted("half", bias=0.2)
    for given in ({}, {"dtype": "float16"}, {"k": 1025}, {"batch": (3,)}, {"a": "col", "b": "col"}):
        before = choose.ranked(lowered(**given), MEASURED, LIMIT)[0]
        assert choose.corrected(lowered(**given), MEASURED, LIMIT)[0].seconds == pytest.approx(
            math.exp(0.2) * before.seconds
        )
    for kind in ("tf32", "float32", "f16x3"):
        assert choose.corrected(lowered_as(kind), MEASURED, LIMIT) == choose.ranked(
            lowered_as(kind), MEASURED, LIMIT, corrections.CORRECTED
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_vectors_are_corrected(fitted, dtype):
    """Here each doubling of the CTAs of a cluster is slower."""
    fitted("vectors", 12, 0.1)
    lowerings = lowered(1, 4096, 4096, dtype=dtype, b="col")
    found = choose.vectors(lowerings, MEASURED)
    assert [t for t, _ in found] == sorted(t for t, _ in found)
    assert {choice.kernel.cluster_size for _, choice in found} == {1, 2, 4, 8}
    for seconds, choice in found:
        factor = math.exp(0.1 * math.log2(choice.kernel.cluster_size))
        assert seconds == pytest.approx(factor * gemv_model.seconds(choice, MEASURED))


@pytest.mark.parametrize(("m", "factor"), [(8, 1.0), (9, UNMEASURED)])
def test_sixteen_vectors_were_not_measured(fitted, m, factor):
    """The model alone estimates staged kernels: those of sixteen vectors as on a card that was not measured."""
    fitted("vectors", bias=0.3)
    found = [x for x in choose.vectors(lowered(m, 4096, 4096, dtype="float32"), MEASURED) if x[1].kernel.staged]
    assert {choice.kernel.vectors for _, choice in found} == {8 if m == 8 else 16}
    for seconds, choice in found:
        assert seconds == pytest.approx(factor * gemv_model.seconds(choice, MEASURED))


@pytest.mark.parametrize("other", [{"name": "Card 2"}, {"sms": 114}, {"bandwidth": 3.35e12}], ids=str)
def test_other_cards_have_the_model_alone(fitted, other):
    for kind in corrections.KINDS:
        fitted(kind, bias=0.3)
    card = replace(MEASURED, **other)
    assert corrections.find("half", MEASURED) is not None
    assert corrections.find("half", card) is None
    lowerings = lowered(1)
    assert choose.corrected(lowerings, card, LIMIT) == choose.ranked(lowerings, card, LIMIT, corrections.CORRECTED)
    for seconds, choice in choose.vectors(lowerings, card):
        assert seconds == gemv_model.seconds(choice, card)


def test_what_is_shipped():
    """Each card's folder is small, and its networks fit the features."""
    assert set(WIDTHS) == set(corrections.KINDS)
    for origin, kind in shipped(corrections.DATA, WIDTHS):
        card = replace(H200, name=origin.card, sms=origin.sms, bandwidth=origin.bandwidth)
        found = corrections.find(kind, card)
        assert isinstance(found, Correction)
        assert isinstance(found.net, Net)


def test_one_choice_of_each_shape():
    for dtype in ("bfloat16", "float32"):
        for size in ((1, 8192, 8192), (300, 500, 70), (256, 256, 16384), (8, 8, 8)):
            for lowerings in by_kind(lowered(*size, dtype=dtype)).values():
                after = choose.choices(lowerings, H200, LIMIT)
                kinds = [(x.shape, x.lowering.form.registers_a, x.lowering.form.split_planes_b) for _, x in after]
                assert len(set(kinds)) == len(kinds)
                before = choose.ranked(lowerings, H200, LIMIT, corrections.CORRECTED)
                assert {x[0] for x in kinds} == {x.choice.shape for x in before}


def test_features_of_many_are_those_of_each():
    """In one table: also the rows of tiles that are scheduled together, which a candidate computes for its launch."""
    for some in choose.by_scheme(lower.lowerings(problem(1000, 264, 4096, "float32"))):
        found = choose.ranked(some, H200, LIMIT, 48)
        seconds = np.array([x.seconds for x in found])
        rows = corrections.rows([x.choice for x in found], found[0].works.some([x.at for x in found]), seconds, H200)
        assert len({x.choice.group(H200) for x in found}) > 1
        for x, row in zip(found, rows):
            assert row.tolist() == corrections.features(x.choice, x.work, x.seconds, H200)
            assert math.exp(row[-4]) == pytest.approx(x.choice.group(H200))
            assert math.exp(row[-3]) == pytest.approx(x.seconds)
            m, n = x.choice.tiles
            shape = x.choice.shape
            covered = m * n * shape.m * shape.n * shape.num_multicast
            assert row[-8] == pytest.approx(x.choice.lowering.m * x.choice.lowering.n / covered)
