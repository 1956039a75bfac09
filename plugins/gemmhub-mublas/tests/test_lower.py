"""Problems in the libraries' words: no library is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_mublas.lower import LARGEST, Lowered, lowered, stored
from gemmhub_musa.testing import bias, operand, problem, strided

from gemmhub.capability import Refusal


def form(asked, fused=False, batched=True):
    found = lowered(asked, fused, batched)
    assert isinstance(found, Lowered), found
    return found.forms[0], found


def refused(asked, fused=False, batched=True):
    found = lowered(asked, fused, batched)
    assert isinstance(found, Refusal)
    assert found.reason
    assert found.remedy
    return f"{found.reason}; {found.remedy}"


def computed(found, a, b, out):
    """What a column-major library does with the form: the oracle for all readings."""
    main = found.main
    flat = {id(x): x.reshape(-1) for x in (a, b, out)}
    first, second = (b, a) if found.swapped else (a, b)

    def matrix(x, shape, offset):
        step = x.itemsize
        return np.ndarray((shape.rows, shape.cols), x.dtype, flat[id(x)].data, offset, (step, shape.ld * step))

    for offsets in found.offsets:
        for i in range(main.count):
            places = [o + i * s.stride * s.itemsize for o, s in zip(offsets, (main.a, main.b, main.c, main.d))]
            left, right = matrix(first, main.a, places[0]), matrix(second, main.b, places[1])
            d = matrix(out, main.d, places[3])
            d[...] = (left.T if main.trans_a else left) @ (right.T if main.trans_b else right)
    return out


@pytest.mark.parametrize("a", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 4), (1, 5, 4), (3, 1, 4), (3, 5, 1), (1, 1, 1)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_every_reading_is_the_product(a, b, d, m, n, k, batch):
    asked = problem(m, n, k, "float64", a=a, b=b, d=d, batch=batch)
    rng = np.random.default_rng(0)

    def array(which):
        layout = which.layout
        values = rng.standard_normal((*batch, layout.rows, layout.cols))
        if layout.order == "col" and layout.rows > 1:
            return np.ascontiguousarray(values.swapaxes(-1, -2)), values
        return values, values

    (a_memory, a_values), (b_memory, b_values), (out, _) = map(array, (asked.a, asked.b, asked.out))
    _, found = form(asked)
    computed(found, a_memory, b_memory, out)
    got = out if out.shape == (*batch, m, n) else out.swapaxes(-1, -2)
    np.testing.assert_allclose(got, a_values @ b_values, rtol=1e-12)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 4), (8, 1, 4), (8, 4, 1), (1, 1, 1)])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_leading_dimensions_of_single_rows(m, n, k, stride):
    """Leading dimensions are at least the number of rows, whatever the stride of a dimension of one is."""

    def odd(rows, cols):
        return strided("float32", rows, cols, stride if rows == 1 else cols, stride if cols == 1 else 1)

    one, _ = form(replace(problem(m, n, k), a=odd(m, k), b=odd(k, n), out=odd(m, n)))
    for matrix in (one.a, one.b, one.d):
        assert matrix.ld >= max(1, matrix.rows)


@pytest.mark.parametrize("field", ["m", "n", "k"])
def test_integers_of_32_bits(field):
    text = refused(problem(**{**{"m": 2, "n": 3, "k": 4}, field: LARGEST + 1}))
    assert f"is {LARGEST + 1} here" in text
    assert f"the library allows {LARGEST}" in text
    assert "in parts" in text


def test_leading_dimensions_of_32_bits():
    wide = strided("float32", 4, 4, LARGEST + 1, 1)
    assert "a leading dimension" in refused(replace(problem(4, 4, 4), a=wide))


def test_batches_of_32_bits():
    count = LARGEST + 1
    assert "the batch" in refused(problem(2, 2, 2, batch=(count,)))


def test_even_batches_are_one_call():
    one, found = form(problem(batch=(2, 3)))
    assert one.count == 6
    assert len(found.offsets) == 1


def test_shared_b_is_one_large_product():
    shared = strided("float32", 16, 16, 16, 1, (5,), (0,))
    one, found = form(replace(problem(batch=(5,)), b=shared))
    assert (one.count, one.n, len(found.offsets)) == (1, 80, 1)


def test_uneven_batches():
    a = strided("float32", 16, 16, 16, 1, (2, 3), (5000, 256))
    one, found = form(replace(problem(batch=(2, 3)), a=a))
    assert one.count == 3
    assert len(found.offsets) == 2
    # The library's B is a: the operands of row-major problems are swapped.
    assert [offset[1] for offset in found.offsets] == [0, 20000]


def test_reversed_stacks_are_not_stepped_through():
    a = strided("float32", 16, 16, 16, 1, (3,), (-256,))
    one, found = form(replace(problem(batch=(3,)), a=a))
    assert one.count == 1
    assert [offset[1] for offset in found.offsets] == [0, -1024, -2048]


def test_without_batches_every_matrix_is_a_call():
    one, found = form(problem(batch=(2, 3)), batched=False)
    assert one.count == 1
    assert len(found.offsets) == 6
    assert "4097" in refused(problem(2, 2, 2, batch=(4097,)), batched=False)


def test_many_launches_are_refused():
    a = strided("float32", 16, 16, 16, 1, (70, 70), (-500000, -256))
    assert "4900 launches" in refused(replace(problem(batch=(70, 70)), a=a))


@pytest.mark.parametrize("changes", [{"k": 0}, {"alpha_is_one": False}])
def test_the_product_may_be_left_out(changes):
    one, found = form(problem(5, 7, **changes))
    zero = found.zero
    assert zero is not None
    assert (found.main is None) == ("k" in changes)
    assert zero.k == 1
    assert found.zero_bytes == 7 * 4
    assert (zero.a.stride, zero.b.stride) == (0, 0)
    assert one.d == zero.d


def test_integers_need_no_care_for_alpha():
    _, found = form(problem(dtype="int8", out="int32", alpha_is_one=False))
    assert found.zero is None


def test_bias_and_activation():
    one, _ = form(problem(bias=bias(), activation="gelu_tanh"), fused=True)
    assert (one.bias, one.activation) == ("float32", "gelu_tanh")
    assert "column-major results only" in refused(problem(bias=bias(axis="m")), fused=True)
    form(problem(bias=bias(axis="m"), d="col"), fused=True)
    assert "row-major results only" in refused(problem(bias=bias(), d="col"), fused=True)


def test_c_of_another_dtype():
    assert "convert c to float32" in refused(problem(c=operand("float64", 16, 16)))


def test_c_in_another_order():
    assert "different storage orders" in refused(problem(c=operand("float32", 16, 16, "col")))


def test_alignment_is_that_of_every_matrix():
    a = strided("float16", 4, 4, 4, 1, (3,), (20,))
    one, _ = form(replace(problem(4, 4, 4, "float16", batch=(3,)), a=a))
    assert one.b.alignment == 8


def test_status_texts():
    one, _ = form(problem(3, 5, 4))
    assert stored(one) == (
        "column-major NN: A float32 5x4 with leading dimension 5, aligned to 256 bytes; B float32 4x3 with leading "
        "dimension 4, aligned to 256 bytes; D float32 5x3 with leading dimension 5, aligned to 256 bytes"
    )
