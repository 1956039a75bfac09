"""Lowering problems to cuBLASLt's calls."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from fakes import bias, operand, problem
from gemmhub_cublas import lower as forms
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.lower import Form, Lowered, Matrix, lowered

from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import flipped, lower
from gemmhub.problem import Operand
from gemmhub.testing import matrix
from gemmhub.testing.case import lacking
from gemmhub.testing.memory import Unrepresentable
from gemmhub.testing.operands import Operands
from gemmhub.testing.problems import unsigned_bytes

FLOAT32 = operand("float32", 1, 1).dtype


def accepted(problem):
    found = lowered(problem)
    assert isinstance(found, Lowered), found
    return found


def refused(problem):
    found = lowered(problem)
    assert isinstance(found, Refusal), found
    assert found.reason
    assert found.remedy
    return found


def test_row_major_operands_are_swapped():
    found = accepted(problem(m=3, n=4, k=5))
    assert found.swapped
    assert found.main == Form(
        compute=68, scale=0, trans_a=False, trans_b=False,
        a=Matrix(0, 4, 5, 4, 0, 256), b=Matrix(0, 5, 3, 5, 0, 256),
        c=Matrix(0, 4, 3, 4, 0, 256), d=Matrix(0, 4, 3, 4, 0, 256),
    )  # fmt: skip
    assert found.zero is None
    assert found.offsets == ((0, 0, 0, 0),)


def test_column_major_operands_are_not():
    found = accepted(problem(m=3, n=4, k=5, a="col", b="col", d="col"))
    assert not found.swapped
    assert (found.main.a.rows, found.main.b.rows, found.main.d.rows) == (3, 5, 3)


def test_flipping_is_what_lower_does():
    """A row-major call, flipped, is the column-major one of :func:`gemmhub.lowering.lower`."""
    compared = 0
    for case in matrix()[::5]:
        found = Operands(case).problem
        row, col = lower(found, "row"), lower(found, "col")
        if not isinstance(row, Refusal) and not row.swapped and col.swapped:  # the result is row-major only
            assert flipped(row) == col, case
            compared += 1
    assert compared > 100


def test_a_single_row_runs_down_a_column():
    """In the other order its leading dimension would be 1, and no vector load would be aligned."""
    found = accepted(problem(m=1, n=64, k=32)).main
    assert (found.d.rows, found.d.cols, found.d.ld) == (64, 1, 64)
    found = accepted(problem(m=64, n=1, k=32)).main
    assert (found.d.rows, found.d.cols, found.d.ld) == (64, 1, 64)
    found = accepted(problem(m=64, n=1, k=32, d="col")).main
    assert (found.d.rows, found.d.cols) == (64, 1)


@pytest.mark.parametrize(("m", "n", "axis", "order", "fits"), [
    (8, 9, "n", "row", True), (8, 9, "m", "row", False), (8, 9, "n", "col", False), (8, 9, "m", "col", True),
    (1, 9, "n", "row", True), (1, 9, "m", "row", True), (9, 1, "n", "row", True), (9, 1, "m", "row", True),
    (1, 1, "m", "col", True),
])  # fmt: skip
def test_bias_axis(m, n, axis, order, fits):
    asked = problem(m=m, n=n, d=order, bias=bias(axis=axis))
    if fits:
        found = accepted(asked).main
        assert found.d.rows == (n if axis == "n" else m)
        assert (found.epilogue, found.bias_type) == (4, 0)
    else:
        other = "row" if order == "col" else "column"
        assert f"{other}-major results only" in refused(asked).reason


@pytest.mark.parametrize(("activation", "with_bias", "code"), [
    (None, False, 1), (None, True, 4), ("relu", False, 2), ("relu", True, 6), ("gelu_tanh", False, 32),
    ("gelu_tanh", True, 36),
])  # fmt: skip
def test_epilogues(activation, with_bias, code):
    assert accepted(problem(activation=activation, bias=bias() if with_bias else None)).main.epilogue == code


@pytest.mark.parametrize("changes", [
    {"bias": bias(stride=2)},
    {"dtype": "float16", "bias": bias("float32")},
    {"dtype": "float64", "bias": bias("float64")}, {"dtype": "float64", "activation": "relu"},
    {"dtype": "int8", "out": "int32", "activation": "relu"}, {"dtype": "float16", "out": "float64"},
    {"dtype": "float8_e5m2", "out": "float16"}, {"dtype": "int32"}, {"dtype": "uint8"}, {"dtype": "bool"},
    {"dtype": "float8_e4m3fn", "out": "float32", "bias": bias("float32")},
    {"c": operand("float64", 16, 16)}, {"c": operand("float32", 16, 16, "col")},
], ids=str)  # fmt: skip
def test_refusals(changes):
    refused(problem(**changes))


@pytest.mark.parametrize("a", [operand("float16", 16, 16), Operand(FLOAT32, MatrixLayout(16, 16, 32, 2), 256)], ids=str)
def test_refused_operands(a):
    refused(replace(problem(), a=a))


@pytest.mark.parametrize(("dtype", "precision", "compute"), [
    ("float32", "ieee", 68), ("float32", "tf32", 77), ("float32", "bf16", 77), ("complex64", "ieee", 68),
    ("float32", "bf16x3", 68), ("complex64", "bf16x3", 68),
    ("complex64", "tf32", 77), ("float16", "ieee", 68), ("float64", "ieee", 70), ("complex128", "ieee", 70),
])  # fmt: skip
def test_compute_types(dtype, precision, compute):
    assert accepted(problem(dtype=dtype, precision=precision)).main.compute == compute


def test_even_batches_are_one_product():
    found = accepted(problem(m=3, n=4, k=5, batch=(2, 3)))
    assert (found.main.products, found.main.d.stride, len(found.offsets)) == (6, 12, 1)


def test_a_shared_b_makes_one_large_product():
    asked = problem(m=3, n=4, k=5, batch=(2, 3))
    asked = replace(asked, b=replace(asked.b, layout=MatrixLayout(5, 4, 4, 1, (2, 3), (0, 0))))
    found = accepted(asked).main
    assert (found.products, found.d.cols) == (1, 18)


def uneven(strides, batch):
    """A problem whose a steps through the batch in ``strides``."""
    asked = problem(m=4, n=4, k=4, batch=batch)
    return replace(asked, a=replace(asked.a, layout=MatrixLayout(4, 4, 4, 1, batch, strides)))


def test_uneven_batches_take_several_products():
    found = accepted(uneven((100, 16), (2, 5)))
    assert found.main.products == 5
    assert found.swapped  # so a is the library's B
    assert found.offsets == ((0, 0, 0, 0), (5 * 64, 400, 5 * 64, 5 * 64))


def test_a_stack_that_runs_backwards_is_taken_apart():
    found = accepted(uneven((-16,), (3,)))
    assert found.main.products == 1
    assert [x[1] for x in found.offsets] == [0, -64, -128]


@pytest.mark.parametrize("batch", [(2**31,), (2, 2**31), (2**16, 2**16)])
def test_more_products_than_the_library_counts(batch):
    asked = problem(m=3, n=4, k=5, batch=batch)
    assert "cuBLASLt allows 2147483647" in refused(asked).reason
    shared = replace(asked, b=replace(asked.b, layout=MatrixLayout(5, 4, 4, 1, batch, (0,) * len(batch))))
    assert accepted(shared).main.products == 1
    assert accepted(problem(m=3, n=4, k=5, batch=(2**31 - 1,))).main.products == 2**31 - 1


def test_too_many_products():
    assert "takes 5000 launches" in refused(uneven((-16,), (5000,))).reason


def test_alignment_of_every_matrix_of_a_batch():
    assert accepted(uneven((18,), (3,))).main.b.alignment == 8
    assert accepted(uneven((100, 18), (2, 5))).main.b.alignment == 8
    assert accepted(uneven((17, 400), (2, 5))).main.b.alignment == 4


def test_alignment_of_operands():
    asked = replace(problem(), a=operand("float32", 16, 16, alignment=4))
    assert (accepted(asked).main.a.alignment, accepted(asked).main.b.alignment) == (256, 4)


@pytest.mark.parametrize(("dtype", "k"), [("float32", 4), ("float16", 8), ("float64", 2), ("complex128", 1)])
def test_without_product(dtype, k):
    """Zeros for A and B: transposed and not, 16 bytes a column."""
    for asked in (problem(m=3, n=5, k=0, dtype=dtype), problem(m=3, n=5, k=7, dtype=dtype, alpha_is_one=False)):
        found = accepted(asked)
        assert (found.main is None) == (asked.k == 0)
        assert (found.zero.trans_a, found.zero.trans_b) == (True, False)
        assert (found.zero.a.rows, found.zero.a.cols, found.zero.a.ld) == (k, 5, k)
        assert (found.zero.b.rows, found.zero.b.cols, found.zero.b.ld) == (k, 3, k)
        assert found.zero_bytes == 16 * 5
        assert len(found.forms) == 1 + (asked.k > 0)


def test_integers_need_no_care_for_alpha_zero():
    assert accepted(problem(dtype="int8", out="int32", alpha_is_one=False)).zero is None
    assert accepted(problem(dtype="int8", out="int32", k=0)).zero is not None


def test_integers_that_are_not_in_fours():
    asked = problem(m=16, n=16, k=16, dtype="int8", out="int32", b="col")
    assert accepted(asked)
    assert "aligned to 1 bytes" in refused(replace(asked, a=operand("int8", 16, 16, alignment=1))).reason
    odd = problem(m=16, n=16, k=15, dtype="int8", out="int32", b="col")
    assert "leading dimension 15" in refused(odd).reason


@pytest.mark.parametrize(("dtype", "nbytes", "room"), [("float32", 272, 512), ("float16", 136, 256)])
def test_a_copy_of_the_bias_counts_as_workspace(dtype, nbytes, room):
    """An element for each row of the library's result: 68. The workspace after it is aligned."""
    for axis, order in (("n", "row"), ("m", "col")):
        sizes = {"n": 68} if axis == "n" else {"m": 68}
        asked = problem(**sizes, dtype=dtype, d=order, alpha_is_one=False, bias=bias(dtype, axis))
        found = accepted(asked)
        assert found.forms == (found.main, found.zero)
        assert [form.bias_bytes for form in found.forms] == [nbytes, nbytes]
        assert found.copy_bytes == room
        assert found.extra_bytes == room + found.zero_bytes
    without = accepted(problem(dtype=dtype))
    assert (without.main.bias_bytes, without.copy_bytes, without.extra_bytes) == (0, 0, 0)


