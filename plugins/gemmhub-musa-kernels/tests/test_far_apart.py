"""Rows, columns and matrices that are more than 2**31 elements apart, in memory of which only these pages exist."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_musa.testing import problem, strided
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WMMA
from gemmhub_musa_kernels.tiles import Tile
from simulator import Bench

SIZE, PITCH = 130, 136
"""m, n and k, more than a tile, and the elements from row to row."""
FAR = 2**26 + 8
"""The same, of what is far apart. An offset of 32 bits reaches neither the next tile nor the end of one."""
STRIDES = {"batch": (2**30 + 8, PITCH, 1), "row": (PITCH, FAR, 1), "col": (PITCH, 1, FAR)}
"""From matrix to matrix, of three, row to row, and column to column. Matrices are between the rows of others."""
TILE = Tile(128, 128, 32, 2, 1)
"""Threads copy several vectors of a step each."""
KERNELS = {PIPELINED: Candidate(PIPELINED, TILE), WMMA: Candidate(WMMA), SCALAR: Candidate(SCALAR)}


class Sparse:
    """Memory of the host that the simulated device shares, which a file without content backs."""

    def __init__(self, nbytes):
        file = os.memfd_create("sparse")
        os.ftruncate(file, nbytes)
        self.memory = mmap.mmap(file, nbytes)
        os.close(file)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data

    def view(self, shape, strides, dtype=np.float16):
        return np.ndarray(shape, dtype, self.memory, 0, tuple(np.dtype(dtype).itemsize * step for step in strides))


@pytest.fixture
def bench(sim, plain_sdk):
    return Bench(sim, plain_sdk)


@pytest.mark.parametrize("far", STRIDES)
@pytest.mark.parametrize("operand", ["a", "b", "c", "out"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_an_operand(bench, kernel, operand, far):
    rng = np.random.default_rng()
    operands, places, values = {}, {}, {}
    for name in ("a", "b", "c", "out"):
        strides = STRIDES[far] if name == operand else (SIZE * PITCH, PITCH, 1)
        operands[name] = strided("float16", SIZE, SIZE, *strides[1:], (3,), strides[:1])
        places[name] = Sparse(2 * (3 * strides[0] + SIZE * sum(strides[1:])))
        values[name] = places[name].view((3, SIZE, SIZE), strides)
        values[name][:] = rng.integers(-1, 2, (3, SIZE, SIZE))
    asked = replace(problem(SIZE, SIZE, SIZE, "float16", batch=(3,), c=operands.pop("c")), **operands)
    expected = values["a"] @ values["b"] + values["c"]  # exact, as the numbers are small and whole
    a, b, c, out = (places[name].address for name in ("a", "b", "c", "out"))
    bench.product(asked, KERNELS[kernel]).run(a, b, out, 1, 1, 0, c=c)
    bench.runtime.synchronize()
    assert np.array_equal(values["out"], expected)


@pytest.mark.parametrize("operand", ["a", "b"])
def test_a_copied_operand(bench, operand):
    """The copy reads far columns of elements that are no neighbours."""
    rng = np.random.default_rng()
    operands, places, values = {}, {}, {}
    for name in ("a", "b", "out"):
        strides = (2, FAR) if name == operand else (PITCH, 1)
        operands[name] = strided("float16", SIZE, SIZE, *strides)
        places[name] = Sparse(2 * SIZE * sum(strides))
        values[name] = places[name].view((SIZE, SIZE), strides)
        values[name][:] = rng.integers(-1, 2, (SIZE, SIZE))
    asked, way = problem(SIZE, SIZE, SIZE, "float16"), replace(KERNELS[PIPELINED], transposed=(operand,))
    bench.product(replace(asked, **operands), way).run(*(x.address for x in places.values()), 1, 0, 0)
    bench.runtime.synchronize()
    assert np.array_equal(values["out"], values["a"] @ values["b"])
