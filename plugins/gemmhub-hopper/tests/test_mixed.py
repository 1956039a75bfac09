"""A 16-bit operand by a float32 one, on the emulator: neither is converted beforehand.

Exact products of few rows are in test_gemv.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, mutated
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape
from ml_dtypes import bfloat16
from problems import problem
from products import loaded, stored
from runs import HOME, Run, address
from vectors import mixed

from gemmhub.accuracy import error_model, reference
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.errors import KernelError

pytestmark = pytest.mark.emulator

SHAPE = Shape(64, 64, 3, consumers=1)
SHAPE_OF_FEW = Shape(64, 16, 4, consumers=1)
F32 = np.dtype(np.float32)
MODEL = error_model(F32, F32, F32, F32)


def asked(m, n, k, types, orders=("row", "row", "row"), batch=()):
    """The problem of operands of two dtypes, with a result of float32."""
    made = problem(m, n, k, "float32", None, batch, *orders)
    a, b = (replace(x, dtype=as_dtype(name)) for x, name in zip((made.a, made.b), types))
    return replace(made, a=a, b=b)


def multiply(a, b, orders=("row", "row", "row"), swapped=False, registers=False, shape=SHAPE, splits=1):
    batch, m, k, n = a.shape[:-2], *a.shape[-2:], b.shape[-1]
    lowerings = lower.lowerings(asked(m, n, k, (a.dtype.name, b.dtype.name), orders, batch))
    assert isinstance(lowerings, tuple), lowerings
    lowering = next(x for x in lowerings if (x.swapped, x.form.registers_a) == (swapped, registers))
    launch = HOME.backend().launch(0, Choice(lowering, shape, splits), 2**30)
    memory, buffers = FakeMemory(HOME), []
    for x, order in zip((a, b), orders):
        data = stored(x, order)
        buffers.append(memory.empty(data.size + 256))
        buffers[-1][: data.size] = data
    out = memory.empty(4 * m * n * int(np.prod(batch)))
    out[:] = 0xFF
    HOME.cuda.complaints.clear()
    launch.run(*map(address, buffers), address(out), 1, 0, 0)
    assert HOME.cuda.complaints == []
    return loaded(out, F32, batch, m, n, orders[2])


def ratio(result, a, b):
    """The largest error as a fraction of the bound of float32."""
    return np.max(reference(a.astype(F32), b.astype(F32), model=MODEL).ratio(result))


@pytest.mark.parametrize("orders", [("row", "row", "row"), ("col", "row", "row"), ("row", "col", "col")], ids="".join)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("types", [(bfloat16, F32), (F32, np.float16)], ids=str)
def test_products(types, swapped, orders):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((37, 133)).astype(types[0]), rng.standard_normal((133, 70)).astype(types[1])
    assert ratio(multiply(a, b, orders, swapped), a, b) <= 0.2


@pytest.mark.parametrize("orders", [("row", "row", "row"), ("col", "col", "col")], ids="".join)
@pytest.mark.parametrize("types", [(bfloat16, F32), (F32, np.float16)], ids=str)
def test_products_through_registers(types, orders):
    """The float32 operand is split as it is read, the other one by the pre-pass; by one tile, and by splits of K."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((44, 136)).astype(types[0]), rng.standard_normal((136, 72)).astype(types[1])
    for splits in (1, 3):
        given = {"swapped": types[1] == F32, "registers": True, "shape": SHAPE_OF_FEW, "splits": splits}
        assert ratio(multiply(a, b, orders, **given), a, b) <= 0.2
        a[3, 4], a[5, 6], b[7, 8], b[6, 9] = np.nan, np.inf, np.inf, 0
        result = multiply(a, b, orders, **given)
        assert ratio(result, a, b) <= 1
        assert np.isnan(result[3]).all()
        assert np.isinf(np.delete(result[5], (8, 9))).all()
        a[3, 4] = a[5, 6] = b[7, 8] = 1


def test_only_a_float32_operand_goes_through_registers():
    for types, swapped in ((("bfloat16", "float32"), True), (("float32", "float16"), False)):
        found = [x for x in lower.lowerings(asked(8, 768, 6144, types)) if x.form.registers_a]
        assert [(x.swapped, x.form.input, x.form.split_planes_b) for x in found] == [(swapped, "split", False)]
        assert [x.name for x in found[0].copied] == ["a" if swapped else "b"]


def test_a_batch():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 37, 70)).astype(bfloat16), rng.standard_normal((3, 70, 20), F32)
    assert ratio(multiply(a, b), a, b) <= 0.2


