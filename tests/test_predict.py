"""Predictions for many devices: their bytes are counted in simulated runs, and never below the lower bound."""

from __future__ import annotations

import numpy as np
import pytest

from gemmhub._doors import predict as module
from gemmhub.distributed import predict
from gemmhub.errors import DTypeError, InputError


def cuts(size, parts):
    """The edges of an even division."""
    return [size * i // parts for i in range(parts + 1)]


def run(a, b, mesh):
    """The product by the algorithm of a mesh, on simulated devices; (result, bytes that each receives)."""
    (m, k), n = a.shape, b.shape[1]
    rows, cols, layers = mesh
    received = np.zeros(mesh, np.int64)
    c = np.zeros((m, n))
    for i in range(rows):
        for j in range(cols):
            height, width = (slice(*cuts(size, parts)[x : x + 2]) for size, parts, x in ((m, rows, i), (n, cols, j)))
            total = np.zeros((height.stop - height.start, width.stop - width.start))
            for layer in range(layers):
                start, stop = cuts(k, layers)[layer : layer + 2]
                own_a, own_b = (cuts(stop - start, parts)[x : x + 2] for parts, x in ((cols, j), (rows, i)))
                left, right = a[height, start:stop], b[start:stop, width]
                received[i, j, layer] += left.nbytes - left[:, own_a[0] : own_a[1]].nbytes
                received[i, j, layer] += right.nbytes - right[own_b[0] : own_b[1]].nbytes
                total += left.astype(float) @ right
                mine = cuts(total.size, layers)[layer : layer + 2]
                received[i, j, layer] += (layers - 1) * (mine[1] - mine[0]) * 4  # float32 parts of the others
            c[height, width] = total
    return c, received


MESHES = [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (4, 2, 1), (2, 2, 2), (1, 2, 4), (3, 5, 1), (2, 3, 2)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_bytes_are_those_of_a_run(mesh, dtype, rng):
    for sizes, exact in (((24, 16, 32), all(24 % x == 16 % x == 32 % x == 0 for x in mesh)), ((23, 17, 31), False)):
        m, n, k = sizes
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        c, received = run(a, b, mesh)
        np.testing.assert_allclose(c, a.astype(float) @ b.astype(float))
        (forecast,) = predict(*sizes, mesh, dtype, rate=1e9).forecasts
        assert forecast.devices == received.size
        if exact:
            assert forecast.bytes == received.max()
        assert forecast.bytes >= received.max()


def test_names_of_algorithms_and_the_best_mesh_of_each():
    found = predict(8192, 8192, 8192, 16, rate=1e11)
    assert {x.algorithm for x in found.forecasts} == {"1D rows", "1D columns", "1D k", "SUMMA", "2.5D"}
    assert [x.seconds for x in found.forecasts] == sorted(x.seconds for x in found.forecasts)
    assert {x.algorithm: x.mesh for x in found.forecasts}["SUMMA"] == (4, 4, 1)
    summa = next(x for x in found.forecasts if x.algorithm == "SUMMA")
    assert summa.bytes == 2 * 2048 * 8192 * 4 * 3 // 4
    assert str(found).count("\n") == 10
    assert predict(100, 100, 10**6, 64, rate=1e12).best.algorithm == "1D k"
    assert predict(10**6, 100, 100, 64, rate=1e12).best.algorithm == "1D rows"


@pytest.mark.parametrize("devices", [2, 4, 16, 64, 256, 1024])
@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (65536, 1024, 8192), (2048, 2048, 131072)], ids=str)
def test_nothing_is_below_the_lower_bound(devices, sizes):
    for dtype in ("float32", "int8"):
        found = predict(*sizes, devices, dtype, rate=1e12)
        for forecast in found.forecasts:
            size = 4 if dtype == "float32" else 1
            bound = module.lower_bound(*sizes, devices, forecast.memory // size) * size
            assert forecast.bytes >= bound * (1 - 1e-12)
            assert 0 < forecast.efficiency <= 1 + 1e-12
        assert found.lower_bound <= found.best.bytes


def test_overlap_and_memory():
    plain, beside = (predict(4096, 4096, 4096, 16, rate=1e11, overlap=x).best for x in (False, True))
    assert beside.seconds == max(beside.compute, beside.transfer) < plain.compute + plain.transfer
    small = predict(8192, 8192, 8192, 16, rate=1e11, memory=150 * 2**20)
    assert all(x.memory <= 150 * 2**20 for x in small.forecasts)
    with pytest.raises(InputError, match="memory: 1024 bytes a device"):
        predict(8192, 8192, 8192, 16, rate=1e11, memory="1KiB")


def test_seconds_come_from_the_backend_here():
    found = predict(1024, 1024, 1024, 4)
    assert "backend 'numpy' estimates here" in str(found)
    assert found.best.compute > 0
    assert found.to_dict()["devices"] == 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 8, 8, 2), InputError), ((8, 8, 2.5, 2), InputError), ((8, 8, 8, 0), InputError),
        ((8, 8, 8, ()), InputError),
        ((8, 8, 8, (2, 2, 2, 2)), InputError), ((8, 8, 8, 2, "float7"), DTypeError),
    ],
)  # fmt: skip
def test_what_is_refused(arguments, error):
    with pytest.raises(error):
        predict(*arguments)


def test_importing_the_module_imports_no_dask():
    import subprocess
    import sys

    script = "import sys, gemmhub.distributed as d; assert 'dask' not in sys.modules; print(d.predict)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("memory", ["80 gigabytes", 0, "1G"])
def test_memory_has_a_unit(memory):
    with pytest.raises(InputError, match=r"memory: .*GiB"):
        predict(64, 64, 64, 4, rate=1e11, memory=memory)
