"""Operands that a call writes: in the caller's memory, also where that is not aligned, and in no plan's or check's."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import gemmhub

F32 = np.dtype(np.float32)


@pytest.fixture
def pair(rng):
    return rng.standard_normal((2, 5, 5), F32)


def test_memory_that_is_not_aligned_is_written(pair):
    amax = np.zeros(9, np.uint8)[1:5].view(F32)
    before = np.zeros(101, np.uint8)[1:].view(F32).reshape(5, 5)
    for _ in range(2):
        amax[...], before[...] = 0, 0
        result = gemmhub.matmul(*pair, activation="silu", amax=amax, pre_activation=before)
        assert amax[0] == np.abs(result).max()
        assert np.array_equal(before, gemmhub.matmul(*pair))


def test_the_largest_magnitude_of_zeros_has_no_sign():
    amax = np.ones(1, F32)
    gemmhub.matmul(np.ones((2, 0), F32), np.ones((0, 2), F32), amax=amax)
    assert amax[0] == 0
    assert not np.signbit(amax[0])


def test_a_wrong_out_is_named_where_the_pre_activation_is_made(pair):
    for out in (np.zeros((2, 2), np.int32), 5):
        with pytest.raises(gemmhub.OutputError) as caught:
            gemmhub.matmul(*pair, out=out, pre_activation=True)
        assert caught.value.argument == "out"


def test_measuring_and_comparing_write_nothing_of_the_callers(pair):
    amax, before = np.full(1, 7, F32), np.full((5, 5), 7, F32)
    for function in (gemmhub.explain, gemmhub.plan, gemmhub.tune, gemmhub.compare):
        function(*pair, activation="silu", amax=amax, pre_activation=before)
        assert amax[0] == 7, function
        assert (before == 7).all(), function


def test_a_problem_with_operands_is_found_in_another_process(pair, tmp_path):
    """Its hash is not that of this process, whose strings hash as they do in no other."""
    problem = gemmhub.explain(*pair, bias=np.ones(5, F32)).problem
    (tmp_path / "problem").write_bytes(pickle.dumps(problem))
    code = (
        "import pickle, numpy as np, gemmhub\n"
        f"loaded = pickle.loads(open({str(tmp_path / 'problem')!r}, 'rb').read())\n"
        "x = np.ones((5, 5), np.float32)\n"
        "assert loaded in {gemmhub.explain(x, x, bias=np.ones(5, np.float32)).problem}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
