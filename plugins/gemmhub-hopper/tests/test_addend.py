"""beta * c through the staging buffers of the results: addresses and strides of any alignment, orders, and mistakes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import FakeMemory, mutated
from gemmhub_hopper.variants.config import Shape
from gemmhub_nvidia.scratch import COUNTERS
from products import Product, loaded, stored
from runs import HOME, Run, address, detected
from vectors import Vector

from gemmhub.dtypes import as_dtype

pytestmark = pytest.mark.emulator

SMALL = Shape(64, 64, 3, consumers=1)
WIDE = Shape(128, 128, 3)


@dataclass(frozen=True)
class Added(Product):
    """A product with a c whose rows, or columns where it is column-major, have ``pad`` elements between them."""

    beta: float = 2
    pad: int = 0
    at: int = 0
    """Elements from an alignment of 256 bytes to c."""
    shared: bool = False
    """Whether all matrices of the batch have one c."""
    c_dtype: str | None = None
    """The dtype of c where it is another one than the result's."""

    def __str__(self):
        return (
            f"{super().__str__()}-pad{self.pad}-at{self.at}"
            + "-shared" * self.shared
            + f"-{self.c_dtype}" * bool(self.c_dtype)
        )

    @property
    def problem(self):
        asked = super().problem
        c = replace(asked.c, dtype=as_dtype(self.c_dtype)) if self.c_dtype else asked.c
        stride = "row_stride" if self.d == "row" else "col_stride"
        inner, outer = (self.n, self.m) if self.d == "row" else (self.m, self.n)
        layout = replace(c.layout, **{stride: inner + self.pad})
        if self.batch:
            layout = replace(layout, batch_strides=(0 if self.shared else (inner + self.pad) * outer,))
        nbytes = self.at * c.dtype.itemsize
        return asked.having(c=replace(c, layout=layout, alignment=nbytes & -nbytes or 256), bias=asked.bias)

    def data(self, seed=0):
        a, b, c, bias = super().data(seed)
        if self.c_dtype:  # by what the result's dtype would round away
            c = c.astype(self.c_dtype) + np.float32(2.0**-12)
        if self.shared:
            c[:] = c[0]
        return a, b, c, bias


class AddedRun(Run):
    """A run with NaN between the rows of c."""

    def __init__(self, product, home=HOME, seed=0):
        super().__init__(product, home, seed)
        c = self.values[2]
        rows = np.swapaxes(c, -1, -2) if product.d == "col" else c
        if product.shared:
            rows = rows[0]
        padded = np.full((*rows.shape[:-1], rows.shape[-1] + product.pad), np.nan, c.dtype)
        padded[..., : rows.shape[-1]] = rows
        first = product.at * c.itemsize
        buffer = FakeMemory(home).empty(padded.nbytes + 512)
        buffer[first : first + padded.nbytes] = padded.view(np.uint8).ravel()
        self.c = buffer[first:]


PRODUCTS = (
    # Units of 16, 4 and 2 bytes: by the address, by the rows' distance, by the end of a row.
    Added(SMALL, 72, 72, 72),
    Added(SMALL, 72, 72, 72, pad=2),
    Added(SMALL, 72, 72, 72, pad=3),
    Added(SMALL, 72, 72, 72, at=2),
    Added(SMALL, 72, 72, 72, at=1),
    Added(SMALL, 72, 70, 72, pad=10),
    Added(SMALL, 72, 69, 72, pad=3),
    Added(SMALL, 1, 37, 72),
    # Transposed results, by TMA and by warps; float32, whose boxes are halves of a buffer where it is transposed.
    Added(SMALL, 72, 136, 72, d="col"),
    Added(SMALL, 72, 136, 72, d="col", pad=1),
    Added(SMALL, 71, 136, 72, swapped=True, pad=4, dtype="float16"),
    Added(SMALL, 72, 136, 72, out="float32"),
    Added(SMALL, 72, 136, 72, out="float32", at=1),
    Added(SMALL, 72, 71, 72, out="float32", d="col", pad=3),
    Added(SMALL, 71, 72, 72, out="float32", d="col", pad=1),
    Added(Shape(64, 16, 3, consumers=1), 72, 44, 72, out="float32", pad=4),
    Added(Shape(64, 48, 3, consumers=1), 72, 104, 72, pad=6, offset=1),
    # Shifted rows, whose rows are in another order: of each size of elements, transposed or not.
    Added(SMALL, 77, 72, 101, registers=True, pad=1),
    Added(SMALL, 77, 72, 101, registers=True, d="col", pad=3),
    Added(SMALL, 77, 72, 101, registers=True, dtype="tf32", pad=3),
    Added(SMALL, 77, 72, 101, registers=True, dtype="tf32", out="bfloat16", d="col", at=4),
    Added(SMALL, 77, 72, 101, registers=True, dtype="tf32", d="col"),
    # Several fragments, tiles and consumers of a CTA; ping-pong; CTAs that share K; split-K by the last and by slices.
    Added(WIDE, 264, 264, 200, pad=8),
    Added(Shape(256, 64, 3), 264, 72, 136, out="float32"),
    Added(Shape(64, 64, 3, pingpong=True), 200, 136, 40, pad=2),
    Added(Shape(64, 64, 3, consumers=1, cluster_k=2), 72, 136, 264, pad=8),
    Added(SMALL, 72, 136, 392, splits=3, pad=1),
    Added(SMALL, 72, 56, 456, splits=7, pad=1),
    # Batches, with a c each or one for all.
    Added(SMALL, 40, 72, 72, batch=(3,), pad=8),
    Added(SMALL, 39, 71, 72, batch=(3,), shared=True),
    # Of float32 where the result is narrower: transposed or not, shifted, by slices and by the last, in K passes.
    Added(SMALL, 72, 72, 72, pad=3, c_dtype="float32"),
    Added(SMALL, 71, 69, 72, at=1, c_dtype="float32", dtype="float16", bias="n", activation="relu"),
    Added(SMALL, 72, 136, 72, d="col", pad=1, c_dtype="float32"),
    Added(SMALL, 71, 136, 72, swapped=True, pad=4, c_dtype="float32", alpha=0.5),
    Added(SMALL, 77, 72, 101, registers=True, d="col", pad=3, c_dtype="float32"),
    Added(SMALL, 72, 136, 392, splits=3, pad=1, c_dtype="float32"),
    Added(SMALL, 72, 56, 456, splits=7, pad=1, c_dtype="float32"),
    Added(SMALL, 71, 73, 330, limit=COUNTERS + 2**16, c_dtype="float32"),
    Added(SMALL, 40, 72, 72, batch=(3,), pad=8, c_dtype="float32"),
    Added(WIDE, 264, 264, 200, pad=8, c_dtype="float32"),
)


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_exact_products(product):
    AddedRun(product).check()


