"""The same products where arrays of Dask are expressions: Dask reads array.query-planning once a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

dask = pytest.importorskip("dask")

PROGRAM = """
import numpy as np
import dask, dask.array as da
import gemmhub
from gemmhub._doors.dask import operands
from products import BF16, F16, F32, I8, draw, ratio

assert operands.QUERY_PLANNING is %r
rng = np.random.default_rng()
with dask.config.set({"array.chunk-size": "256B", "scheduler": "sync"}):
    for dtype in (F16, BF16, F32, I8):
        for left, right in (((9, 37), (37, 12)), ((37,), (37, 12)), ((9, 37), (37,)), ((2, 9, 37), (37, 12))):
            a, b = draw(rng, left, dtype), draw(rng, right, dtype)
            x, y = da.from_array(a, chunks=8), da.from_array(b, chunks=7)
            product = gemmhub.matmul(x, y)
            assert isinstance(product, da.Array)
            assert ratio(np.asarray(product.compute()), a, b) <= 1
            assert ratio(np.asarray(product.persist().compute()), a, b) <= 1
            assert gemmhub.spot_check(x, y, product).compute()
    a, b, c, bias = (draw(rng, shape, F16) for shape in ((9, 37), (37, 12), (9, 1), (12,)))
    options = {"c": c, "beta": 2, "bias": bias, "alpha": 0.5, "activation": "gelu"}
    lazy = {**options, "c": da.from_array(c, chunks=4), "bias": da.from_array(bias, chunks=5)}
    x, y = da.from_array(a, chunks=(4, 8)), da.from_array(b, chunks=(8, 5))
    for given in (options, lazy):
        assert ratio(gemmhub.matmul(x, y, **given).compute(), a, b, **options) <= 1
    packed = gemmhub.pack(y, a_dtype=F16)
    assert ratio(gemmhub.matmul(a, packed).compute(), a, b) <= 1
    assert ratio(gemmhub.plan(x, y)(x, y).compute(), a, b) <= 1
    steps = [key for key in gemmhub.matmul(x, y).__dask_graph__() if str(key[0]).startswith("gemmhub-matmul")]
    assert len(steps) == gemmhub.explain(x, y).partition.blocking.tasks > 10
"""


@pytest.mark.parametrize("planning", [False, True])
def test_with_query_planning(planning):
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "DASK_ARRAY__QUERY_PLANNING": str(planning)}
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM % planning]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    if planning and "QUERY_PLANNING is True" in done.stderr:
        pytest.skip("this version of Dask has no expressions of arrays")
    if planning and "No module named 'dask_expr'" in done.stderr:
        pytest.skip("this version of Dask has its expressions of arrays in dask-expr")
    assert done.returncode == 0, done.stderr
