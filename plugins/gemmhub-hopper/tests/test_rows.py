"""Results whose rows TMA cannot take: warps store them, and nothing beside them is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import mutated
from products import SMALL, SPLIT, TURNS, Product, Shape
from runs import HOME, Run, address, detected

pytestmark = pytest.mark.emulator


@dataclass(frozen=True)
class Padded(Product):
    """A product whose result, and c, has rows (columns) ``pad`` elements apart."""

    pad: int = 1

    @property
    def problem(self):
        asked = super().problem
        layout, size = asked.out.layout, asked.out.dtype.itemsize
        name = "row_stride" if self.d == "row" else "col_stride"
        out = replace(asked.out, layout=replace(layout, **{name: getattr(layout, name) + self.pad}))
        if not self.offset:
            out = replace(out, alignment=2 * size)
        return replace(asked, out=out).having(c=out if self.beta else None)


_BESIDE = 300
"""Rows of memory beside the result: faulty kernels store the rest of their tiles there."""


class PaddedRun(Run):
    """A run whose result begins at ``offset`` elements in memory filled with 0xFF; it holds c beforehand."""

    def __call__(self):
        p = self.product
        inner, outer = (p.n, p.m) if p.d == "row" else (p.m, p.n)
        kind = {2: np.int16, 4: np.int32}[self.dtype.itemsize]
        room = np.full((outer + _BESIDE) * (inner + p.pad) + p.offset, -1, kind)
        first = inner + p.pad + p.offset  # an odd or even number of elements from an aligned address
        rows = room[first:][: outer * (inner + p.pad)].reshape(outer, inner + p.pad)
        c = self.values[2]
        if c is not None:
            rows[:, :inner] = np.ascontiguousarray(c if p.d == "row" else c.T).view(room.dtype)
        place = room.ctypes.data + first * room.itemsize
        others = ({} if c is None else {"c": place}) | ({} if self.bias is None else {"bias": address(self.bias)})
        self.launch.run(address(self.a), address(self.b), place, p.alpha, p.beta, 0, **others)
        result = rows[:, :inner].copy().view(self.dtype)
        rows[:, :inner] = -1
        assert (room == -1).all(), "something beside the result was written"
        return result if p.d == "row" else result.T


FULL = {"alpha": 0.5, "beta": 2, "bias": "n", "activation": "relu"}
ONE = {"consumers": 1}
PADDED = (
    # Odd and even rows, remainders of all sides; transposed or not.
    Padded(SMALL, 73, 131, 72, pad=2),
    Padded(SMALL, 73, 131, 72, swapped=True, pad=2),
    Padded(SMALL, 73, 131, 72, d="col", offset=1, pad=2),
    Padded(SMALL, 66, 129, 72, pad=3, offset=1),
    Padded(SMALL, 66, 130, 72, pad=5, **FULL),
    Padded(SMALL, 73, 131, 72, swapped=True, dtype="float16", pad=2, **FULL),
    Padded(SMALL, 73, 2, 72, pad=3),
    Padded(SMALL, 3, 73, 72, d="col", pad=2),
    # Rows of a buffer of 32 and 64 bytes; store blocks that overlap; one element a row.
    Padded(Shape(64, 16, 3, **ONE), 70, 45, 72),
    Padded(Shape(64, 32, 3, **ONE), 70, 93, 72, offset=1),
    Padded(Shape(64, 48, 3, **ONE), 45, 70, 72, swapped=True),
    Padded(Shape(64, 80, 3, **ONE), 70, 169, 72, offset=1),
    Padded(Shape(64, 112, 3, **ONE), 70, 227, 72, swapped=True),
    Padded(SMALL, 67, 1, 72, offset=1),
    # float32, with one staging buffer and with two.
    Padded(SMALL, 67, 131, 72, out="float32"),
    Padded(SMALL, 67, 131, 72, out="float32", swapped=True, **FULL),
    Padded(Shape(64, 16, 3, **ONE), 67, 45, 72, out="float32", offset=1),
    Padded(Shape(128, 192, 5), 131, 197, 72, out="float32"),
    Padded(Shape(128, 192, 5), 197, 131, 72, out="float32", swapped=True),
    Padded(SPLIT, 67, 69, 72, dtype="float32", **FULL),
    # Several fragments, several work tiles of a CTA, ping-pong, split-K, CTAs that share K.
    Padded(Shape(256, 128, 4), 265, 141, 72),
    Padded(TURNS, 137, 201, 136, offset=1),
    Padded(TURNS, 137, 201, 136, swapped=True, bias="m", pad=2),
    Padded(Shape(128, 192, 5, pingpong=True), 137, 393, 72),
    Padded(SMALL, 73, 131, 264, splits=2),
    Padded(SMALL, 73, 131, 264, splits=3, swapped=True, out="float32"),
    Padded(Shape(64, 64, 3, cluster_k=2, **ONE), 73, 67, 264),
)


@pytest.mark.parametrize("product", PADDED, ids=str)
def test_rows(product):
    assert not product.choice.lowering.form.tma_store
    run = PaddedRun(product)
    for _ in range(2):
        run.check()


_FILL = "            stage(p, fragment, acc[i], column, address);\n"
_ALL, _WARP = "        sync_stores(1 + ctx.warpgroup, 128);", "        sync_warp_stores();"
MUTATIONS = {
    "a buffer is read before it is full": (_FILL + "            sync_staged(ctx);", _FILL),
    "a buffer is filled before it was read": ("if (kNumStoreStages == 1) sync_staged(ctx);", ""),
    "a warp syncs where all should": (_ALL, _WARP),
    "rows begin at units": ("(reinterpret_cast<u64>(at))) & 15;", "(reinterpret_cast<u64>(at))) & 0;"),
    "elements are taken for pairs": ("8 * (shift & (kFloat8Result ? 3 : 2))", "0"),
    "pairs are not shifted": ("shift & 4 ? w[i + 1]", "shift & 4 ? w[i]"),
    "two pairs are not shifted": ("shift & 8 ? w[i + 2]", "shift & 8 ? w[i]"),
    "a unit ends beside the row": ("if (element + PER_UNIT <= end)", "if (element < end)"),
    "the elements before units are left out": ("if (before < head && before < end)", "if (false)"),
    "those behind units are left out": ("if (behind < end)", "if (false)"),
    "those behind the row are stored": ("if (behind < end)", "if (behind <= end)"),
    "a row of few elements is stored whole": ("before < head && before < end", "before < head"),
    "rows beside the result are stored": ("if (static_cast<int>(into) >= rows) continue;", ""),
    "the next unit is that of another row": ("(unit + 1) % UNITS", "(unit + 2) % UNITS"),
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices(mutation, monkeypatch, tmp_path):
    change = MUTATIONS[mutation]
    home = mutated(monkeypatch, tmp_path, "epilogue.cuh", change)
    if mutation == "a buffer is filled before it was read":
        product = Padded(Shape(128, 192, 5), 197, 131, 72, out="float32", swapped=True)
    elif mutation == "a row of few elements is stored whole":
        product = Padded(SMALL, 73, 2, 72, pad=3)
    else:
        product = Padded(SMALL, 73, 131, 72, swapped=True, pad=2)
    if not detected(PaddedRun(product, home), 12):
        pytest.fail("not detected by the emulator or by a wrong result")


def test_padding_is_seen():
    """The check of these tests can fail."""
    run = PaddedRun(Padded(SMALL, 9, 9, 72), HOME)
    launch = run.launch.run

    class Careless:
        def run(self, a, b, out, *more, **operands):
            launch(a, b, out, *more, **operands)
            np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int16 * 1).from_address(out + 18))[:] = 0

    run.launch = Careless()
    with pytest.raises(AssertionError, match="beside the result"):
        run()
