"""explain_grouped and spot_check_grouped: the decisions of all sizes, and the verdict on a result."""

from __future__ import annotations

import json

import numpy as np
import pytest
from grouped import FORMS, cut, operands, sizes_of
from products import BF16, F32, I8, draw

import gemmhub
from gemmhub.errors import InputError, ShapeError


def test_one_decision_for_each_size(rng):
    a, b, ends = operands(rng, "ragged m", F32, [4, 0, 2, 4, 6], k=7, n=6, beyond=3)
    decision = gemmhub.explain_grouped(a, b, ends, backend="numpy")
    assert decision.form == "ragged m"
    assert [x["sizes"] for x in decision.to_dict()["decisions"]] == [[6, 6, 7], [4, 6, 7], [2, 6, 7]]
    assert [None if x is None else x.problem.m for x in decision.decisions] == [4, None, 2, 4, 6]
    assert decision.sizes == tuple((size, 6, 7) for size in (4, 0, 2, 4, 6))
    assert (decision.groups, decision.empty, decision.unassigned) == (5, 1, 3)
    assert decision.imbalance == pytest.approx(6 * 5 / 16)
    assert decision.chosen == ("numpy",)
    singles = [gemmhub.explain(a[:m], b[0], backend="numpy") for m in (4, 2, 4, 6)]
    assert decision.seconds == pytest.approx(sum(x["numpy"].seconds for x in singles), rel=0.5)
    text = str(decision)
    assert "4 products, 3 different, one by one" in text
    assert "3 beyond the last end: zeros" in text
    assert json.loads(json.dumps(decision.to_dict()))["sizes"][2] == [2, 6, 7]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_explained(form, rng):
    a, b, ends = operands(rng, form, F32, [3, 0, 5])
    decision = gemmhub.explain_grouped(a, b, ends, out=gemmhub.grouped_matmul(a, b, ends))
    assert decision.form == form
    assert decision.groups == 3
    assert [x is None for x in decision.decisions] == [False, form in ("ragged m", "ragged n"), False]
    assert all(x.chosen for x in decision.decisions if x is not None)
    with pytest.raises(InputError, match="offsets"):
        gemmhub.explain_grouped(a, b, [9, 8, 7])


def test_many_sizes_fit_one_screen(rng):
    a, b, ends = operands(rng, "ragged m", F32, range(1, 61), k=3, n=2)
    decision = gemmhub.explain_grouped(a, b, ends, backend="numpy")
    assert len(decision.to_dict()["decisions"]) == 60
    assert len(repr(decision).splitlines()) <= 30
    assert len(str(decision).splitlines()) > 60


def test_lists_and_nothing_are_explained():
    a, b = [np.ones((2, 3)), np.ones((4, 5))], [np.ones((3, 4)), np.ones((5, 6))]
    decision = gemmhub.explain_grouped(a, b)
    assert decision.form == "lists"
    assert decision.sizes == ((2, 4, 3), (4, 6, 5))
    with pytest.raises(ShapeError, match="group 1"):
        gemmhub.explain_grouped(a, [b[0], b[0]])
    nothing = gemmhub.explain_grouped(np.ones((0, 2)), np.ones((3, 2, 2)), [0, 0, 0])
    assert (nothing.imbalance, nothing.seconds, nothing.chosen, nothing.empty) == (1.0, 0.0, (), 3)
    assert "3 groups, ragged m" in repr(nothing)


def test_products_of_lists_are_told_apart_by_more_than_their_sizes(rng):
    a = [draw(rng, (4, 3), dtype) for dtype in (F32, BF16, F32, I8)]
    b = [draw(rng, (3, 5), x.dtype) for x in a]
    decision = gemmhub.explain_grouped(a, b)
    assert [x.problem.a.dtype for x in decision.decisions] == [x.dtype for x in a]
    assert decision.decisions[0] is decision.decisions[2]
    assert [x["groups"] for x in decision.to_dict()["decisions"]] == [2, 1, 1]
    assert "4 products, 3 different" in str(decision)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("form", FORMS)
def test_specs_are_explained_as_arrays(form, device, rng):
    a, b, ends = operands(rng, form, F32, [3, 0, 5])
    x, y = (gemmhub.ArraySpec(z.shape, z.dtype, strides=z.strides, device=device) for z in (a, b))
    decision = gemmhub.explain_grouped(x, y, ends)
    expected = gemmhub.explain_grouped(a, b, ends)
    assert (decision.form, decision.sizes) == (form, expected.sizes)
    for mine, other in zip(decision.decisions, expected.decisions):
        assert (mine is None) is (other is None)
        if mine is not None:
            assert mine.problem.key == other.problem.key
            for p, q in ((mine.problem.a, other.problem.a), (mine.problem.b, other.problem.b)):
                assert (p.layout.row_stride, p.layout.col_stride) == (q.layout.row_stride, q.layout.col_stride)
            assert mine.problem.device.type == device


