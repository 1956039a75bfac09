"""Grouped products in one native call: each group has the bits of its own product, on any number of threads."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import library, limits
from gemmhub_cpu.backend import CpuBackend

import gemmhub

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not library.load().units, reason="no kernels of its own here"),
]
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.int8), BF16, np.dtype(np.float16)]
FORMS = ("ragged m", "ragged k", "ragged n")
MIXTURES = {
    "small": [2, 1, 3, 1, 2, 3, 3, 1],
    "one large": [3, 700, 2, 1, 3],
    "two large": [400, 2, 500, 1],
    "equal": [40] * 6,
}
"""Sizes of groups: shared between threads, or with groups that all threads multiply."""


@pytest.fixture(autouse=True)
def native_alone(monkeypatch):
    """No estimate decides."""
    monkeypatch.setattr(CpuBackend.__init__, "__defaults__", (None, False))
    gemmhub.reload()


@pytest.fixture
def rng():
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def statuses(monkeypatch):
    """The results of the native calls of groups so far."""
    kernels, found = library.load().library, []
    function = kernels.gemmhub_cpu_groups

    def watch(*arguments):
        found.append(function(*arguments))
        return found[-1]

    monkeypatch.setattr(kernels, "gemmhub_cpu_groups", watch)
    return found


def operands(rng, form, dtype, sizes, other=70, beyond=2):
    """(a, b, offsets) of a form; the sizes that no offsets divide are about ``other``, and k is odd."""
    groups, extent = len(sizes), sum(sizes) + beyond
    m, n, k = other, other + 3, 2 * other + 1
    shapes = {
        "ragged m": ((extent, k), (groups, k, n)),
        "ragged k": ((m, extent), (extent, n)),
        "ragged n": ((groups, m, k), (k, extent)),
    }[form]
    a, b = ((rng.standard_normal(shape) * 20).astype(dtype) for shape in shapes)
    if rng.integers(2):  # b with contiguous columns, as weights of torch are
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    return a, b, np.cumsum(sizes).astype(rng.choice(["int32", "int64"]))


def cut(form, a, b, result, ends):
    """Operands and result of each group."""
    for i, (start, end) in enumerate(zip([0, *ends], ends)):
        yield {
            "ragged m": lambda i=i, s=slice(start, end): (a[s], b[i], result[s]),
            "ragged k": lambda i=i, s=slice(start, end): (a[:, s], b[s], result[i]),
            "ragged n": lambda i=i, s=slice(start, end): (a[i], b[:, s], result[:, s]),
        }[form]()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_each_group_has_the_bits_of_its_product(form, dtype, mixture, threads, statuses, monkeypatch, rng):
    monkeypatch.setattr(limits, "_chosen", threads)
    sizes = list(rng.permutation(MIXTURES[mixture]))
    a, b, ends = operands(rng, form, dtype, sizes)
    first = gemmhub.grouped_matmul(a, b, ends)
    assert not statuses
    out = np.full(first.shape, 7, first.dtype)
    gemmhub.grouped_matmul(a, b, ends, out=out)  # another signature
    for got in (gemmhub.grouped_matmul(a, b, ends), gemmhub.grouped_matmul(a, b, ends, out=out)):
        np.testing.assert_array_equal(got, first)
        for left, right, part in cut(form, a, b, got, ends):
            assert gemmhub.spot_check(left, right, part)
            np.testing.assert_array_equal(part, gemmhub.matmul(left, right))
    assert statuses == [0, 0]


@pytest.mark.parametrize("form", FORMS)
def test_empty_groups_and_groups_of_new_sizes(form, statuses, rng):
    a, b, ends = operands(rng, form, BF16, [2, 0, 5, 3], other=9)
    got = np.empty_like(gemmhub.grouped_matmul(a, b, ends))
    for _ in range(2):
        got[...] = 7
        gemmhub.grouped_matmul(a, b, ends, out=got)
    assert statuses == [0]
    for left, right, part in cut(form, a, b, got, ends):
        assert gemmhub.spot_check(left, right, part)
    tail = {"ragged m": got[-2:], "ragged n": got[:, -2:], "ragged k": got[1]}[form]
    assert not tail.any()
    ends[:] = np.cumsum([2, 4, 3, 1])
    statuses.clear()
    got = gemmhub.grouped_matmul(a, b, ends)
    assert not statuses, "4 was not met"
    for left, right, part in cut(form, a, b, got, ends):
        assert gemmhub.spot_check(left, right, part)


def test_nan_and_infinities_stay_in_their_group(statuses, rng):
    a, b, ends = operands(rng, "ragged m", BF16, [4, 4, 4], beyond=3)
    a[12:] = np.nan
    clean = gemmhub.grouped_matmul(a, b, ends)
    a[5] = np.nan
    a[6, 0] = np.inf
    got = gemmhub.grouped_matmul(a, b, ends)
    assert statuses == [0]
    np.testing.assert_array_equal(got[:4], clean[:4])
    np.testing.assert_array_equal(got[8:], clean[8:])
    assert np.isnan(got[5].astype(np.float32)).all()


def test_what_does_not_fit_is_refused_and_nothing_is_written(rng):
    """The native call checks its operands itself."""
    a, b, ends = operands(rng, "ragged m", BF16, [4, 4], beyond=0)
    out = np.full((8, b.shape[2]), 7, BF16)
    kernel = _kernel(a[:4], b[0])
    axes, ends = (0, -1, 0), ends.astype(np.int64)
    assert kernel.groups(axes, ends, a, b, out.copy())
    for wrong in (
        (axes, ends[::-1].copy(), a, b, out),
        (axes, ends + 1, a, b, out),
        (axes, ends - 9, a, b, out),
        (axes, ends[:1].copy(), a, b, out),
        (axes, np.array([4, 4, 8])[::2], a, b, out),
        (axes, ends, a[:, 1:], b, out),
        (axes, ends, a, b, out[:, 1:]),
        (axes, ends, a, b, out[1:]),
        (axes, ends, a.astype(np.float16), b, out),
        (axes, ends, a, b, out.astype(np.float32)),
        ((0, 0, 0), ends, a, b, out),
    ):
        assert not kernel.groups(*wrong)
    assert (out == 7).all()
    shared = np.zeros((8, 400), BF16)
    shared[:, : a.shape[1]] = a
    assert not kernel.groups(axes, ends, shared[:, : a.shape[1]], b, shared[:, 100 : 100 + b.shape[2]])


def _kernel(a, b):
    from gemmhub import api
    from gemmhub._call.options import request

    api.import_deciding()
    return api._decided(a, b, None, request({}), api._cache)[2]
