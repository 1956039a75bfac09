"""Grouped products of arrays on a device, whose offsets are on the host: products of views, without a copy."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import small

import gemmhub
from gemmhub.errors import InputError, NoBackendError

ENDS = np.array([2, 2, 5], np.int32)
SHAPES = {"ragged m": ((7, 3), (3, 3, 4)), "ragged k": ((4, 7), (7, 3)), "ragged n": ((3, 4, 3), (3, 7)),
          "dense": ((3, 4, 3), (3, 3, 5))}  # fmt: skip


@pytest.mark.parametrize("form", SHAPES)
def test_products_of_views(form, library, machine, backend, rng):
    a, b = (small(rng, shape, np.float32) for shape in SHAPES[form])
    ends = None if form == "dense" else ENDS
    expected = gemmhub.grouped_matmul(a, b, ends)
    x, y = library.array(a), library.array(b)
    got = gemmhub.grouped_matmul(x, y, ends)
    assert library.owns(got)
    np.testing.assert_array_equal(got.host, expected)
    out = library.array(np.full(expected.shape, 9, np.float32))
    assert gemmhub.grouped_matmul(x, y, ends, out=out) is out
    np.testing.assert_array_equal(out.host, expected)
    assert not backend.violations
    assert not machine.done("synchronize")


def test_offsets_on_the_device_are_refused(library, machine, backend, rng):
    a, b = (library.array(small(rng, shape, np.float32)) for shape in SHAPES["ragged m"])
    with pytest.raises(
        NoBackendError, match=r"no backend multiplies groups by offsets on the device yet .*on the host"
    ):
        gemmhub.grouped_matmul(a, b, library.array(ENDS))
    assert not machine.done("synchronize")
    out = library.array(np.ones((7, 4), np.float32))
    with pytest.raises(InputError, match=r"group 1: offsets\[1\] = 1 is below"):
        gemmhub.grouped_matmul(a, b, [2, 1, 3], out=out)
    assert (out.host == 1).all()


def test_all_work_is_on_the_stream_of_the_call(library, machine, backend, rng):
    a, b = (library.array(small(rng, shape, np.float32)) for shape in SHAPES["ragged m"])
    expected = gemmhub.grouped_matmul(a.host, b.host, ENDS)
    for stream in (library.stream(77), 77):
        backend.streams.clear()
        got = gemmhub.grouped_matmul(a, b, ENDS, stream=stream)
        assert backend.streams == [77, 77]
        np.testing.assert_array_equal(got.host, expected)
    assert {entry[1] for entry in machine.done("fill")} == {77}
    assert not machine.done("synchronize")