@pytest.mark.parametrize("which", [0, 1])
def test_what_float16_planes_do_not_hold(which):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((37, 133)).astype(bfloat16), rng.standard_normal((133, 70), F32)
    wide = 2.0 ** rng.integers(-60, 60, (a, b)[which].shape)
    a, b = ((a * wide).astype(bfloat16), b) if which == 0 else (a, (b * wide).astype(F32))
    assert ratio(multiply(a, b), a, b) <= 0.2


def test_special_values():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((37, 133)).astype(bfloat16), rng.standard_normal((133, 70), F32)
    a[3, 4], a[5, 6], b[7, 8], b[6, 9] = np.nan, np.inf, np.inf, 0
    result = multiply(a, b)
    assert ratio(result, a, b) <= 1
    assert np.isnan(result[3]).all()
    assert np.isinf(np.delete(result[:, 8], (3, 5))).all()
    assert np.isinf(np.delete(result[5], (8, 9))).all()
    assert np.isnan(result[5, 9])


def test_few_complex_rows_do_not_take_the_kernel_for_vectors():
    """That one reads real operands."""
    names = HOME.backend().offer(problem(1, 512, 256, "complex64")).names
    assert names
    assert not any("gemv" in name for name in names)


def drawn(product):
    """Normal operands: the float32 one has bits that 16-bit elements have not."""
    rng, asked = np.random.default_rng(0), product.problem
    a, b = (rng.standard_normal((x.layout.rows, x.layout.cols)) for x in (asked.a, asked.b))
    return a.astype(asked.a.dtype), b.astype(asked.b.dtype)


BY_FLOAT32 = (
    mixed(3, 70, 264, b="col"), mixed(8, 70, 264, a="col", b="col", types=("float16", "float32")), mixed(2, 70, 137),
    mixed(1, 72, 137, types=("float16", "float32"), spread="32a"), mixed(70, 3, 264, types=("float32", "bfloat16")),
)  # fmt: skip
"""Few rows of 16-bit elements by a float32 matrix, of every code path of the kernel for vectors."""
FEW = (
    *BY_FLOAT32,
    mixed(3, 70, 264, b="col", types=("float32", "float16")), mixed(1, 72, 137, types=("float32", "bfloat16")),
)  # fmt: skip
"""The same, and float32 rows by a 16-bit matrix."""


@pytest.mark.parametrize("product", FEW, ids=str)
def test_few_rows_are_as_accurate_as_float32(product):
    a, b = drawn(product)
    assert ratio(Run(product).of(a, b), a, b) <= 0.2


@pytest.mark.parametrize("product", FEW, ids=str)
def test_special_values_of_few_rows(product):
    """As IEEE: a NaN, an infinity, and 0 times infinity."""
    a, b = drawn(product)
    rows, columns = a.shape[0], b.shape[1]
    a[0, 4], a[-1, 6], b[7, -1] = np.nan, np.inf, -np.inf
    b[6, 0] = 0
    result = Run(product).of(a, b)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert result.shape == (rows, columns)
    special = ~np.isfinite(expected)
    assert special.any()
    np.testing.assert_array_equal(result[special], expected[special].astype(F32))
    assert np.isfinite(result[~special]).all()


_ROUNDED = "__uint_as_float(__float_as_uint({}) & 0xffff0000u)"
FEW_MUTATIONS = {
    "vectors have the dtype of the matrix": [("kXInput = GEMV_X_INPUT;", "kXInput = GEMV_INPUT;")],
    "float32 elements of the matrix lose bits": [
        (f"* {x};", f"* {_ROUNDED.format(x)};") for x in ("w[j]", "loaded[s][r][i]")
    ],
}


@pytest.mark.parametrize("mutation", FEW_MUTATIONS, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("product", BY_FLOAT32, ids=str)
def test_the_bound_notices(product, mutation, monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, "gemv_kernel.cu", *FEW_MUTATIONS[mutation])
    a, b = drawn(product)
    try:
        result = Run(product, home).of(a, b)
    except (AssertionError, KernelError):  # reads behind an operand
        return
    assert not ratio(result, a, b) <= 1


def test_a_short_k_is_refused():
    refusal = lower.lowerings(asked(64, 64, 63, ("bfloat16", "float32")))
    assert isinstance(refusal, Refusal)
    assert "63" in refusal.reason


def test_b_is_not_packed_for_another_dtype():
    made = asked(64, 64, 128, ("bfloat16", "float32"))
    buffer = FakeMemory(HOME).empty(4 * 64 * 128)
    assert isinstance(HOME.backend().pack(address(buffer), made), Refusal)
