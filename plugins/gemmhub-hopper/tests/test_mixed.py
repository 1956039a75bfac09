"""A 16-bit operand by a float32 one, on the emulator: neither is converted beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory
from gemmhub_hopper import lower
from gemmhub_hopper.candidate import Choice
from gemmhub_hopper.config import Shape
from ml_dtypes import bfloat16
from problems import problem
from products import loaded, stored
from runs import HOME, address

from gemmhub.accuracy import error_model, reference
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype

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
    launch.run(*map(address, buffers), address(out), None, None, 1, 0, 0)
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


def test_few_rows_do_not_take_the_kernel_for_vectors():
    """That one reads operands of one dtype."""
    for types in (("bfloat16", "float32"), ("complex64", "complex64")):
        made = asked(1, 512, 256, types) if types[0] != types[1] else problem(1, 512, 256, "complex64")
        names = HOME.backend().candidates(made)
        assert names
        assert not any("gemv" in name for name in names)


def test_a_short_k_is_refused():
    refusal = lower.lowerings(asked(64, 64, 63, ("bfloat16", "float32")))
    assert isinstance(refusal, Refusal)
    assert "63" in refusal.reason


def test_b_is_not_packed_for_another_dtype():
    made = asked(64, 64, 128, ("bfloat16", "float32"))
    buffer = FakeMemory(HOME).empty(4 * 64 * 128)
    assert isinstance(HOME.backend().pack(address(buffer), made), Refusal)
