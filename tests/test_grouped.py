"""grouped_matmul: every form against the bound of each group, and the mistakes that it names."""

from __future__ import annotations

import inspect
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from grouped import ACTIVATED, FORMS, cut, operands, sizes_of, worst
from products import BF16, C64, E4M3, F16, F32, F64, I8, I32, draw, ratio, relaid
from rowwise import Rowwise, registered

import gemmhub
from gemmhub._grouped import call as calls
from gemmhub._grouped import offsets as reader
from gemmhub._grouped import repeated
from gemmhub.errors import DTypeError, InputError, NoBackendError, OutputError, ShapeError

DIVIDED = FORMS[:3]


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, I8], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_each_group_is_within_the_bound_of_its_product(form, dtype, rng):
    for groups in (1, 2, 5):
        a, b, ends = operands(rng, form, dtype, sizes_of(rng, groups))
        got = gemmhub.grouped_matmul(a, b, ends)
        assert worst(form, a, b, ends, got) <= 1
        strided = relaid(rng, a)[0], relaid(rng, b)[0]
        assert worst(form, a, b, ends, gemmhub.grouped_matmul(*strided, ends)) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_out_is_overwritten_wholly(form, rng):
    a, b, ends = operands(rng, form, F32, [3, 0, 4])
    expected = gemmhub.grouped_matmul(a, b, ends)
    out = relaid(rng, np.full(expected.shape, np.nan, F32))[0]
    assert gemmhub.grouped_matmul(a, b, ends, out=out) is out
    assert worst(form, a, b, ends, out) <= 1


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("form", DIVIDED)
def test_what_is_beyond_the_last_end_is_not_read(form, dtype, rng):
    a, b, ends = operands(rng, form, dtype, [2, 3, 0], beyond=4)
    clean = gemmhub.grouped_matmul(a, b, ends)
    last = ends[-1]
    for x, axis in ((a, {"ragged m": 0, "ragged k": 1}.get(form)), (b, {"ragged k": 0, "ragged n": 1}.get(form))):
        if axis is not None:
            x[(slice(None),) * axis + (slice(last, None),)] = np.nan
    got = gemmhub.grouped_matmul(a, b, ends)
    np.testing.assert_array_equal(got, clean)
    assert np.isfinite(got.astype(F64)).all()
    assert not np.any(cut(form, a, b, got, ends)[1])


@pytest.mark.parametrize("form", FORMS)
def test_groups_do_not_mix(form, rng):
    """NaN and infinities of one group reach no other."""
    a, b, ends = operands(rng, form, F32, [3, 2, 4])
    clean = gemmhub.grouped_matmul(a, b, ends)
    parts, _ = cut(form, a, b, clean, ends)
    parts[1][0][...] = np.nan
    parts[1][1][...] = np.inf
    got = gemmhub.grouped_matmul(a, b, ends)
    for i, ((_, _, mine), (_, _, before)) in enumerate(
        zip(cut(form, a, b, got, ends)[0], cut(form, a, b, clean, ends)[0])
    ):
        assert np.isnan(mine).all() if i == 1 else np.array_equal(mine, before)


@pytest.mark.parametrize(("form", "activation"), ACTIVATED)
def test_options_are_those_of_each_product(form, activation, rng):
    a, b, ends = operands(rng, form, F32, [3, 0, 5, 1], beyond=2)
    columns = b.shape[-1]
    for bias in (draw(rng, (columns,), F64), draw(rng, (4, columns), F64))[: 1 + (form != "ragged n")]:
        got = gemmhub.grouped_matmul(a, b, ends, bias=bias, activation=activation, alpha=0.5, out_dtype=F64)
        assert worst(form, a, b, ends, got, bias=bias, activation=activation, alpha=0.5, out_dtype=F64) <= 1


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(("form", "activation"), ACTIVATED)
def test_an_addend(form, activation, dtype, rng):
    """Each group has its part of c; what is beyond the last end has none."""
    a, b, ends = operands(rng, form, dtype, [3, 0, 5, 1], beyond=2)
    shape = gemmhub.grouped_matmul(a, b, ends).shape
    c = draw(rng, shape, dtype)
    for options in ({"beta": 1}, {"beta": -0.5, "alpha": 2, "bias": draw(rng, shape[-1:], dtype)}):
        options |= {"activation": activation} if activation else {}
        for x in (c, relaid(rng, c)[0]):
            got = gemmhub.grouped_matmul(a, b, ends, c=x, **options)
            assert worst(form, a, b, ends, got, c=c, **options) <= 1
            assert gemmhub.spot_check_grouped(a, b, ends, got, c=x, **options)
    wrong = c + np.ones_like(c)
    assert not gemmhub.spot_check_grouped(a, b, ends, got, c=wrong, **options) or activation == "relu"


