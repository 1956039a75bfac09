"""Repeated grouped calls: nothing is decided twice, results stay within bounds, and mistakes are still named."""

from __future__ import annotations

import numpy as np
import pytest
from grouped import FORMS, cut, operands, sizes_of, worst
from products import BF16, C64, F32, F64, I8, draw, relaid

import gemmhub
from gemmhub import api
from gemmhub._grouped import call as calls
from gemmhub._grouped import repeated
from gemmhub.errors import DTypeError, InputError, OutputError, ShapeError

DIVIDED = FORMS[:3]


def tokens(rng, dtype, sizes, experts, beyond=0):
    """(a, offsets) of rows for these experts."""
    ends = np.cumsum(sizes).astype(np.int32)
    return draw(rng, (int(ends[-1]) + beyond, experts.shape[1]), dtype), ends


@pytest.mark.parametrize("dtype", [F32, BF16, F64, C64, I8], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_repeated_calls_are_within_the_bound(form, dtype, rng):
    for options in ({}, {"alpha": 0.5, "out_dtype": F64}, {"activation": "relu"}):
        if dtype.kind == "c" and "activation" in options:
            continue
        kept = {name: x for name, x in options.items() if not (name == "out_dtype" and dtype.kind == "c")}
        for _ in range(4):
            a, b, ends = operands(rng, form, dtype, [*sizes_of(rng, 3, most=4), 2], beyond=int(rng.integers(3)))
            got = gemmhub.grouped_matmul(a, b, ends, **kept)
            assert worst(form, a, b, ends, got, **kept) <= 1
            out = relaid(rng, np.full(got.shape, 7, got.dtype))[0]
            assert gemmhub.grouped_matmul(a, b, ends, out=out, **kept) is out
            assert worst(form, a, b, ends, out, **kept) <= 1
            np.testing.assert_array_equal(gemmhub.grouped_matmul(a, b, ends, **kept), got)


def test_other_tokens_are_no_new_call(monkeypatch, rng):
    experts = draw(rng, (4, 5, 6), F32)
    api.forget_decisions()
    gemmhub.grouped_matmul(*_in_order(*tokens(rng, F32, [1, 2, 3, 4], experts), experts))
    products = _counted(monkeypatch)
    for sizes, new in (([4, 3, 2, 1], 0), ([0, 4, 0, 4], 0), ([1, 5, 2, 5], 1), ([5, 5, 5, 5], 0)):
        a, ends = tokens(rng, F32, sizes, experts, beyond=1)
        got = gemmhub.grouped_matmul(a, experts, ends)
        assert worst("ragged m", a, experts, ends, got) <= 1
        assert products["describe"] == 0
        assert products["matmul"] == new, sizes
        products["matmul"] = 0


@pytest.mark.parametrize("form", FORMS)
def test_a_repeated_call_decides_nothing(form, monkeypatch, rng):
    a, b, ends = operands(rng, form, F32, [3, 0, 2, 3])
    bias = draw(rng, (b.shape[-1],), F32)
    for options in ({}, {"alpha": 0.25}, {"bias": bias}):
        expected = gemmhub.grouped_matmul(a, b, ends, **options)
        gemmhub.grouped_matmul(a, b, ends, **options)
        with monkeypatch.context() as patched:
            products = _counted(patched)
            np.testing.assert_array_equal(gemmhub.grouped_matmul(a, b, ends, **options), expected)
            assert products["matmul"] == 0
            assert products["describe"] == ("bias" in options)


def _counted(monkeypatch):
    """The numbers of descriptions and products that are not looked up."""
    counts = {"describe": 0, "matmul": 0}
    for module, name in ((calls, "describe"), (repeated.api, "matmul")):
        original = getattr(module, name)

        def counted(*arguments, name=name, original=original, **options):
            counts[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, counted)
    return counts


def _in_order(a, ends, experts):
    return a, experts, ends


def test_strides_and_the_dtype_of_out_are_of_the_signature(rng):
    for _ in range(3):
        a, b, ends = operands(rng, "ragged m", F32, [2, 3, 1])
        assert worst("ragged m", a, b, ends, gemmhub.grouped_matmul(a, b, ends)) <= 1
        turned = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
        assert worst("ragged m", a, b, ends, gemmhub.grouped_matmul(a, turned, ends)) <= 1
        assert worst("ragged m", a, b, ends, gemmhub.grouped_matmul(np.asfortranarray(a), b, ends)) <= 1
        out = np.empty((len(a), b.shape[2]), F64)
        gemmhub.grouped_matmul(a, b, ends, out=out)
        assert worst("ragged m", a, b, ends, out, out_dtype=F64) <= 1


def test_mistakes_of_a_repeated_call_are_named(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 3], beyond=1, n=7, k=7)
    out = np.zeros((6, 7), F32)
    for _ in range(2):
        gemmhub.grouped_matmul(a, b, ends)
        gemmhub.grouped_matmul(a, b, ends, out=out)
    out[...] = 7
    read_only = out.copy()
    read_only.flags.writeable = False
    for wrong, options, error, message in (
        ((a, b, ends[::-1].copy()), {}, InputError, r"offsets\[1\] = 2 is below"),
        ((a, b, np.array([2, 9], np.int32)), {}, InputError, "beyond the 6 rows of a"),
        ((a, b, np.array([-1, 5], np.int32)), {}, InputError, "below 0"),
        ((a, b, ends[:1]), {}, ShapeError, "1 ends for 2 groups"),
        ((a, b, ends.astype(F32)), {}, DTypeError, "float32"),
        ((a[:, :6], b, ends), {}, ShapeError, "inner dimensions 6 and 7"),
        ((a, b, ends), {"out": a}, OutputError, "shares memory with a"),
        ((a, b, ends), {"out": read_only}, OutputError, "read-only"),
        ((a, b, ends), {"out": out[:5]}, OutputError, "shape"),
        ((a, b, ends), {"out_dtype": []}, DTypeError, "out_dtype"),
    ):
        with pytest.raises(error, match=message):
            gemmhub.grouped_matmul(*wrong, **options)
    assert (out == 7).all()


