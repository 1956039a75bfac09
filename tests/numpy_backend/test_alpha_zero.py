"""alpha == 0: the product is ignored, as in BLAS."""

import numpy as np
import pytest

import gemmhub


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_nan_does_not_come_through(dtype: type) -> None:
    a = np.full((5, 7), np.nan, dtype)
    b = np.full((7, 3), np.inf, dtype)
    c = np.ones((5, 3), dtype)
    with np.errstate(all="ignore"):
        got = gemmhub.matmul(a, b, alpha=0, beta=2, c=c, bias=c[0])
    assert np.array_equal(got, np.full((5, 3), 3, dtype))
