"""tune() of a function: the products that a call makes, through any door, each tuned on operands of its own."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import api
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._base.timing import Timing
from gemmhub._choice import records
from gemmhub._measure import fresh
from gemmhub._measure import tune as tuning
from gemmhub.errors import AllocationError, InputError, NoBackendError, RecordError
from plugins import add

F32 = np.float32


spent = [0.0]
"""Seconds that candidates have pretended to take: tests with real times would depend on the load of the machine."""


def pretended(calls, **_):
    """interleave(), by these seconds."""
    timings = []
    for call in calls:
        before = spent[0]
        call()
        seconds = 1e-6 + spent[0] - before
        timings.append(Timing(seconds, seconds, seconds, (seconds,)))
    return timings


@pytest.fixture(autouse=True)
def _pretended(monkeypatch):
    monkeypatch.setattr(tuning, "interleave", pretended)


def taking(candidates):
    """The ``run`` of a backend whose candidates take these seconds."""

    def run(a, b, out, candidate):
        spent[0] += candidates.get(candidate, 0.0)

    return run


@pytest.fixture
def lazy():
    """A backend whose first candidate is slow, by an estimate that beats all others."""
    backend = Scripted("lazy", candidates=("slow", "quick"), run=taking({"slow": 2.0, "quick": 1.0}))
    add(backend)
    return backend


def normal(rng, *shape):
    return rng.standard_normal(shape, F32)


def counts(result):
    return {product.problem.partition(" ")[0]: product.calls for product in result.products}


def keys():
    return {record.problem for record in records.read(records.path()).all}


def test_each_product_of_a_function_is_tuned_once(rng, lazy):
    x, w, v = normal(rng, 6, 8), normal(rng, 8, 8), normal(rng, 8, 4)
    seen = []

    def function(x, *, scale):
        for _ in range(3):
            x = gemmhub.matmul(x, w)
        seen.append(scale)
        return gemmhub.matmul(x, v)

    result = gemmhub.tune(function, x, scale=2)
    assert seen == [2]
    assert counts(result) == {"6x8x8": 3, "6x4x8": 1}
    for product in result.products:
        assert (product.chosen.backend, product.chosen.candidate, product.source) == ("lazy", "slow", "estimated")
        assert (product.best.backend, product.gain) == ("numpy", pytest.approx(2e6))
        assert {(row.backend, row.candidate) for row in product.rows} == {
            ("lazy", "slow"), ("lazy", "quick"), ("numpy", "default")
        }  # fmt: skip
    assert result.seconds_before == sum(p.calls * p.chosen.seconds for p in result.products)
    assert result.gain == result.seconds_before / result.seconds > 1
    assert keys() == {gemmhub.explain(x, w).problem.key, gemmhub.explain(x, v).problem.key}
    found = gemmhub.explain(x, w)
    assert (found[found.chosen].source, found[found.chosen].record) == ("measured", str(records.path()))
    again = gemmhub.tune(function, x, scale=3).products[0]
    assert (again.source, again.chosen.backend, again.chosen.candidate) == (
        "measured", found.chosen, found[found.chosen].candidate
    )  # fmt: skip


def test_every_call_that_multiplies_is_counted(rng):
    x, w, bias = normal(rng, 6, 8), normal(rng, 5, 8), normal(rng, 5)
    out = np.empty((6, 5), F32)

    def function():
        gemmhub.linear(x, w, bias, activation="relu")
        gemmhub.linear(x, w, bias, activation="relu")
        gemmhub.einsum("ij,kj->ik", x, w)
        gemmhub.matmul(x, w.T, out=out)
        plan = gemmhub.plan(x, w.T, bias=bias, activation="relu")
        for _ in range(4):
            plan(x, w.T, bias=bias)
        gemmhub.plan(gemmhub.ArraySpec((3, 8)), gemmhub.ArraySpec((8, 2)))(x[:3], w.T[:, :2])
        gemmhub.plan(x[:2], w.T)  # never called
        gemmhub.explain(x[:4], w.T)
        gemmhub.spot_check(x, w.T, out)
        gemmhub.matmul(x, w.T, c=out, beta=2, alpha=0.5)

    result = gemmhub.tune(function)
    found = [(p.problem.partition(" ")[0], "relu" in p.problem, "+c" in p.problem, p.calls) for p in result.products]
    assert found == [("6x5x8", True, False, 6), ("6x5x8", False, False, 2), ("3x2x8", False, False, 1),
                     ("6x5x8", False, True, 1)]  # fmt: skip
    assert all(product.rows for product in result.products)


def test_a_plan_of_the_function_counts_no_more(rng):
    x = normal(rng, 4, 4)
    kept = []
    result = gemmhub.tune(lambda: kept.extend((gemmhub.plan(x, x), api._cache.observer)) or kept[0](x, x))
    assert result.products[0].calls == 1
    plan, observer = kept
    assert np.array_equal(plan(x, x), gemmhub.plan(x, x)(x, x))
    assert [product.calls for product in observer.end()] == [1]


def test_products_of_other_threads_count(rng):
    x = normal(rng, 4, 4)

    def function():
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: gemmhub.matmul(x, x), range(20)))

    assert counts(gemmhub.tune(function)) == {"4x4x4": 20}


def test_programs_that_run_when_the_function_has_returned_are_awaited(rng, monkeypatch):
    """Those of JAX: waiting for a result runs its products."""
    x = normal(rng, 4, 4)
    waiting = SimpleNamespace(block_until_ready=lambda result: result())
    monkeypatch.setitem(sys.modules, "jax", waiting)
    assert counts(gemmhub.tune(lambda: lambda: gemmhub.matmul(x, x))) == {"4x4x4": 1}


LAYOUTS = {
    "row-major": lambda x: x,
    "column-major": lambda x: (
        np.asfortranarray(x.swapaxes(0, -2)).swapaxes(0, -2) if x.ndim > 2 else np.asfortranarray(x)
    ),
    "reversed": lambda x: x[..., ::-1, :],
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "broadcast": lambda x: np.broadcast_to(x, (3, *x.shape)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "complex64", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_new_ones_of_the_same_layouts(rng, layout, dtype):
    """The record is that of the caller's own product; the caller's arrays are not read, and not written."""
    wanted = gemmhub.dtypes.as_dtype(dtype)
    a, b = (LAYOUTS[layout](rng.integers(0, 2, shape).astype(wanted)) for shape in ((5, 7), (7, 4)))
    options = {"out_dtype": "float32"} if dtype.startswith("float8") else {}
    before = a.copy(), b.copy()
    kept = []
    real = fresh.operands_like

    def operands_like(product):
        kept.append(real(product))
        return dict(kept[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "operands_like", operands_like)
        result = gemmhub.tune(gemmhub.matmul, a, b, **options)
    (made,) = kept
    for new, x, old in ((made["a"], a, before[0]), (made["b"], b, before[1])):
        assert (new.shape, new.strides, new.dtype) == (x.shape, x.strides, x.dtype)
        assert not np.shares_memory(new, x)
        assert np.array_equal(x, old)
    assert keys() == {gemmhub.explain(a, b, **options).problem.key}
    assert result.products[0].rows


def test_vectors_scales_and_written_operands(rng):
    x, w, v = normal(rng, 4, 8), normal(rng, 8, 6), normal(rng, 8)
    rows, amax, before = np.abs(normal(rng, 4)) + F32(0.1), np.full(1, -1, F32), np.full((4, 6), 7, F32)

    def function():
        gemmhub.matmul(v, w)
        gemmhub.matmul(x, v)
        gemmhub.matmul(x, w, scale_a=rows, scale_b=np.ones(6, F32))
        return gemmhub.matmul(x, w, activation="gelu", pre_activation=before, amax=amax)

    expected = function()
    written = before.copy(), amax.copy()
    result = gemmhub.tune(function)
    assert len(result.products) == 4
    assert all(product.rows for product in result.products)
    assert np.array_equal(before, written[0])
    assert np.array_equal(amax, written[1])
    assert np.array_equal(function(), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64"])
@pytest.mark.parametrize("layout", ["row-major", "column-major", "reversed", "broadcast"])
def test_a_symmetric_product(rng, layout, dtype):
    """Its new b is the transpose of its a, and c is symmetric: candidates that compute half of it are right."""
    a = LAYOUTS[layout](rng.integers(-3, 4, (7, 5)).astype(gemmhub.dtypes.as_dtype(dtype)))
    b = np.swapaxes(a, -1, -2).copy()
    c = gemmhub.matmul(a, b, symmetric=True)
    c = c[0] if c.ndim > 2 else c
    kept, real = [], fresh.operands_like
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "operands_like", lambda product: dict(kept.append(real(product)) or kept[-1]))
        result = gemmhub.tune(
            lambda: (gemmhub.matmul(a, b, symmetric=True), gemmhub.matmul(a, b, c=c, beta=2, symmetric=True))
        )
    assert [(bool(p.rows), p.remark) for p in result.products] == [(True, ""), (True, "")]
    assert [r.failure for r in records.read(records.path()).all] == ["", ""]
    for made in kept:
        assert np.array_equal(made["b"], np.swapaxes(made["a"], -1, -2))
        assert made["b"].strides == b.strides
        assert len(np.unique(made["a"])) > 3
    assert np.array_equal(kept[1]["c"], kept[1]["c"].T)


def test_symmetric_products_of_other_layouts(rng):
    """Of two types, with constant addends, and with rows that share memory."""
    a = rng.integers(0, 2, (6, 5)).astype(F32)
    half, row, one = a.astype(np.float16), np.broadcast_to(a[:1], a.shape), np.ones((6, 6), F32)
    result = gemmhub.tune(
        lambda: [
            gemmhub.matmul(a, half.T, symmetric=True),
            gemmhub.matmul(row, row.T, symmetric=True),
            gemmhub.matmul(a, a.T, c=one[0], beta=1, symmetric=True),
            gemmhub.matmul(a, a.T, c=one[:, :1], beta=2, symmetric=True),
            gemmhub.matmul(a, a.T, c=one[0, 0], beta=2, symmetric=True),
        ]
    )
    assert [(bool(p.rows), p.remark) for p in result.products] == [(True, "")] * len(result.products)
    assert not [r for r in records.read(records.path()).all if r.failure]


@pytest.mark.parametrize("offset", [0, 4, 16, 100])
def test_new_operands_are_aligned_as_the_callers(rng, offset, monkeypatch):
    """Their copies too: in each of them vectors cross the same lines of the cache."""
    a, b = (np.ndarray(shape, F32, np.zeros(1024, np.uint8), offset) for shape in ((5, 6), (6, 7)))
    kept, real = [], fresh.operands_like
    monkeypatch.setattr(fresh, "operands_like", lambda product: dict(kept.append(real(product)) or kept[-1]))
    assert gemmhub.tune(gemmhub.matmul, a, b).products[0].rows
    for new, old in ((kept[0]["a"], a), (kept[0]["b"], b), (NUMPY.clone(a[1:]), a[1:])):
        assert (new.ctypes.data - old.ctypes.data) % 256 == 0


def test_a_packed_operand(rng):
    x, w = normal(rng, 4, 8).astype(np.float16), normal(rng, 8, 6).astype(np.float16)
    packed = gemmhub.pack(w, m=4, backend="numpy")
    result = gemmhub.tune(gemmhub.matmul, x, packed)
    assert [p.best.backend for p in result.products] == ["numpy"]
    assert result.products[0].problem.split()[-3] == "packed"
    assert keys() == {gemmhub.explain(x, packed).problem.key}


def test_the_backend_that_a_call_names_is_tuned_alone(rng, lazy):
    x = normal(rng, 4, 4)

    def function():
        gemmhub.matmul(x, x)
        with gemmhub.use(backend="numpy"):
            gemmhub.matmul(x, x)

    named, alone = gemmhub.tune(function).products
    assert {row.backend for row in named.rows} == {"lazy", "numpy"}
    assert {row.backend for row in alone.rows} == {"numpy"}


def test_a_function_may_have_any_arguments(rng):
    """None is tune's own."""
    x, out = normal(rng, 4, 4), np.zeros((4, 4), F32)
    seen = {}

    def function(*arguments, **keywords):
        seen.update(keywords, arguments=arguments)
        gemmhub.matmul(x, x)

    names = dict.fromkeys(("function", "a", "b", "out", "records", "path", "backend", "self", "arguments_"), 3)
    gemmhub.tune(function, 1, 2, 3, **names)
    assert seen == {**names, "arguments": (1, 2, 3)}
    gemmhub.tune(gemmhub.matmul, x, x, out=out)
    assert np.array_equal(out, gemmhub.matmul(x, x))