@dataclass(frozen=True)
class AddedVector(Added, Vector):
    """The same by a kernel for vectors."""


@pytest.mark.parametrize("m", [1, 5])
def test_vectors(m):
    AddedRun(AddedVector(SMALL, m, 70, 264, b="col", spread=32, c_dtype="float32", pad=3, bias="n")).check()


def drawn(rng):
    """Return a product of any alignment and order of c."""
    m, n, k = rng.integers(1, 150, 3).tolist()
    out = (None, "float32")[rng.integers(2)]
    return Added(
        (SMALL, WIDE)[rng.integers(2)], m, n, k, out=out, c_dtype=(None, "float32")[rng.integers(2)],
        d=("row", "col")[rng.integers(2)], swapped=bool(rng.integers(2)), pad=int(rng.integers(9)),
        at=int(rng.integers(9)), alpha=0.5, bias=(None, "m", "n")[rng.integers(3)],
    )  # fmt: skip


def test_random_products():
    rng = np.random.default_rng()
    for _ in range(4):
        product = drawn(rng)
        wrong = product.wrong(*(lambda run: (run(), run.exact))(AddedRun(product, seed=int(rng.integers(2**31)))))
        assert not wrong.any(), str(product)


@pytest.mark.parametrize(
    "product",
    [
        Added(WIDE, 264, 264, 72, beta=1), Added(SMALL, 72, 136, 72, d="col", out="float32"),
        Added(Shape(64, 64, 3, pingpong=True), 200, 137, 40),
    ],
    ids=str,
)  # fmt: skip
def test_c_may_be_the_result(product):
    run = AddedRun(product)
    c = stored(run.values[2], product.d)
    for _ in range(2):
        run.out[: c.size] = c
        at = address(run.out)
        run.launch.run(address(run.a), address(run.b), at, product.alpha, product.beta, 0, c=at)
        result = loaded(run.out[: c.size].copy(), run.dtype, product.batch, product.m, product.n, product.d)
        assert not product.wrong(result, run.exact).any()


# fmt: off
MUTATIONS = {
    "c of another fragment": ("epilogue.cuh", ("address, at.row0 + 64 * i, at.", "address, at.row0, at."),),
    "c of the block before": ("epilogue.cuh", ("at.column0 + column, at.batch, ctx", "at.column0, at.batch, ctx"),),
    "c of another matrix": ("addend.cuh", ("batch * p.c_batch +", ""),),
    "rows of d": ("addend.cuh", ("(unit.row * p.c_ld)", "(unit.row * p.d_ld)"),),
    "copies are not waited for": ("addend.cuh", ("copy_wait<0>();", ""),),
    "copies of others are not waited for": ("epilogue.cuh", (
        "at.batch, ctx);\n                sync_staged(ctx);", "at.batch, ctx);"),),
    "a swizzle of its own": ("addend.cuh", ("box + swizzled(line * STORE_ROW_BYTES + offset, STORE_ROW_BYTES)",
                                            "box + line * STORE_ROW_BYTES + offset"),),
    "a row is shifted": ("addend.cuh", ("kShiftedRows && !kTransposedD ? shifted_row(line) : line", "line"),),
    "the address is not looked at": ("addend.cuh", ("reinterpret_cast<u64>(p.c) | offsets", "offsets"),),
    "the distance of rows is not looked at": ("addend.cuh", ("p.c_ld | p.c_batch |", ""),),
    "c is of the result's dtype": ("epilogue.cuh", ("(kAddendType == 2 ? 4 : 2) * (at.", "kOutputBytes * (at."),),
    "words where there are none": ("addend.cuh", ("kAddendBytes == 4 || addend_aligned(p, 4, begin)", "true"),),
}
# fmt: on
WATCHED = [
    Added(Shape(128, 128, 3, consumers=1), 200, 136, 72, pad=8),
    Added(SMALL, 40, 72, 72, batch=(2,), pad=1),
    Added(SMALL, 72, 136, 72, d="col", out="float32"),
    Added(SMALL, 77, 72, 101, registers=True, at=1),
    Added(SMALL, 72, 72, 72, c_dtype="float32"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    file, *changes = MUTATIONS[mutation]
    home = mutated(monkeypatch, tmp_path, file, *changes)
    assert any(detected(AddedRun(product, home), 3) for product in WATCHED)