# Other numbers of rows


def same_with_rows(asked, found, sizes):
    """The lowering that ``found`` derives for each of ``sizes`` is that of the problem with as many rows."""
    for m in sizes:
        derived, anew = found.with_rows(m), lowered(asked.with_rows(m))
        assert derived == (None if isinstance(anew, Refusal) else anew), (asked, m)
        assert derived is None or (derived.main or derived.zero).c == (anew.main or anew.zero).c
    return len(sizes)


def padded(x, rows, cols, order, pad):
    """Return the operand with a larger leading dimension."""
    row, col = (cols + pad, 1) if order == "row" else (1, rows + pad)
    return replace(x, layout=MatrixLayout(rows, cols, row, col))


ORDERS = tuple(product(("row", "col"), repeat=3))


@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
@pytest.mark.parametrize("n", [1, 2, 16])
@pytest.mark.parametrize("k", [0, 1, 16])
def test_other_rows(orders, n, k):
    """The derived lowering is the one that is made anew: for all orders, strides and parts of the epilogue."""
    a, b, d = orders
    compared = 0
    for m, pad, c, axis, alpha in product((2, 16), (0, 4), (None, "row", "col"), (None, "n", "m"), (True, False)):
        asked = problem(
            m, n, k, a=a, b=b, d=d, alpha_is_one=alpha, bias=bias(axis=axis) if axis else None,
            c=operand("float32", m, n, c, alignment=64) if c else None,
        )  # fmt: skip
        asked = replace(
            asked, a=padded(asked.a, m, k, a, pad), b=padded(asked.b, k, n, b, pad), out=padded(asked.out, m, n, d, pad)
        )
        found = lowered(asked)
        if isinstance(found, Lowered):
            compared += same_with_rows(asked, found, (2, 3, 15, 16, 17, 20, 21))
    assert compared >= 7 * 8