def test_what_the_function_raises_passes_through(rng):
    x = normal(rng, 4, 4)

    class Own(BaseException):
        pass

    for error in (Own("mine"), MemoryError("theirs")):

        def function(error=error):
            gemmhub.matmul(x, x)
            raise error

        with pytest.raises(type(error)) as caught:
            gemmhub.tune(function)
        assert caught.value is error
        assert not records.path().exists()
        assert api._cache.observer is None
    assert gemmhub.tune(gemmhub.matmul, x, x).products[0].calls == 1


def test_warm_calls_are_looked_up_before_and_after(rng, lazy):
    """While the function runs none is; what was learned before is forgotten, as records may have changed."""
    x = normal(rng, 4, 4)
    lazy.answers["run"] = lambda a, b, out, candidate: None
    gemmhub.tune(gemmhub.matmul, x, x)
    gemmhub.matmul(x, x)
    lazy.calls.clear()
    for _ in range(5):
        gemmhub.matmul(x, x)
    assert lazy.calls["offer"] == 0
    assert len(api._cache) > 0


def test_decisions_that_are_forgotten_meanwhile(rng):
    """As where a library of arrays is imported, or registered, by the function."""
    x = normal(rng, 4, 4)

    def function():
        gemmhub.matmul(x, x)
        gemmhub.reload()
        gemmhub.matmul(x, x)

    assert counts(gemmhub.tune(function)) == {"4x4x4": 2}
    assert api._cache.observer is None


