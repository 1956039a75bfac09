"""Lowering, without a device or a compiler: a form, read back with NumPy, is the product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemmhub_musa.testing import operand, problem, strided
from gemmhub_mutlass import lower
from gemmhub_mutlass.lower import Lowered

from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.testing.problems import unsigned_bytes


def lowered(problem):
    found = lower.lowered(problem)
    assert isinstance(found, Lowered), found
    return found


def placed(operand, batch):
    """(bytes, view) of an operand with small whole numbers in it, and where its first element is."""
    layout, size = operand.layout, operand.dtype.itemsize
    shape = (*batch, layout.rows, layout.cols)
    steps = ((0,) * (len(batch) - len(layout.batch)) + layout.batch_strides) + (layout.row_stride, layout.col_stride)
    low = -size * sum((n - 1) * s for n, s in zip(shape, steps) if s < 0)
    high = size * sum((n - 1) * s for n, s in zip(shape, steps) if s > 0)
    memory = np.random.default_rng(0).integers(-4, 5, (low + high) // size + 1).astype(operand.dtype).view(np.uint8)
    return memory, np.ndarray(shape, operand.dtype, memory.data, low, [size * s for s in steps]), low


def read(memory, dtype, start, matrix, shape):
    """A matrix of a form, as a view (count, rows, cols)."""
    size = np.dtype(dtype).itemsize
    count, rows, cols = shape
    strides = (1, matrix.ld) if matrix.column else (matrix.ld, 1)
    # Where there is one row only, its leading dimension may be anything.
    steps = [size * (s if n > 1 else 0) for n, s in zip(shape, (matrix.step, *strides))]
    return np.ndarray((count, rows, cols), dtype, memory.data, start, steps)


def run(problem):
    """Compute the product of a form into the memory of out."""
    found = lowered(problem)
    form = found.form
    (a, _, at_a), (b, _, at_b), (d, out, at_d) = (placed(x, problem.batch) for x in (problem.a, problem.b, problem.out))
    expected = placed(problem.a, problem.batch)[1].astype(float) @ placed(problem.b, problem.batch)[1].astype(float)
    if found.swapped:
        a, at_a, b, at_b = b, at_b, a, at_a
    dtypes = (problem.b.dtype, problem.a.dtype) if found.swapped else (problem.a.dtype, problem.b.dtype)
    for a_offset, b_offset, _, d_offset in found.offsets:
        left = read(a, dtypes[0], at_a + a_offset, form.a, (form.count, form.m, form.k))
        right = read(b, dtypes[1], at_b + b_offset, form.b, (form.count, form.k, form.n))
        result = read(d, problem.out.dtype, at_d + d_offset, form.d, (form.count, form.m, form.n))
        result[...] = left.astype(float) @ right.astype(float)
    np.testing.assert_array_equal(out.astype(float), expected)
    return found


@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("a", ["row", "col"])
@pytest.mark.parametrize("sizes", [(16, 32, 48), (5, 3, 7), (1, 16, 32), (16, 1, 32), (16, 32, 1), (1, 1, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_orders_and_sizes(sizes, batch, a, b, d):
    m, n, k = sizes
    found = run(problem(m, n, k, "float32", batch=batch, a=a, b=b, d=d))
    assert len(found.offsets) == 1
    if min(sizes) > 1:
        assert found.swapped == (d == "col")
        assert (found.form.a.column, found.form.b.column) == (
            (b == "row", a == "row") if d == "col" else (a == "col", b == "col")
        )


def test_padding():
    asked = replace(
        problem(16, 32, 48, "float16"), a=strided("float16", 16, 48, 64, 1), b=strided("float16", 48, 32, 1, 56),
        out=strided("float16", 16, 32, 40, 1),
    )  # fmt: skip
    found = run(asked)
    assert (found.form.a.ld, found.form.b.ld, found.form.d.ld) == (64, 56, 40)
    assert found.form.vectors
    assert found.form.result_vectors


@pytest.mark.parametrize(("sizes", "operands", "vectors", "result_vectors"), [
    ((16, 32, 48), {}, True, True),
    ((16, 32, 12), {}, False, True),  # a and b (column-major) have rows of 24 bytes
    ((16, 12, 48), {}, True, False),
    ((5, 32, 48), {}, True, True),  # nothing is dense along m
    ((16, 32, 48), {"a": strided("float16", 16, 48, 52, 1)}, False, True),  # every other row is aligned to 8 bytes
    ((16, 32, 48), {"a": operand("float16", 16, 48, alignment=8)}, False, True),
    ((16, 32, 48), {"b": operand("float16", 48, 32, "col", alignment=2)}, False, True),
    ((16, 32, 48), {"out": operand("float16", 16, 32, alignment=8)}, True, False),
    ((16, 32, 48), {"c": strided("float16", 16, 32, 36, 1)}, True, False),
])  # fmt: skip
def test_vectors(sizes, operands, vectors, result_vectors):
    asked = replace(problem(*sizes, "float16", b="col"), **{x: y for x, y in operands.items() if x != "c"})
    form = lowered(asked.having(c=operands.get("c"))).form
    assert (form.vectors, form.result_vectors) == (vectors, result_vectors)


def test_matrices_of_one_row_or_column_are_read_along_it():
    """A column vector b has rows of one element as well; read along those, nothing is 16 bytes long."""
    found = run(problem(16, 1, 64, "float16"))
    assert found.form.vectors
    assert found.form.b.column or found.swapped
    assert run(problem(1, 32, 64, "float16", b="col")).form.vectors


def test_steps_between_matrices_count_for_alignment():
    batched = strided("float16", 16, 16, 16, 1, (3,), (260,))
    asked = replace(problem(16, 16, 16, "float16", batch=(3,)), a=batched)
    assert not lowered(asked).form.a.vectors
    assert lowered(asked).form.b.vectors
    run(asked)


def test_a_shared_b_makes_one_tall_product():
    asked = problem(16, 32, 48, "float32", batch=(3,), b="row")
    asked = replace(asked, b=strided("float32", 48, 32, 32, 1, (3,), (0,)))
    found = run(asked)
    assert (found.form.m, found.form.count) == (48, 1)


def test_a_shared_a_has_a_step_of_0():
    asked = problem(16, 32, 48, "float32", batch=(3,))
    asked = replace(asked, a=strided("float32", 16, 48, 48, 1, (3,), (0,)))
    assert run(asked).form.a.step == 0


def test_uneven_batches_take_launches():
    asked = problem(8, 8, 8, "float32", batch=(2, 3))
    asked = replace(asked, a=strided("float32", 8, 8, 8, 1, (2, 3), (1000, 64)))
    found = run(asked)
    assert (found.form.count, len(found.offsets)) == (3, 2)
    backwards = replace(problem(8, 8, 8, "float32", batch=(3,)), a=strided("float32", 8, 8, 8, 1, (3,), (-64,)))
    found = run(backwards)
    assert (found.form.count, len(found.offsets)) == (1, 3)


def test_too_many_launches():
    asked = replace(problem(8, 8, 8, batch=(5000,)), a=strided("float32", 8, 8, 8, 1, (5000,), (-64,)))
    found = lower.lowered(asked)
    assert isinstance(found, Refusal)
    assert "takes 5000 launches" in found.reason
    # More matrices than a launch has room for, however even.
    found = lower.lowered(problem(8, 8, 8, batch=(70000,)))
    assert isinstance(found, Refusal)


def test_too_large():
    found = lower.lowered(problem(16, 16, 2**31, "int8", out="int32"))
    assert isinstance(found, Refusal)
    assert "k is 2147483648" in found.reason


def test_what_blas_cannot_describe():
    found = lower.lowered(replace(problem(), a=strided("float32", 16, 16, 32, 2)))
    assert isinstance(found, Refusal)
    assert "strides (32, 2)" in found.reason
    found = lower.lowered(problem(c=operand("float32", 16, 16, "col")))
    assert isinstance(found, Refusal)
    assert "different storage orders" in found.reason


def test_an_addend_has_strides_of_its_own():
    asked = problem(8, 8, 8, "float32", batch=(2,), c=strided("float32", 8, 8, 24, 1, (2,), (0,)))
    form = lowered(asked).form
    assert (form.c.ld, form.c.step) == (24, 0)
    assert (form.d.ld, form.d.step) == (8, 64)


def test_only_kernels_for_mp_31_need_alignment():
    asked = problem(16, 16, 12, "float16", b="row")
    found = lowered(asked)
    assert lower.unaligned(asked, found, "mp_22") is None
    refusal = lower.unaligned(asked, found, "mp_31")
    assert "does not fit a:" in refusal.reason
    assert "multiples of 8 elements" in refusal.remedy
    swapped = problem(16, 16, 12, "float16", d="col", b="col")
    assert "does not fit b, a:" in lower.unaligned(swapped, lowered(swapped), "mp_31").reason
    fitting = problem(16, 16, 16, "float16")
    assert lower.unaligned(fitting, lowered(fitting), "mp_31") is None


@pytest.mark.parametrize(("dtype", "out", "arch", "precision", "maths"), [
    ("float16", "float16", "mp_22", "ieee", ("tensor",)), ("float16", "float32", "mp_31", "ieee", ("tensor",)),
    ("bfloat16", "bfloat16", "mp_31", "ieee", ("tensor",)), ("int8", "int32", "mp_22", "ieee", ("tensor",)),
    ("float32", "float32", "mp_22", "ieee", ("simt",)), ("float32", "float32", "mp_22", "tf32", ("tf32", "simt")),
    ("float32", "float32", "mp_31", "bf16", ("tf32",)), ("float32", "float32", "mp_22", "bf16x3", ("simt",)),
])  # fmt: skip
def test_maths(dtype, out, arch, precision, maths):
    assert lower.maths(problem(dtype=dtype, out=out, precision=precision), arch) == maths


@pytest.mark.parametrize(("changes", "words", "remedy"), [
    ({"dtype": "float64"}, "not float64", "mublas"),
    ({"dtype": "float16", "out": "float64"}, "float16 or float32 here, not float64", "out_dtype='float16' or"),
    ({"dtype": "int8", "out": "float32"}, "is int32 here, not float32", "out_dtype='int32'"),
    ({"c": operand("float64", 16, 16)}, "c is float64", "convert c to float32"),
])  # fmt: skip
def test_refusals(changes, words, remedy):
    refusal = lower.maths(problem(**changes), "mp_22")
    assert isinstance(refusal, Refusal)
    assert words in refusal.reason
    assert remedy in refusal.remedy


def test_operands_of_two_dtypes_are_refused():
    refusal = lower.maths(replace(problem(), b=operand("float16", 16, 16)), "mp_22")
    assert isinstance(refusal, Refusal)
    assert "operands are float32 and float16" in refusal.reason
    assert "convert one" in refusal.remedy


@pytest.mark.parametrize("precision", ["ieee", "bf16x3"])
def test_float32_is_refused_where_only_tf32_is_there(precision):
    refusal = lower.maths(problem(precision=precision), "mp_31")
    assert isinstance(refusal, Refusal)
    assert f'rounded to TF32, which precision "{precision}" forbids' in refusal.reason
    assert 'precision="tf32"' in refusal.remedy


def test_itemsizes_are_those_of_the_dtypes():
    from gemmhub_mutlass.variants import configurations

    for dtype in ("float16", "bfloat16", "float32", "int8"):
        first = next(configurations("mp_22", ("tensor",), dtype, "float32", False, False, True, True))
        assert first.itemsize == as_dtype(dtype).itemsize


def test_unsigned_bytes_are_refused():
    signed = problem(dtype="int8", out="int32")
    assert not isinstance(lower.maths(signed, "mp_22"), Refusal)
    for asked in unsigned_bytes(signed):
        found = lower.maths(asked, "mp_22")
        assert isinstance(found, Refusal)
        assert "not uint8" in found.reason
