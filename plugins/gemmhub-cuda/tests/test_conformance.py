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
_F, _G = ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), ("float8_e5m2", "float8_e4m3fn", "float32")
_ROWS, _BLOCKS = {"scale_a": "row", "scale_b": "column"}, {"scale_a": "1x128", "scale_b": "128x128"}
ADA = Home(attributes={75: 8, 76: 9, 97: 99 * 1024, 81: 100 * 1024, 39: 1536, 106: 24})


@pytest.fixture(autouse=True)
def _no_complaints():
    for home in (HOME, ADA):
        home.cuda.complaints.clear()
    yield
    for home in (HOME, ADA):
        assert home.cuda.complaints == []
        assert home.cuda.stack == []


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


class TestEmulatedFloat8(ConformanceSuite):
    """8-bit floats on a card of compute capability 8.9."""

    backend = staticmethod(ADA.backend)
    memory = FakeMemory(ADA)
    random_problems = 0
    cases = (
        Case(64, 64, 64, *_F, b="col"),
        Case(65, 72, 40, *_F, a="col", b="row_padded", operands=_ROWS),
        Case(40, 200, 300, *_G, operands=_BLOCKS, data="nonfinite"),
        Case(40, 56, 300, "float8_e4m3fn", "float8_e5m2", "float16", operands={"scale_b": "128x1"}, data="wide"),
        Case(33, 40, 700, *_F, data="cancelling", reproducible="run", alpha=0.7, c="out", beta=-1.3, bias="n"),
        Case(33, 300, 700, *_F, data="cancelling", reproducible="batch", operands=_BLOCKS, every_candidate=True),
        Case(21, 28, 66, *_G, batch=(3,), a="col", reproducible="batch", every_candidate=True),
        Case(24, 16, 64, *_F, batch=(2, 3), a_batch="outer", operands=_ROWS, activation="gelu", threads=3),
        Case(17, 41, 70, *_F, b="col", out="col", operands=_ROWS, operand_stride=2),
        Case(17, 290, 300, *_G, batch=(2,), operands={"scale_a": "batch row", "scale_b": "batch 128x128"}),
        Case(17, 290, 300, *_F, operands={"scale_a": "tensor x 128", "scale_b": "column blocks"}, out="col"),
        Case(32, 48, 64, *_F, alpha=0, data="nonfinite", c="row", beta=2.0, operands=_ROWS),
        Case(32, 48, 64, *_F, operands={"scale_a": "tensor", "scale_b": "tensor"}, bias="m", activation="silu"),
        Case(5, 7, 0, *_F, c="row", beta=-1.3, operands={"scale_a": "row"}),
        Case(5, 7, 0, *_F, batch=(2, 3), a_batch="outer"),
        Case(0, 5, 7, *_F),
        Case(1, 385, 257, *_F, b="col", operands=_BLOCKS, operand_stride=3),
        Case(300, 1, 70, *_G, a="row_padded", data="nonfinite", offset=1),
    )
