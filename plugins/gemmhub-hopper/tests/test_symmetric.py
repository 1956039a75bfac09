"""Symmetric products: tiles below the diagonal, mirrored; of every input, with epilogues and split-K, and mistakes.

Most operands break the promise, on purpose: then an element above the diagonal that was not copied from below shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.cost import choose
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import SHAPES, shapes
from gemmhub_nvidia.scratch import COUNTERS
from problems import H200, LIMIT, problem
from products import Product, stored
from runs import HOME, Run, address, detected

from gemmhub.accuracy import error_model, reference
from gemmhub.backend import Offer, answer
from gemmhub.capability import Refusal

emulated = pytest.mark.emulator
SMALL = Shape(64, 64, 3, consumers=1)
SPLIT = Shape(64, 64, 2, consumers=1)
WIDE = Shape(128, 256, 4)
TURNS = Shape(64, 64, 3, pingpong=True)
BELOW = Shape(64, 64, 3, consumers=1, cluster_m=2)
_FLOAT = {"out": "float32"}
_REGISTERS = {"registers": True}
_BOTH = {"registers": True, "split_planes_b": True}


def mirrored(x, upper=False):
    """Return ``x`` with one triangle in both places."""
    n = x.shape[-1]
    keeps = np.tri(n, dtype=bool).T if upper else np.tri(n, dtype=bool)
    return np.where(keeps, x, np.swapaxes(x, -1, -2))


def is_symmetric(x):
    bits = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    return np.array_equal(bits, np.swapaxes(bits, -1, -2))


@dataclass(frozen=True)
class Symmetric(Product):
    """A product of n rows and columns whose operands are of any values, and c symmetric."""

    @property
    def problem(self):
        return replace(super().problem, symmetric=True)

    def data(self, seed=0):
        a, b, c, _ = super().data(seed)
        return a, b, None if c is None else mirrored(c), None

    def exact(self, a, b, c, bias):
        return mirrored(super().exact(a, b, c, bias), self.swapped)


def product(shape, n, k, *more, **named):
    return Symmetric(shape, n, n, k, *more, **named)


PRODUCTS = (
    # One tile, several, tiles that the diagonal crosses anywhere; several work tiles of a CTA; every order.
    product(SMALL, 64, 64, b="col"),
    product(SMALL, 200, 136, b="col"),
    product(SMALL, 200, 72),
    product(SMALL, 136, 72, a="col", d="col"),
    product(SMALL, 136, 72, swapped=True),
    product(WIDE, 520, 72, b="col"),
    product(Shape(256, 64, 3), 520, 72, b="col"),
    product(Shape(128, 96, 3), 264, 72, b="col"),  # store blocks that overlap
    product(Shape(64, 80, 3, consumers=1), 264, 72, b="col", dtype="float16"),
    # Results of 32 bits; rows that TMA cannot store, of either size; little results.
    product(SMALL, 136, 72, **_FLOAT),
    product(Shape(128, 48, 3), 136, 72, **_FLOAT, b="col"),
    product(Shape(64, 16, 3, consumers=1), 72, 72, **_FLOAT),
    product(SMALL, 131, 72, b="col"),
    product(SMALL, 133, 72, b="col", **_FLOAT),
    product(SMALL, 136, 72, b="col", offset=1),
    product(SMALL, 1, 72, b="col"),
    product(SMALL, 70, 0, beta=1),
    # beta * c, in batches too.
    product(SMALL, 136, 72, b="col", alpha=0.5, beta=2),
    product(SMALL, 133, 72, b="col", alpha=0.5, beta=-2, batch=(3,)),
    product(WIDE, 264, 72, **_FLOAT, d="col", alpha=0, beta=2),
    product(SMALL, 72, 72, a="col", batch=(2, 2)),
    # Ping-pong, multicast, CTAs that share K; split-K.
    product(TURNS, 200, 72, b="col"),
    product(BELOW, 264, 136, b="col", beta=1),
    product(Shape(64, 64, 3, consumers=1, cluster_m=2, cluster_n=2), 264, 72, b="col"),
    product(Shape(64, 64, 3, consumers=1, cluster_k=4), 136, 328, b="col"),
    product(SMALL, 136, 520, b="col", splits=3, beta=2),
    # tf32, whose b is copied or a through registers; K passes, whose sums are of a narrow result in the workspace.
    product(SMALL, 136, 132, b="col", dtype="tf32"),
    product(SMALL, 72, 133, dtype="tf32", swapped=True, **_REGISTERS),
    product(SMALL, 73, 330, b="col", dtype="tf32", limit=COUNTERS + 2**16),
    product(SMALL, 73, 401, limit=COUNTERS + 2**17, beta=2),
    # float32 by planes.
    product(SPLIT, 136, 136, dtype="float32"),
    product(SPLIT, 73, 200, dtype="float32", splits=2, alpha=0.5, beta=2),
    product(SPLIT, 72, 136, dtype="float32", **_REGISTERS),
    product(SPLIT, 72, 136, dtype="float32", **_BOTH),
    product(SMALL, 200, 264, b="col", dtype="f16x3", beta=1),
    product(Shape(128, 64, 3), 200, 264, dtype="f16x3", **_REGISTERS),
    product(SMALL, 136, 200, dtype="bf16x3"),
)
SMS = {"attributes": {16: 48}}
"""Multiprocessors for all splits at once, each of which reduces a slice."""
SLICES = (
    product(SMALL, 72, 456, b="col", splits=7, alpha=0.5, beta=2, **_FLOAT),
    product(SMALL, 73, 456, b="col", splits=7, batch=(2,)),
)


@emulated
@pytest.mark.parametrize("asked", PRODUCTS, ids=str)
def test_exact_products(asked):
    run = Run(asked)
    run.check()
    assert is_symmetric(run())


@emulated
@pytest.mark.parametrize("asked", SLICES, ids=str)
def test_slices(asked):
    assert asked.choice.reduces_by_slices(48)
    run = Run(asked, Home(**SMS))
    run.check()
    assert is_symmetric(run())


@emulated
def test_random_products():
    rng = np.random.default_rng()
    for _ in range(3):
        n, k = (int(x) for x in rng.integers(1, 300, 2))
        orders = {x: ("row", "col")[rng.integers(2)] for x in "abd"}
        asked = product(
            (SMALL, WIDE)[rng.integers(2)], n, k, **orders, out=(None, "float32")[rng.integers(2)], alpha=0.5,
            beta=(0, 2)[rng.integers(2)], swapped=bool(rng.integers(2)),
        )  # fmt: skip
        run = Run(asked, seed=int(rng.integers(2**31)))
        assert not asked.wrong(run(), run.exact).any(), str(asked)


@emulated
@pytest.mark.parametrize("asked", [product(WIDE, 264, 72, b="col", beta=1), product(SMALL, 137, 72, beta=2)], ids=str)
def test_c_may_be_the_result(asked):
    run = Run(asked)
    c = stored(run.values[2], asked.d)
    run.out[: c.size] = c
    at = address(run.out)
    run.launch.run(address(run.a), address(run.b), at, asked.alpha, asked.beta, 0, c=at)
    result = run.out[: c.size].copy().view(run.dtype).reshape(asked.m, asked.n)
    assert not asked.wrong(result, run.exact).any()


def bounded(asked, a):
    """Return the result of ``a`` by its transpose, which is symmetric and within the bound."""
    result = Run(asked).of(a, np.swapaxes(a, -1, -2).copy())
    assert is_symmetric(result)
    dtype = a.dtype
    model = error_model(dtype, dtype, result.dtype, np.dtype(np.float32))
    assert reference(a, a.T, model=model, out_dtype=result.dtype).ratio(result).max() <= 1
    return result


@emulated
@pytest.mark.parametrize("scheme", ["float32", "f16x3"])
def test_float32_of_wide_exponents(scheme):
    """Planes of float16 are rejected for some rows, whose tiles are computed again by planes of bfloat16."""
    rng = np.random.default_rng()
    a = rng.standard_normal((200, 264), np.float32)
    a[70:140] *= np.exp2(rng.integers(-30, 30, (70, 264))).astype(np.float32)
    bounded(product(SPLIT if scheme == "float32" else SMALL, 200, 264, b="col", dtype=scheme), a)


@emulated
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "f16x3"])
def test_infinities_and_nans(dtype):
    """A row that is not finite makes its row and its column of the result so, and leaves the others."""
    rng = np.random.default_rng()
    asked = product(SPLIT if dtype == "float32" else SMALL, 136, 264, b="col", dtype=dtype)
    a = rng.uniform(1, 2, (136, 264)).astype(asked.problem.a.dtype)
    a[3, 7], a[100, 9] = np.nan, np.inf
    result = bounded(asked, a).astype(np.float64)
    assert np.isnan(result[3]).all()
    assert np.isnan(result[:, 3]).all()
    assert np.isposinf(np.delete(result[100], 3)).all()
    assert np.isfinite(np.delete(np.delete(result, [3, 100], 0), [3, 100], 1)).all()


# fmt: off
MUTATIONS = {
    "no mirror": ("mirror.cuh", ("        store_transpose(p, mirror, m, n, at.batch, ctx);\n", ""),),
    "no mirror across the diagonal": ("mirror.cuh", ("m + row > n + column && m + row < p.m", "false"),),
    "the other triangle across the diagonal": ("mirror.cuh", (
        "m + row >= n + column && m + row < p.m", "m + row <= n + column && n + column < p.n"),),
    "blocks across the diagonal as those below": ("mirror.cuh", ("if (!lies_below(m, n))", "if (false)"),),
    "a box of the mirror is left out": ("mirror.cuh", ("box < kNumMirrorBoxes", "box < 1"),),
    "the mirror of another matrix": ("mirror.cuh", ("p.n - n, p.m - column, batch", "p.n - n, p.m - column, 0"),),
    "rows beyond the result": ("mirror.cuh", ("n, column, p.n - n, p.m - column", "n, column, p.n - n, 64"),),
    "buffers are filled too early": ("mirror.cuh", (
        "        named_sync(1 + ctx.warpgroup, 128);  // TMA and", "        // TMA and"),),
    "TMA is not waited for": ("mirror.cuh", ("if (kTmaStore && issues) tma_store_wait_read();", ""),),
    "writers are not fenced": ("mirror.cuh", ("async_fence();  // by", "// by"),),
    "slices are not mirrored": ("mirror.cuh", ("if (row > column) store_element", "if (false) store_element"),),
    "slices of the other triangle": ("mirror.cuh", (
        "below >= fragment.rows || row < column", "below >= fragment.rows"),),
    "the mirror of 16 bits is not transposed": ("epilogue.cuh", (
        "store_matrices_transposed(address + SMEM_STORE_BYTES", "store_matrices(address + SMEM_STORE_BYTES"),),
    "columns of float32 trade places": ("epilogue.cuh", (
        "(j + APART), b[i]", "(j + APART), a[i]"),),
    "a row of tiles that ends too early": ("tile_scheduler.cuh", (
        "(row + 1) * height + width - 1", "row * height + width - 1"),),
}
# fmt: on
WATCHED = [
    product(Shape(64, 256, 3, consumers=1), 264, 72, b="col", batch=(2,)),
    product(SMALL, 133, 72, b="col", **_FLOAT),
    SLICES[0],
]


@emulated
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    file, *changes = MUTATIONS[mutation]
    home = mutated(monkeypatch, tmp_path, file, *changes, **SMS)
    assert any(detected(Run(asked, home), 6) for asked in WATCHED)


def test_shapes_have_room_for_two_staging_buffers():
    """Most shapes, some with one stage less; and a second buffer is what others lack."""
    form = Form(False, True, "bfloat16", "bfloat16")
    asked = replace(form, symmetric=True)
    assert len(shapes(asked)) > 0.8 * len(SHAPES)
    assert all(Variant(shape, asked).num_store_stages == 2 for shape in shapes(asked))
    narrow = next(x for x in SHAPES if Variant(x, form).num_store_stages == 1)
    assert Variant(narrow, form).refusal is None
    assert "second staging buffer" in Variant(narrow, asked).refusal


@pytest.mark.parametrize(
    "changes",
    [{"transposed_d": True}, {"bias": "n"}, {"activation": "relu"}, {"input": "e4m3.e4m3", "mn_major_b": False}],
    ids=str,
)
def test_what_symmetric_results_exclude(changes):
    form = replace(Form(False, True, "bfloat16", "bfloat16", symmetric=True), **changes)
    assert "symmetric results" in Variant(SMALL, form).refusal


@pytest.mark.parametrize(
    ("dtype", "out"), [("complex64", "complex64"), ("int8", "int32"), ("float8_e4m3fn", "float32")], ids=str
)
def test_dtypes_without_a_kernel(dtype, out):
    refusal = lower.lowerings(problem(64, 64, 64, dtype, out, symmetric=True))
    assert isinstance(refusal, Refusal)
    assert "symmetric" in refusal.reason
    assert "leave symmetric= out" in refusal.remedy


def test_stacks_are_not_folded():
    """A b that all matrices share: their rows are of one product, which would not be symmetric."""
    asked = problem(64, 64, 64, batch=(3,), symmetric=True)
    shared = replace(asked, b=replace(asked.b, layout=replace(asked.b.layout, batch_strides=(0,))))
    assert {(x.m, x.batch) for x in lower.lowerings(shared)} == {(64, 3)}
    assert {(x.m, x.n) for x in lower.lowerings(replace(shared, symmetric=False))} == {(192, 64), (64, 192)}


def test_the_offer():
    """Half of the tiles, by estimates that are lower where there are many; nothing by kernels for vectors."""
    backend = HOME.backend()

    def asked(n, symmetric):
        return problem(n, n, 4096, symmetric=symmetric)

    offers = {x: answer(backend, asked(4096, x)) for x in (False, True)}
    assert all(isinstance(x, Offer) for x in offers.values())
    assert all("symmetric: half the products" in offers[True].remark(name) for name in offers[True].names)
    times = {x: choose.timed(lower.lowerings(asked(4096, x)), H200, LIMIT)[0][0] for x in (False, True)}
    assert 0.45 < times[True] / times[False] < 0.9
    few = answer(backend, asked(4, True))
    assert all("x" in name for name in few.names)
