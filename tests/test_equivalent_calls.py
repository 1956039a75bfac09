"""A problem in a library's one storage order: every reading is the same product of the same bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import equivalent_calls, flipped, lower, with_bias
from gemmhub.operands import Operands
from gemmhub.problem import Bias, GemmProblem, Operand

F64 = as_dtype("float64")


def operand(rows, cols, order, batch):
    return Operand(F64, MatrixLayout.contiguous(rows, cols, batch, order), 64)


def problem(m, n, k, orders="rrr", batch=(), axis=None):
    a, b, d = ({"r": "row", "c": "col"}[letter] for letter in orders)
    return GemmProblem(
        m=m, n=n, k=k, a=operand(m, k, a, batch), b=operand(k, n, b, batch), out=operand(m, n, d, batch),
        compute_dtype=F64, batch=batch, operands=Operands({"bias": Bias(F64, axis, 1) if axis else None}),
    )  # fmt: skip


def matrix(memory, offset, rows, cols, lead, order):
    strides = (8 * lead, 8) if order == "row" else (8, 8 * lead)
    return np.ndarray((rows, cols), F64, memory, 8 * offset, strides)


def result(call, a, b, size):
    """The memory of the result that a library makes of ``call``, which reads plain memory."""
    first, second = (b, a) if call.swapped else (a, b)
    memory = np.zeros(size)
    dims = call.batch or ()
    for index in np.ndindex(*(dim.count for dim in dims)):
        at = [sum(i * dim.strides[which] for i, dim in zip(index, dims)) for which in range(4)]

        def stored(data, offset, rows, cols, lead, transposed):
            if transposed:
                return matrix(data, offset, cols, rows, lead, call.order).T
            return matrix(data, offset, rows, cols, lead, call.order)

        x = stored(first, at[0], call.m, call.k, call.lda, call.trans_a)
        y = stored(second, at[1], call.k, call.n, call.ldb, call.trans_b)
        matrix(memory, at[3], call.m, call.n, call.ldd, call.order)[...] = x @ y
    return memory


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("orders", ["rrr", "rcr", "crc", "ccc", "rrc", "ccr"])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (1, 1, 5)], ids=str)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_every_reading_is_the_product(order, orders, sizes, batch, rng):
    asked, (m, n, k), count = problem(*sizes, orders, batch), sizes, int(np.prod(batch))
    a, b = rng.random(count * m * k), rng.random(count * k * n)
    calls = equivalent_calls(asked, order)
    assert {call.order for call in calls} == {order}
    assert len(calls) == (2 if 1 in (m, n) else 1)
    expected = result(lower(asked), a, b, count * m * n)
    assert np.any(expected)
    for call in calls:
        assert np.allclose(result(call, a, b, count * m * n), expected)
        assert flipped(flipped(call)) == call
    if len(calls) == 2 and m != n:  # the longer dimension is contiguous
        assert (calls[0].m if order == "col" else calls[0].n) == max(m, n)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("axis", ["m", "n"])
@pytest.mark.parametrize("stored", ["r", "c"])
def test_a_bias_goes_along_contiguous_elements(order, axis, stored):
    asked = problem(3, 4, 5, "rr" + stored, axis=axis)
    call = with_bias(equivalent_calls(asked, order), asked, "a library")
    if (axis, stored) in (("n", "r"), ("m", "c")):
        assert call.bias_axis == ("n" if order == "row" else "m")
    else:
        per, major = ("row", "column") if axis == "m" else ("column", "row")
        assert f"an element per {per} of the result: a library adds it to {major}-major" in call.reason
        assert f"pass a {major}-major out" in call.remedy
    plain = problem(3, 4, 5)
    assert not isinstance(with_bias(equivalent_calls(plain, order), plain, "a library"), Refusal)


def test_a_result_of_one_row_takes_either_bias():
    for axis in ("m", "n"):
        asked = problem(1, 4, 5, axis=axis)
        call = with_bias(equivalent_calls(asked, "col"), asked, "a library")
        assert call.bias_axis == "m"


def test_what_lower_refuses_is_refused():
    asked = problem(3, 4, 5)
    odd = replace(asked, a=replace(asked.a, layout=MatrixLayout(3, 5, 20, 2)))
    assert equivalent_calls(odd, "col") == lower(odd, "col")
    assert isinstance(equivalent_calls(odd, "row"), Refusal)
