"""What corrects the cost model: what it sees, how it re-orders, and the network and trees of the package."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_hopper import corrections, cost_model, forms, ranking
from gemmhub_hopper.choice import Choice
from gemmhub_hopper.config import Shape
from problems import H200, LIMIT, problem

from gemmhub.testing.nets import check_net
from gemmhub.testing.trees import check_trees
from gemmhub.trees import Trees

STAGES, PINGPONG = 10, 12
"""Places of features."""
FEATURES = 51


def ranked(m=2048, n=4096, k=1024, card=H200, **given):
    return ranking.ranked(forms.lowered(problem(m, n, k, **given)), card, LIMIT)


def stump(feature, threshold, low, high):
    """One tree with two leaves."""
    return Trees.of({
        "roots": np.array([0]), "feature": np.array([feature, 0, 0]),
        "threshold": np.array([threshold, np.inf, np.inf]), "left": np.array([1, 1, 2]), "right": np.array([2, 1, 2]),
        "value": np.array([0.0, low, high]), "base": 0.0, "depth": 1,
    })  # fmt: skip


def test_features():
    """Of 16 x 11 tiles on 132 multiprocessors: one round, and a third of another."""
    way = forms.lowered(problem(2048, 11 * 192 - 64, 1024))[0]
    choice = Choice(way, Shape(128, 192, 5, pingpong=True), 1)
    work = cost_model.work(choice, choice.cut(LIMIT), H200)
    found = corrections.features(choice, work, 1e-4)
    assert found[:8] == [math.log(2048), math.log(2048), math.log(1024), 0, way.form.a_mn, way.form.b_mn, False, False]
    assert found[8:15] == [128, 192, 5, 2, True, 1, 1]
    assert (found[STAGES], found[PINGPONG]) == (5, True)
    share, full, rest, used, blocks, splits = found[15:21]
    assert share == pytest.approx(2048 / (11 * 192))
    assert (full, rest, blocks, splits) == (1, 44 / 132, 16, 1)
    assert used == pytest.approx(2 / 3)
    assert sum(found[21:25]) == 128 * 64 * 2 + 192 * 64 * 2
    assert found[25:27] == [0, math.log(1e-4)]
    assert found[27] == pytest.approx(math.log(2 * 2048**2 * 1024 / 1e-4))
    assert found[28] == pytest.approx(math.log(3 * 2048**2 * 2 / 1e-4), abs=0.7)
    assert found[29] == 1
    assert found[30:33] == [math.log(16), math.log(11), math.log(176)]
    assert found[33:36] == [0, pytest.approx(2048 / 192 - 11), False]
    assert found[36:41] == [math.log(2), 0.5, pytest.approx(88 / 132), False, True]
    assert found[41:44] == [math.log(16), 0, math.log(128 * 192)]
    assert found[44] == pytest.approx(math.log(2 * 96 * 4 * 16 * 2), abs=1e-3)  # 4 steps of 2 x 96 cycles a block of k
    assert found[45] == pytest.approx(math.log(320 * 64 * 2 * 16 * 2), abs=1e-6)
    assert found[46] == math.log(128 * 192 * 2)
    assert found[47] == math.log(work.read + work.written)
    assert found[48:] == [math.log(choice.group(H200)), 0, math.log(64)]


def test_features_of_a_shared_k():
    way = forms.lowered(problem(256, 256, 8192))[0]
    for choice in (Choice(way, Shape(128, 128, 6), 4), Choice(way, Shape(64, 64, 12, 1, cluster_k=4), 1)):
        work = cost_model.work(choice, choice.cut(LIMIT), H200)
        found = corrections.features(choice, work, 1e-5)
        assert found[42] == math.log(choice.splits)
        assert found[49] == math.log1p(work.part) > 0


def test_features_of_every_choice_are_finite():
    for given in ({}, {"dtype": "float32"}, {"batch": (5,)}, {"dtype": "float16"}):
        for m, n, k in ((1, 1, 1), (8, 8192, 512), (1, 8, 2**20), (4096, 4096, 0)):
            for x in ranked(m, n, k, **given):
                found = corrections.features(x.choice, x.work, x.seconds)
                assert len(found) == FEATURES
                assert np.isfinite(found).all()


def test_shapes_nobody_has_measured_have_features():
    """They are counts, so that larger clusters and more consumers are told of, too."""
    choice = Choice(forms.lowered(problem(4096, 4096, 4096))[0], Shape(192, 160, 4, 3, cluster_m=2, cluster_n=2), 1)
    found = corrections.features(choice, cost_model.work(choice, choice.cut(LIMIT), H200), 1e-4)
    assert found[8:15] == [192, 160, 4, 3, False, 2, 2]
    assert np.isfinite(found).all()


def test_trees_reorder():
    """Here: ping-pong is slower by a fifth than the model thinks."""
    before = ranked()
    after = corrections.corrected(before, stump(PINGPONG, 0.5, 0.0, math.log(1.2)))
    old = {x.choice.name: x.seconds for x in before[: corrections.CORRECTED]}
    first = after[: corrections.CORRECTED]
    assert [x.choice.name for x in first] != list(old)
    assert {x.choice.name for x in first} == set(old)
    for x in first:
        factor = 1.2 if x.choice.shape.pingpong else 1.0
        assert x.seconds == pytest.approx(factor * old[x.choice.name])
    assert [x.choice for x in after[corrections.CORRECTED :]] == [x.choice for x in before[corrections.CORRECTED :]]


@pytest.mark.parametrize(("value", "factor"), [(3.0, math.exp(0.4)), (-3.0, math.exp(-0.4)), (0.1, math.exp(0.1))])
def test_corrections_are_bounded(value, factor):
    """And whatever they are, what is behind the corrected ones stays there."""
    before = ranked()
    assert len(before) > corrections.CORRECTED
    after = corrections.corrected(before, stump(STAGES, 0.0, value, value))
    assert after[0].seconds == pytest.approx(factor * before[0].seconds)
    assert [x.choice for x in after] == [x.choice for x in before]
    seconds = [x.seconds for x in after]
    assert seconds == sorted(seconds)


def test_few_choices():
    before = ranked()[:3]
    assert len(corrections.corrected(before, stump(STAGES, 0.0, 0.2, 0.2))) == 3
    assert corrections.corrected([], stump(STAGES, 0.0, 0.2, 0.2)) == []


def test_copies_are_left_alone():
    """Of 16 bits, as nothing was measured that copies; tf32 was measured with its copies."""
    before = ranked(300, 500, 70)  # rows of 140 bytes
    after = {x.choice.name: x for x in corrections.corrected(before, stump(STAGES, 0.0, 0.2, 0.2))}
    assert all(0 < x.apart < x.seconds for x in before)
    for x in before[: corrections.CORRECTED]:
        own = x.seconds - x.apart
        assert after[x.choice.name].seconds == pytest.approx(x.apart + math.exp(0.2) * own)
    for given in ({"m": 304, "n": 504, "k": 72}, {"dtype": "float32"}, {"dtype": "float32", "precision": "tf32"}):
        assert not any(x.apart for x in ranked(**given))


def test_copies_and_the_rest_are_all():
    way = forms.lowered(problem(300, 500, 70))[0]
    choice = Choice(way, Shape(128, 128, 6), 1)
    work = cost_model.work(choice, choice.cut(LIMIT), H200)
    constants = cost_model.CONSTANTS["bfloat16"]
    copies = cost_model.copying(work, H200, constants)
    uncopied = work._replace(copied=0.0, launches=work.slabs)
    assert cost_model.seconds_of(work, H200, constants) == pytest.approx(
        copies + cost_model.seconds_of(uncopied, H200, constants)
    )
    assert copies > constants.launch


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [(1, 8192, 8192), (300, 500, 70), (4096, 4096, 4096), (256, 256, 16384), (8, 8, 8)])
def test_what_is_shipped_keeps_shapes(dtype, size):
    """One choice of each of the first, as estimated by the model and not much corrected."""
    ways = forms.lowered(problem(*size, dtype))
    before = ranking.ranked(ways, H200, LIMIT, corrections.CORRECTED)
    after = ranking.choices(ways, H200, LIMIT)
    assert [x for x, _ in after] == sorted(x for x, _ in after)

    def kind(choice):
        return choice.shape, choice.way.form.a_registers, choice.way.form.b_split

    kinds = [kind(choice) for _, choice in after]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {kind(x.choice) for x in before}
    old = {x.choice.name: x.seconds for x in before}
    for seconds, choice in after:
        assert abs(math.log(seconds / old[choice.name])) < corrections.MOST + 1e-9


@pytest.mark.parametrize("sms", [114, 131, 144])
def test_other_cards_are_left_alone(sms):
    """Nothing was fitted to them."""
    card = replace(H200, sms=sms)
    ways = forms.lowered(problem(2048, 4096, 1024))
    assert corrections.learned("bfloat16", sms) is None
    found = ranking.choices(ways, card, LIMIT)
    estimated = [(x.seconds, x.choice) for x in ranking.ranked(ways, card, LIMIT)]
    assert found[0] == estimated[0]
    assert all(x in estimated for x in found)


def test_what_is_shipped():
    assert corrections.learned("float16", 132) is corrections.learned("bfloat16", 132)
    for kind in ("tf32", "split"):
        check_trees(corrections.learned(kind, 132), FEATURES)
    check_net(corrections.learned("bfloat16", 132), FEATURES)


def test_what_was_learned_is_used(monkeypatch):
    trees = stump(STAGES, 0.0, 0.3, 0.3)
    monkeypatch.setattr(corrections, "learned", lambda kind, sms: trees if kind != "split" else None)
    for dtype in ("bfloat16", "float16"):
        ways = forms.lowered(problem(2048, 4096, 1024, dtype))
        (seconds, choice), *_ = ranking.choices(ways, H200, LIMIT)
        first = ranking.ranked(ways, H200, LIMIT)[0]
        assert choice == first.choice
        assert seconds == pytest.approx(math.exp(0.3) * first.seconds)
    ways = forms.lowered(problem(2048, 4096, 1024, "float32"))  # an input of which nothing was learned
    assert ranking.choices(ways, H200, LIMIT)[0][0] == ranking.ranked(ways, H200, LIMIT)[0].seconds
