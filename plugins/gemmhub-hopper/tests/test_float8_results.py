"""Results of 8-bit floats: exact values, saturation, special values, the largest magnitude, refusals, and mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated
from gemmhub_hopper.lowering import lower
from problems import problem
from products import FLOAT8_RESULTS, SMALL, Float8Result
from runs import Run

from gemmhub.accuracy import problem_model, reference
from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.operands import Scale

pytestmark = pytest.mark.emulator


class Measured(Run):
    """A product with the scale of its result, and with memory for the largest magnitude."""

    def __init__(self, product, *more, **named):
        super().__init__(product, *more, **named)
        memory = FakeMemory(self.home)
        for name, used in (("scale_out", product.scale_out), ("amax", product.amax)):
            if used:
                self.scales[name] = memory.empty(4)
                self.scales[name].view(np.float32)[:] = product.scale_out if name == "scale_out" else np.nan

    @property
    def largest(self):
        return self.scales["amax"].view(np.float32)[0]

    def check(self):
        super().check()
        if self.product.amax:
            assert self.largest == np.abs(self.exact).max(initial=0)


SMS = {"attributes": {16: 16}}
"""So many that split-K reduces by slices."""


@pytest.mark.parametrize("asked", FLOAT8_RESULTS, ids=str)
def test_exact_products(asked):
    run = Measured(asked, Home(**SMS)) if asked.splits >= 8 else Measured(asked)
    for _ in range(2):
        run.check()


def ratios(run, a, b):
    """Return errors of the result and of its largest magnitude over their bounds."""
    product = run.product
    scales = {name: np.asarray(x) for name, x in product.scales().items()}
    scales |= {"scale_out": np.float32([product.scale_out])} if product.scale_out else {}
    expected = reference(
        a, b, model=problem_model(product.problem), out_dtype=product.problem.out.dtype, amax=True, **scales
    )
    return expected.ratio(run.of(a, b)).max(), expected.amax.ratio(run.largest.reshape(1)).max()


@pytest.mark.parametrize("out", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    "more",
    [
        {}, {"swapped": True}, {"scale_a": "1x128", "scale_b": "128x128"}, {"splits": 2}, {"dtype": "bfloat16"},
        {"dtype": "float8_e5m2"},
    ],
    ids=str,
)  # fmt: skip
def test_errors(out, more):
    asked = Float8Result(SMALL, 71, 144, 272, out=out, scale_out=0.37, amax=True, **more)
    run, rng = Measured(asked), np.random.default_rng()

    def draw(*shape):
        return np.ldexp(rng.standard_normal(shape), -rng.integers(0, 7, shape)).astype(asked.problem.a.dtype)

    a, b = draw(71, 272), draw(272, 144)
    assert max(ratios(run, a, b)) <= 1
    a[3, 5] = np.nan
    assert max(ratios(run, a, b)) <= 1
    assert np.isnan(run.largest)


def test_infinities_saturate():
    asked = Float8Result(SMALL, 71, 144, 272, dtype="float8_e5m2", amax=True)
    run, rng = Measured(asked), np.random.default_rng()
    a, b = (rng.integers(1, 4, shape).astype(asked.problem.a.dtype) for shape in ((71, 272), (272, 144)))
    a[4, 100], a[6, 7] = np.inf, -np.inf
    result = run.of(a, b).astype(float)
    assert (result[4] == 448).all()
    assert (result[6] == -448).all()
    assert run.largest == np.inf


def test_zeros_keep_their_sign():
    """A negative result below the range is -0; the largest magnitude of nothing but zeros is 0, not -0."""
    asked = Float8Result(SMALL, 64, 64, 32, scale_out=-1.0, amax=True)
    run = Measured(asked)
    dtype = asked.problem.a.dtype
    result = run.of(np.zeros((64, 32), dtype), np.zeros((32, 64), dtype))
    assert (result.view(np.uint8) == 0x80).all()
    assert run.largest.tobytes() == bytes(4)


def test_a_scale_that_overflows():
    asked = Float8Result(SMALL, 64, 64, 32, scale_out=3e38, amax=True)
    run = Measured(asked)
    run.check()
    assert (np.abs(run().astype(float)[run.exact != 0]) == 448).all()


def test_a_capture_has_the_clearing():
    """On the stream of the product, which is captured."""
    run = Measured(FLOAT8_RESULTS[0])
    run.home.cuda.captures[0] = 1
    try:
        run.check()
    finally:
        run.home.cuda.captures.clear()
    work = [name for name in run.home.cuda.calls if name in ("cuMemsetD8Async", "cuLaunchKernelEx")]
    assert work[-2:] == ["cuMemsetD8Async", "cuLaunchKernelEx"]


# --- mistakes ---------------------------------------------------------------------------------------------------

_ODD, _SWAPPED = FLOAT8_RESULTS[5], FLOAT8_RESULTS[3]
_SLICES = next(x for x in FLOAT8_RESULTS if x.splits >= 8)


class Cancelling(Float8Result):
    """Of zeros, whose bias of rows or columns c cancels: not beside them."""

    def data(self, seed=0):
        a, b, c, bias = super().data(seed)
        return 0 * a, 0 * b, np.full_like(c, 3), np.full_like(bias, 3)


MUTATIONS = {
    "rows outside of the result count": (
        Cancelling(SMALL, 63, 144, 32, beta=-1, bias="n", amax=True), "epilogue.cuh",
        ("kRowsApart * (i / 2) < fragment.rows && 8 * j + i % 2 <", "8 * j + i % 2 <"),
    ),
    "columns outside of the result count": (
        Cancelling(SMALL, 72, 55, 32, beta=-1, bias="m", amax=True), "epilogue.cuh",
        ("(i / 2) < fragment.rows && 8 * j + i % 2 < fragment.columns);", "(i / 2) < fragment.rows);"),
    ),
    "the scale counts": (_ODD, "epilogue.cuh", ("return v * scale;", "return v;"),
                         ("__float_as_uint(v) & 0x7fff", "__float_as_uint(v * scale) & 0x7fff")),
    "signs count": (_ODD, "epilogue.cuh", ("__float_as_uint(v) & 0x7fffffffu", "__float_as_uint(v)")),
    "columns are not exchanged": (_SWAPPED, "epilogue.cuh", ("odd ? taken : kept, below", "kept, below")),
    "rows are not in order": (_SWAPPED, "epilogue.cuh", ("u32 odd = lane / 4 % 2;", "u32 odd = 1 - lane / 4 % 2;")),
    "units are not shifted by single bytes": (_ODD, "epilogue.cuh", ("kFloat8Result ? 3 : 2", "2")),
    "lanes without a row store": (
        FLOAT8_RESULTS[9], "epilogue.cuh", ("    if (AT_ONCE > ROWS && ctx.lane / UNITS >= ROWS) return;\n", ""),
    ),
    "slices are not measured": (_SLICES, "split_k.cuh", ("        epilogue.range.close(p);\n", "")),
    "tiles are not measured": (
        FLOAT8_RESULTS[0], "epilogue.cuh", ("if (lane_id() == 0) raise_to", "if (lane_id() == 33) raise_to"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_exact_products_detect(monkeypatch, tmp_path, name):
    asked, file, *changes = MUTATIONS[name]
    Measured(asked, Home(**SMS)).check()
    run = Measured(asked, mutated(monkeypatch, tmp_path, file, *changes, **SMS))
    with pytest.raises((AssertionError, KernelError)):
        run.check()


def test_the_largest_magnitude_is_cleared(monkeypatch):
    """What the memory has had before does not count."""
    monkeypatch.setattr("gemmhub_hopper.launches.launch.clear_largest", lambda *given: None)
    run = Measured(FLOAT8_RESULTS[0])
    with pytest.raises(AssertionError):
        run.check()


# --- problems ---------------------------------------------------------------------------------------------------

_FLOAT8 = "float8_e4m3fn"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (problem(64, 64, 64, "float32", _FLOAT8), "float32 by float32 with a result of float8_e4m3fn"),
        (problem(64, 64, 64, "int8", _FLOAT8), "int8 by int8 with a result"),
        (problem(64, 64, 64, _FLOAT8, "bfloat16", scale_out=Scale(None)), "scale_out= for a result of bfloat16"),
        (problem(64, 64, 64, "bfloat16", amax=Scale(None)), "amax= for a result of bfloat16"),
        (problem(0, 64, 64, _FLOAT8, _FLOAT8, amax=Scale(None)), "a result without elements"),
        (problem(64, 64, 64, _FLOAT8, _FLOAT8, c=problem(64, 64, 64, _FLOAT8).out), "c is float8_e4m3fn"),
    ],
)
def test_refusals(asked, reason):
    refusal = lower.check_types(asked)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
