"""reproducible= reaches each product of a contraction, whose order depends on no size then."""

from __future__ import annotations

import numpy as np
import pytest
from rowwise import Rowwise, chain, registered

import gemmhub
from gemmhub._contractions.equation import parse
from gemmhub._contractions.path import from_left
from gemmhub.errors import InputError

PINNED = {"reproducible": "batch", "backend": "rowwise"}


@pytest.fixture
def rowwise():
    with registered(Rowwise()) as backend:
        yield backend


def draw(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def test_each_function_passes_it_on(rowwise, rng):
    x, w = draw(rng, 9, 40), draw(rng, 40, 6)
    whole = chain(x, w)
    calls = {
        "linear": lambda x: gemmhub.linear(x, w.T, **PINNED),
        "bmm": lambda x: gemmhub.bmm(x[None], w[None], **PINNED)[0],
        "einsum": lambda x: gemmhub.einsum("ij,jk->ik", x, w, **PINNED),
        "turned": lambda x: gemmhub.einsum("ij,jk->ki", x, w, **PINNED).T,
        "tensordot": lambda x: gemmhub.tensordot(x, w, axes=1, **PINNED),
        "vecdot": lambda x: gemmhub.vecdot(x[:, None], w.T, **PINNED),
    }
    for name, call in calls.items():
        rowwise.calls.clear()
        assert np.array_equal(call(x), whole), name
        for rows in ([3], [5, 2, 2, 8]):
            assert np.array_equal(call(x[rows]), whole[rows]), name
        with gemmhub.use(**PINNED):
            assert np.array_equal(gemmhub.einsum("ij,jk->ik", x, w), whole)
        assert {problem.reproducible for _, problem in rowwise.calls} == {"batch"}


def test_the_order_of_several_operands_depends_on_no_size(rowwise, rng):
    x, v, w = draw(rng, 50, 30), draw(rng, 30, 40), draw(rng, 40, 2)
    whole = gemmhub.einsum("ij,jk,kl->il", x, v, w, **PINNED)
    assert np.array_equal(whole, chain(chain(x, v), w))
    assert np.array_equal(gemmhub.einsum("ij,jk,kl->il", x[7:8], v, w, **PINNED), whole[7:8])
    assert len(rowwise.calls) == 4


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_from_left(count):
    left = [[i] for i in range(count)]
    for i, j in from_left(parse(",".join("abcdefgh"[i : i + 2] for i in range(count)), (2,) * count)):
        second, first = left.pop(j), left.pop(i)
        left.append(sorted(first + second))
        assert left[-1] == list(range(len(left[-1])))
    assert left == [list(range(count))]


def test_the_order_of_inner_letters_depends_on_no_stride(rowwise, rng):
    x, w = draw(rng, 5, 6, 7), draw(rng, 6, 7, 3)
    whole = gemmhub.einsum("iab,abk->ik", x, w, **PINNED)
    turned = np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0)
    assert np.array_equal(gemmhub.einsum("iab,abk->ik", turned, w, **PINNED), whole)
    assert np.array_equal(whole, chain(x.reshape(5, 42), w.reshape(42, 3)))


def test_sums_of_one_operand_are_refused(rng):
    x, ones = rng.integers(-9, 9, (4, 6)), np.ones(6, int)
    for equation, operands in (("ij->i", (x,)), ("ij,k->ik", (x, ones))):
        with pytest.raises(InputError, match=r"reproducible: .*letters of one operand that are summed \(j\).*of ones"):
            gemmhub.einsum(equation, *operands, reproducible="batch")
        gemmhub.einsum(equation, *operands, reproducible="run")
    assert np.array_equal(gemmhub.einsum("ij,j->i", x, ones, reproducible="batch"), x.sum(1))
