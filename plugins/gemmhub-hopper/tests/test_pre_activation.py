"""pre_activation= by the kernel on the emulator: what the activation is applied to, of any alignment and stride."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import FakeMemory, mutated
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import shapes
from gemmhub_hopper.variants.config import Shape
from gemmhub_hopper.variants.shapes import ShapeList
from gemmhub_nvidia.scratch import COUNTERS
from problems import operand, problem
from products import SMALL, TURNS, Product, loaded, stored
from runs import HOME, Run, address

from gemmhub.backend import answer
from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.problem import Groups
from gemmhub.testing import Case, check

pytestmark = pytest.mark.emulator

GUARD = 1024
"""Bytes before and behind the matrix."""


@dataclass(frozen=True)
class Before(Product):
    """A product with a pre-activation, with ``pad`` elements between its rows, or columns where it is column-major."""

    activation: str | None = "relu"
    pad: int = 0
    at: int = 0
    """Elements from an alignment of 256 bytes to it."""

    def __str__(self):
        return f"{super().__str__()}-pad{self.pad}-at{self.at}"

    @property
    def lines(self):
        """Its lines in memory, and the elements of each."""
        return (self.m, self.n) if self.d == "row" else (self.n, self.m)

    @property
    def problem(self):
        asked = super().problem
        out, (outer, inner) = asked.out, self.lines
        stride = "row_stride" if self.d == "row" else "col_stride"
        layout = replace(out.layout, **{stride: inner + self.pad})
        if self.batch:
            layout = replace(layout, batch_strides=((inner + self.pad) * outer,))
        nbytes = self.at * out.dtype.itemsize
        return asked.having(pre_activation=replace(out, layout=layout, alignment=nbytes & -nbytes or 256))

    def before(self, values):
        """Return the exact pre-activation."""
        return replace(self, activation=None).exact(*values)


class BeforeRun(Run):
    """A run with NaN, which stays, around the rows of the pre-activation."""

    def __call__(self):
        p, (outer, inner), size = self.product, self.product.lines, self.dtype.itemsize
        count = int(np.prod(p.batch, dtype=int)) * outer
        nbytes, first = (inner + p.pad) * count * size, GUARD + p.at * size
        memory = FakeMemory(self.home).empty(nbytes + 2 * GUARD + 256)
        memory[:] = 0xFF
        run, at = self.launch.run, address(memory) + first
        self.launch = _With(lambda *given, **named: run(*given, **named, pre_activation=at))
        try:
            result = super().__call__()
        finally:
            self.launch = _With(run)
        lines = memory[first : first + nbytes].reshape(count, -1)
        self.before = loaded(lines[:, : inner * size].copy().ravel(), self.dtype, p.batch, p.m, p.n, p.d)
        assert (lines[:, inner * size :] == 0xFF).all()
        assert (memory[:first] == 0xFF).all()
        assert (memory[first + nbytes :] == 0xFF).all()
        return result

    def check(self):
        super().check()
        exact = self.product.before(self.values)
        wrong = ~(self.before.astype(np.float64) == exact.astype(self.dtype).astype(np.float64))
        assert not wrong.any(), f"{wrong.sum()} wrong before, the first at {np.argwhere(wrong)[0]}"


@dataclass
class _With:
    run: object


_REGISTERS = {"registers": True}
PRODUCTS = (
    # By TMA and by warps; of any alignment, of either order, swapped, of every dtype.
    Before(SMALL, 72, 136, 72),
    Before(SMALL, 72, 136, 72, pad=3, at=1),
    Before(SMALL, 71, 69, 72, pad=2, bias="n", alpha=0.5),
    Before(SMALL, 72, 136, 72, d="col", pad=1),
    Before(SMALL, 72, 136, 72, swapped=True, pad=8, activation="silu"),
    Before(SMALL, 72, 136, 72, out="float32", at=2),
    Before(SMALL, 71, 72, 72, out="float32", d="col", pad=1),
    Before(SMALL, 72, 136, 72, dtype="float16", activation=None),
    # With c, which may be the result; shapes, clusters that share K, split-K whose splits would reduce slices.
    Before(SMALL, 72, 136, 72, beta=2, bias="m", activation="gelu"),
    Before(Shape(128, 256, 4), 264, 520, 136, b="col", bias="n"),
    Before(Shape(256, 64, 3), 264, 136, 136, b="col"),
    Before(TURNS, 200, 136, 264, activation="silu"),
    Before(Shape(64, 64, 3, consumers=1, cluster_k=4), 72, 136, 328),
    Before(SMALL, 72, 56, 1032, splits=8),
    # Batches; shifted rows; planes; K passes, of which the last one stores it; 8 bits.
    Before(SMALL, 40, 72, 72, batch=(3,), pad=8),
    Before(SMALL, 77, 72, 101, **_REGISTERS),
    Before(SMALL, 77, 72, 101, d="col", pad=1, **_REGISTERS),
    Before(SMALL, 72, 136, 132, dtype="tf32", b="col", bias="n"),
    Before(Shape(64, 64, 2, consumers=1), 72, 136, 132, dtype="float32"),
    Before(SMALL, 71, 73, 330, limit=COUNTERS + 2**16, bias="n"),
    Before(Shape(64, 64, 2, consumers=1), 72, 76, 330, dtype="float32", limit=2**17 + COUNTERS, beta=2),
    Before(SMALL, 72, 136, 272, dtype="float8_e4m3fn", b="col", out="bfloat16"),
)  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(product):
    BeforeRun(product, seed=np.random.SeedSequence().entropy % 2**32).check()


_TMA, _WARPS = Before(Shape(64, 64, 3, consumers=1), 200, 136, 72, beta=2), Before(SMALL, 71, 69, 72, pad=2, bias="n")
_SHORT = Before(Shape(64, 64, 2, consumers=1), 392, 392, 16, out="float32")
_SPLIT = next(x for x in PRODUCTS if x.splits > 1)
MUTATIONS = (
    (_TMA, "epilogue.cuh", "{p.before, p.before_ld, p.before_batch, true}", "{p.before, p.d_ld, p.d_batch, false}"),
    (_WARPS, "epilogue.cuh", "{p.before, p.before_ld,", "{p.before, p.d_ld,"),
    (
        _WARPS,
        "epilogue.cuh",
        "store_by_rows(p, StoredMatrix::before_d(p), acc",
        "store_by_rows(p, StoredMatrix::d(p), acc",
    ),
    (
        _TMA,
        "epilogue.cuh",
        "store_beside_tma(p, StoredMatrix::before_d(p), acc",
        "store_beside_tma(p, StoredMatrix::d(p), acc",
    ),
    (_SHORT, "epilogue.cuh", "if (ctx.lane == 0) tma_store_wait_read();  // each", "// each"),
    (_SPLIT, "split_k.cuh", "&& !kStoresBefore &&", "&&"),
)


@pytest.mark.parametrize(("product", "file", "old", "new"), MUTATIONS, ids=lambda x: str(x)[:40])
def test_mutation(product, file, old, new, monkeypatch, tmp_path):
    sms = 1 if product == _SHORT else 16
    run = BeforeRun(product, mutated(monkeypatch, tmp_path, file, (old, new), attributes={16: sms}))

    def fails():
        try:
            run.check()
        except (AssertionError, KernelError):
            return True
        return False

    assert any(fails() for _ in range(6))


_B, _H = ("bfloat16",) * 3, ("float16",) * 3
_MATRIX = {"operands": {"pre_activation": "matrix"}}
CASES = (
    Case(40, 56, 33, *_H, a="col", activation="gelu", data="nonfinite", **_MATRIX),
    Case(65, 71, 64, *_B, out="col", bias="n", activation="silu", data="wide", offset=8, **_MATRIX),
    Case(24, 16, 64, *_B, batch=(2, 3), a_batch="outer", bias="n", activation="relu", data="nonfinite", **_MATRIX),
    Case(1, 300, 70, *_B, data="cancelling", activation="gelu", **_MATRIX),
    Case(40, 44, 70, data="wide", c="out", beta=-1.3, activation="silu", **_MATRIX),
    Case(5, 7, 0, *_B, bias="m", activation="gelu", **_MATRIX),
    Case(40, 44, 64, *_B, alpha=0, data="nonfinite", bias="n", **_MATRIX),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_promises(case, monkeypatch):
    monkeypatch.setattr(shapes, "SHAPES", ShapeList((Shape(64, 64, 8, consumers=1),)))
    monkeypatch.setattr(shapes, "SPLIT_SHAPES", ShapeList((Shape(64, 64, 8, consumers=1),)))
    HOME.cuda.complaints.clear()
    check(HOME.backend(), case, FakeMemory(HOME))
    assert HOME.cuda.complaints == []


def test_c_may_be_the_result():
    """The pre-activation is stored while the result is not."""
    product = Before(SMALL, 72, 136, 72, beta=1)
    run = BeforeRun(product)
    memory = FakeMemory(HOME).empty(product.m * product.n * 2)
    c = stored(run.values[2], "row")
    run.out[: c.size] = c
    at = address(run.out)
    run.launch.run(address(run.a), address(run.b), at, 1, 1, 0, c=at, pre_activation=address(memory))
    result, before = (loaded(x[: c.size].copy(), run.dtype, (), 72, 136, "row") for x in (run.out, memory))
    assert not product.wrong(result, run.exact).any()
    assert not product.wrong(before, product.before(run.values)).any()


def test_refusals():
    matrix, halves = operand("bfloat16", 64, 64), operand("float16", 64, 64)
    refused = {
        "pre_activation of swiglu": problem(activation="swiglu", pre_activation=matrix),
        "pre_activation is float16": problem(pre_activation=halves),
        "is not stored as the result is": problem(pre_activation=operand("bfloat16", 64, 64, "col")),
        "of groups has no kernel": problem(b="col", pre_activation=matrix, groups=Groups(2, "m")),
        "complex products have no epilogue": problem(dtype="complex64", pre_activation=operand("complex64", 64, 64)),
        "an int32 result has no epilogue": problem(dtype="int8", out="int32", pre_activation=operand("int32", 64, 64)),
    }
    for reason, asked in refused.items():
        refusal = answer(HOME.backend(), asked)
        assert isinstance(refusal, Refusal), reason
        assert reason in refusal.reason
        assert refusal.remedy


def test_estimates_count_both_matrices():
    plain, both = (
        lower.lowerings(problem(4, 64, 64, **x))[0] for x in ({}, {"pre_activation": operand("bfloat16", 4, 64)})
    )
    assert both.nbytes - plain.nbytes == 2 * 4 * 64
    assert gemv.choices([plain])
    assert not gemv.choices([both])
