"""Contractions of arrays on a device: products of views, without a copy to the host."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import small

import gemmhub


@pytest.mark.parametrize(
    "equation",
    ["ij,jk->ik", "ij,jk->ki", "bij,bjk->bik", "abc,dbc->ad", "acb,dc->abd", "i,j->ij", "ij,jk->", "ii,ij->j", "ij->i",
     "ij,jk,kl->il", "...ij,...jk->...ik"],
)  # fmt: skip
def test_einsum(equation, cupy, backend, rng):
    sizes = dict(zip("abcdijkl", (2, 3, 4, 5, 4, 3, 5, 2)))
    texts = equation.partition("->")[0].split(",")
    given = [small(rng, [2] * ("..." in text) + [sizes[x] for x in text.strip(".")], np.float32) for text in texts]
    if "ii" in equation:
        given[0], given[1] = small(rng, (4, 4), np.float32), small(rng, (4, 3), np.float32)
    got = gemmhub.einsum(equation, *map(cupy.asarray, given))
    assert type(got) is cupy.ndarray
    expected = np.einsum(equation, *given)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.host, expected)


def test_the_other_functions(cupy, backend, rng):
    a, b = small(rng, (2, 3, 4), np.float32), small(rng, (2, 4, 5), np.float32)
    x, y = cupy.asarray(a), cupy.asarray(b)
    np.testing.assert_array_equal(gemmhub.bmm(x, y).host, a @ b)
    np.testing.assert_array_equal(gemmhub.tensordot(x, y, ((2,), (1,))).host, np.tensordot(a, b, ((2,), (1,))))
    np.testing.assert_array_equal(gemmhub.vecdot(x, x).host, (a * a).sum(-1))
    weight, bias = small(rng, (5, 4), np.float32), small(rng, (5,), np.float32)
    got = gemmhub.linear(x, cupy.asarray(weight), cupy.asarray(bias))
    np.testing.assert_array_equal(got.host, a @ weight.T + bias)
