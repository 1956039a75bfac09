"""16-bit operands whose rows TMA cannot take, through registers: sums, what lies beside rows, stores, and mistakes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import mutated
from gemmhub_hopper import lower, tensor_map
from gemmhub_hopper.config import SHIFTED, Form, Shape, Variant
from problems import problem
from products import SHIFTED_PRODUCTS, Product
from runs import HOME, Run, detected

SMALL = Shape(64, 32, 3, consumers=1)


@pytest.mark.parametrize("product", SHIFTED_PRODUCTS, ids=str)
def test_exact_products(product):
    run = Run(product)
    assert product.choice.lowering.form.scheme == SHIFTED
    for _ in range(2):
        run.check()


def spoilt(home):
    """Rows that NaN in all others spoils: behind K there is the next row, and behind the last one memory of others."""
    found = []
    for row in (0, 5, 70, 76):
        run = Run(Product(SMALL, 77, 24, 83, b="col", registers=True), home)
        a, b, *others = run.values
        a = np.full_like(a, np.nan)
        a[row] = 1
        run.a[:] = 0xFF
        run.give(a, b)
        result = run()
        if not (result[row] == run.product.exact(a, b, *others)[row].astype(result.dtype)).all():
            found.append(row)
        assert np.isnan(np.delete(result, row, 0)).all()
    return found


def test_what_follows_a_row_does_not_count(monkeypatch, tmp_path):
    assert not spoilt(HOME)
    for change in (
        ("if (left >= static_cast<int>(BLOCK_K)) return;", "return;"),
        ("behind == 1 ? 0xffff : 0", "behind == 1 ? 0xffffffff : 0"),
    ):
        assert spoilt(mutated(monkeypatch, tmp_path, "shifted_rows.cuh", change))


@pytest.mark.parametrize("rows", [64, 65, 71, 72, 127, 135])
def test_nothing_behind_the_matrix_is_read(rows):
    """The lines of both maps end with the last row."""
    (lowering,) = shifted(problem(rows, 40, 101, b="col"))
    form = lowering.form
    for made, some in zip(tensor_map.shifted_rows(lowering.a.direct, form, 64), (8, rows % 8 or 8)):
        inner, lines, count = made.sizes
        last = (lines - 1) * made.strides[0] // 2 + inner
        assert last <= rows * 101
        assert (last == rows * 101) == (some == (rows % 8 or 8))
        assert made.strides[0] % 16 == 0
        assert (made.box, made.swizzle, count) == ((72, 8, 1), 0, 1)


def shifted(asked):
    """Return the lowerings of a problem through registers."""
    return [x for x in lower.lowerings(asked) if x.form.scheme == SHIFTED]


@pytest.mark.parametrize(
    ("asked", "which"),
    [
        (problem(200, 72, 101), [False]), (problem(200, 72, 101, b="col"), [False, True]),
        (problem(200, 73, 104), []), (problem(200, 73, 104, b="col"), []), (problem(200, 72, 101, a="col"), []),
        (problem(200, 72, 101, "float32"), []), (problem(63, 72, 101), []), (problem(200, 72, 63), []),
        (problem(200, 72, 101, batch=(2,), a="col"), []), (problem(72, 200, 101, batch=(2,), b="col"), []),
        (problem(200, 72, 102, "float16"), [False]), (problem(200, 72, 104), []),
    ],
)  # fmt: skip
def test_which_operands(asked, which):
    """Matrices that are contiguous along K, and of which TMA would need a copy."""
    found = shifted(asked)
    assert [x.swapped for x in found] == which
    for lowering in found:
        assert not any(x.name == lowering.a.name for x in lowering.copied)
        assert not lowering.form.tma_store


def test_an_address_that_is_not_aligned_is_copied():
    asked = problem(200, 72, 101)
    assert shifted(asked)
    assert not shifted(replace(asked, a=replace(asked.a, alignment=8)))


def test_what_there_is_no_kernel_for():
    form = Form(False, False, "bfloat16", "bfloat16", registers_a=True, tma_store=False)
    assert Variant(Shape(128, 128, 5), form).refusal is None
    for wrong in (
        Variant(Shape(128, 128, 5), replace(form, tma_store=True)),
        Variant(Shape(128, 128, 5), replace(form, mn_major_a=True)),
        Variant(Shape(128, 128, 5, cluster_n=2), form),
        Variant(Shape(64, 64, 5, consumers=1, cluster_k=2), form),
    ):
        assert "shifted rows" in wrong.refusal


def test_bank_conflicts():
    """The words that a warp loads at once are in different banks, whatever the shift."""
    lanes = np.arange(32)
    for row in range(8):
        for behind in range(8):
            for step in range(4):
                for more in (0, 4, 16, 20):
                    at = row * 1152 + lanes // 4 * 144 + behind // 2 * 4 + lanes % 4 * 4 + 32 * step + more
                    assert len(set(at // 4 % 32)) == 32
                    assert ((at - row * 1152) % 144 < 144).all()


# fmt: off
MUTATIONS = {
    "no shift": ("shifted_rows.cuh", ("behind % 2 * 16", "0"),),
    "a word of shift": ("shifted_rows.cuh", ("behind / 2 * 4", "0"),),
    "the last line": ("tma_load.cuh", ("row < last_rows ? maps.last_rows : maps.a", "maps.a"),),
    "where a box begins": ("tma_load.cuh", ("begin - begin % 8 + k", "k"),),
    "rows of the fragment": ("tile_context.cuh", ("kShiftedRows ? lane / 4 * 8 + 2 * warp : 16", "false ? 0 : 16"),),
    "rows of the buffer": ("epilogue.cuh", ("(first + done) % 8 * 8 + (first + done) / 8", "first + done"),),
}
# fmt: on
WATCHED = [
    Product(SMALL, 77, 24, 211, b="col", registers=True, bias="m"),
    Product(SMALL, 24, 77, 211, b="col", registers=True, swapped=True, bias="n"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    file, pair = MUTATIONS[mutation]
    home = mutated(monkeypatch, tmp_path, file, pair)
    found = []
    for product in WATCHED:
        found.append(detected(Run(product, home), 1))
    assert any(found)