@pytest.mark.parametrize("form", DIVIDED)
def test_a_function_that_fails_is_not_the_last_word(form, monkeypatch, rng):
    """Where the function of a size raises, the product is described anew, from its own group on."""
    a, b, ends = operands(rng, form, F32, [2, 3, 2, 1])
    expected = gemmhub.grouped_matmul(a, b, ends)
    kept = list(api.grouped_signatures().values())

    def fails(*_):
        raise ValueError

    for options in ({}, {"alpha": 1.0}):
        gemmhub.grouped_matmul(a, b, ends, **options)
        for signature in [*kept, *api.grouped_signatures().values()]:
            for size in list(signature._runs):
                if size != 3:
                    monkeypatch.setitem(signature._runs, size, fails)
        np.testing.assert_array_equal(gemmhub.grouped_matmul(a, b, ends, **options), expected)


@pytest.mark.parametrize("form", DIVIDED)
def test_a_wrong_loop_is_found(form, monkeypatch, rng):
    """The tests see a loop whose groups are swapped."""
    a, b, ends = operands(rng, form, F32, [3, 3, 3])
    kind = next(x for x in repeated._LOOPS if x.name == form)
    loop = repeated._LOOPS[kind]
    gemmhub.grouped_matmul(a, b, ends)

    def swapped(runs, ends, first, a, b, out):
        if kind.b is None:
            return loop(runs, ends, first, a, b[::-1], out)
        return loop(runs, ends, first, a, b[:, ::-1].copy(), out)

    monkeypatch.setitem(repeated._LOOPS, kind, swapped)
    assert worst(form, a, b, ends, gemmhub.grouped_matmul(a, b, ends)) > 1