def test_a_size_that_no_backend_runs_is_reported(rng):
    a, b, ends = operands(rng, "ragged m", F32, [4, 2])
    decision = gemmhub.explain_grouped(a, b, ends, backend="numpy", reproducible="nobody.k3")
    assert decision.chosen == (None,)
    assert decision.seconds is None
    assert "none" in repr(decision)


@pytest.mark.parametrize("dtype", [F32, BF16, I8], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_right_results_pass_and_wrong_ones_fail(form, dtype, rng):
    a, b, ends = operands(rng, form, dtype, [3, *sizes_of(rng, 2), 4])
    result = gemmhub.grouped_matmul(a, b, ends)
    verdict = gemmhub.spot_check_grouped(a, b, ends, result)
    assert verdict
    assert verdict.worst <= 1
    assert "passed" in repr(verdict)
    parts, rest = cut(form, a, b, result, ends)
    element = parts[3][2][1:2, 1:2]
    before = element.copy()
    element += np.asarray(100, result.dtype) if dtype != I8 else np.asarray(1, result.dtype)
    verdict = gemmhub.spot_check_grouped(a, b, ends, result)
    assert not verdict
    assert verdict.group == 3
    assert verdict.reason.startswith("element (3, 1, 1) is " if form == "dense" else "group 3: element (1, 1) is ")
    element[...] = before
    if rest.size:
        rest[-1, -1] = 1
        verdict = gemmhub.spot_check_grouped(a, b, ends, result)
        assert not verdict
        assert verdict.group is None
        where = tuple(int(x) - 1 for x in result.shape)
        assert verdict.reason.startswith(f"element {where} is 1")
        rest[-1, -1] = np.nan if dtype != I8 else 2
        assert not gemmhub.spot_check_grouped(a, b, ends, result)


def test_large_groups_are_checked_by_sums(rng):
    a, b, ends = operands(rng, "ragged m", F32, [300, 20], m=5, n=200, k=150)
    result = gemmhub.grouped_matmul(a, b, ends)
    verdict = gemmhub.spot_check_grouped(a, b, ends, result, seed=3)
    assert verdict
    assert [x.method for x in verdict.checks] == ["freivalds", "recomputed"]
    result[299] *= 1.5
    assert gemmhub.spot_check_grouped(a, b, ends, result).group == 0


def test_options_enter_the_check(rng):
    a, b, ends = operands(rng, "ragged m", F32, [3, 0, 2])
    bias = draw(rng, (3, 6), F32)
    result = gemmhub.grouped_matmul(a, b, ends, bias=bias, activation="relu", alpha=2)
    assert gemmhub.spot_check_grouped(a, b, ends, result, bias=bias, activation="relu", alpha=2)
    assert not gemmhub.spot_check_grouped(a, b, ends, result, bias=bias[::-1], activation="relu", alpha=2)


def test_lists_are_checked(rng):
    a, b = [draw(rng, (2, 3), F32), draw(rng, (4, 5), F32)], [draw(rng, (3, 4), F32), draw(rng, (5, 6), F32)]
    results = gemmhub.grouped_matmul(a, b)
    assert gemmhub.spot_check_grouped(a, b, None, results)
    results[1][0, 0] += 1
    verdict = gemmhub.spot_check_grouped(a, b, None, results)
    assert verdict.group == 1
    with pytest.raises(ShapeError, match="result: group 0"):
        gemmhub.spot_check_grouped(a, b, None, results[::-1])
    for wrong, message in ((results[:1], "result: a list of 1"), (results[0], "result: no list beside lists")):
        with pytest.raises(InputError, match=message):
            gemmhub.spot_check_grouped(a, b, None, wrong)


def test_mistakes_of_the_check_are_named(rng):
    a, b, ends = operands(rng, "ragged m", F32, [3, 2])
    result = gemmhub.grouped_matmul(a, b, ends)
    with pytest.raises(ShapeError, match=r"result: shape \(7, 6\); allowed: shape \(8, 6\)"):
        gemmhub.spot_check_grouped(a, b, ends, result[:7])
    with pytest.raises(InputError, match="out: given to spot_check_grouped"):
        gemmhub.spot_check_grouped(a, b, ends, result, out=result)
    with pytest.raises(InputError, match="seed"):
        gemmhub.spot_check_grouped(a, b, ends, result, seed=-1)