def test_a_forgetting_thread_does_not_prolong_the_observation(rng):
    """It has read the observer, and puts it in a new cache after the end."""
    x = normal(rng, 4, 4)
    observers = []
    gemmhub.tune(lambda: observers.append(api._cache.observer) or gemmhub.matmul(x, x))
    api._cache.observer = observers[0]
    api.forget_decisions()
    assert api._cache.observer is None


def no_product():
    return np.ones((2, 2)) @ np.ones((2, 2))


async def later(x):
    gemmhub.matmul(x, x)


def one_by_one(x):
    yield gemmhub.matmul(x, x)


def test_a_function_without_products(rng):
    x = normal(rng, 4, 4)
    with pytest.raises(InputError, match=r"no_product made no product .* multiply by gemmhub\.matmul") as caught:
        gemmhub.tune(no_product)
    assert caught.value.argument == "function"
    plan = gemmhub.plan(x, x)
    with pytest.raises(InputError, match="those made before keep their choice"):
        gemmhub.tune(plan, x, x)
    with pytest.raises(InputError, match="a coroutine, which has not run: pass a function that runs it"):
        gemmhub.tune(later, x)
    with pytest.raises(InputError, match="a generator, which has not run"):
        gemmhub.tune(one_by_one, x)
    assert not records.path().exists()
    assert counts(gemmhub.tune(lambda: asyncio.run(later(x)))) == {"4x4x4": 1}
    assert counts(gemmhub.tune(lambda: list(one_by_one(x)))) == {"4x4x4": 1}


