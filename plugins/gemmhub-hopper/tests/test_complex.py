"""Complex64 by one product of real matrices, on the emulator: every order, batches, rejected and special values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, mutated
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape
from problems import problem
from products import loaded, stored
from runs import HOME, address

from gemmhub.accuracy import error_model, reference
from gemmhub.capability import Refusal

pytestmark = pytest.mark.emulator

C64 = np.dtype(np.complex64)
MODEL = error_model(C64, C64, C64, C64)
SHAPE = Shape(64, 64, 3, consumers=1)


def drawn(batch, m, n, k, seed=0):
    """Operands of normal data."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((2, *batch, *sizes)) for sizes in ((m, k), (k, n)))
    return tuple((x[0] + 1j * x[1]).astype(C64) for x in (a, b))


def multiply(a, b, orders=("row", "row", "row"), swapped=False, limit=2**30, home=HOME):
    """Multiply a and b, stored in the first two orders; the third is the result's."""
    batch, m, k, n = a.shape[:-2], *a.shape[-2:], b.shape[-1]
    asked = problem(m, n, k, "complex64", None, batch, *orders)
    lowerings = lower.lowerings(asked)
    assert isinstance(lowerings, tuple), lowerings
    lowering = next(x for x in lowerings if x.swapped == swapped)
    launch = home.backend().launch(0, Choice(lowering, SHAPE, 1), limit)
    memory, buffers = FakeMemory(home), []
    for x, order in zip((a, b), orders):
        data = stored(x, order)
        buffers.append(memory.empty(data.size + 256))
        buffers[-1][: data.size] = data
    nbytes = 8 * m * n * int(np.prod(batch))
    out = memory.empty(nbytes + 256)
    out[:] = 0xFF
    home.cuda.complaints.clear()
    launch.run(*map(address, buffers), address(out), 1, 0, 0)
    assert home.cuda.complaints == []
    assert (out[nbytes:] == 0xFF).all()
    return loaded(out[:nbytes], C64, batch, m, n, orders[2])


def ratio(result, a, b):
    """The largest error as a fraction of the library's bound."""
    return np.max(reference(a, b, model=MODEL).ratio(result))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("a", ["row", "col"])
def test_every_order(a, b, d, swapped):
    x, y = drawn((), 37, 45, 67)
    assert ratio(multiply(x, y, (a, b, d), swapped), x, y) <= 0.2


@pytest.mark.parametrize("sizes", [(1, 1, 32), (64, 64, 64), (3, 129, 200)], ids=str)
def test_sizes(sizes):
    x, y = drawn((), *sizes)
    assert ratio(multiply(x, y), x, y) <= 0.2


def test_batches():
    x, y = drawn((3,), 37, 45, 67)
    assert ratio(multiply(x, y), x, y) <= 0.2


@pytest.mark.parametrize("orders", [("row", "row", "row"), ("col", "col", "col")], ids=str)
def test_what_float16_planes_do_not_hold(orders):
    x, y = drawn((), 37, 45, 67)
    wide = (x * 2.0 ** np.random.default_rng(1).integers(-40, 40, x.shape)).astype(C64)
    assert ratio(multiply(wide, y, orders), wide, y) <= 0.2


def test_several_k_passes():
    x, y = drawn((), 70, 66, 300)
    assert ratio(multiply(x, y, limit=2**20), x, y) <= 0.2


@pytest.mark.parametrize("orders", [("row", "row", "row"), ("row", "row", "col")], ids=str)
def test_special_values(orders):
    x, y = drawn((), 37, 45, 67)
    x[3, 4], x[5, 6] = np.nan, 3e38
    result = multiply(x, y, orders)
    assert ratio(result, x, y) <= 1
    assert np.isnan(result[3]).all()
    assert np.isfinite(np.delete(result, (3, 5), 0)).all()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_precision_is_computed_by_planes(precision):
    asked = replace(problem(64, 64, 64, "complex64"), precision=precision)
    lowerings = lower.lowerings(asked)
    assert {x.form.input for x in lowerings} == {"f16x3"}


def test_refusals():
    assert isinstance(lower.lowerings(problem(64, 64, 31, "complex64")), Refusal)
    scaled = problem(64, 64, 64, "complex64", alpha_is_one=False)
    assert "alpha" in lower.lowerings(scaled).remedy


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("imaginary_k && !imaginary_row ? -1.0f", "imaginary_k && imaginary_row ? -1.0f"),
        ("(imaginary_row ^ imaginary_k)", "imaginary_k"),
    ],
)
def test_mistakes_are_noticed(found, instead, monkeypatch, tmp_path):
    x, y = drawn((), 37, 45, 67)
    home = mutated(monkeypatch, tmp_path, "source_element.cuh", (found, instead))
    assert ratio(multiply(x, y, home=home), x, y) > 1
