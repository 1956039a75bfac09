"""Multiply half precision and 8-bit integers in code written for NumPy: python examples/numpy_half.py"""

import time

import numpy as np

import gemmhub
import gemmhub.numpy

rng = np.random.default_rng(0)


def similarity(x, y):
    """Code that knows NumPy alone."""
    return np.einsum("id,jd->ij", x, y)


for dtype in (np.float16, np.int8):
    x, y = ((rng.standard_normal((256, 512)) * 20).astype(dtype) for _ in range(2))
    exact = x.astype(np.float64) @ y.astype(np.float64).T
    results = {}
    for name, operands in {"numpy": (x, y), "gemmhub": map(gemmhub.numpy.asarray, (x, y))}.items():
        operands = list(operands)
        start = time.perf_counter()
        result = similarity(*operands)
        spent = time.perf_counter() - start
        error = np.abs(result.astype(np.float64) - exact).max() / np.abs(exact).max()
        print(f"{dtype.__name__:8} {name:8} {spent * 1e3:8.2f} ms, result {result.dtype}, largest error {error:.1e}")
        results[name] = error
    assert results["gemmhub"] < 1e-3

print(gemmhub.explain(x, y.T))
