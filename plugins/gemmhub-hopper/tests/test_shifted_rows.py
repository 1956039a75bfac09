"""Operands whose rows TMA cannot take, through registers: sums, what lies beside rows, stores, and mistakes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.cost import choose
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import tensor_map
from gemmhub_hopper.variants.config import SHIFTED_TF32, Form, Shape, Variant
from gemmhub_hopper.variants.shapes import SHIFTED_SHAPES
from gemmhub_nvidia import tma
from ml_dtypes import bfloat16
from problems import H200, LIMIT, problem
from products import SHIFTED_PRODUCTS, Product
from runs import HOME, Run, detected

pytestmark = pytest.mark.emulator

SMALL = Shape(64, 32, 3, consumers=1)


@pytest.mark.parametrize("product", SHIFTED_PRODUCTS, ids=str)
def test_exact_products(product):
    run = Run(product)
    assert product.choice.lowering.form.shifted
    for _ in range(2):
        run.check()


def spoilt(home, dtype="bfloat16"):
    """Rows that NaN in all others spoils: behind K there is the next row, and behind the last one memory of others."""
    found = []
    for row in (0, 5, 70, 76):
        run = Run(Product(SMALL, 77, 24, 83, b="col", dtype=dtype, registers=True), home)
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
    for dtype in ("bfloat16", "tf32"):
        assert not spoilt(HOME, dtype)
    for dtype, change in (
        ("bfloat16", ("if (left >= static_cast<int>(BLOCK_K)) return;", "return;")),
        ("bfloat16", ("left_here == 1 ? 0xffff : 0", "left_here == 1 ? 0xffffffff : 0")),
        ("tf32", ("if (left >= static_cast<int>(BLOCK_K)) return;", "return;")),
        ("tf32", ("left_here >= PER_WORD ?", "left_here >= PER_WORD - 1 ?")),
    ):
        assert spoilt(mutated(monkeypatch, tmp_path, "shifted_rows.cuh", change), dtype), (dtype, change)


@dataclass(frozen=True)
class Wide(Product):
    """A product whose shifted operand has rows of K elements, but ``pad`` more from one to the next."""

    pad: int = 2

    @property
    def problem(self):
        asked = super().problem
        name, stride = ("b", "col_stride") if self.swapped else ("a", "row_stride")
        layout = replace(getattr(asked, name).layout, **{stride: self.k + self.pad})
        return replace(asked, **{name: replace(getattr(asked, name), layout=layout)})


@dataclass(frozen=True)
class WideColumns(Wide):
    """The same of a column-major a: columns of M elements."""

    @property
    def problem(self):
        asked = Product.problem.fget(self)
        layout = replace(asked.a.layout, col_stride=self.m + self.pad)
        return replace(asked, a=replace(asked.a, layout=layout))


class WideRun(Run):
    """A run with NaN between the rows."""

    def __init__(self, product, home=HOME):
        super().__init__(product, home)
        name, value = ("b", self.values[1].T) if product.swapped else ("a", self.values[0])
        value = value.T if product.a == "col" and not product.swapped else value
        rows = np.full((len(value), value.shape[1] + product.pad), np.nan, value.dtype)
        rows[:, : value.shape[1]] = value
        data = rows.view(np.uint8).ravel()[: -product.pad * rows.itemsize]
        buffer = FakeMemory(home).empty(data.size)
        buffer[:] = data
        setattr(self, name, buffer)


def run_of(product, home=HOME):
    return (WideRun if isinstance(product, Wide) else Run)(product, home)


@pytest.mark.parametrize(
    "product",
    [
        Wide(SMALL, 77, 24, 201, registers=True),
        Wide(SMALL, 71, 40, 517, b="col", pad=5, registers=True, splits=3),
        Wide(SMALL, 40, 71, 130, b="col", pad=8, registers=True, swapped=True, out="float32"),
        Wide(SMALL, 77, 24, 100, pad=3, dtype="tf32", registers=True),
        Wide(SMALL, 71, 40, 133, b="col", pad=4, dtype="tf32", registers=True, splits=3),
        WideColumns(SMALL, 75, 24, 101, a="col", pad=2, dtype="tf32", registers=True),
        WideColumns(SMALL, 64, 24, 102, a="col", pad=1, dtype="tf32", registers=True),
    ],
    ids=str,
)
def test_rows_that_are_further_apart(product):
    WideRun(product).check()


@dataclass(frozen=True)
class Shared(Product):
    """A batch whose matrices share an operand."""

    shared: str = "a"

    @property
    def problem(self):
        asked = super().problem
        operand = getattr(asked, self.shared)
        layout = replace(operand.layout, batch_strides=(0,) * len(self.batch))
        return replace(asked, **{self.shared: replace(operand, layout=layout)})

    def data(self, seed=0):
        a, b, *others = super().data(seed)
        x = a if self.shared == "a" else b
        x[:] = x[0]
        return a, b, *others


@pytest.mark.parametrize(
    "product",
    [
        Shared(SMALL, 77, 24, 131, registers=True, batch=(3,)),
        Shared(SMALL, 43, 24, 131, registers=True, batch=(3,), shared="b"),  # rows of all matrices are one matrix
        Shared(SMALL, 24, 77, 131, b="col", registers=True, swapped=True, batch=(3,), shared="b", a="col"),
        Shared(SMALL, 77, 24, 131, dtype="tf32", registers=True, batch=(3,)),
        Shared(SMALL, 43, 24, 131, dtype="tf32", registers=True, batch=(3,), shared="b"),
    ],
    ids=lambda x: f"{x}-{x.shared}",
)
def test_batches(product):
    Run(product).check()


def test_a_packed_b():
    """The packed operand needs no copy, and the shifted one is read in place."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(bfloat16) for shape in ((77, 131), (131, 24)))
    asked = problem(77, 24, 131)
    home = Home()
    backend, memory = home.backend(), FakeMemory(home)

    def placed(x):
        buffer = memory.empty(x.nbytes + 256)
        buffer[: x.nbytes] = x.view(np.uint8).ravel()
        return buffer

    left, right, out = placed(a), placed(b), memory.empty(77 * 24 * 2)
    made = backend.pack(right.ctypes.data, asked)
    (lowering,) = [x for x in shifted(replace(asked, packed_by="hopper")) if not x.swapped]
    assert not lowering.copied
    name = Choice(lowering, SHIFTED_SHAPES[1], 1).name
    run = backend.prepare(replace(asked, packed_by="hopper"), name, 2**30).run
    run(left.ctypes.data, made, out.ctypes.data, 1, 0, 0)
    exact = a.astype(float) @ b.astype(float)
    assert (out.view(bfloat16).reshape(77, 24).astype(float) == exact.astype(bfloat16).astype(float)).all()