@pytest.mark.parametrize("form", FORMS)
def test_the_addend_may_be_the_result(form, rng):
    a, b, ends = operands(rng, form, F32, [3, 0, 5, 1], beyond=2)
    product = gemmhub.grouped_matmul(a, b, ends)
    out = draw(rng, product.shape, F32)
    c = out.copy()
    for _ in range(2):
        assert gemmhub.grouped_matmul(a, b, ends, out=out, c=out, beta=1) is out
    assert worst(form, a, b, ends, out, c=c + product, beta=1) <= 2
    x = np.full(product.shape, np.nan, F32)
    np.testing.assert_array_equal(gemmhub.grouped_matmul(a, b, ends, c=x, beta=0), product)
    memory = np.empty(product.size + 1, F32)
    shifted = memory[1:].reshape(product.shape)
    with pytest.raises(OutputError, match="it shares memory with c"):
        gemmhub.grouped_matmul(a, b, ends, out=memory[:-1].reshape(product.shape), c=shifted, beta=1)


def test_addends_of_lists(rng):
    a, b = ([draw(rng, shape, F32) for shape in shapes] for shapes in (((3, 4), (2, 5)), ((4, 6), (5, 2))))
    c = [draw(rng, (3, 6), F32), draw(rng, (2, 2), F32)]
    got = gemmhub.grouped_matmul(a, b, c=c, beta=2)
    for x, y, z, mine in zip(a, b, c, got):
        assert ratio(mine, x, y, c=z, beta=2) <= 1
    outs = [x.copy() for x in c]
    gemmhub.grouped_matmul(a, b, out=outs, c=outs, beta=2)
    for mine, expected in zip(outs, got):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("form", FORMS)
def test_groups_without_k_are_zeros(form, rng):
    if form == "ragged k":
        a, b, ends = operands(rng, form, F32, [0, 2, 0])
        got = gemmhub.grouped_matmul(a, b, ends, out=np.full((3, 5, 6), np.nan, F32))
        assert not np.any(got[[0, 2]])
    else:
        a, b, ends = operands(rng, form, F32, [1, 2, 0], k=0)
        got = gemmhub.grouped_matmul(a, b, ends)
        assert not np.any(got)
    bias = draw(rng, (b.shape[-1],), F32)
    got = gemmhub.grouped_matmul(a, b, ends, bias=bias)
    assert worst(form, a, b, ends, got, bias=bias) <= 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [[0, 0], []], ids=str)
def test_nothing_to_multiply(form, sizes, rng):
    a, b, ends = operands(rng, form, F32, sizes, m=0 if form == "dense" else 5)
    got = gemmhub.grouped_matmul(a, b, ends)
    assert not np.any(got)
    assert got.dtype == F32
    with pytest.raises(InputError, match="activation"):
        gemmhub.grouped_matmul(a, b, ends, activation="softmax")
    if sizes:
        with pytest.raises(DTypeError, match=r"bias: (group 0: )?dtype complex128"):
            gemmhub.grouped_matmul(a, b, ends, bias=np.ones(b.shape[-1], np.complex128))


@pytest.mark.parametrize("form", FORMS)
def test_wide_exponents(form, rng):
    a, b, ends = operands(rng, form, F32, [7, 1, 0, 12], k=33)
    a *= np.exp2(rng.integers(-40, 40, a.shape)).astype(F32)
    b *= np.exp2(rng.integers(-40, 40, b.shape)).astype(F32)
    assert worst(form, a, b, ends, gemmhub.grouped_matmul(a, b, ends)) <= 1


