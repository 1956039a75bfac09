"""Which dimension of a batch a library steps through, and where the other calls begin."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmhub import lowering
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import BatchDim
from gemmhub.problem import Operand

steps = st.integers(-40, 40)
dims = st.builds(BatchDim, st.integers(1, 5), steps, steps, steps, steps)


def test_the_longest_that_runs_forwards():
    short, long, back = BatchDim(2, 1, 1, 1, 1), BatchDim(5, 9, 0, 9, 9), BatchDim(7, 9, -1, 9, 9)
    assert lowering.split((short, back, long)) == (long, (short, back))
    assert lowering.split((back,)) == (lowering.SINGLE, (back,))
    assert lowering.split(()) == (lowering.SINGLE, ())
    assert lowering.split((short, back, long), lambda dim: dim is not long) == (back, (short, long))


@given(st.lists(dims, max_size=3).map(tuple), st.lists(st.sampled_from([1, 2, 4, 8]), min_size=4, max_size=4))
def test_every_matrix_is_reached_once(dims, sizes):
    inner, outer = lowering.split(dims)
    begun = [
        tuple(at + size * i * step for at, size, step in zip(start, sizes, inner.strides))
        for start in lowering.offsets(outer, sizes)
        for i in range(inner.count)
    ]
    wanted = [
        tuple(size * sum(i * dim.strides[which] for i, dim in zip(index, dims)) for which, size in enumerate(sizes))
        for index in product(*(range(dim.count) for dim in dims))
    ]
    assert sorted(begun) == sorted(wanted)


@pytest.mark.parametrize(
    ("given", "steps", "left"), [(256, [], 256), (256, [0], 256), (256, [12, 8], 8), (256, [-3], 2), (4, [1024], 4)]
)
def test_alignment(given, steps, left):
    operand = Operand(np.dtype(np.float16), MatrixLayout.contiguous(3, 4), given)
    assert lowering.alignment(operand, steps) == left
