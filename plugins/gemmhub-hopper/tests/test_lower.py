"""What the kernel is told of a problem, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_hopper.cost import model
from gemmhub_hopper.lowering import lower
from problems import bias, operand, problem

from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import Operand
from gemmhub.testing.answers import honest
from gemmhub.testing.problems import unsigned_bytes


def lowered(asked):
    """Return the two lowerings without registers, of float32 those by bfloat16 planes."""
    lowerings = without_float16_planes(asked)
    assert [(lowering.form.registers_a, lowering.swapped) for lowering in lowerings[:2]] == [
        (False, False),
        (False, True),
    ]
    assert all(lowering.form.registers_a for lowering in lowerings[2:])
    return lowerings[:2]


def in_registers(asked):
    """The others, by whether they are swapped."""
    return {lowering.swapped: lowering for lowering in without_float16_planes(asked)[2:]}


def without_float16_planes(asked):
    """All but those of float32 with enough elements along K."""
    lowerings = lower.lowerings(asked)
    assert isinstance(lowerings, tuple), lowerings
    return tuple(x for x in lowerings if x.form.input != "f16x3")


def refused(asked):
    refusal = lower.lowerings(asked)
    assert isinstance(refusal, Refusal)
    honest(refusal, "lowerings()")
    return refusal


def strided(operand, row, col, batch=(), strides=()):
    layout = operand.layout
    return replace(operand, layout=MatrixLayout(layout.rows, layout.cols, row, col, batch, strides))


@pytest.mark.parametrize("a", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("d", ["row", "col"])
def test_orders(a, b, d):
    """Operands that are contiguous along K are K-major; swapped, a and b change places and d is transposed."""
    direct, swapped = lowered(problem(64, 128, 256, a=a, b=b, d=d))
    assert (direct.m, direct.n, direct.k) == (64, 128, 256)
    assert (swapped.m, swapped.n, swapped.k) == (128, 64, 256)
    assert direct.form.mn_major_a == (a == "col") == swapped.form.mn_major_b
    assert direct.form.mn_major_b == (b == "row") == swapped.form.mn_major_a
    assert direct.form.transposed_d == (d == "col") != swapped.form.transposed_d
    assert direct.d == swapped.d
    assert (direct.d.inner, direct.d.outer) == ((128, 64) if d == "row" else (64, 128))
    a_stored = direct.a.direct
    assert (a_stored.inner, a_stored.outer) == ((256, 64) if a == "row" else (64, 256))
    assert a_stored.ld == 2 * a_stored.inner
    assert swapped.b == direct.a
    assert swapped.a == direct.b


def test_bias_axis_of_swapped_operands():
    direct, swapped = lowered(problem(bias=bias("float16", "n")))
    assert (direct.form.bias, swapped.form.bias, direct.form.bias_type) == ("n", "m", "float16")


def test_any_alpha_has_the_kernels_of_alpha_1():
    for one in lowered(problem(64, 72, 80)):
        other = next(x for x in lowered(problem(64, 72, 80, alpha_is_one=False)) if x.swapped == one.swapped)
        assert other == replace(one, has_alpha=True)
        assert not one.has_alpha


def test_leading_dimensions():
    asked = problem(64, 64, 64)
    asked = replace(asked, a=strided(asked.a, 72, 1), out=strided(asked.out, 65, 1))
    direct, _ = lowered(asked)
    assert direct.a.direct.ld == 144
    assert not direct.form.tma_store
    assert not direct.pairs
    assert direct.d_ld == 65


def test_results_that_tma_takes():
    """Rows of whole 16 bytes, at multiples of 16 bytes."""

    def taken(n=64, ld=None, batch_stride=None, alignment=256, d="row", out="float32"):
        asked = problem(68, n, 64, out=out, d=d, batch=(2,) if batch_stride else ())
        layout = asked.out.layout
        if ld is not None:
            layout = replace(layout, row_stride=ld)
        if batch_stride is not None:
            layout = replace(layout, batch_strides=(batch_stride,))
        lowerings = lowered(replace(asked, out=replace(asked.out, layout=layout, alignment=alignment)))
        assert lowerings[0].form.tma_store == lowerings[1].form.tma_store
        return lowerings[0].form.tma_store

    assert taken()
    assert taken(68)
    assert taken(66, d="col")
    assert not taken(66)
    assert not taken(66, ld=68)  # TMA would write two elements behind each row
    assert taken(64, ld=68)
    assert not taken(64, ld=66)
    assert taken(alignment=16)
    assert not taken(alignment=8)
    assert taken(batch_stride=68 * 64 + 4)
    assert not taken(batch_stride=68 * 64 + 2)
    assert not taken(68, out="bfloat16")
    assert taken(72, out="bfloat16")


@pytest.mark.parametrize("k", [63, 65, 4])
def test_distances_that_tma_does_not_take(k):
    """The operand is copied, to rows that are multiples of 16 bytes apart."""
    direct, swapped = lowered(problem(64, 72, k))
    assert direct.copied == (direct.a,) == swapped.copied
    assert f"leading dimension is {k} elements" in direct.a.why
    copy = direct.a.copy(direct.form, k)
    assert (copy.inner, copy.outer, copy.ld) == (k, 64, -(-k // 8) * 16)
    assert direct.a.copy_bytes(direct.form, k) == 64 * copy.ld
    assert direct.b.copy_bytes(direct.form, k) == 0


def test_a_single_row_has_no_leading_dimension():
    """And where k is 1, a column is read as one."""
    direct, _ = lowered(problem(1, 64, 61, b="row"))
    assert direct.a.direct.ld == 128
    direct, _ = lowered(problem(64, 64, 1))
    assert direct.a.mn_major
    assert not direct.form.tma_store or direct.d.ld % 16 == 0


def test_addresses():
    asked = problem()
    direct, _ = lowered(replace(asked, b=replace(asked.b, alignment=8)))
    assert direct.copied == (direct.b,)
    assert direct.b.mn_major
    assert "address is aligned to 8 bytes" in direct.b.why
    direct, _ = lowered(replace(asked, out=replace(asked.out, alignment=2)))
    assert not direct.form.tma_store
    assert not direct.pairs
    direct, _ = lowered(replace(asked, out=replace(asked.out, alignment=4)))
    assert direct.pairs


def test_batches():
    direct, _ = lowered(problem(64, 64, 64, batch=(3,)))
    assert direct.batch == 3
    assert direct.a.direct.count == 3
    assert direct.a.direct.stride == 64 * 64 * 2
    assert (direct.a.step, direct.b.step) == (1, 1)
    asked = problem(64, 64, 64, batch=(3,))
    shared = replace(asked, a=strided(asked.a, 64, 1, (3,), (0,)))
    direct, _ = lowered(shared)
    assert (direct.a.step, direct.a.direct.count, direct.b.step) == (0, 1, 1)


def test_a_shared_b_makes_one_large_product():
    asked = problem(64, 64, 64, batch=(3,))
    direct, _ = lowered(replace(asked, b=strided(asked.b, 64, 1, (3,), (0,))))
    assert (direct.m, direct.batch) == (192, 1)


def test_uneven_batches():
    asked = problem(64, 64, 64, batch=(2, 3))
    uneven = strided(asked.a, 64, 1, (2, 3), (5 * 4096, 4096))
    assert "evenly spaced" in refused(replace(asked, a=uneven)).reason
    backwards = strided(problem(batch=(3,)).a, 64, 1, (3,), (-4096,))
    assert "stride of its batch is negative" in lowered(replace(problem(batch=(3,)), a=backwards))[0].a.why
    assert "batch stride of the result is negative" in refused(replace(problem(batch=(3,)), out=backwards)).reason
    odd = strided(problem(batch=(3,)).a, 64, 1, (3,), (4100,))
    assert "batch stride is 4100" in lowered(replace(problem(batch=(3,)), a=odd))[0].a.why


def test_any_strides_of_operands():
    """What is neither row- nor column-major is copied to the order that is nearer."""
    asked = problem(64, 64, 64)
    for a in (strided(asked.a, 130, 2), strided(asked.a, -64, 1), strided(asked.a, 0, 1), strided(asked.a, 64, -1)):
        direct, _ = lowered(replace(asked, a=a))
        assert direct.copied == (direct.a,)
        assert not direct.a.mn_major or a.layout.row_stride == 0
    direct, _ = lowered(replace(asked, a=strided(asked.a, 2, 130)))
    assert direct.a.mn_major
    assert "out (64 x 64) has strides" in refused(replace(asked, out=strided(asked.out, 130, 2))).reason


def test_types():
    assert "float64 by float64" in refused(problem(dtype="float64")).reason
    assert "result of float64" in refused(problem(out="float64")).reason
    asked = problem()
    assert "c is float64" in refused(asked.having(c=operand("float64", 64, 64))).reason
    added = [lowered(asked.having(c=operand(x, 64, 64)))[0] for x in ("bfloat16", "float32")]
    assert [x.form.addend for x in added] == ["bfloat16", "float32"]
    assert added[1].nbytes - added[0].nbytes == 2 * 64 * 64
    assert model.epilogue(added[1]) > model.epilogue(added[0])
    assert "stride of 2" in refused(asked.having(bias=bias(stride=2))).reason
    assert "bias is float64" in refused(asked.having(bias=bias("float64"))).reason
    mixed = replace(asked, a=operand("float16", 64, 64))
    assert "float16 by bfloat16" in refused(mixed).reason


def test_tf32():
    asked = replace(problem(dtype="float32", b="col"), precision="tf32")
    direct, swapped = lowered(asked)
    assert direct.form.input == "tf32"
    assert direct.k_blocks == 2
    assert not any((direct.form.mn_major_a, direct.form.mn_major_b, swapped.form.mn_major_a))
    direct, swapped = lowered(replace(asked, b=operand("float32", 64, 64)))
    assert direct.copied == (direct.b,) == swapped.copied
    assert not direct.b.mn_major
    assert "contiguous along K" in direct.b.why


@pytest.mark.parametrize(("a", "b"), [("row", "row"), ("col", "col")])
def test_float32(a, b):
    """Split, each operand in its own order; a plane is a matrix."""
    direct, swapped = lowered(problem(64, 72, 100, dtype="float32", a=a, b=b))
    assert direct.form.input == "split"
    assert len(direct.copied) == len(swapped.copied) == 2
    assert (direct.a.mn_major, direct.b.mn_major) == (a == "col", b == "row")
    copy = direct.b.copy(direct.form, 128)
    assert copy == (lower.Stored(72, 128, 3, 144, 144 * 128) if b == "row" else lower.Stored(128, 72, 3, 256, 256 * 72))
    assert direct.k_blocks == 4
    assert direct.nbytes == 6 * (64 * 100 + 100 * 72) + 4 * 64 * 72


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_packed(precision):
    asked = replace(problem(64, 72, 100, dtype="float32"), packed_by="hopper", precision=precision)
    direct, swapped = lowered(asked)
    assert direct.packed
    assert direct.b.packed
    assert swapped.a == direct.b
    assert not direct.b.mn_major
    assert direct.b.direct.count == (3 if precision == "ieee" else 1)
    assert direct.copied == ((direct.a,) if precision == "ieee" else ())


def test_without_k():
    direct, _ = lowered(problem(64, 64, 0))
    assert direct.k_is_zero
    assert direct.k == direct.k_blocks == 1
    assert direct.a.direct.ld * direct.a.direct.outer <= 256


def test_sizes():
    long = Operand(as_dtype("bfloat16"), MatrixLayout.contiguous(2**31, 64), 256)
    assert "longer than" in refused(replace(problem(), m=2**31, a=long, out=long)).reason


def test_bytes_moved():
    direct, _ = lowered(problem(64, 128, 256))
    assert direct.nbytes == 2 * (64 * 256 + 256 * 128 + 64 * 128)


def test_bytes_are_refused():
    for asked in unsigned_bytes(problem(dtype="int8", out="int32")):
        assert "no kernel for" in refused(asked).reason