def test_a_function_that_tunes(rng):
    x = normal(rng, 4, 4)
    with pytest.raises(InputError, match="tuned while another one is"):
        gemmhub.tune(lambda: gemmhub.tune(gemmhub.matmul, x, x))
    result = gemmhub.tune(lambda: (gemmhub.matmul(x, x), gemmhub.tune(x, x[:, :2])))
    assert counts(result) == {"4x4x4": 1}


def test_one_function_is_tuned_at_a_time_with_its_measuring(rng, monkeypatch):
    """By any thread, and by the one that measures."""
    x = normal(rng, 4, 4)
    refused, real = [], fresh.operands_like

    def attempt():
        with pytest.raises(InputError, match="tuned while another one is"):
            gemmhub.tune(gemmhub.matmul, x, x)
        refused.append(threading.get_ident())

    def operands_like(product):
        attempt()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(attempt).result()
        return real(product)

    monkeypatch.setattr(fresh, "operands_like", operands_like)
    assert counts(gemmhub.tune(gemmhub.matmul, x, x)) == {"4x4x4": 1}
    assert len(set(refused)) == 2
    monkeypatch.setattr(fresh, "operands_like", real)
    assert counts(gemmhub.tune(gemmhub.matmul, x, x)) == {"4x4x4": 1}