@pytest.mark.parametrize("patched", [True, False])
def test_addresses_may_change(monkeypatch, patched):
    """Both maps of a shifted operand have its address; its last rows are those of the second map."""
    if not patched:
        monkeypatch.setattr(tma, "address_word", lambda driver, arguments: None)
    product = Product(SMALL, 77, 24, 131, registers=True)
    runs = [Run(product, seed=seed) for seed in range(3)]
    launch = runs[0].launch
    assert (launch.run != launch._run) == patched
    for run in (*runs, runs[0]):
        run.launch = launch
        run.check()


@pytest.mark.parametrize("rows", [64, 65, 71, 72, 127, 135])
@pytest.mark.parametrize("ld", [101, 106])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nothing_behind_the_matrix_is_read(rows, ld, dtype):
    """The lines of both maps end with the last row."""
    asked = problem(rows, 40, 101, dtype, b="col", precision="tf32")
    asked = replace(asked, a=replace(asked.a, layout=replace(asked.a.layout, row_stride=ld)))
    (lowering,) = (x for x in shifted(asked) if not x.swapped)
    form, end, of_line = lowering.form, (rows - 1) * ld + 101, {"bfloat16": 8, "float32": 4}[dtype]
    last_rows = rows % of_line or of_line
    for made, some in zip(tensor_map.shifted(lowering.a.direct, form, 64), (of_line, last_rows)):
        inner, lines, count = made.sizes
        last = (lines - 1) * made.strides[0] // lowering.a.size + inner
        assert last <= end
        assert (last == end) == (some == last_rows)
        assert made.strides[0] % 16 == 0
        assert (made.box, made.swizzle, count) == ((9 * of_line, 64 // of_line, 1), 0, 1)


def shifted(asked):
    """Return the lowerings of a problem through registers."""
    return [x for x in lower.lowerings(asked) if x.form.shifted]


TF32 = {"dtype": "float32", "precision": "tf32"}


@pytest.mark.parametrize(
    ("asked", "which"),
    [
        (problem(200, 72, 101), [False]), (problem(200, 72, 101, b="col"), [False, True]),
        (problem(200, 73, 104), []), (problem(200, 73, 104, b="col"), []), (problem(200, 72, 101, a="col"), []),
        (problem(200, 72, 101, "float32"), []), (problem(63, 72, 101), []), (problem(200, 72, 63), []),
        (problem(200, 72, 101, batch=(2,), a="col"), []), (problem(72, 200, 101, batch=(2,), b="col"), []),
        (problem(200, 72, 102, "float16"), [False]), (problem(200, 72, 104), []),
        (problem(200, 72, 101, **TF32), [False]), (problem(200, 72, 102, b="col", **TF32), [False, True]),
        (problem(200, 73, 101, a="col", b="col", **TF32), [True]), (problem(200, 72, 100, **TF32), []),
        (problem(199, 73, 101, a="col", **TF32), [False, True]), (problem(63, 73, 101, a="col", **TF32), [True]),
        (problem(199, 73, 63, a="col", **TF32), []), (problem(202, 73, 100, b="col", **TF32), []),
        (problem(63, 72, 101, **TF32), []),
        (problem(200, 72, 101, batch=(2,), a="col", **TF32), []),
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


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
def test_what_there_is_no_kernel_for(dtype):
    form = Form(False, False, dtype, "bfloat16", registers_a=True, tma_store=False)
    assert Variant(Shape(128, 128, 5), form).refusal is None
    if dtype == "bfloat16":
        assert "only columns of tf32" in Variant(Shape(128, 128, 5), replace(form, shifted_columns=True)).refusal
        assert "shifted rows" in Variant(Shape(128, 128, 5), replace(form, mn_major_a=True)).refusal
    for wrong in (
        Variant(Shape(128, 128, 5), replace(form, tma_store=True)),
        Variant(Shape(128, 128, 5, cluster_n=2), form),
        Variant(Shape(64, 64, 5, consumers=1, cluster_k=2), form),
    ):
        assert "shifted rows" in wrong.refusal


@pytest.mark.parametrize(("dtype", "words"), [("bfloat16", (0, 4, 16, 20)), ("tf32", (0, 16))])
def test_words_that_are_loaded(dtype, words):
    """Modelled here a second time: those of a warp are in different banks and within their rows, whatever the shift."""
    form = Form(False, False, dtype, "bfloat16", registers_a=True, tma_store=False)
    line = Variant(Shape(64, 64, 3, consumers=1), form).a_bytes // 64
    lanes = np.arange(32)
    for behind in range(0, 16, form.input_bytes):
        for step in range(4):
            for more in words:
                within = behind // 4 * 4 + lanes % 4 * 4 + 32 * step + more
                assert (within + 4 <= line).all()
                assert len(set((lanes // 4 * line + within) // 4 % 32)) == 32


# fmt: off
MUTATIONS = {
    "no shift": ("shifted_rows.cuh", ("offset % PER_WORD * 16", "0"),),
    "a word of shift": ("shifted_rows.cuh", ("offset / PER_WORD * 4", "0"),),
    "the last line": ("tma_load.cuh", ("row < last_rows ? maps.last_rows : maps.a", "maps.a"),),
    "where a box begins": ("tma_load.cuh", ("begin - begin % static_cast<int>(LINE_ROWS) + k", "k"),),
    "between units": ("tma_load.cuh", ("begin - begin % static_cast<int>(LINE_ROWS) + k", "begin + k"),),
    "rows are as long as K": ("tma_load.cuh", ("row * static_cast<int>(p.a_m)", "row * p.k"),),
    "rows of the fragment": ("tile_context.cuh", ("kShiftedRows ? shifted_row(row) : row", "row"),),
    "rows of the buffer": ("epilogue.cuh", ("shifted_row(first + done)", "first + done"),),
}
# fmt: on
TF32_MUTATIONS = {
    **{name: mutation for name, mutation in MUTATIONS.items() if name != "no shift"},
    "both halves of a step": (
        "shifted_rows.cuh",
        ("offsets[i % 2] + i / 2 * 16", "offsets[i % 2]"),
    ),
    "lines of a fragment": (
        "shifted_rows.cuh",
        ("number * (64 / LINE_ROWS)", "number * 8"),
    ),
    "no shift of columns": (
        "shifted_rows.cuh",
        ("t * static_cast<u32>(p.a_k) % LINE_ROWS", "0"),
    ),
    "the last line of columns": (
        "tma_load.cuh",
        ("column < last_columns ? maps.last_rows : maps.a", "maps.a"),
    ),
    "where a box of columns begins": (
        "tma_load.cuh",
        ("+ m + 64 * static_cast<int>(box / LINE_ROWS)", "+ m"),
    ),
    "columns as long as M": (
        "tma_load.cuh",
        ("column * static_cast<int>(p.a_k)", "column * p.m"),
    ),
    "fours of K": (
        "shifted_rows.cuh",
        ("later ? x[i ^ 2] : x[i]", "x[i]"),
    ),
    "steps of K": (
        "shifted_rows.cuh",
        ("2 * step * COLUMN_BYTES", "step * COLUMN_BYTES"),
    ),
    "lines of both halves": (
        "tile_context.cuh",
        ("row / (8 * LINE_ROWS) * (8 * LINE_ROWS)", "0"),
    ),
}
"""Of tf32, whose lines have four rows and whose words are elements."""
WATCHED = [
    Product(SMALL, 77, 24, 211, b="col", registers=True, bias="m"),
    Product(SMALL, 24, 77, 211, b="col", registers=True, swapped=True, bias="n"),
    Wide(SMALL, 77, 24, 201, b="col", registers=True),
]


WATCHED_TF32 = [
    Product(Shape(128, 32, 3, consumers=1), 141, 24, 131, dtype="tf32", registers=True, bias="m"),
    Product(SMALL, 24, 77, 131, b="col", dtype="tf32", registers=True, swapped=True, bias="n"),
    Wide(SMALL, 77, 24, 101, dtype="tf32", registers=True),
    Product(Shape(128, 32, 3, consumers=1), 141, 24, 131, a="col", dtype="tf32", registers=True),
    WideColumns(SMALL, 75, 24, 102, a="col", dtype="tf32", registers=True),
]


def noticed(mutation, products, monkeypatch, tmp_path):
    file, pair = mutation
    home = mutated(monkeypatch, tmp_path, file, pair)
    return any(detected(run_of(product, home), 1) for product in products)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    assert noticed(MUTATIONS[mutation], WATCHED, monkeypatch, tmp_path)


@pytest.mark.parametrize("mutation", TF32_MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_of_tf32_are_noticed(mutation, monkeypatch, tmp_path):
    assert noticed(TF32_MUTATIONS[mutation], WATCHED_TF32, monkeypatch, tmp_path)


def test_a_large_operand_is_not_copied():
    """Where one side is short, reading the shifted rows of the other is estimated faster than copying them."""
    for asked in (
        problem(11121, 88, 6037, **TF32), problem(88, 11121, 6037, b="col", **TF32),
        problem(11121, 88, 6038, a="col", b="col", **TF32), problem(88, 11121, 6038, **TF32),
    ):  # fmt: skip
        choices = [choice for _, choice in choose.timed(lower.lowerings(asked), H200, LIMIT)]
        assert choices[0].lowering.form.scheme == SHIFTED_TF32
        assert any(choice.lowering.form.scheme == "tf32" for choice in choices)