@pytest.mark.parametrize(("dtype", "out"), [
    ("float16", "float16"), ("float16", "float32"), ("bfloat16", "bfloat16"), ("float64", "float64"),
    ("complex64", "complex64"), ("complex128", "complex128"), ("int8", "int32"), ("float8_e4m3fn", "bfloat16"),
])  # fmt: skip
def test_other_rows_of_every_dtype(dtype, out):
    compared = 0
    for (a, b, d), n, m, k, alpha in product(ORDERS, (1, 16), (2, 16), (0, 16), (True, False)):
        for activation, c in product((None, "relu"), (None, operand(out, m, n, d))):
            asked = problem(m, n, k, dtype, out=out, a=a, b=b, d=d, alpha_is_one=alpha, activation=activation, c=c)
            found = lowered(asked)
            if isinstance(found, Lowered):
                compared += same_with_rows(asked, found, (2, 3, 12, 16, 17))
    assert compared > 100


def test_other_rows_of_the_kits_cases():
    compared = 0
    for case in [case for case in matrix() if not lacking(case, CublasBackend.takes)][::3]:
        try:
            asked = replace(Operands(case).problem, device=problem().device)
        except Unrepresentable:
            continue
        found = lowered(asked) if not (asked.batch or asked.empty or asked.m == 1) else None
        if isinstance(found, Lowered):
            compared += same_with_rows(asked, found, (2, asked.m + 1, 2 * asked.m))
    assert compared > 300


def test_a_single_row_is_not_derived():
    """It has both storage orders, and no stride from row to row."""
    assert accepted(problem(m=1, n=4, k=5)).with_rows(2) is None
    assert accepted(problem(m=2, n=4, k=5)).with_rows(1) is None
    assert accepted(problem(m=2, n=4, k=5)).with_rows(0) is None


def test_columns_hold_no_more_rows_than_their_leading_dimension():
    found = accepted(problem(m=16, n=4, k=8, a="col", d="col"))
    assert found.with_rows(16) == found
    assert found.with_rows(15).main.d == found.main.d._replace(rows=15)
    assert found.with_rows(17) is None


def test_advice_for_eight_bit_operands():
    asked = problem(dtype="int8", out="int32")
    assert "transpose of a contiguous (n, k) array" in forms.advice(asked, accepted(asked).main)
    assert "column-major NN: A int8 16x16" in forms.stored(accepted(asked).main)
    fitting = problem(dtype="int8", out="int32", b="col")
    assert "transpose" not in forms.advice(fitting, accepted(fitting).main)


def test_unsigned_bytes_are_refused():
    """Unsigned products are refused: cuBLASLt has signed ones only."""
    signed = problem(dtype="int8", out="int32", b="col")
    accepted(signed)
    for asked in unsigned_bytes(signed):
        assert "no product of" in refused(asked).reason