def test_nothing_is_raced_meanwhile(rng, lazy):
    """So that nothing is recorded where the function raises."""
    x = normal(rng, 4, 4)
    with pytest.raises(ZeroDivisionError), gemmhub.use(tune="first"):
        gemmhub.tune(lambda: gemmhub.matmul(x, x) / 0 if not gemmhub.matmul(x, x).size else 1 // 0)
    assert not records.path().exists()


def test_a_product_that_cannot_be_tuned_is_listed(rng, monkeypatch):
    """The others are tuned."""
    x = normal(rng, 4, 4)
    real = fresh.operands_like

    def operands_like(product):
        if product.problem.m == 3:
            raise AllocationError("4 GiB")
        return real(product)

    monkeypatch.setattr(fresh, "operands_like", operands_like)
    result = gemmhub.tune(lambda: [gemmhub.matmul(x[:rows], x) for rows in (0, 3, 4)])
    assert [(bool(p.rows), p.remark, p.gain is None) for p in result.products] == [
        (False, "not tuned: the result is empty", True), (False, "not tuned: no memory", True), (True, "", False)
    ]  # fmt: skip
    assert str(result).splitlines()[3].endswith("on cpu; not tuned: the result is empty")
    only = gemmhub.tune(lambda: gemmhub.matmul(x[:3], x))
    assert (only.gain, only.seconds, only.seconds_before) == (None, 0, 0)
    assert "total     nothing was tuned" in str(only)


def test_a_product_without_a_correct_candidate(rng):
    x = normal(rng, 4, 4)
    add(Scripted("liar", run=lambda a, b, out, candidate: out.fill(7)))
    result = gemmhub.tune(gemmhub.matmul, x, x, backend="liar")
    assert result.products[0].remark.startswith("not tuned: nothing to tune: no candidate ran this product correctly")
    assert result.products[0].best == result.products[0].chosen
    with pytest.raises(NoBackendError):
        gemmhub.tune(lambda: gemmhub.matmul(x, x, reproducible="nobody.order"))


def test_a_chosen_candidate_that_is_wrong(rng):
    """The table has the reason, and no gain: the others are tuned."""
    x = normal(rng, 4, 4)
    add(Scripted("liar", candidates=("first",), run=lambda a, b, out, candidate: out.fill(7)))
    (product,) = gemmhub.tune(lambda: gemmhub.matmul(x, x)).products
    assert (product.chosen.backend, product.chosen.seconds, product.gain) == ("liar", None, None)
    assert product.remark.startswith("liar first was not timed: wrong: ")
    assert product.best.backend == "numpy"
    assert gemmhub.explain(x, x).chosen == "numpy"


def test_the_chosen_candidate_is_timed_in_full(rng, monkeypatch):
    """Though it is neither among the fastest of many, nor the first of its backend."""
    x = normal(rng, 4, 4)
    names = tuple(f"c{i}" for i in range(12))
    add(Scripted("many", candidates=names, run=taking({"c7": 2.0})))
    mine = gemmhub.explain(x, x)
    ready = gemmhub.Ready((gemmhub.Device("cpu"),), {"example": "1.0"})
    records.write(records.path(), [records.record(mine.problem, "many", "c7", 1e-9, ready)])
    gemmhub.reload()
    add(Scripted("many", candidates=names, run=taking({"c7": 2.0})))
    (product,) = gemmhub.tune(gemmhub.matmul, x, x).products
    assert (product.chosen.candidate, product.source) == ("c7", "measured")
    assert product.chosen.seconds == pytest.approx(2)
    assert product.gain == pytest.approx(2e6)


def test_a_result_prints_on_one_screen(rng, lazy):
    x = normal(rng, 6, 8)
    weights = [normal(rng, 8, n) for n in range(1, 31)]
    result = gemmhub.tune(lambda: [gemmhub.matmul(x, w) for w in weights for _ in range(2)])
    lines = str(result).splitlines()
    assert lines[0] == "function  60 calls of 30 products"
    assert lines[2].split() == ["calls", "chosen", "time", "fastest", "tuned", "gain", "product"]
    assert len(lines) == 3 + 30 + 1 + 2 + bool(result.warning)
    assert lines[3].split()[:3] == ["2", "lazy", "slow"]
    assert lines[-1] == f"recorded  {records.path()}"
    assert any(line.startswith("total     ") and " before, " in line for line in lines)
    shown = repr(result).splitlines()
    assert len(shown) <= 28
    assert max(map(len, shown)) <= 100
    assert "... and 10 more" in repr(result)
    assert "<table" in result._repr_html_()


def test_a_file_to_ship(rng, tmp_path):
    x, w = normal(rng, 6, 8), normal(rng, 8, 4)
    path = tmp_path / "model.jsonl"
    first = gemmhub.tune(gemmhub.matmul, x, w)
    first.save(path)
    assert {r.problem for r in records.read(path).all} == keys()
    second = gemmhub.tune(gemmhub.matmul, x[:2], w)
    second.save(str(path))  # merged
    assert {r.problem for r in records.read(path).all} == keys()
    assert len(keys()) == 2
    (tmp_path / "notes.txt").write_text("mine\n")
    with pytest.raises(RecordError, match="may have another purpose"):
        second.save(tmp_path / "notes.txt")


def test_a_result_without_records_is_not_saved(rng, tmp_path):
    x = normal(rng, 4, 4)
    result = gemmhub.tune(lambda: gemmhub.matmul(x[:0], x))
    with pytest.raises(RecordError, match=r"nothing was tuned\n0x4x4 .*: not tuned: the result is empty"):
        result.save(tmp_path / "model.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_block_decides(rng, tmp_path, lazy):
    """The result says so, where it has a time of the product."""
    x, path = normal(rng, 4, 4), tmp_path / "model.jsonl"
    gemmhub.tune(gemmhub.matmul, x, x).save(path)
    note = f"in this block of use(records=...) {path} decides, before these records"
    with gemmhub.use(records=path):
        result = gemmhub.tune(lambda: (gemmhub.matmul(x, x), gemmhub.matmul(x[:3], x)))
        alone, other = gemmhub.tune(x, x), gemmhub.tune(x[:2], x)
    assert result.note == f"1 of 2 products: {note}"
    assert (alone.note, other.note) == (note, "")
    for shown in (str(result), repr(result), str(alone), repr(alone)):
        assert "of use(records=...)" in " ".join(shown.split())
    assert "note" not in str(other)
    inside = gemmhub.use(records=path)(lambda: gemmhub.matmul(x, x))
    assert gemmhub.tune(inside).note == f"1 of 1 product: {note}"
    assert (gemmhub.tune(x, x).note, gemmhub.tune(gemmhub.matmul, x, x).note) == ("", "")


def test_records_that_are_off_or_cannot_be_written(rng, tmp_path, monkeypatch):
    x = normal(rng, 4, 4)
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    result = gemmhub.tune(gemmhub.matmul, x, x)
    assert result.path is None
    result.save(tmp_path / "model.jsonl")
    assert len(records.read(tmp_path / "model.jsonl").records) == 1
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "file" / "records.jsonl"))
    gemmhub.reload()
    calls = []
    with pytest.raises(RecordError, match="cannot be written"):
        gemmhub.tune(lambda: calls.append(1))
    assert not calls  # before anything ran


