"""The public call on arrays of a simulated device."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_musa import from_numpy

import gemmhub

rng = np.random.default_rng(5)
A, B, BIAS = (rng.standard_normal(shape).astype(np.float16) for shape in ((51, 76), (76, 64), (64,)))


@pytest.mark.parametrize("device", [0, 1])
def test_matmul(device):
    a, b, bias = (from_numpy(x, device) for x in (A, B, BIAS))
    c = gemmhub.matmul(a, b, bias=bias, alpha=0.5, backend="mudnn")
    assert (c.shape, c.dtype, c.device.index) == ((51, 64), np.float16, device)
    assert np.allclose(c.numpy(), 0.5 * A.astype(np.float32) @ B + BIAS, atol=2e-2)
    assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b, backend="mudnn")).ok


def test_views_and_a_plan():
    a, b = from_numpy(A), from_numpy(np.asfortranarray(B).T)
    multiply = gemmhub.plan(a, b.T, backend="mudnn")
    assert np.array_equal(multiply(a, b.T).numpy(), gemmhub.matmul(a, b.T, backend="mudnn").numpy())
    part = gemmhub.matmul(a[3:20, 8:], b.T[8:, ::1], backend="mudnn").numpy()
    assert np.allclose(part, A[3:20, 8:].astype(np.float32) @ B[8:], atol=2e-2)


def test_explain_shows_choices_and_refusals():
    a, b = from_numpy(A.astype(np.float32)), from_numpy(B.astype(np.float32))
    assert "MatMul, no TF32" in str(gemmhub.explain(a, b, backend="mudnn"))
    with pytest.raises(gemmhub.NoBackendError, match="mublas"):
        gemmhub.matmul(from_numpy(A.astype(np.float64)), from_numpy(B.astype(np.float64)), backend="mudnn")
