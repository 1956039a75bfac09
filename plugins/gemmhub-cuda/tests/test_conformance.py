"""The plugin against gemmhub's promises: the kernels themselves, emulated on the host.

An emulated variant takes a second to compile, so this is a part of the kit; tests/test_device.py runs all of it.
"""

from __future__ import annotations

import pytest
from fakes import FakeMemory, Home
from gemmhub_cuda.variants import batch, mma, sgemm

from gemmhub.testing import Case, ConformanceSuite

pytestmark = pytest.mark.emulator

HOME = Home()
_B, _H, _I = ("bfloat16",) * 3, ("float16",) * 3, ("int8", "int8", "int32")


@pytest.fixture(autouse=True)
def _no_complaints():
    HOME.cuda.complaints.clear()
    yield
    assert HOME.cuda.complaints == []
    assert HOME.cuda.stack == []


class TestEmulated(ConformanceSuite):
    backend = staticmethod(HOME.backend)
    memory = FakeMemory(HOME)
    random_problems = 0
    cases = (
        Case(64, 64, 64),
        Case(65, 72, 40, a="row", b="row"),
        Case(40, 56, 33, a="col", b="row_padded"),
        Case(0, 5, 7),
        Case(5, 7, 0, c="row", beta=-1.3, bias="m"),
        Case(16, 32, 2048, data="cancelling", reproducible="run"),
        Case(72, 64, 96, data="nonfinite"),
        Case(63, 64, 64, alpha=0.7, c="out", beta=-1.3, bias="n", activation="silu"),
        Case(24, 16, 64, batch=(2, 3), a_batch="outer", bias="n", activation="relu", data="nonfinite"),
        Case(17, 31, 40, b="col", out="col", offset=8),
        Case(40, 40, 40, threads=4),
        Case(40, 44, 64, b="row", precision="tf32"),
        Case(40, 44, 64, b="row", precision="bf16x3", data="bf16_trap"),
        Case(65, 72, 40, *_B, a="row", b="row"),
        Case(24, 16, 64, *_H, batch=(3,), b_batch="missing", activation="gelu"),
        Case(32, 48, 64, "bfloat16", "bfloat16", "float32", alpha=0, data="nonfinite", c="row", beta=2.0),
        Case(17, 31, 40, "float16", "float16", "float32", b="col", out="col", offset=2),
        Case(64, 72, 1024, *_B, a="col", b="col", data="wide"),
        Case(1, 37, 53, *_B),
        Case(40, 44, 64, "float16", "float32", "float32"),
        Case(5, 16, 0, *_B, batch=(3,), b_batch="missing", c="row", beta=1, bias="n"),
        Case(5, 16, 0, batch=(2, 3), a_batch="outer"),
    )

    @pytest.fixture(autouse=True)
    def _small_tiles(self, monkeypatch):
        """One shape of each kernel: fewer variants to compile. The others are in test_sgemm_kernel.py and
        test_mma_kernel.py."""
        monkeypatch.setattr(sgemm, "SHAPES", (sgemm.Shape(64, 64, 16, 32, 32, ctas_per_sm=4),))
        monkeypatch.setattr(mma, "SHAPES", (mma.Shape(64, 64, 64, 4, 32, 32),))
        monkeypatch.setattr(batch, "SHAPES", batch.SHAPES[:0])


class TestEmulatedBatches(ConformanceSuite):
    """The kernel for batches alone."""

    backend = staticmethod(HOME.backend)
    memory = FakeMemory(HOME)
    random_problems = 0
    cases = (
        Case(16, 16, 16, *_B, batch=(9,)),
        Case(9, 13, 5, *_B, batch=(4, 3), data="nonfinite"),
        Case(16, 24, 32, *_B, a="col", b="row", batch=(5,), a_batch="one"),
        Case(16, 24, 32, *_B, a="row_padded", b="col", out="col", batch=(5,), offset=8),
        Case(24, 16, 64, *_H, batch=(3,), activation="gelu", bias="m"),
        Case(24, 16, 64, *_H, batch=(2, 3), a_batch="outer", alpha=0.7, c="out", beta=-1.3, bias="n"),
        Case(17, 31, 40, "float16", "float16", "float32", batch=(3,), b="col", out="col", offset=2),
        Case(16, 16, 16, *_I, batch=(9,)),
        Case(9, 13, 5, *_I, batch=(4,)),
        Case(9, 13, 5, *_I, batch=(4,), a="col", out="col", offset=1),
        Case(32, 80, 48, *_I, a="col", b="col", batch=(2, 2), b_batch="outer"),
        Case(0, 5, 7, *_I, batch=(2,)),
        Case(5, 7, 3, *_I, batch=(0,)),
        Case(5, 7, 0, *_I, batch=(2,)),
        Case(5, 7, 0, *_I, batch=(2,), b_batch="missing"),
        Case(5, 7, 0, *_B, batch=(2, 3), a_batch="outer", c="row", beta=1, bias="n"),
        Case(70, 130, 300, *_I, threads=4),
        Case(5, 7, 3, "int8", "int8", "int32", alpha=2),
    )

    @pytest.fixture(autouse=True)
    def _this_kernel(self, monkeypatch):
        monkeypatch.setattr(mma, "SHAPES", ())
        few = [x for x in batch.SHAPES if (x.m, x.n, x.k_bytes) == (32, 64, 64)]
        monkeypatch.setattr(batch, "fitting", lambda m, n, k, itemsize: [x for x in few if x.itemsize == itemsize])