def test_another_threads_products_are_right_meanwhile(rng):
    """They are slower, and the same."""
    x = normal(rng, 16, 16)
    expected, stop, wrong = gemmhub.matmul(x, x), threading.Event(), []

    def work():
        while not stop.is_set():
            if not np.array_equal(gemmhub.matmul(x, x), expected):
                wrong.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            gemmhub.tune(gemmhub.matmul, x[:3], x)
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert api._cache.observer is None


def test_no_array_of_the_caller_is_kept(rng, monkeypatch):
    """While candidates are timed, which may need the memory."""
    alive = []

    def function():
        x, bias = normal(rng, 4, 4), normal(rng, 4)
        alive.extend(map(weakref.ref, (x, bias)))
        plan = gemmhub.plan(x, x, bias=bias)
        gemmhub.linear(plan(x, x, bias=bias), x, bias)

    def operands_like(product):
        gc.collect()
        assert [x() for x in alive] == [None, None]
        return made(product)

    made = fresh.operands_like
    monkeypatch.setattr(fresh, "operands_like", operands_like)
    assert all(product.rows for product in gemmhub.tune(function).products)


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, attached):
        super().__init__()
        self.attached = attached

    def isatty(self):
        return self.attached


@pytest.mark.parametrize("attached", [True, False])
def test_a_bar_of_progress_is_shown_in_a_terminal_alone(rng, monkeypatch, attached):
    monkeypatch.setattr(sys, "stderr", Stream(attached))
    monkeypatch.setenv("TERM", "xterm")
    x = normal(rng, 4, 4)
    gemmhub.tune(lambda: (gemmhub.matmul(x, x), gemmhub.matmul(x[:3], x)))
    shown = sys.stderr.getvalue()
    assert all((f"tuning {m}x4x4" in shown) is attached for m in (3, 4))
    assert bool(shown) is attached


def test_the_signature_and_the_call_without_b(rng):
    """They show both forms."""
    assert str(inspect.signature(gemmhub.tune)).startswith("(a_or_function: 'Any', /, *arguments: 'Any', **options: ")
    first = inspect.getdoc(gemmhub.tune).partition("\n")[0]
    with pytest.raises(TypeError, match="got an ndarray alone") as caught:
        gemmhub.tune(normal(rng, 2, 2))
    for text in (first, str(caught.value)):
        assert "tune(a, b, **options)" in text
        assert "tune(function, *args, **kwargs)" in text
