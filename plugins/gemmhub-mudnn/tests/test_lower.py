"""Problems in muDNN's words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_mudnn.lower import Lowered, Tensor, lowered
from gemmhub_musa.testing import bias, operand
from problems import problem

from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.testing.problems import unsigned_bytes


def form(p):
    found = lowered(p)
    assert isinstance(found, Lowered), found
    return found.main


def refusal(p):
    found = lowered(p)
    assert isinstance(found, Refusal), found
    assert found.remedy
    return found.reason


def test_a_plain_product():
    found = lowered(problem(2, 3, 5))
    assert (found.swapped, found.offsets, found.zero, found.aligned) == (False, ((0, 0, 0, 0),), None, True)
    made = found.main
    assert (made.a, made.b, made.d) == (Tensor(1, 2, 5, 5, 10), Tensor(1, 5, 3, 3, 15), Tensor(1, 2, 3, 3, 6))
    assert (made.trans_a, made.trans_b, made.stack, made.addend, made.bias) == (False,) * 5


def test_column_major_operands_keep_their_shape_in_memory_and_are_flagged():
    made = form(problem(2, 3, 5, a="col", b="col"))
    assert (made.trans_a, made.trans_b) == (True, True)
    assert (made.a, made.b) == (Tensor(1, 5, 2, 2, 10), Tensor(1, 3, 5, 5, 15))


def test_a_column_major_result_is_the_transposed_problem():
    found = lowered(problem(2, 3, 5, d="col"))
    assert found.swapped
    made = found.main
    assert made.d == Tensor(1, 3, 2, 2, 6)
    assert (made.trans_a, made.trans_b) == (True, True)  # b and a, row-major both
    assert (made.a, made.b) == (Tensor(1, 5, 3, 3, 15), Tensor(1, 2, 5, 5, 10))


def test_strides_along_single_rows_and_columns_are_canonical():
    made = form(problem(1, 3, 5))
    assert made.a == Tensor(1, 1, 5, 5, 5)
    wide = problem(1, 3, 5)
    wide = replace(wide, a=replace(wide.a, layout=replace(wide.a.layout, row_stride=77)))
    assert form(wide).a == Tensor(1, 1, 5, 5, 5)
    column = problem(4, 1, 5)
    column = replace(column, b=replace(column.b, layout=replace(column.b.layout, col_stride=99)))
    assert form(column).b == Tensor(1, 5, 1, 1, 5)
    batch_of_one = problem(2, 3, 5, batch=(1,))
    odd = replace(batch_of_one, a=replace(batch_of_one.a, layout=replace(batch_of_one.a.layout, batch_strides=(1234,))))
    assert form(odd).a == Tensor(1, 2, 5, 5, 10)
    assert not form(odd).stack


def test_leading_dimensions_and_gaps():
    p = problem(2, 3, 5, batch=(4,))
    p = replace(p, a=operand("float32", 2, 5, batch=(4,), row_stride=9, batch_strides=(20,)))
    made = form(p)
    assert made.a == Tensor(4, 2, 5, 9, 20)
    assert not made.a.dense
    assert made.b.dense


def test_a_shared_operand_is_a_batch_of_one():
    shared = operand("float32", 2, 5, batch=(4,), batch_strides=(0,))
    made = form(replace(problem(2, 3, 5, batch=(4,)), a=shared))
    assert made.stack
    assert made.a == Tensor(1, 2, 5, 5, 10)
    assert made.b == Tensor(4, 5, 3, 3, 15)


def test_a_shared_b_makes_one_tall_product():
    shared = operand("float32", 5, 3, batch=(4,), batch_strides=(0,))
    made = form(replace(problem(2, 3, 5, batch=(4,)), b=shared))
    assert not made.stack
    assert made.d == Tensor(1, 8, 3, 3, 24)


def test_an_interleaved_batch_is_a_launch_each():
    """A batch whose matrices overlap takes a launch each."""
    m, n, k, count = 2, 3, 5, 4
    p = replace(
        problem(m, n, k, batch=(count,)),
        out=operand("float32", m, n, batch=(count,), row_stride=n * count, batch_strides=(n,)),
    )
    found = lowered(p)
    assert not found.main.stack
    assert found.main.d == Tensor(1, m, n, n * count, m * n * count)
    assert found.offsets == tuple((i * m * k * 4, i * k * n * 4, i * n * 4, i * n * 4) for i in range(count))
    assert not found.aligned


def test_a_reversed_batch_is_a_launch_each():
    p = problem(2, 4, 4, batch=(3,))
    found = lowered(replace(p, b=operand("float32", 4, 4, batch=(3,), batch_strides=(-16,))))
    assert [b for _, b, _, _ in found.offsets] == [0, -64, -128]
    assert found.aligned
    assert not found.main.stack


def test_the_longest_even_dimension_is_the_librarys():
    p = problem(2, 3, 5, batch=(2, 7))
    found = lowered(replace(p, b=operand("float32", 5, 3, batch=(2, 7), batch_strides=(15, 30))))
    assert found.main.d.count == 7
    assert len(found.offsets) == 2


def test_too_many_launches_are_refused():
    p = problem(1, 2, 2, batch=(5000,))
    assert "5000 launches" in refusal(replace(p, b=operand("float32", 2, 2, batch=(5000,), batch_strides=(-4,))))


def test_a_shared_addend_is_a_launch_each():
    p = problem(2, 3, 5, batch=(4,))
    found = lowered(p.having(c=operand("float32", 2, 3, batch=(4,), batch_strides=(0,))))
    assert len(found.offsets) == 4
    assert {c for _, _, c, _ in found.offsets} == {0}


@pytest.mark.parametrize(
    ("dtype", "precision", "math"),
    [("float32", "ieee", False), ("float32", "bf16x3", False), ("float32", "tf32", True), ("float32", "bf16", True),
     ("float16", "ieee", True), ("bfloat16", "ieee", True)],
)  # fmt: skip
def test_tensor_math_only_where_it_is_accurate_enough(dtype, precision, math):
    assert form(problem(dtype=dtype, precision=precision)).tensor_math is math


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
def test_wide_dtypes_are_for_mublas(dtype):
    found = lowered(problem(dtype=dtype))
    assert dtype in found.reason
    assert "mublas" in found.remedy


def test_what_is_refused():
    assert "int32" in refusal(problem(dtype="int32"))
    assert "float16 and float32" in refusal(replace(problem(dtype="float16"), b=operand("float32", 8, 24)))
    assert "the result is bfloat16: muDNN's product of float16 is float16 or float32" in refusal(
        replace(problem(dtype="float16"), out=operand("bfloat16", 16, 24))
    )
    assert "c is float32" in refusal(problem(dtype="float16", c=operand("float32", 16, 24)))
    assert "bias is float32" in refusal(problem(dtype="float16", bias=bias()))
    assert "stride of 2" in refusal(problem(bias=bias(stride=2)))
    assert "2**31" in refusal(problem(m=2, n=3, k=2**31))
    assert "strides" in refusal(replace(problem(), a=operand("float32", 16, 8, col_stride=2, row_stride=16)))


def test_halves_may_become_singles():
    made = form(replace(problem(dtype="float16", bias=bias()), out=operand("float32", 16, 24)))
    assert (made.dtype, made.result, made.tensor_math) == ("float16", "float32", True)


def test_a_bias_goes_along_rows_of_the_result():
    assert form(problem(bias=bias())).bias
    assert "row-major" not in str(lowered(problem(d="col", bias=bias(axis="m"))))
    assert "pass a column-major out" in lowered(problem(bias=bias(axis="m"))).remedy
    assert "pass a row-major out" in lowered(problem(d="col", bias=bias(axis="n"))).remedy


def test_a_bias_of_a_vector_fits_either_reading():
    found = lowered(problem(m=7, n=1, bias=bias(axis="m")))
    assert found.swapped
    assert found.main.d == Tensor(1, 1, 7, 7, 7)
    assert not lowered(problem(m=1, n=7, bias=bias(axis="n"))).swapped


def test_without_a_product_there_are_zeros():
    found = lowered(problem(4, 6, 0))
    assert found.main is None
    assert (found.zero.a, found.zero.b) == (Tensor(1, 4, 1, 1, 4), Tensor(1, 1, 6, 6, 6))
    assert found.zero_bytes == 24
    scaled = lowered(problem(4, 6, 3, dtype="float16", alpha_is_one=False, a="col", batch=(5,)))
    assert scaled.main.trans_a
    assert not scaled.zero.trans_a
    assert scaled.zero.a.count == 5
    assert scaled.zero_bytes == 2 * 20
    assert lowered(problem(4, 6, 3)).zero_bytes == 0


def test_alignment_is_that_of_every_operand():
    assert not lowered(replace(problem(), b=operand("float32", 8, 24, alignment=4))).aligned
    assert as_dtype("float32").itemsize == 4


def test_bytes_are_refused():
    for asked in unsigned_bytes(problem(dtype="int8", out="int32")):
        assert "not supported" in refusal(asked)
