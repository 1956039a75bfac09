"""Pinned problems: which candidates are offered, and that the bits of a row depend on nothing but that row."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeMemory, Home
from gemmhub_cuda import backend as backend_module
from gemmhub_cuda.candidate import BATCH_ORDERS
from gemmhub_cuda.variants.form import ACTIVATIONS
from ml_dtypes import bfloat16, float8_e4m3fn
from problems import bias, operand, problem

from gemmhub.accuracy import problem_model, reference
from gemmhub.backend import Offer, answer
from gemmhub.capability import Refusal

pytestmark = pytest.mark.emulator
ROWS = 130
DTYPES = {"bfloat16": bfloat16, "float16": np.float16, "float32": np.float32, "float8_e4m3fn": float8_e4m3fn}
RESULTS = {"int8": "int32", "float8_e4m3fn": "bfloat16", "float8_e5m2": "float32"}
"""The dtype of the result, where it is not that of the operands."""


@pytest.fixture
def backend():
    return Home().backend()


def drawn(rng, dtype, promise="batch"):
    """Return a random pinned problem."""
    m, n, k = (round(2 ** rng.uniform(0, 13)) for _ in range(3))
    batch = rng.choice([(), (), (3,)]) if max(m, n, k) < 1000 else ()
    orders = {x: rng.choice(["row", "row", "col"]) for x in "abd"}
    more = {}
    out = RESULTS.get(dtype, dtype)
    if dtype == "int8":
        return problem(m, n, k, dtype, out, batch, reproducible=promise, **orders)
    if rng.random() < 0.3:
        more["bias"] = bias("float32", rng.choice("mn"))
    if rng.random() < 0.3:
        more["activation"] = rng.choice(ACTIVATIONS)
    if rng.random() < 0.2:
        more["alpha_is_one"] = False
    asked = problem(m, n, k, dtype, out, batch, reproducible=promise, **orders, **more)
    if rng.random() < 0.2:
        asked = asked.having(c=operand(out, m, n, orders["d"], batch))
    return replace(asked, a=replace(asked.a, alignment=rng.choice([256, 256, 16, 8, asked.a.dtype.itemsize])))


@pytest.mark.parametrize("dtype", BATCH_ORDERS)
@pytest.mark.parametrize("seed", range(30))
def test_all_candidates_have_the_order_of_the_dtype(backend, dtype, seed):
    """Whatever sizes, layouts, alignments and epilogues are; no split-K."""
    asked = drawn(random.Random(seed), dtype)
    offer = answer(backend, asked)
    assert isinstance(offer, Offer), (asked, offer)
    assert {x.order for x in offer.candidates} == {BATCH_ORDERS[dtype]}
    assert not any("/" in name for name in offer.names)
    for name in ("64x64x16t128", "mma64x64x32x5w4", "mma64x64x64x4w4/2") * (asked.a.dtype.itemsize > 1):
        assert isinstance(backend.prepare(asked, name, offer.workspace), Refusal)


def test_the_fastest_shapes_have_it(backend):
    """The order for "batch" is that of the first candidate for 1024 cubed."""
    for dtype, order in BATCH_ORDERS.items():
        plain = problem(1024, 1024, 1024, dtype, RESULTS.get(dtype))
        assert backend.offer(plain).first.order.startswith(order.rstrip("0123456789")), dtype


@pytest.mark.parametrize(("dtype", "order"), [("float32", "fma.r16/s3"), ("float16", "mma.k16.r32/s4")])
def test_a_named_order_is_offered(backend, dtype, order):
    offer = answer(backend, problem(64, 512, 1024, dtype, reproducible=order))
    assert {x.order for x in offer.candidates} == {order}
    refusal = answer(backend, problem(64, 512, 16, dtype, reproducible=order))
    assert order in refusal.reason


@pytest.mark.parametrize("sizes", [(0, 8, 8), (8, 8, 0)])
def test_products_without_sums_are_not_pinned(backend, sizes):
    assert isinstance(answer(backend, problem(*sizes, reproducible="batch")), Offer)


class Rows:
    """Products of some rows of one a with one b, on the emulator."""

    def __init__(self, dtype, n, k, seed=0):
        rng = np.random.default_rng(seed)
        self.dtype, self.n, self.k, self.home = dtype, n, k, Home()
        self.a, self.b = (rng.standard_normal(x).astype(DTYPES[dtype]) for x in ((ROWS, k), (k, n)))
        self.backend, self.memory = self.home.backend(), FakeMemory(self.home)

    def put(self, x, offset=0):
        """Copy ``x`` as it is stored; return its buffer and address."""
        buffer = self.memory.empty(x.nbytes + 512)
        buffer[offset : offset + x.nbytes] = np.ascontiguousarray(x).view(np.uint8).ravel()
        return buffer, buffer.ctypes.data + offset

    def __call__(self, first, m, candidate, orders="rrr", extra=0, offset=0):
        """Return (problem, result) of rows from ``first`` on; ``candidate`` chooses one of the names."""
        a, b, d = ("row" if x == "r" else "col" for x in orders)
        x = self.a[first : first + m]
        stored = x if a == "row" else x.T
        wide = np.zeros((stored.shape[0], stored.shape[1] + extra), x.dtype)
        wide[:, : stored.shape[1]] = stored
        result = RESULTS.get(self.dtype, self.dtype)
        asked = problem(m, self.n, self.k, self.dtype, result, a=a, b=b, d=d, reproducible="batch")
        stride = {"row_stride" if a == "row" else "col_stride": wide.shape[1]}
        of_a = replace(asked.a, layout=replace(asked.a.layout, **stride), alignment=offset or 256)
        asked = replace(asked, a=of_a)
        offer = answer(self.backend, asked)
        kernel = self.backend.prepare(asked, candidate(offer.names), offer.workspace)
        _of_a, at_a = self.put(wide, offset)
        _of_b, at_b = self.put(self.b if b == "row" else self.b.T)
        dtype = np.dtype(DTYPES[result])
        out, at = self.put(np.zeros((m, self.n), dtype))
        kernel.run(at_a, at_b, at, 1.0, 0.0, 0)
        assert self.home.cuda.complaints == []
        d_bytes = out[: m * self.n * dtype.itemsize].view(dtype)
        return asked, d_bytes.reshape(m, self.n) if d == "row" else d_bytes.reshape(self.n, m).T


def bits(x):
    x = np.ascontiguousarray(x)
    return x.view(np.uint16 if x.itemsize == 2 else np.uint32)


@pytest.mark.parametrize(("dtype", "n", "k"), [
    ("bfloat16", 72, 200), ("float16", 71, 197), ("float32", 71, 197), ("float8_e4m3fn", 71, 197),
])  # fmt: skip
def test_a_row_has_the_same_bits_in_every_product(dtype, n, k):
    """At every number of rows, position and layout of a, and where a column-major result swaps the operands."""
    rng, rows = random.Random(0), Rows(dtype, n, k)
    asked, every = rows(0, ROWS, lambda names: names[0])
    assert reference(rows.a, rows.b, model=problem_model(asked), out_dtype=asked.out.dtype).ratio(every).max() <= 1
    for first, m, more in (
        (0, 1, {}), (9, 5, {"extra": 3}), (60, 64, {"orders": "crr"}), (66, 64, {"orders": "rcc", "offset": 16}),
        (1, 129, {"extra": 8, "offset": rows.a.itemsize}),
    ):  # fmt: skip
        _, some = rows(first, m, rng.choice, **more)
        np.testing.assert_array_equal(bits(some), bits(every[first : first + m]), f"{first}, {m}, {more}")


def test_other_orders_would_be_noticed(monkeypatch):
    """Shapes with other steps along K, were they taken for a pinned problem, give other bits: 204 leaves 4 and 12."""
    rows = Rows("float32", 71, 204)
    _, every = rows(0, ROWS, lambda names: names[0])
    monkeypatch.setitem(backend_module.BATCH_ORDERS, "float32", "fma.r16")
    _, few = rows(0, 5, lambda names: names[0])
    assert (bits(few) != bits(every[:5])).any()
