"""The floating-point mode of a caller changes no product that gemmhub computes in blocks, and is left as it was."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

import gemmhub
from gemmhub.kit import floats
from gemmhub.testing import modes

pytestmark = pytest.mark.skipif(not modes.known(), reason="the floating-point mode of this system is not known")
TINY = np.float32(2.0**-130)


def flushes() -> bool:
    """Whether this thread reads or writes subnormals as 0."""
    return float(np.full(3, TINY)[1] * np.float32(2)) != 2.0**-129


def test_the_default_mode_lasts_for_the_block() -> None:
    assert not flushes()
    before = modes.control()
    with modes.flushing():
        assert flushes()
        changed = modes.control()
        with floats.DefaultMode():
            assert not flushes()
            with floats.DefaultMode():
                assert modes.control() == before
            assert modes.control() == before
        assert flushes()
        assert modes.control() == changed != before
    assert modes.control() == before


def test_it_ends_with_an_exception() -> None:
    with modes.flushing():
        with pytest.raises(ZeroDivisionError), floats.DefaultMode():
            raise ZeroDivisionError
        assert flushes()


def test_a_thread_begins_with_the_mode_of_its_starter_until_it_is_set() -> None:
    seen = []

    def look() -> None:
        seen.append(flushes())
        floats.set_default()
        seen.append(flushes())

    with modes.flushing():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert flushes()
    assert seen == [True, False]


@pytest.mark.parametrize("n", [8, 300])
@pytest.mark.parametrize(
    ("left", "right", "options"),
    [
        ("float32", "float16", {}),
        ("float32", "bfloat16", {}),
        ("float16", "float32", {"bias": True}),
        ("float32", "float32", {"out_dtype": "float64"}),
        ("float64", "float32", {}),
        ("float64", "float64", {"out_dtype": "float32"}),
    ],
)
def test_products_in_blocks_are_the_same_in_every_mode(left, right, options, n) -> None:
    """Sums, operands and results that are subnormal in float32, by the built-in backend."""
    a = np.full((n, n), TINY).astype(left)
    b = np.full((n, n), 4.0, getattr(ml_dtypes, right, right))
    if left == "float16":
        a, b = np.full((n, n), 4.0, np.float16), np.full((n, n), TINY)
    given = {**options, "bias": np.full(n, TINY)} if "bias" in options else options
    expected = gemmhub.matmul(a, b, backend="numpy", **given)
    assert (expected != 0).all()
    packed = gemmhub.pack(b, a_dtype=a.dtype, backend="numpy")
    with modes.flushing():
        before = modes.control()
        assert np.array_equal(gemmhub.matmul(a, b, backend="numpy", **given).view(np.int32), expected.view(np.int32))
        again = gemmhub.pack(b, a_dtype=a.dtype, backend="numpy")
        for each in (packed, again):
            assert np.array_equal(gemmhub.matmul(a, each, **given).view(np.int32), expected.view(np.int32))
        assert modes.control() == before