def test_new_decisions_replace_signatures(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 3])
    gemmhub.grouped_matmul(a, b, ends)
    assert api.grouped_signatures()
    api.forget_decisions()
    assert not api.grouped_signatures()
    gemmhub.grouped_matmul(a, b, ends)
    before = len(api.grouped_signatures())
    with gemmhub.use(precision="bf16"):
        got = gemmhub.grouped_matmul(a, b, ends)
    assert len(api.grouped_signatures()) == before + 1
    assert worst("ragged m", a, b, ends, got, precision="bf16") <= 1


def test_sizes_and_signatures_are_bounded(monkeypatch, rng):
    monkeypatch.setattr(repeated, "_MAX_SIZES", 3)
    monkeypatch.setattr(repeated, "_MAX_SIGNATURES", 2)
    api.forget_decisions()
    for k in (3, 4, 5):
        a, b, ends = operands(rng, "ragged m", F32, [1, 2, 3, 4, 5, 6], k=k)
        assert worst("ragged m", a, b, ends, gemmhub.grouped_matmul(a, b, ends)) <= 1
    kept = api.grouped_signatures()
    assert len(kept) == 2
    assert all(len(signature._runs) == 3 for signature in kept.values())


def test_nan_and_infinities_raise_and_warn_nothing(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 2, 2], beyond=0)
    a[1], a[3] = np.inf, np.nan
    for _ in range(3):
        got = gemmhub.grouped_matmul(a, b, ends)
        parts, _ = cut("ragged m", a, b, got, ends)
        assert np.isfinite(parts[2][2]).all()
        assert np.isnan(parts[1][2][1]).all()


@pytest.mark.parametrize("form", DIVIDED)
def test_one_kernel_runs_all_groups_where_it_is_the_best_for_each(form, monkeypatch, rng):
    """``Kernel.groups`` is called where every size is known to be of one kernel, and what it leaves is multiplied."""
    asked, answers = [], [True]

    def groups(axes, ends, a, b, out):
        asked.append((axes, ends))
        if answers[0] == "raise":
            raise RuntimeError
        if answers[0]:
            for left, right, part in cut(form, a, b, out, ends)[0]:
                part[...] = left @ right
        else:
            out[...] = np.nan
        return answers[0]

    monkeypatch.setattr(api, "known_groups", lambda a, b, out, options: ("test: groups", groups))
    api.forget_decisions()
    a, b, ends = operands(rng, form, F32, [2, 3, 0, 2])
    first = gemmhub.grouped_matmul(a, b, ends)
    assert not asked
    for answers[0] in (True, False, "raise"):
        got = gemmhub.grouped_matmul(a, b, ends)
        assert worst(form, a, b, ends, got) <= 1
        np.testing.assert_allclose(got, first, rtol=1e-4, atol=1e-4)
    assert len(asked) == 3
    axes, passed = asked[0]
    assert axes == {"ragged m": (0, -1, 0), "ragged k": (1, 0, -1), "ragged n": (-1, 1, 1)}[form]
    assert passed.dtype == np.int64
    assert passed.tolist() == ends.tolist()
    answers[0] = True
    monkeypatch.setattr(api, "known_groups", lambda *_: None)
    changed = operands(rng, form, F32, [2, 3, 1, 1], beyond=3)[2]
    assert worst(form, a, b, changed, gemmhub.grouped_matmul(a, b, changed)) <= 1
    assert worst(form, a, b, changed, gemmhub.grouped_matmul(a, b, changed)) <= 1
    assert len(asked) == 3, "one is not known to be the best for 1"
    kept = list(api.grouped_signatures().values())[-1]
    kept._together[1] = ("test: another", groups)
    assert worst(form, a, b, changed, gemmhub.grouped_matmul(a, b, changed)) <= 1
    assert len(asked) == 3, "nor where another kernel is"
