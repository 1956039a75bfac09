"""Products of arrays of Dask: lazy, of any chunks and options, with gemmhub's dtypes and within its bound."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, BOOL, C64, E4M3, F16, F32, F64, I8, I32, I64, U8, draw, natural_result, product_shape, ratio

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import gemmhub  # noqa: E402
from gemmhub.epilogues import ELEMENTWISE  # noqa: E402
from gemmhub.errors import BackendError, DTypeError, InputError, NoBackendError, OutputError, ShapeError  # noqa: E402
from gemmhub.operands import OPERANDS  # noqa: E402


@pytest.fixture(autouse=True)
def _small_blocks():
    """Blocks of tests are small: else they would be put together. One thread at a time runs them."""
    with dask.config.set({"array.chunk-size": "256B", "scheduler": "sync"}):
        yield


def cut(rng, x):
    """``x`` as an array of Dask with random chunks."""
    chunks = []
    for size in x.shape:
        ends = np.unique(rng.integers(0, size + 1, rng.integers(0, 4)))
        chunks.append(tuple(int(part) for part in np.diff([0, *ends, size]) if part or not size))
    return da.from_array(x, chunks=tuple(part or (0,) for part in chunks))


SHAPES = [
    ((7, 33), (33, 9)), ((1, 1), (1, 1)), ((33,), (33, 9)), ((7, 33), (33,)), ((33,), (33,)), ((3, 7, 33), (33, 9)),
    ((7, 33), (2, 33, 9)), ((2, 1, 7, 5), (3, 5, 4)), ((5, 0), (0, 3)), ((0, 4), (4, 3)), ((0, 2, 3), (3, 1)),
    ((4,), (2, 4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, I8, U8, I64, BOOL], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_are_within_the_bound_for_any_chunks(dtype, shapes, rng):
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    product = gemmhub.matmul(cut(rng, a), cut(rng, b))
    assert isinstance(product, da.Array)
    assert product.dtype == natural_result(dtype, dtype)
    assert product.shape == product_shape(*shapes)
    assert product._meta.dtype == product.dtype
    assert ratio(np.asarray(product.compute()), a, b) <= 1


@pytest.mark.parametrize("kinds", [(F16, BF16), (I8, U8), (F32, F16), (I8, BF16), (I64, F32), (F64, C64)], ids=str)
def test_dtypes_mix_as_in_memory(kinds, rng):
    a, b = draw(rng, (5, 40), kinds[0]), draw(rng, (40, 6), kinds[1])
    assert ratio(gemmhub.matmul(cut(rng, a), cut(rng, b)).compute(), a, b) <= 1


def chained(a, b, **options):
    """A product whose k is cut into several blocks."""
    x, y = (da.from_array(x, chunks=chunks) for x, chunks in ((a, (4, 8)), (b, (8, 5))))
    return gemmhub.matmul(x, y, **options)


def test_int8_is_exact_over_blocks_of_k(rng):
    a, b = np.full((5, 4000), 127, np.int8), np.full((4000, 3), 127, np.int8)
    product = gemmhub.matmul(da.from_array(a, chunks=(2, 900)), da.from_array(b, chunks=(900, 3)))
    assert product.dtype == I32
    np.testing.assert_array_equal(product.compute(), np.full((5, 3), 4000 * 127 * 127))


def test_half_is_summed_in_float32_over_blocks_of_k():
    """Sums of rounded parts overflow at 65504; their sum is 4."""
    a = np.concatenate([np.full((1, 8), 256.0), np.full((1, 8), 1.0), np.full((1, 8), -256.0)], axis=1).astype(F16)
    b = np.concatenate([np.full((8, 1), 255.0), np.full((8, 1), 0.5), np.full((8, 1), 255.0)]).astype(F16)
    product = chained(a, b)
    assert product.dtype == F16
    assert product.compute() == 4.0
    assert chained(a * F16.type(2), b).compute() == 8.0


OPTIONS = [
    {"alpha": 0.5}, {"alpha": 0}, {"alpha": -2, "beta": 0.25}, {"beta": 1}, {"bias": "n"}, {"bias": "1n"},
    {"bias": "m1"}, {"activation": "gelu", "alpha": 0.3, "beta": -1, "bias": "n"}, {"activation": "relu", "bias": "m1"},
    *({"activation": name} for name in ELEMENTWISE),
    {"out_dtype": "float64"}, {"out_dtype": "float32", "beta": 1}, {"alpha": 1e-42}, {"alpha": 1e-42, "beta": 1},
    {"reproducible": "run"}, {"precision": "tf32"}, {"backend": "numpy"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [F16, F32, BF16], ids=str)
@pytest.mark.parametrize("lazy", [True, False])
def test_options(options, dtype, lazy, rng):
    a, b = draw(rng, (9, 37), dtype), draw(rng, (37, 12), dtype)
    given = dict(options)
    out = np.dtype(given.get("out_dtype", dtype))
    if "beta" in given:
        given["c"] = draw(rng, ((9, 12), (12,), (9, 1))[rng.integers(3)], out)
    if "bias" in given:
        given["bias"] = draw(rng, {"n": (12,), "1n": (1, 12), "m1": (9, 1)}[given["bias"]], out)
    passed = {name: cut(rng, x) if lazy and isinstance(x, np.ndarray) else x for name, x in given.items()}
    product = chained(a, b, **passed)
    assert len(gemmhub.explain(cut(rng, a), cut(rng, b), **passed).partition.blocking.chunks) == 3
    expected = {name: x for name, x in given.items() if name not in ("reproducible", "backend")}
    assert ratio(np.asarray(product.compute()), a, b, **expected) <= 1


@pytest.mark.parametrize(
    "options", [{"alpha": 0.3}, {"bias": 1}, {"beta": 0.5}, {"activation": "silu", "alpha": -0.5}], ids=str
)
def test_integers_become_floats_after_the_whole_sum(options, rng):
    a, b = draw(rng, (9, 37), I8), draw(rng, (37, 12), I8)
    given = {name: draw(rng, 12, F32) if name == "bias" else x for name, x in options.items()}
    if "beta" in given:
        given["c"] = draw(rng, (9, 12), F32)
    product = chained(a, b, out_dtype=F32, **given)
    assert ratio(product.compute(), a, b, out_dtype=F32, **given) <= 1


def test_a_sum_that_cancels_is_rounded_once():
    """2**30 in one block of k, 1 - 2**30 in the other: converted apart, the 1 would be lost."""
    a = np.array([[127] * 40 + [-127] * 40], np.int8)
    b = np.array([[127]] * 40 + [[127]] * 39 + [[126]], np.int8)
    product = gemmhub.matmul(da.from_array(np.tile(a, 2000), chunks=(1, 40)), np.tile(b, (2000, 1)), out_dtype=F32)
    assert product.compute() == 2000 * 127


def test_integer_options(rng):
    a, b, c = draw(rng, (9, 37), I8), draw(rng, (37, 12), I8), draw(rng, (9, 12), I32)
    product = chained(a, b, alpha=-3, beta=2, c=c, activation="relu")
    assert ratio(product.compute(), a, b, alpha=-3, beta=2, c=c, activation="relu") == 0
    wide = chained(a, b, out_dtype=I64)
    assert ratio(wide.compute(), a, b, out_dtype=I64) == 0
    fp8 = draw(rng, (9, 37), E4M3), draw(rng, (37, 12), E4M3)
    assert ratio(chained(*fp8, out_dtype=F16).compute(), *fp8, out_dtype=F16) <= 1


def test_beta_zero_never_reads_c(rng):
    a, b = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32)
    c = da.from_array(np.full((9, 12), np.nan, F32), chunks=3)
    product = chained(a, b, c=c, beta=0)
    assert not any(c.name in str(key) for key in dict(product.dask))
    assert ratio(product.compute(), a, b) <= 1


def test_in_memory_operands_mix_with_lazy_ones(rng):
    a, b = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32)
    for pair in (
        (a, cut(rng, b)),
        (cut(rng, a), b),
        (a[::-1].tolist(), cut(rng, b.astype(F64))),
        (cut(rng, a), np.asfortranarray(b)),
    ):
        product = gemmhub.matmul(*pair)
        assert isinstance(product, da.Array)
        given = [np.asarray(x) for x in pair]
        assert ratio(product.compute(), *given) <= 1
    bias = da.from_array(draw(rng, 12, F32), chunks=5)
    assert isinstance(gemmhub.matmul(a, b, bias=bias), da.Array)


def test_the_settings_in_force_go_with_the_product(rng):
    a, b = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32)
    with gemmhub.use(precision="tf32", reproducible="run", backend="numpy"):
        product = chained(a, b)
    steps = [task for key, task in dict(product.dask).items() if key[0] == product.name]
    assert "tf32" in str(steps[0])
    assert "'backend': 'numpy'" in str(steps[0])
    assert ratio(product.compute(), a, b, precision="tf32") <= 1


def test_sums_are_chained_and_few(rng):
    """One task for each block of each operand pair, and one sum in memory a chain: nothing is added apart."""
    x, y = da.ones((40, 60), chunks=(8, 8), dtype="f4"), da.ones((60, 24), chunks=(8, 8), dtype="f4")
    with dask.config.set(scheduler="sync", num_workers=1):
        product = gemmhub.matmul(x, y)
    own = [key for key in dict(product.dask) if str(key[0]).startswith("gemmhub-matmul")]
    assert len(own) == 5 * 8 * 3
    assert product.chunks == ((8,) * 5, (8,) * 3)
    np.testing.assert_array_equal(product.compute(), np.full((40, 24), 60.0))


def test_few_blocks_of_the_result_get_independent_chains(rng, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    for dtype in (F16, I8, BOOL):
        a, b = draw(rng, (5, 70), dtype), draw(rng, (70, 6), dtype)
        x, y = da.from_array(a, chunks=(5, 7)), da.from_array(b, chunks=(7, 6))
        with dask.config.set({"array.chunk-size": "49B"}):
            how, product = gemmhub.explain(x, y), gemmhub.matmul(x, y)
        assert how.partition.blocking.chains == 5
        assert "5 independent chains" in str(how)
        assert ratio(product.compute(), a, b) <= 1


def test_names_are_deterministic_and_say_gemmhub(rng):
    a, b = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32)
    assert chained(a, b).name == chained(a, b).name
    assert chained(a, b).name != chained(a, b, alpha=2).name != chained(a, b, alpha=2, activation="relu").name
    assert dask.utils.key_split(chained(a, b).name) == "gemmhub-matmul"


def test_products_compose_as_arrays_of_dask_do(rng):
    a, b, c = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32), draw(rng, (12, 8), F32)
    product = gemmhub.matmul(chained(a, b), c)
    np.testing.assert_allclose((product.sum() + 1).compute(), (a @ b @ c).sum() + 1, rtol=1e-3)
    np.testing.assert_allclose(chained(a, b)[2:4, 3].compute(), (a @ b)[2:4, 3], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(chained(a, b).persist().T.compute(), (a @ b).T, rtol=1e-4, atol=1e-4)


# What is refused


def test_unknown_chunks_are_refused():
    x = da.ones((8, 8), chunks=4)
    unknown = x[x[:, 0] > 0]
    with pytest.raises(ShapeError, match=r"a: chunks of unknown size along axis 0 \(.*compute_chunk_sizes") as caught:
        gemmhub.matmul(unknown, x)
    assert "along k" not in str(caught.value)  # whose chunks are known
    with pytest.raises(ShapeError, match=r"b: chunks of unknown size along axis 1 \(.*compute_chunk_sizes"):
        gemmhub.matmul(x, unknown.T)
    assert gemmhub.matmul(unknown.compute_chunk_sizes(), x).shape == (8, 8)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"out": np.empty((8, 8))}, OutputError, r"out: .*gemmhub.distributed.store"),
        ({"stream": 7}, InputError, "stream: given for arrays of Dask"),
        ({"c": np.ones((3, 8)), "beta": 1}, ShapeError, "c: shape"),
        ({"c": np.ones((8, 8), "f4"), "beta": 1}, DTypeError, "c: dtype float32; allowed: float64"),
        ({"bias": np.ones(3)}, ShapeError, r"bias: shape \(3,\)"),
        ({"activation": "swish"}, InputError, "activation"),
        *(
            ({"activation": name}, InputError, f"activation: {name}, which takes pairs of columns")
            for name in ("swiglu", "swiglu_interleaved", "geglu")
        ),
        *(
            ({name: np.ones(1, np.float32)}, InputError, f"{name}: given with arrays of Dask")
            for name in OPERANDS.keys() - {"c", "bias"}
        ),
        ({"out_dtype": "int8"}, DTypeError, "out_dtype"),
        ({"beta": 1}, InputError, "beta: 1 without c"),
        ({"wrong": 1}, TypeError, "unexpected keyword argument 'wrong'"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_computed(options, error, text):
    x = da.ones((8, 8), chunks=4)
    for call in (gemmhub.matmul, gemmhub.explain, gemmhub.plan):
        with pytest.raises(error, match=text):
            call(x, x, **options)


def test_shapes_and_dtypes_are_checked():
    x = da.ones((8, 8), chunks=4)
    with pytest.raises(ShapeError, match="inner dimensions 8 and 7"):
        gemmhub.matmul(x, np.ones((7, 3)))
    with pytest.raises(ShapeError, match="scalar"):
        gemmhub.matmul(x, da.ones(()))
    with pytest.raises(DTypeError, match="a: "):
        gemmhub.matmul(x.astype("datetime64[s]"), x)
    with pytest.raises(InputError, match="b: packed in this process"):
        gemmhub.matmul(x, gemmhub.PackedB((8, 8), F64, F64, "numpy", None, gemmhub.Device()))


def test_a_backend_that_is_missing_is_named_with_the_process():
    x = da.ones((8, 8), chunks=4)
    product = gemmhub.matmul(x, x, backend="cublas")
    with pytest.raises((NoBackendError, BackendError), match=r"on process \d+.*cublas"):
        product.compute()


# plan, pack, explain


def test_a_plan_holds_its_blocks(rng):
    a, b, c = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32), draw(rng, (9, 12), F32)
    x, y = cut(rng, a), cut(rng, b)
    planned = gemmhub.plan(x, y, c=c, beta=1, alpha=0.5)
    assert planned.decision.partition.blocking.tasks
    for _ in range(2):
        a, c = draw(rng, a.shape, F32), draw(rng, c.shape, F32)
        product = planned(cut(rng, a), y, c=c)
        assert product.chunks == gemmhub.plan(x, y, c=c, beta=1, alpha=0.5)(x, y, c=c).chunks
        assert ratio(product.compute(), a, b, c=c, beta=1, alpha=0.5) <= 1
    with pytest.raises(ShapeError, match="plan again"):
        planned(cut(rng, a[:5]), y, c=c[:5])
    with pytest.raises(InputError, match="c, bias"):
        planned(x, y)


def test_a_packed_b_is_packed_once_a_block(rng, monkeypatch):
    from gemmhub import api
    from gemmhub._doors.dask import block

    a, b = draw(rng, (9, 37), F32), draw(rng, (37, 12), F32)
    made = []
    monkeypatch.setattr(block.api, "pack", lambda x, **options: made.append(x.shape) or Packed(x))
    matmul = api.matmul
    monkeypatch.setattr(block.api, "matmul", lambda a, b, **o: matmul(a, getattr(b, "x", b), **o))
    packed = gemmhub.pack(da.from_array(b, chunks=(10, 12)))
    assert (packed.shape, packed.dtype, packed.ndim) == ((37, 12), F32, 2)
    assert "4x1 blocks" in repr(packed)
    packed = packed.persist()
    assert sorted(made) == [(7, 12), (10, 12), (10, 12), (10, 12)]
    for _ in range(2):
        assert ratio(matmul(da.from_array(a, chunks=(4, 20)), packed).compute(), a, b) <= 1
        assert ratio(matmul(a, packed, alpha=2, bias=b[0]).compute(), a, b, alpha=2, bias=b[0]) <= 1
    assert len(made) == 4
    with pytest.raises(InputError, match="packed for a of float32"):
        gemmhub.matmul(da.ones((3, 37), chunks=4), packed)
    with pytest.raises(InputError, match="packed already"):
        gemmhub.pack(packed)


class Packed:
    """A stand-in for a packed block."""

    def __init__(self, x):
        self.x, self.shape, self.ndim, self.dtype = x, x.shape, x.ndim, x.dtype


@pytest.mark.parametrize("dtype", [F16, F32, I8], ids=str)
def test_blocks_that_a_backend_packed(dtype, rng):
    a, b = draw(rng, (9, 37), dtype), draw(rng, (37, 12), dtype)
    packed = gemmhub.pack(da.from_array(b, chunks=(10, 5)), a_dtype=dtype).persist()
    assert ratio(gemmhub.matmul(cut(rng, a), packed).compute(), a, b) <= 1
    if dtype == I8:
        with pytest.raises(InputError, match="packed in 4 blocks of k"):
            gemmhub.matmul(a, packed, out_dtype=F32)


def test_packing_without_a_backend_that_packs_names_the_process():
    with pytest.raises((NoBackendError, BackendError), match=r"on process \d+.*no backend packs"):
        gemmhub.pack(da.ones((8, 8), chunks=4), backend="cublas").persist()


def test_explain_says_blocks_bytes_memory_and_seconds():
    x, y = da.ones((64, 64), chunks=(16, 8), dtype="f4"), da.ones((64, 64), chunks=(32, 16), dtype="f4")
    how = gemmhub.explain(x, y)
    text = str(how)
    assert "rechunks" in text
    for word in ("blocks    m 64 in 4 of up to 16", "tasks     ", "moves     at most 0 B", "memory    ", "estimate  "):
        assert word in text
    assert how.to_dict()["partition"]["blocking"]["tasks"] == how.partition.blocking.tasks
    assert how.partition.blocking.rechunk_bytes in (64 * 64 * 4, 2 * 64 * 64 * 4)
    assert "k         is not cut: alpha or beta need float64" in str(gemmhub.explain(x, y, alpha=1e-42))


def test_tiny_blocks_are_put_together_where_that_pays():
    x = da.ones((512, 512), chunks=(16, 16), dtype="f4")
    with dask.config.set({"array.chunk-size": "128MiB"}):
        assert gemmhub.explain(x, x).partition.blocking.tasks <= 8
    large = da.ones((40000, 40000), chunks=10000, dtype="f4")
    with dask.config.set({"array.chunk-size": "128MiB"}):
        assert gemmhub.explain(large, large).partition.blocking.rechunked == ()


def test_tune_without_a_cluster_tunes_this_process(rng):
    x = da.ones((64, 64), chunks=(16, 8), dtype="f4")
    (found,) = gemmhub.tune(x, x).items()
    assert found[0] == "local"
    assert found[1].best.backend


# Blocks of torch


def test_blocks_of_torch(rng):
    torch = pytest.importorskip("torch")
    a, b, c = draw(rng, (9, 37), F16), draw(rng, (37, 12), F16), draw(rng, (9, 12), F16)
    x, y, z = (
        da.from_array(x, chunks=chunks).map_blocks(torch.from_numpy, dtype=F16, meta=np.empty((0, 0), F16))
        for x, chunks in ((a, (4, 10)), (b, (10, 5)), (c, 5))
    )
    product = gemmhub.matmul(x, y, c=z, beta=1, alpha=0.5)
    blocks = dask.compute(*product.to_delayed().ravel())
    assert all(isinstance(block, torch.Tensor) and block.dtype == torch.float16 for block in blocks)
    assert ratio(np.asarray(product.compute()), a, b, c=c, beta=1, alpha=0.5) <= 1
    mixed = gemmhub.matmul(x, torch.from_numpy(b))
    assert ratio(np.asarray(mixed.compute()), a, b) <= 1
    assert gemmhub.spot_check(x, y, mixed).compute()
    with pytest.raises(InputError, match=r"a block on process \d+"):
        gemmhub.matmul(x, b).compute()


def test_the_blocks_of_a_function_are_tuned(rng):
    """Where threads of this process compute them, and not where its result is lazy."""
    a, b = (da.from_array(rng.standard_normal(shape, np.float32), chunks=(4, 4)) for shape in ((8, 4), (4, 4)))
    with pytest.raises(InputError, match="it returned a lazy result: compute it in the function"):
        gemmhub.tune(gemmhub.matmul, a, b)
    for scheduler in ("sync", "threads"):
        result = gemmhub.tune(lambda s=scheduler: gemmhub.matmul(a, b).compute(scheduler=s))
        assert sum(product.calls for product in result.products) >= 1
        assert all(product.rows for product in result.products)


def test_grouped_products_are_refused(rng):
    x, w = cut(rng, np.ones((4, 3))), np.ones((2, 3, 2))
    for call in (gemmhub.grouped_matmul, gemmhub.explain_grouped):
        with pytest.raises(InputError, match="a, b: Dask arrays; allowed: arrays in memory: grouped products of Dask"):
            call(x, w, [2, 4])
    with pytest.raises(InputError, match="Dask arrays"):
        gemmhub.spot_check_grouped(x, w, [2, 4], np.ones((4, 2)))
