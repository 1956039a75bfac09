"""Buckets of sizes: their ends, and the problems that stand for them."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np
import pytest

from gemmhub.buckets import end, representative
from gemmhub.capability import Device
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Scale
from gemmhub.testing.problems import bias, problem

CUDA = Device("cuda", 0)


def test_sizes_up_to_32_have_buckets_of_their_own() -> None:
    assert [end(size) for size in range(33)] == list(range(33))


def test_each_power_of_two_is_cut_into_16() -> None:
    for bits in range(5, 13):
        ends = sorted({end(size) for size in range(2**bits + 1, 2 ** (bits + 1) + 1)})
        assert ends == [2**bits + (i + 1) * 2 ** (bits - 4) for i in range(16)]


@pytest.mark.parametrize("bits", [12, 20, 31, 40, 62])
def test_ends_of_any_sizes(bits: int, rng: np.random.Generator) -> None:
    for size in [2**bits - 1, 2**bits, 2**bits + 1, *map(int, rng.integers(33, 2**bits, 200))]:
        last = end(size)
        assert size <= last
        assert 16 * (last - size) < size
        assert end(last) == last, "the end is in its own bucket"
        assert end(last + 1) > last, "the next size is in the next bucket"
        assert end(size - 1) <= last


def random_problem(rng: np.random.Generator, device: Device) -> GemmProblem:
    m, n, k = (int(x) for x in rng.integers(1, 3000, 3))
    batch = tuple(int(x) for x in rng.integers(1, 60, rng.integers(0, 3)))
    orders = {name: str(rng.choice(["row", "col"])) for name in ("a", "b", "d")}
    made = problem(m, n, k, str(rng.choice(["float16", "float32", "int8"])), "float32", batch, **orders, device=device)
    if rng.random() < 0.5:  # rows or columns further apart, or repeated for a batch
        x = made.a.layout
        gap = int(rng.integers(1, 64))
        x = replace(x, row_stride=x.row_stride + gap) if x.order == "row" else replace(x, col_stride=x.col_stride + gap)
        size = max(x.row_stride * x.rows, x.col_stride * x.cols)
        strides = tuple(size * int(np.prod(batch[i + 1 :])) for i in range(len(batch)))
        strides = (0,) * len(batch) if rng.random() < 0.3 else strides
        made = replace(made, a=replace(made.a, layout=replace(x, batch_strides=strides)))
    return made.having(c=made.out, bias=bias()) if rng.random() < 0.3 else made


def facts(asked: GemmProblem, sizes: bool) -> list[object]:
    """What is equal throughout a bucket. On devices this has what strides share with 16 bytes."""
    found: list[object] = []
    for x in (asked.a, asked.b, asked.out, asked.c):
        if x is None:
            continue
        layout = x.layout
        found += [x.dtype, x.alignment, layout.order, [step == 0 for step in layout.batch_strides]]
        if sizes:
            steps = [layout.leading_dimension(layout.order or "row"), *layout.batch_strides]
            steps += [layout.cols if layout.order == "row" else layout.rows]
            found += [gcd(step * x.dtype.itemsize, 16) for step in steps]
    return found


def test_a_representative_has_the_sizes_of_the_end(rng: np.random.Generator) -> None:
    for _ in range(200):
        asked = random_problem(rng, Device())
        made = representative(asked)
        assert (made.m, made.n, made.k) == tuple(map(end, (asked.m, asked.n, asked.k)))
        assert made.batch == tuple(map(end, asked.batch))
        assert facts(made, False) == facts(asked, False)
        assert representative(made) == made


def test_one_of_a_device_differs_in_m_and_keeps_what_alignment_depends_on(rng: np.random.Generator) -> None:
    moved = 0
    for _ in range(300):
        asked = random_problem(rng, CUDA)
        made = representative(asked)
        assert (made.n, made.k, made.batch) == (asked.n, asked.k, asked.batch)
        assert asked.m <= made.m <= end(asked.m)
        assert facts(made, True) == facts(asked, True)
        for x, rows in ((made.a, made.m), (made.out, made.m), *(((made.c, made.m),) if made.c else ())):
            assert x.layout.rows == rows
            assert x.layout.stored(x.layout.order), "rows and columns do not overlap"
        if asked.a.layout.order == asked.out.layout.order == "row":
            assert made.m == end(asked.m)
            assert made.a.layout.row_stride == asked.a.layout.row_stride
        moved += made.m != asked.m
    assert moved > 100


def test_problems_of_a_bucket_have_one_representative(rng: np.random.Generator) -> None:
    for order in ("row", "col"):
        made = {representative(problem(m, 512, 256, "float16", a=order, device=CUDA)) for m in range(1008, 1025, 8)}
        assert len({x for x in made if x.m % 16 == 0}) == 1


def test_scales_that_are_contiguous_along_m() -> None:
    """Their stride along k is m, that of the representative too; any other stride stays."""
    whole = problem(100, 64, 512, device=Device("cuda"))
    of_b = Scale("n", 1, True, 64)
    for m in (97, 100):
        asked = whole.with_rows(m).having(scale_a=Scale("m", 1, True, m), scale_b=of_b)
        ranked = representative(asked)
        assert ranked.m == 100
        assert dict(ranked.operands) == {"scale_a": Scale("m", 1, True, 100), "scale_b": of_b}
    padded = Scale("m", 1, True, 128)
    assert representative(whole.with_rows(97).having(scale_a=padded)).operands["scale_a"] == padded


def test_what_stands_for_itself() -> None:
    packed = replace(problem(1000, 64, 64), packed_by="cpu")
    empty = problem(1000, 0, 64)
    strided = problem(1000, 64, 64, device=CUDA)
    strided = replace(strided, a=replace(strided.a, layout=MatrixLayout(1000, 64, 200, 2)))
    for asked in (packed, empty, strided):
        assert representative(asked) is asked
