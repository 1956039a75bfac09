"""Our own int8 kernels: exact for any sizes, strides and values, from threads, or absent with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gemmhub_cpu import probe, vnni_engine
from gemmhub_cpu.backend import CpuBackend

import gemmhub
from gemmhub.testing.problems import problem

pytestmark = pytest.mark.compiler
LIBRARY = vnni_engine.load()
needs_it = pytest.mark.skipif(isinstance(LIBRARY, str), reason=str(LIBRARY))


@pytest.fixture
def rng():
    return np.random.default_rng()


def exact(a, b):
    """The product in integers of 64 bits, wrapped to 32."""
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def multiplied(a, b):
    out = np.full((a.shape[0], b.shape[1]), 12345, np.int32)
    vnni_engine.multiply(LIBRARY, a, vnni_engine._packed(LIBRARY, b), out)
    return out


def drawn(rng, shape):
    return rng.integers(-128, 128, shape, dtype=np.int8)


@needs_it
def test_sizes_and_strides(rng):
    """Around the micro-tile (8 x 48), the block of k (768) and of rows (128), and any others."""
    sizes = [(m, n, k) for m in (1, 7, 8, 9, 129) for n in (1, 15, 17, 48, 49, 97) for k in (1, 3, 4, 5, 767, 769)]
    sizes += [tuple(int(x) for x in rng.integers(1, 300, 3)) for _ in range(60)]
    for i, (m, n, k) in enumerate(sizes):
        a, b = drawn(rng, (m, k)), drawn(rng, (k, n))
        a = np.asfortranarray(a) if i % 3 == 1 else np.repeat(a, 2, axis=1)[:, ::-2] if i % 3 == 2 else a
        b = np.asfortranarray(b) if i % 5 == 1 else np.repeat(b, 3, axis=0)[::-3] if i % 5 == 2 else b
        assert np.array_equal(multiplied(a, b), exact(a, b)), (m, n, k)


@needs_it
def test_extremes_and_what_wraps(rng):
    for value in (-128, 127):
        a, b = np.full((9, 4096), -128, np.int8), np.full((4096, 50), value, np.int8)
        assert np.array_equal(multiplied(a, b), exact(a, b))
    a, b = np.full((2, 200000), -128, np.int8), np.full((200000, 3), -128, np.int8)  # 3.3e9: beyond int32
    assert np.array_equal(multiplied(a, b), exact(a, b))
    assert np.array_equal(multiplied(np.zeros((3, 0), np.int8), np.zeros((0, 5), np.int8)), np.zeros((3, 5), np.int32))


@needs_it
def test_a_part_of_a_larger_result_is_all_that_is_written(rng):
    a, b = drawn(rng, (21, 100)), drawn(rng, (100, 50))
    whole = np.full((25, 60), 7, np.int32)
    vnni_engine.multiply(LIBRARY, a, vnni_engine._packed(LIBRARY, b), whole[2:23, 5:55])
    assert np.array_equal(whole[2:23, 5:55], exact(a, b))
    whole[2:23, 5:55] = 7
    assert (whole == 7).all()


@needs_it
def test_the_backend_chooses_them():
    backend = CpuBackend(probe.Machine(2, vnni=True))
    large = problem(1024, 1024, 1024, "int8", "int32")
    assert backend.supports(large) is None
    assert backend.candidates(large)[0] == "vnni"
    assert "VNNI" in backend.remark(large, "vnni")
    matrix_units = CpuBackend(probe.Machine(2, frozenset(probe.BF16_UNITS), "7.8", vnni=True))
    assert "vnni" not in matrix_units.candidates(large)
    assert "numkong" in matrix_units.candidates(large)
    many = CpuBackend(probe.Machine(16, vnni=True))
    assert "vnni" not in many.candidates(large)
    assert "16 cores" in many.why_not_vnni(large)
    small = problem(4, 4, 4, "int8", "int32")
    assert backend.supports(small) is not None
    assert "vnni" not in backend.candidates(problem(1024, 1024, 1024, "bfloat16"))


@needs_it
def test_calls_from_many_threads(rng):
    a, b = drawn(rng, (300, 400)), drawn(rng, (400, 500))
    expected = exact(a, b)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: gemmhub.matmul(a, b, backend="cpu"), range(32)))
    assert all(np.array_equal(x, expected) for x in results)


@needs_it
def test_packed_and_epilogue(rng):
    a, b = drawn(rng, (600, 400)), drawn(rng, (400, 500))
    packed = gemmhub.pack(b, m=600, backend="cpu")
    assert np.array_equal(gemmhub.matmul(a, packed), exact(a, b))
    c = rng.integers(-1000, 1000, (600, 500), dtype=np.int32)
    found = gemmhub.matmul(a, b, alpha=2, beta=3, c=c, backend="cpu")
    assert np.array_equal(found, 2 * exact(a, b) + 3 * c)


def test_without_a_compiler(tmp_path):
    """The reason is reported, and the product is right."""
    program = (
        "import numpy as np, gemmhub;"
        "a = np.random.default_rng(0).integers(-128, 128, (600, 600), dtype=np.int8);"
        "assert np.array_equal(gemmhub.matmul(a, a), a.astype(np.int32) @ a.astype(np.int32));"
        "print([x.features for x in gemmhub.backends() if x.name == 'cpu'])"
    )
    environment = {**os.environ, "PATH": str(tmp_path), "GEMMHUB_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no int8 kernels: " in done.stdout


def test_a_cpu_without_the_instructions(tmp_path):
    (tmp_path / "cpuinfo").write_text("flags : sse2 avx2 avx512f avx512bw avx512vl\n")
    assert vnni_engine._missing(tmp_path / "cpuinfo") == "avx512_vnni"
