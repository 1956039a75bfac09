"""Lowering to the kernels' operands: swapped operands, orders, alignments, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_cuda.lower import MAX_BATCH, lowered
from problems import bias, operand, problem

from gemmhub.layout import MatrixLayout
from gemmhub.testing.problems import unsigned_bytes

H200 = (9, 0)


def lowering(*given, **named):
    return lowered(problem(*given, **named), H200)


@pytest.mark.parametrize("a", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("d", ["row", "col"])
def test_orders(a, b, d):
    """The kernel's idea of the operands, as strides, gives the problem's product."""
    found = lowering(8, 12, 16, a=a, b=b, d=d)
    assert found.swapped == (d == "col")
    rng = np.random.default_rng(0)
    x, y = rng.integers(-3, 4, (8, 16)).astype(np.float32), rng.integers(-3, 4, (16, 12)).astype(np.float32)
    memory = {"a": x.ravel(order="C" if a == "row" else "F"), "b": y.ravel(order="C" if b == "row" else "F")}
    first, second = ("b", "a") if found.swapped else ("a", "b")

    def read(flat, rows, columns, ld, along_rows):
        steps = (4, 4 * ld) if along_rows else (4 * ld, 4)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), steps)

    left = read(memory[first], found.m, found.k, found.lda, found.form.a_m_major)
    right = read(memory[second], found.k, found.n, found.ldb, not found.form.b_n_major)
    result = left @ right
    assert found.ldd == found.n
    assert np.array_equal(result.T if found.swapped else result, x @ y)


def test_the_bias_follows():
    assert lowering(bias=bias(axis="m")).form.bias == "m"
    assert lowering(bias=bias(axis="m"), d="col").form.bias == "n"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (16, 16)),
        ({"k": 65}, (4, 16)),
        ({"n": 66}, (16, 8)),
        ({"dtype": "bfloat16", "k": 65}, (2, 16)),
        ({"m": 65, "a": "col"}, (4, 16)),
        ({"m": 1, "k": 65, "n": 64}, (16, 16)),  # one row, which begins where the operand does
    ],
)
def test_alignment(changes, expected):
    form = lowering(**changes).form
    assert (form.a_alignment, form.b_alignment) == expected


def test_alignment_of_the_address():
    found = lowered(replace(problem(), a=operand("float32", 64, 64, alignment=8)), H200)
    assert (found.form.a_alignment, found.form.b_alignment) == (8, 16)


def test_one_row_has_no_step():
    """A single row or column is read along its contiguous dimension, whatever its strides."""
    assert [lowering(m, 64, 64).lda for m in (1, 2)] == [0, 64]
    assert [lowering(64, n, 64, b="col").ldb for n in (1, 2)] == [0, 64]
    for order in ("row", "col"):
        column = lowering(64, 1, 64, b=order)
        assert not column.form.b_n_major
        assert (column.ldb, column.form.b_alignment) == (0, 16)
        outer = lowering(64, 64, 1, a=order, b=order)
        assert outer.form.a_m_major
        assert outer.form.b_n_major
        assert (outer.lda, outer.ldb, outer.form.a_alignment, outer.form.b_alignment) == (0, 0, 16, 16)


def test_padded_rows_along_m_end_where_they_end():
    """Rows that are aligned to 16 bytes, but have 65 elements, are no whole number of wide loads."""
    layout = MatrixLayout(65, 64, 1, 68)
    found = lowered(replace(problem(65, 64, 64), a=replace(operand("float32", 65, 64), layout=layout)), H200)
    assert found.form.a_m_major
    assert found.form.a_alignment == 4


def test_batches():
    found = lowering(8, 8, 8, batch=(2, 3))
    assert (found.batch.count, found.outer) == (6, ())
    assert list(found.offsets()) == [(0, 0, 0, 0, 6)]
    many = lowering(8, 8, 8, batch=(MAX_BATCH + 2,))
    assert list(many.offsets()) == [(0, 0, 0, 0, MAX_BATCH), (*(4 * 64 * MAX_BATCH,) * 4, 2)]


def test_a_shared_b_makes_one_product():
    asked = problem(8, 16, 32, batch=(5,))
    found = lowered(replace(asked, b=operand("float32", 32, 16)), H200)
    assert (found.m, found.batch.count) == (40, 1)


def test_no_k():
    found = lowering(8, 16, 0)
    assert found.k == 0
    assert not found.form.scaled


def test_bytes_are_refused():
    for asked in unsigned_bytes(problem(dtype="int8", out="int32")):
        assert "no kernel for" in lowered(asked, H200).reason
