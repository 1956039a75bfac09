"""Products of new sizes: what is decided once for a family or a bucket, and that every size is right."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted
from products import BF16, F16, F32, F64, I8, draw, ratio, relaid

import gemmhub
from gemmhub import Refusal, api
from gemmhub._call import family
from gemmhub._choice import decide, records
from gemmhub.backend import Kernel
from gemmhub.buckets import end
from gemmhub.errors import DTypeError, OutputError, ShapeError
from plugins import add


@pytest.fixture
def decided(monkeypatch):
    """Sizes of the products that were decided."""
    found, resolve = [], decide.resolve

    def watched(problem, *rest):
        found.append((problem.m, problem.n, problem.k))
        return resolve(problem, *rest)

    monkeypatch.setattr(decide, "resolve", watched)
    gemmhub.reload()
    return found


class ByBucket(Scripted):
    """Candidates "small" and "large" by m, with kernels of any size; ``used`` has what ran."""

    by_bucket = True

    def __init__(self, name="buckets", **answers):
        super().__init__(name, candidates=self._names, **answers)
        self.used = []

    def _names(self, problem):
        return ("small", "large") if problem.m <= 100 else ("large", "small")

    def _kernel(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            self.used.append((a.shape[0], candidate))
            np.matmul(a, b, out=out)
            self._answer("run", None, a, b, out, candidate)

        return Kernel(run, candidate, any_size=True)


def ones(m, n, k, dtype=F32):
    return np.ones((m, k), dtype), np.ones((k, n), dtype)


def right(m, n, k, dtype=F32):
    a, b = ones(m, n, k, dtype)
    assert (gemmhub.matmul(a, b) == k).all()


# ---------------------------------------------------------------- how often is decided


def test_where_one_backend_can_one_decision_serves_all_sizes(decided, rng):
    for m, n, k in [(3, 4, 5), *map(tuple, rng.integers(0, 70, (200, 3))), (300, 1, 2)]:
        right(int(m), int(n), int(k))
    assert decided == [(3, 4, 5)]


def test_each_bucket_is_decided_once(decided):
    backend = ByBucket()
    add(backend)
    sizes = [*range(1, 140), *range(139, 0, -1)]
    for m in sizes:
        right(m, 4, 3)
    assert [m for m, _, _ in decided] == [m for m in range(1, 140) if m == 1 or end(m) != end(m - 1)]
    assert dict(backend.used) == {m: "small" if end(m) <= 100 else "large" for m in sizes}


def test_the_size_that_is_met_first_decides_nothing():
    """A bucket from 97 to 100 and one from 101 to 104: the candidates change between them, whatever comes first."""
    for order in ([98, 97, 100, 103, 101, 104], [104, 101, 103, 100, 97, 98]):
        gemmhub.reload()
        backend = ByBucket()
        add(backend)
        for m in order:
            right(m, 4, 3)
            assert gemmhub.explain(*ones(m, 4, 3))["buckets"].candidate == ("small" if m <= 100 else "large")
        assert backend.used == [(m, "small" if m <= 100 else "large") for m in order]


def test_a_backend_that_promises_nothing_is_asked_for_every_size(decided):
    add(Scripted("exact", refusal=lambda x: Refusal("m is odd", "pad m") if x.m % 2 else None))
    for m in range(40, 60):
        right(m, 4, 3)
        assert gemmhub.explain(*ones(m, 4, 3)).chosen == ("numpy" if m % 2 else "exact")
    assert len(decided) == 20


def test_a_size_that_the_candidate_refuses_is_decided_by_itself():
    class Picky(ByBucket):
        def prepare(self, problem, candidate, workspace_limit):
            if problem.m % 2:
                raise ValueError("m is odd")
            made = super().prepare(problem, candidate, workspace_limit)
            return Kernel(made.run, made.description)

    backend = Picky()
    add(backend)
    for m in (49, 50, 49, 50, 65, 66, 67, 68):
        right(m, 4, 3)
    assert {m for m, _ in backend.used} == {50, 66, 68}


def test_a_forced_backend_with_candidates_is_ranked_by_bucket():
    backend = ByBucket()
    add(backend)
    for m in (10, 200, 11, 201):
        gemmhub.matmul(*ones(m, 4, 3), backend="buckets")
    assert backend.used == [(10, "small"), (200, "large"), (11, "small"), (201, "large")]


def test_a_measured_size_has_its_own_winner():
    backend = ByBucket()
    add(backend)
    for m in (50, 51):
        right(m, 4, 3)
    backend.answers["run"] = lambda *given: time.sleep(1e-3)
    gemmhub.tune(*ones(49, 4, 3))
    assert (49, 4, 3) in records.sizes()
    backend.used.clear()
    measured = gemmhub.explain(*ones(49, 4, 3))
    assert (measured.chosen, measured.why, measured.ranked_at) == ("numpy", "fastest measured", "")
    for m in (50, 49, 50):
        right(m, 4, 3)
    assert backend.used == [(50, "small"), (50, "small")]
    assert gemmhub.explain(*ones(50, 4, 3)).why == "smallest estimate"


def test_a_plan_is_ranked_by_its_own_size():
    add(ByBucket())
    a, b = ones(1001, 4, 3)
    assert gemmhub.explain(a, b).ranked_at == "1024 x 4 x 3"
    assert "ranked   at 1024 x 4 x 3, the end of the bucket" in str(gemmhub.explain(a, b))
    gemmhub.matmul(a, b)
    assert gemmhub.plan(a, b).decision.ranked_at == ""
    assert gemmhub.plan(a, b, reproducible="run").decision.ranked_at == "1024 x 4 x 3"
    assert gemmhub.explain(*ones(1024, 4, 3)).ranked_at == ""


def test_many_sizes_evict_no_family(decided, monkeypatch):
    add(ByBucket())
    for m in range(1, 30_000):
        right(m % 5000 + 1, 1, 1)
    buckets = {end(m) for m in range(1, 5001)}
    assert len(decided) == len(buckets)
    assert len(api._cache) <= 12_288


# ---------------------------------------------------------------- and every size is right


def sizes_beside_edges(rng, count):
    """Sizes at and beside the ends of buckets, and others."""
    ends = [0, 1, 2, 3, 31, 32, 33, 34, 35, 63, 64, 65, 68, 69]
    return [tuple(int(rng.choice(ends)) if rng.random() < 0.6 else int(rng.integers(1, 80)) for _ in range(3))
            for _ in range(count)]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64, I8, F16, BF16], ids=str)
def test_new_sizes_in_any_layout(rng, dtype):
    for i, (m, n, k) in enumerate(sizes_beside_edges(rng, 60)):
        a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
        if i % 3 == 1:
            a, b = relaid(rng, a)[0], relaid(rng, b)[0]
        out = np.full((m, n), 99, np.int32 if dtype == I8 else dtype) if i % 4 == 2 else None
        got = gemmhub.matmul(a, b) if out is None else gemmhub.matmul(a, b, out=out)
        assert ratio(got, a, b) <= 1, (m, n, k)
        assert out is None or got is out


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_new_sizes_with_options(rng, dtype):
    for i, (m, n, k) in enumerate(sizes_beside_edges(rng, 80)):
        a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
        given = {}
        if i % 2:
            shapes = [(n,), (1, n), (m, 1)]
            given["bias"] = draw(rng, shapes[i % 3], dtype)
        if i % 5 in (1, 2):
            given |= {"c": draw(rng, (m, n) if i % 7 else (1, n), dtype), "beta": float(rng.choice([1, 0.5, -2]))}
        if i % 4 == 3:
            given["alpha"] = float(rng.choice([0, 1, 2, 0.3]))
        if i % 3 == 0:
            given["activation"] = str(rng.choice(["relu", "gelu"]))
        got = gemmhub.matmul(a, b, **given)
        bias = given.get("bias")
        if bias is not None:
            bias = bias[:, 0] if bias.shape == (m, 1) and bias.shape != (1, n) else bias.reshape(-1)
            along_m = given["bias"].shape == (m, 1) and given["bias"].shape != (1, n)
            given = {**given, "bias": bias[:, np.newaxis] if along_m else bias}
        assert ratio(got, a, b, out_dtype=dtype, **given) <= 1, (m, n, k, [*given])


def test_large_and_small_results_of_one_family(rng):
    """An epilogue of a large result is computed in blocks, of a small one by ufuncs."""
    for m in (3, 700, 4, 900, 5):
        a, b, bias = (draw(rng, shape, F32) for shape in ((m, 33), (33, 300), (300,)))
        assert ratio(gemmhub.matmul(a, b, bias=bias, activation="relu"), a, b, bias=bias, activation="relu") <= 1


def test_batches_and_vectors_of_new_sizes(rng):
    for shapes in (
        [((k,), (k,)) for k in (3, 5, 40, 33, 0)], [((m, 4), (4,)) for m in (3, 7, 90)],
        [((4,), (4, n)) for n in (3, 7, 90)], [((x, m, 4), (4, 5)) for x, m in ((2, 3), (3, 3), (9, 40), (40, 900))],
        [((x, 3, 4), (x, 4, 5)) for x in (1, 2, 7, 60)], [((x, y, 3, 4), (4, 5)) for x, y in ((2, 3), (3, 2), (0, 4))],
        [((x, 3, 4), (1, 4, 5)) for x in (2, 3)], [((3, 4), (x, 4, 5)) for x in (2, 3)],
    ):  # fmt: skip
        for dtype in (F32, F16, I8):
            for left, right_ in shapes:
                a, b = draw(rng, left, dtype), draw(rng, right_, dtype)
                got = gemmhub.matmul(a, b)
                assert isinstance(got, np.ndarray) is isinstance(np.matmul(a, b), np.ndarray)
                assert ratio(np.asarray(got), a, b) <= 1, (left, right_, dtype)
                out = np.zeros_like(np.asarray(got))
                if out.ndim:
                    assert ratio(gemmhub.matmul(a, b, out=out), a, b) <= 1


def test_an_out_that_overlaps_an_operand_of_a_new_size(rng):
    for dtype in (F32, F16):
        for m in (5, 6, 33, 40):
            a, b = draw(rng, (m, m), dtype), draw(rng, (m, m), dtype)
            copy = a.copy()
            assert ratio(gemmhub.matmul(a, b, out=a), copy, b) <= 1


def test_what_does_not_fit_is_refused_and_nothing_is_written():
    right(3, 4, 5)
    out = np.full((6, 4), 7, F32)
    with pytest.raises(ShapeError, match="inner dimensions 5 and 4 differ"):
        gemmhub.matmul(np.ones((6, 5), F32), np.ones((4, 4), F32), out=out)
    with pytest.raises(OutputError, match="shape"):
        gemmhub.matmul(*ones(5, 4, 3), out=out)
    bias = np.ones(4, F32)
    gemmhub.matmul(*ones(6, 4, 3), bias=bias)
    with pytest.raises(ShapeError, match="bias"):
        gemmhub.matmul(*ones(6, 5, 3), bias=bias)
    with pytest.raises(DTypeError, match="dtype >f4 is not supported"):
        gemmhub.matmul(*ones(6, 4, 2, np.dtype(">f4")))
    shared = np.lib.stride_tricks.as_strided(out, (5, 4), (0, 4))
    gemmhub.matmul(*ones(6, 4, 3), out=np.empty((6, 4), F32))
    with pytest.raises(OutputError, match="share"):
        gemmhub.matmul(*ones(5, 4, 3), out=shared)
    out.flags.writeable = False
    with pytest.raises(OutputError, match="read-only"):
        gemmhub.matmul(*ones(6, 4, 3), out=out)
    assert (out == 7).all()


def test_equal_dtypes_keep_scalars_of_their_own():
    for m in (2, 3, 4):
        for kind in (np.int64, np.longlong, np.intp):
            a = np.ones((m, m), kind)
            assert gemmhub.matmul(a, a).dtype.char == np.matmul(a, a).dtype.char


def test_threads_meet_new_sizes(rng):
    add(ByBucket())
    errors = []

    def work(seed):
        mine = np.random.default_rng(seed)
        try:
            for m, n, k in mine.integers(1, 150, (300, 3)):
                right(int(m), int(n), int(k), F32)
                right(int(m) % 9 + 1, int(n) % 9 + 1, int(k), ml_dtypes.bfloat16)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in rng.integers(0, 2**32, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_settings_and_reload_forget_families(decided):
    right(3, 4, 5)
    with gemmhub.use(backend="numpy"):
        right(4, 4, 5)
        right(5, 4, 5)
    gemmhub.reload()
    right(6, 4, 5)
    assert [m for m, _, _ in decided] == [3, 4, 6]
    add(ByBucket())
    gemmhub.reload()
    with gemmhub.use(tune="first"):
        right(7, 4, 5)
        right(8, 4, 5)
    assert [m for m, _, _ in decided][3:] == [7, 8]


def test_the_table_of_families_is_bounded(monkeypatch):
    monkeypatch.setattr(family, "_MAX_ENTRIES", 50)
    gemmhub.reload()
    add(ByBucket())
    for m in range(1, 400):
        right(m, 1, 1)
    assert len(api._cache.families._runs) <= 50


class RefusesOne(ByBucket):
    """It does not prepare the bucket's best candidate for 97 rows; kernels are of one size, as on devices."""

    def __init__(self):
        super().__init__("refuses", prepare=self._prepare)

    def _prepare(self, problem, candidate, limit):
        if problem.m == 97 and candidate == "small":
            return gemmhub.Refusal("small needs more memory for 97 rows", "raise the setting workspace_mib")
        return replace(self._kernel(problem, candidate, limit), any_size=False)


@pytest.mark.parametrize("first", [97, 98, 99, 100])
def test_a_refused_size_changes_no_other_of_its_bucket(first):
    backend = RefusesOne()
    add(backend)
    for m in (first, 97, 98, 99, 100):
        gemmhub.matmul(*ones(m, 5, 6))
    assert {candidate for m, candidate in backend.used if m != 97} == {"small"}
    assert {candidate for m, candidate in backend.used if m == 97} == {"large"}


def test_a_decision_states_the_candidate_that_runs_and_why():
    add(RefusesOne())
    found = gemmhub.plan(*ones(97, 5, 6), reproducible="run").decision["refuses"]
    assert found.candidate == "large"
    assert found.remark == "small is refused: small needs more memory for 97 rows; large runs"
