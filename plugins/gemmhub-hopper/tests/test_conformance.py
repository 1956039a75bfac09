"""The plugin against gemmhub's promises: the kernels themselves, emulated on the host.

An emulated variant takes a second to compile, so this is a part of the kit; tests/test_device.py runs all of it.
"""

from __future__ import annotations

import pytest
from fakes import FakeMemory, Home
from gemmhub_hopper.variants import shapes
from gemmhub_hopper.variants.config import Shape
from gemmhub_hopper.variants.shapes import ShapeList

from gemmhub.testing import Case, ConformanceSuite

pytestmark = pytest.mark.emulator

HOME = Home()
_B, _H = ("bfloat16",) * 3, ("float16",) * 3
_F, _I = ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), ("int8", "int8", "float32")
_ROWS, _BLOCKS = {"scale_a": "row", "scale_b": "column"}, {"scale_a": "1x128", "scale_b": "128x128"}


class TestEmulated(ConformanceSuite):
    backend = staticmethod(HOME.backend)
    memory = FakeMemory(HOME)
    random_problems = 0
    grouped = ()  # each form would be a variant to compile
    cases = (
        Case(64, 64, 64, *_B),
        Case(65, 72, 40, *_B, a="row", b="row"),
        Case(40, 56, 33, *_H, a="col", b="row_padded"),
        Case(0, 5, 7, *_B),
        Case(5, 7, 0, *_B, c="row", beta=-1.3, bias="m"),
        Case(16, 32, 2048, *_B, data="cancelling", reproducible="run"),
        Case(128, 64, 96, *_H, data="nonfinite"),
        Case(128, 64, 96, *_H, data="wide"),
        Case(63, 64, 64, *_B, alpha=0.7, c="out", beta=-1.3, bias="n", activation="silu"),
        Case(24, 16, 64, *_B, batch=(2, 3), a_batch="outer", bias="n", activation="relu", data="nonfinite"),
        Case(24, 16, 64, *_H, batch=(3,), b_batch="missing", activation="gelu"),
        Case(32, 48, 64, "bfloat16", "bfloat16", "float32", alpha=0, data="nonfinite", c="row", beta=2.0),
        Case(17, 31, 40, "float16", "float16", "float32", b="col", out="col", offset=8),
        Case(40, 40, 40, *_B, threads=4),
        Case(40, 44, 64, b="col", precision="tf32"),
        Case(40, 44, 64, b="row", precision="tf32"),
        Case(40, 44, 64),
        Case(40, 44, 64, a="col_padded", b="col", out="col", alpha=0.7, c="out", beta=-1.3),
        Case(23, 37, 60, data="nonfinite", c="row", beta=2.0, bias="n", activation="relu"),
        Case(33, 40, 50, data="wide", reproducible="run"),
        Case(33, 40, 700, data="cancelling"),
        Case(8, 9, 3, data="large"),
        Case(5, 7, 0, c="row", beta=-1.3),
        Case(24, 16, 40, batch=(2, 3), a_batch="outer", data="nonfinite"),
        Case(24, 17, 40, "float32", "float32", "bfloat16", batch=(3,), b_batch="missing", threads=3),
        Case(1, 300, 700, *_B, data="wide", bias="n", activation="gelu"),
        Case(300, 1, 70, *_H, a="row_padded", data="nonfinite", alpha=0.7, c="out", beta=-1.3),
        Case(4, 300, 700, b="col_padded", data="cancelling", reproducible="run"),
        Case(3, 40, 60, *_B, a="col", b="row_padded", batch=(2,), b_batch="missing", threads=3),
        Case(1, 30, 72, packed=True),
        Case(20, 30, 70, packed=True),
        Case(20, 30, 70, *_H, packed=True, b="col"),
        Case(20, 30, 70, "float16", "float16", "float32", packed=True),
        Case(20, 30, 70, "bfloat16", "bfloat16", "float16", batch=(2,), b_batch="missing", packed=True),
        Case(5, 16, 0, *_B, packed=True),
        Case(5, 16, 0, *_B, batch=(3,), b_batch="missing", c="row", beta=1, bias="n"),
        Case(5, 16, 0, batch=(2, 3), a_batch="outer"),
        Case(64, 64, 64, *_F, b="col"),
        Case(65, 72, 40, *_F, a="col", b="row_padded", operands=_ROWS),
        Case(40, 200, 300, "float8_e5m2", "float8_e4m3fn", "float32", operands=_BLOCKS, data="nonfinite"),
        Case(40, 56, 300, "float8_e4m3fn", "float8_e5m2", "float16", operands={"scale_b": "128x1"}, data="wide"),
        Case(33, 40, 700, *_F, data="cancelling", reproducible="run", alpha=0.7, c="out", beta=-1.3, bias="n"),
        Case(24, 16, 64, *_F, batch=(2, 3), a_batch="outer", operands=_ROWS, activation="gelu", threads=3),
        Case(32, 48, 64, *_F, alpha=0, data="nonfinite", c="row", beta=2.0, operands=_ROWS),
        Case(5, 7, 0, *_F, c="row", beta=-1.3, operands={"scale_a": "row"}),
        Case(20, 30, 70, *_F, packed=True),
        Case(20, 30, 70, "float8_e5m2", "float8_e4m3fn", "bfloat16", packed=True),
        Case(65, 72, 40, *_F[:2], "float8_e4m3fn", operands={"scale_out": "tensor", "amax": "tensor", **_ROWS}),
        Case(40, 48, 300, *_F[:2], "float8_e5m2", b="col", operands={"amax": "tensor"}, data="nonfinite"),
        Case(1, 70, 300, *_F, b="col", operands=_BLOCKS, data="wide"),
        Case(3, 40, 72, "int8", "int8", "int32", b="row"),
        Case(1, 72, 64, *_F[:2], "float32", b="col", packed=True),
        Case(33, 40, 160, "int8", "int8", "int32", b="col"),
        Case(17, 31, 40, "int8", "int8", "int32", out="col", offset=8),
        Case(5, 7, 0, "int8", "int8", "int32"),
        Case(33, 40, 160, *_I, operands=_ROWS, bias="m", activation="silu"),
        Case(20, 30, 70, "int8", "int8", "int32", packed=True),
    )

    @pytest.fixture(autouse=True)
    def _small_tiles(self, monkeypatch):
        """One shape: fewer variants to compile. The others are in tests/test_kernel.py."""
        monkeypatch.setattr(shapes, "SHAPES", ShapeList((Shape(64, 64, 12, consumers=1),)))
        monkeypatch.setattr(shapes, "EIGHT_BIT_SHAPES", ShapeList((Shape(64, 64, 12, consumers=1),)))
        monkeypatch.setattr(shapes, "SPLIT_SHAPES", ShapeList((Shape(64, 64, 9, consumers=1),)))

    @pytest.fixture(autouse=True)
    def _no_complaints(self):
        HOME.cuda.complaints.clear()
        yield
        assert HOME.cuda.complaints == []
        assert HOME.cuda.stack == []