@pytest.mark.parametrize("form", FORMS)
def test_scales(form, rng):
    sizes, k = [130, 0, 7] if form == "ragged k" else [3, 0, 4], 256
    a, b, ends = operands(rng, form, F32, sizes, n=129, k=k)
    a8, b8 = a.astype(E4M3), b.astype(E4M3)
    groups = 3

    def factors(*shape):
        return np.exp2(rng.uniform(-3, 3, shape)).astype(F32)

    choices_a = [factors(1), factors(a.shape[-2]), factors(a.shape[-2], 1), factors(groups, 1, 1)]
    choices_b = [factors(1), factors(b.shape[-1]), factors(1, b.shape[-1]), factors(groups, 1, 1)]
    if form == "ragged m":
        choices_a += [factors(a.shape[0], 2)]
        choices_b += [factors(groups, 2, 2), factors(groups, 1, 129), factors(1, 1, 129)]
    elif form == "ragged n":
        choices_a += [factors(groups, 5, 2), factors(groups, 5, 1)]
        choices_b += [factors(2, b.shape[1])]
    elif form == "ragged k":
        choices_a += [factors(groups, 5, 1)]
        choices_b += [factors(groups, 1, 129)]
    for left in choices_a:
        for right in choices_b[:: max(1, len(choices_b) // 3)] + choices_b[-1:]:
            got = gemmhub.grouped_matmul(a8, b8, ends, scale_a=left, scale_b=right, out_dtype=F32)
            wide_a, wide_b = _spread(form, a8, left, "a", ends), _spread(form, b8, right, "b", ends)
            parts, rest = cut(form, wide_a, wide_b, got, ends)
            assert not np.any(rest)
            for x, y, result in parts:
                size = np.abs(x) @ np.abs(y)
                assert (np.abs(result - x @ y) <= 2.0**-8 * size + 1e-30).all()


def _spread(form, x, scale, operand, ends):
    """``x`` times its factors in float64, element by element."""
    wide = x.astype(F64)
    if scale.ndim == 3:
        out = wide.copy()
        axis = {("a", "ragged m"): 0, ("a", "ragged k"): 1, ("b", "ragged k"): 0, ("b", "ragged n"): 1}.get(
            (operand, form)
        )
        for i in range(3):
            part = out[i]
            if axis is not None:
                span = slice(0 if i == 0 else ends[i - 1], ends[i])
                part = out[span] if axis == 0 else out[:, span]
            part *= _blocks(scale[i if len(scale) > 1 else 0], part.shape)
        return out
    if scale.size == 1:
        return wide * scale.reshape(())
    if scale.ndim == 1:
        scale = scale[:, np.newaxis] if operand == "a" else scale[np.newaxis]
    return wide * _blocks(scale, wide.shape[-2:])


def _blocks(scale, shape):
    for axis, size in enumerate(shape):
        if scale.shape[axis] not in (1, size):
            scale = np.repeat(scale, 128, axis).take(range(size), axis)
    return scale.astype(F64)


def test_lists_are_products_of_any_sizes(rng):
    shapes = [((3, 4), (4, 5)), ((1, 9), (9, 2)), ((0, 3), (3, 2)), ((6, 2), (2, 4))]
    a, b = [draw(rng, x, F32) for x, _ in shapes], [draw(rng, y, F32) for _, y in shapes]
    bias = [draw(rng, (y[1],), F32) if i % 2 else None for i, (_, y) in enumerate(shapes)]
    got = gemmhub.grouped_matmul(a, tuple(b), bias=bias, activation="relu")
    for x, y, z, own in zip(a, b, got, bias):
        assert ratio(z, x, y, bias=own, activation="relu") <= 1
    outs = [np.full(z.shape, np.nan, F32) for z in got]
    results = gemmhub.grouped_matmul(a, b, out=outs)
    for x, y, z, out in zip(a, b, results, outs):
        assert z is out
        assert ratio(z, x, y) <= 1
    assert gemmhub.grouped_matmul([], []) == []


@pytest.mark.parametrize("form", FORMS)
def test_the_bits_of_a_group_are_those_of_its_product(form, rng):
    a, b, ends = operands(rng, form, F16, [3, 0, 8, 1], k=40)
    for options in ({}, {"reproducible": "run"}, {"precision": "ieee", "backend": "numpy"}):
        got = gemmhub.grouped_matmul(a, b, ends, **options)
        for x, y, mine in cut(form, a, b, got, ends)[0]:
            out = np.empty_like(got)[tuple(map(slice, mine.shape))] if got.ndim == 2 else np.empty_like(mine)
            np.testing.assert_array_equal(gemmhub.matmul(x, y, out=out, **options), mine)


def test_a_row_keeps_its_bits_in_every_mixture(rng):
    """The promise "batch": whatever other tokens the expert has, and wherever they stand."""
    a, b = draw(rng, (17, 130), F32), draw(rng, (3, 130, 40), F32)
    with registered(Rowwise()) as backend:
        alone = gemmhub.grouped_matmul(a[5:6], b, [0, 1, 1], reproducible="batch")[0]
        for sizes in ([2, 9, 6], [0, 17, 0], [5, 1, 11]):
            got = gemmhub.grouped_matmul(a, b, np.cumsum(sizes).astype(np.int32), reproducible="batch")
            np.testing.assert_array_equal(got[5], alone)
        assert backend.calls


def test_offsets_of_both_widths_and_of_other_hosts(rng):
    a, b, ends = operands(rng, "ragged m", F32, [3, 0, 4])
    expected = gemmhub.grouped_matmul(a, b, ends)
    for same in (ends.astype(np.int64), ends.tolist(), tuple(ends.tolist()), np.repeat(ends, 2)[::2]):
        np.testing.assert_array_equal(gemmhub.grouped_matmul(a, b, same), expected)
        np.testing.assert_array_equal(gemmhub.grouped_matmul(a, b, offsets=same), expected)


BAD = {
    "below": ([3, 8, 5], r"offsets: group 2: offsets\[2\] = 5 is below offsets\[1\] = 8; allowed: ends in order"),
    "negative": ([-1, 2, 3], r"offsets: group 0: offsets\[0\] = -1 is below 0"),
    "beyond": ([3, 4, 11], r"offsets: group 2: offsets\[2\] = 11 is beyond the 10 rows of a"),
    "leading zero": ([0, 3, 4, 5], r"offsets: 4 ends for 3 groups; .*drop the leading zero: offsets\[1:\]"),
    "too few": ([3, 4], r"offsets: 2 ends for 3 groups; allowed: 3 ends"),
    "floats": ([1.0, 2.0, 3.0], r"offsets: dtype float64; allowed: int32, int64"),
    "short": (np.array([1, 2, 3], np.int16), r"offsets: dtype int16; allowed: int32, int64"),
    "unsigned": (np.array([1, 2, 3], np.uint32), r"offsets: dtype uint32"),
    "a matrix": (np.array([[1, 2, 3]], np.int32), r"offsets: shape \(1, 3\); allowed: one dimension"),
    "ragged": ([[1], [2, 3]], r"offsets: no numbers"),
    "booleans": ([True, False, True], r"offsets: dtype bool"),
    "a number": (3, r"offsets: "),
    "a string": ("3", r"offsets: "),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_offsets_are_named_and_nothing_is_written(name):
    ends, message = BAD[name]
    out = np.full((10, 5), 7, F32)
    with pytest.raises(InputError, match=message):
        gemmhub.grouped_matmul(np.ones((10, 4), F32), np.ones((3, 4, 5), F32), ends, out=out)
    assert (out == 7).all()


def test_mistakes_are_named():
    a, b, ends = np.ones((6, 4), F32), np.ones((2, 4, 5), F32), np.array([3, 6], np.int32)
    with pytest.raises(ShapeError, match=r"a, b: shapes \(6, 3\) and \(2, 4, 5\): inner dimensions 3 and 4 differ"):
        gemmhub.grouped_matmul(a[:, :3], b, ends)
    with pytest.raises(ShapeError, match=r"a, b: shapes \(4,\) and \(2, 4, 5\); allowed: .*ragged m.*lists"):
        gemmhub.grouped_matmul(a[0], b, ends)
    with pytest.raises(InputError, match=r"offsets: None with shapes .*; allowed: the ends of the groups in the rows"):
        gemmhub.grouped_matmul(a, b)
    with pytest.raises(InputError, match=r"offsets: given with shapes .*; allowed: None for one matrix"):
        gemmhub.grouped_matmul(np.ones((2, 3, 4), F32), b, ends)
    with pytest.raises(ShapeError, match="3 matrices of a and 2 of b"):
        gemmhub.grouped_matmul(np.ones((3, 3, 4), F32), b)
    with pytest.raises(ShapeError, match=r"bias: shape \(4,\); allowed: shape \(5,\), or \(2, 5\)"):
        gemmhub.grouped_matmul(a, b, ends, bias=np.ones(4, F32))
    with pytest.raises(DTypeError, match=r"bias: group 0: dtype float64"):
        gemmhub.grouped_matmul(a, b, ends, bias=np.ones(5))
    with pytest.raises(
        ShapeError, match=r"scale_a: shape \(5,\) of an operand of shape \(6, 4\); allowed: one element"
    ):
        gemmhub.grouped_matmul(a, b, ends, scale_a=np.ones(5, F32))
    with pytest.raises(ShapeError, match=r"scale_a: shape \(6, 4, 1\)"):
        gemmhub.grouped_matmul(a, b, ends, scale_a=np.ones((6, 4, 1), F32))
    for form in (a, ends), (np.ones((2, 3, 4), F32), None):
        with pytest.raises(ShapeError, match=r"scale_b: shape \(2, 5\); .* \(2, 1, 5\).*pass scale_b\[:, None, :\]"):
            gemmhub.grouped_matmul(form[0], b, form[1], scale_b=np.ones((2, 5), F32))
    with pytest.raises(ShapeError, match=r"scale_a: shape \(2, 3\); allowed: shape \(2, 3, 1\)"):
        gemmhub.grouped_matmul(np.ones((2, 3, 4), F32), np.ones((4, 6), F32), ends, scale_a=np.ones((2, 3), F32))
    with pytest.raises(OutputError, match=r"out: a list beside arrays a and b; allowed: an array"):
        gemmhub.grouped_matmul(a, b, ends, out=[1])
    with pytest.raises(InputError, match=r"beta: 1 without c; allowed: beta with c"):
        gemmhub.grouped_matmul(a, b, ends, beta=1)
    with pytest.raises(InputError, match=r"activation: swiglu, which pairs columns"):
        gemmhub.grouped_matmul(np.ones((2, 3, 4), F32), np.ones((4, 6), F32), ends, activation="swiglu")
    with pytest.raises(ShapeError, match=r"c: shape \(6, 4\); allowed: shape \(6, 5\), that of the product"):
        gemmhub.grouped_matmul(a, b, ends, c=a, beta=1)
    with pytest.raises(InputError, match=r"c: given without beta"):
        gemmhub.grouped_matmul(a, b, ends, c=np.ones((6, 5), F32))
    with pytest.raises(InputError, match=r"amax: given to a grouped product; allowed: None"):
        gemmhub.grouped_matmul(a, b, ends, amax=np.ones(1, F32))
    with pytest.raises(TypeError, match=r"'offset'; did you mean offsets=\?"):
        gemmhub.grouped_matmul(a, b, offset=ends)
    with pytest.raises(InputError, match=r"b: a packed operand"):
        gemmhub.grouped_matmul(a, gemmhub.pack(b[0]), ends)
    with pytest.raises(InputError, match="stream"):
        gemmhub.grouped_matmul(a, b, ends, stream=1)
    with pytest.raises(NoBackendError):
        gemmhub.grouped_matmul(a, b, ends, backend="numpy", reproducible="nobody.k3")
    with pytest.raises(InputError, match="backend"):
        gemmhub.grouped_matmul(a, b, ends, backend="nobody")


def test_mistakes_in_lists_are_named():
    a, b = [np.ones((2, 3), F32)] * 2, [np.ones((3, 4), F32), np.ones((2, 4), F32)]
    with pytest.raises(ShapeError, match=r"a, b: group 1: shapes \(2, 3\) and \(2, 4\)"):
        gemmhub.grouped_matmul(a, b)
    with pytest.raises(InputError, match=r"b: a list of 1; allowed: lists of 2, as a is"):
        gemmhub.grouped_matmul(a, b[:1])
    with pytest.raises(InputError, match=r"b: no list beside lists of arrays"):
        gemmhub.grouped_matmul(a, b[0])
    with pytest.raises(InputError, match=r"a: no list beside lists of arrays"):
        gemmhub.grouped_matmul(a[0], b)
    with pytest.raises(InputError, match=r"bias: no list"):
        gemmhub.grouped_matmul(a, [b[0]] * 2, bias=np.ones(4, F32))
    with pytest.raises(InputError, match=r"offsets: given with lists"):
        gemmhub.grouped_matmul(a, b, [2, 4])


def test_nested_sequences_of_numbers_are_no_lists_of_arrays():
    a, b, ends = np.ones((3, 4), F32), np.ones((2, 4, 5), F32), [2, 3]
    for arguments, name in (
        ((a.tolist(), b, ends), "a"), ((a, b.tolist(), ends), "b"), ((a.tolist(), b.tolist(), ends), "a"),
        ((a, a.T.tolist(), ends), "b"), ((a.tolist(), a.T.tolist()), "a"), ((a[0].tolist(), b[0].tolist()), "a"),
        (([a], b[0].tolist()), "b"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"{name}: nested sequences of numbers; .* pass numpy.asarray\({name}\)"):
            gemmhub.grouped_matmul(*arguments)
    got = gemmhub.grouped_matmul([a.tolist()], [b[0].tolist()])
    assert np.array_equal(got[0], a @ b[0])


def test_results_of_lists_have_memory_of_their_own(rng):
    x, y = draw(rng, (3, 4), F32), draw(rng, (4, 4), F32)
    memory = np.full((8, 8), 7, F32)
    whole = np.full((3, 4), 7, F32)
    chain = np.full((3, 4), 7, F32)
    for a, outs, message in (
        ([x, 2 * x], [whole, whole], r"out: group [01]: it shares memory with out of group [01]; allowed: memory of"),
        ([x, x], [memory[:3, :4], memory[2:5, 3:7]], r"shares memory with out of group"),
        (
            [x, x, x],
            [whole, memory[:3, :4], memory[2::-1, 3:7]],
            r"group [12]: it shares memory with out of group [12]",
        ),
        ([x, chain], [chain, memory[:3, :4]], r"group 0: it shares memory with a of group 1"),
        ([chain, x], [memory[:3, :4], chain[::-1]], r"group 1: it shares memory with a of group 0"),
    ):
        for call in (gemmhub.grouped_matmul, gemmhub.explain_grouped):
            with pytest.raises(OutputError, match=message):
                call(a, [y] * len(a), out=outs)
    assert all((z == 7).all() for z in (memory, whole, chain))  # nothing was written
    halves = [memory[::2, :4], memory[1::2, :4], memory[::2, 4:], memory[1::2, 4:]]  # address ranges meet
    a = [draw(rng, (4, 4), F32) for _ in halves]
    for left, z, out in zip(a, gemmhub.grouped_matmul(a, [y] * 4, out=halves), halves):
        assert z is out
        assert ratio(out, left, y) <= 1
    own = x.copy()
    assert ratio(gemmhub.grouped_matmul([own, x], [y, y], out=[own, whole])[0], x, y) <= 1  # as of matmul


def test_a_bad_out_is_named(rng):
    a, b, ends = operands(rng, "ragged m", F32, [2, 3], beyond=1, n=7)
    for out, message in (
        (np.empty((5, 7), F32), r"out: shape \(5, 7\)"),
        (np.broadcast_to(F32.type(0), (6, 7)), "out: a read-only array"),
        (a, "out: it shares memory with a"),
        (b.reshape(14, 7)[:6], "out: it shares memory with b"),
        (np.empty((6, 7), np.int8), "out"),
    ):
        with pytest.raises(OutputError, match=message):
            gemmhub.grouped_matmul(a, b, ends, out=out)
    bias = np.zeros((6, 7), F32)
    with pytest.raises(OutputError, match="out: it shares memory with bias"):
        gemmhub.grouped_matmul(a, b, ends, out=bias, bias=bias[0])
    with pytest.raises(OutputError, match=r"out: dtype float32 but out_dtype is float64"):
        gemmhub.grouped_matmul(a, b, ends, out=np.empty((6, 7), F32), out_dtype=F64)


def test_results_of_float8_and_bfloat16(rng):
    a, b, ends = operands(rng, "ragged m", BF16, [2, 0, 3])
    assert gemmhub.grouped_matmul(a, b, ends).dtype == BF16
    got = gemmhub.grouped_matmul(a, b, ends, out_dtype="float8_e4m3fn")
    assert got.dtype == ml_dtypes.float8_e4m3fn
    assert worst("ragged m", a, b, ends, got, out_dtype=E4M3) <= 1
    assert gemmhub.grouped_matmul(*(x.astype(I8) for x in (a, b)), ends).dtype == I32


def test_the_signature_names_the_options():
    parameters = inspect.signature(gemmhub.grouped_matmul).parameters
    assert list(parameters) == [
        "a", "b", "offsets", "out", "out_dtype", "alpha", "beta", "c", "bias", "scale_a", "scale_b", "activation",
        "precision", "reproducible", "backend", "stream",
    ]  # fmt: skip


FAULTS = {
    "an end that is one too small": lambda ends: [max(0, end - 1) for end in ends],
    "an end that is one too large": lambda ends: [ends[0] + 1, *ends[1:]],
    "a group that is left out": lambda ends: [0, *ends[1:]],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("form", DIVIDED)
def test_a_fault_in_the_spans_is_found(form, fault, monkeypatch, rng):
    """The checks of this file fail where the groups are cut elsewhere."""
    original = reader.spans
    a, b, ends = operands(rng, form, F32, [3, 2, 4])
    monkeypatch.setattr(reader, "spans", lambda listed: original(FAULTS[fault](listed)))
    out = np.full(gemmhub.grouped_matmul(a, b, ends).shape, 1e30, F32)
    got = gemmhub.grouped_matmul(a, b, ends, out=out)
    monkeypatch.undo()
    assert worst(form, a, b, ends, got) > 1
    assert not gemmhub.spot_check_grouped(a, b, ends, got)


@pytest.mark.parametrize("form", ["ragged m", "ragged n"])
def test_what_is_left_beyond_the_last_end_is_found(form, monkeypatch, rng):
    a, b, ends = operands(rng, form, F32, [3, 2, 4])
    monkeypatch.setattr(calls.Grouped, "beyond", lambda call, result: None)
    got = gemmhub.grouped_matmul(a, b, ends, out=np.ones(gemmhub.grouped_matmul(a, b, ends).shape, F32))
    monkeypatch.undo()
    assert worst(form, a, b, ends, got) > 1
    assert not gemmhub.spot_check_grouped(a, b, ends, got)


@pytest.mark.parametrize("form", DIVIDED)
def test_swapped_groups_are_found(form, monkeypatch, rng):
    a, b, ends = operands(rng, form, F32, [3, 3, 3])
    original = repeated.run

    def swapped(call, result, *, new):
        right, others = call.picks["b"], call.spans[::-1]
        picks = {**call.picks, "b": lambda i, _: right(len(others) - 1 - i, others[i])}
        original(replace(call, picks=picks), result, new=new)

    monkeypatch.setattr(repeated, "product", lambda *_: None)
    monkeypatch.setattr(repeated, "run", swapped)
    got = gemmhub.grouped_matmul(a, b, ends)
    assert worst(form, a, b, ends, got) > 1
    assert not gemmhub.spot_check_grouped(a, b, ends, got)
