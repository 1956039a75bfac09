"""tune() with many candidates: a first look selects those that are checked, timed in full and recorded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub._base.timing import Timing
from gemmhub._choice import records
from gemmhub._measure import tune
from plugins import add

SCREENED, NEAR = 8, 1.15
REMARK = "not among the fastest at a first look: neither checked nor recorded"


@pytest.fixture
def operands(rng):
    return rng.standard_normal((6, 8), np.float32), rng.standard_normal((8, 4), np.float32)


class Looks:
    """A replacement of timing.interleave: runs each call once, and returns the scripted seconds.

    ``looks`` has what each interleaving timed: {(backend, candidate): seconds}, in order.
    """

    def __init__(self, monkeypatch):
        self.seconds, self.looks, self.given = {}, [], []
        self._ran = None
        monkeypatch.setattr(tune, "interleave", self._interleave)

    def backend(self, name, seconds, wrong=(), **answers):
        """A backend whose candidates take so long, each (first look, in full) or both; ``wrong`` ones are so."""
        self.seconds |= {(name, candidate): given for candidate, given in seconds.items()}
        runs = Counter()

        def run(a, b, out, candidate):
            self._ran = name, candidate
            runs[candidate] += 1
            if candidate in wrong:
                out.fill(3)

        backend = Scripted(name, candidates=tuple(seconds), run=run, **answers)
        backend.runs = runs
        add(backend)
        return backend

    def _interleave(self, calls, **given):
        found = {}
        for call in calls:
            self._ran = "numpy", "default"
            call()
            found[self._ran] = self._time(self._ran)
        assert len(found) == len(calls)
        self.looks.append(list(found))
        self.given.append(given)
        # The screening goes by the minimum, records by the median.
        return [Timing(2 * x, x, 3 * x, (x, 2 * x, 3 * x)) for x in found.values()]

    def _time(self, who):
        seconds = self.seconds.get(who, 1.0)
        return seconds[min(len(self.looks), 1)] if isinstance(seconds, tuple) else seconds


@pytest.fixture
def looks(monkeypatch):
    return Looks(monkeypatch)


@pytest.fixture
def checked(monkeypatch):
    """How many samples of each result that was checked tune() asked for; None for all of it."""
    seen, check = [], tune.check_result

    def spy(call, asked, result, **given):
        seen.append(given["samples"])
        return check(call, asked, result, **given)

    monkeypatch.setattr(tune, "check_result", spy)
    return seen


def candidates(count, start=1.0, step=0.01):
    """c0, c1, ...: each a little slower than the one before."""
    return {f"c{i}": start + step * i for i in range(count)}


def recorded(result):
    return {(r.backend, r.candidate) for r in records.read(result.path).records.values()}


def named(*numbers, backend="many"):
    return {(backend, f"c{i}") for i in numbers}


NUMPY = {("numpy", "default")}


@pytest.mark.parametrize("count", [1, 4, SCREENED - 1])
def test_few_candidates_are_all_timed(operands, looks, checked, count):
    """Up to eight in all, numpy's among them, however slow they are."""
    looks.backend("many", candidates(count, step=5.0))
    result = gemmhub.tune(*operands)
    assert len(looks.looks) == 1
    assert len(checked) == count + 1
    assert recorded(result) == named(*range(count)) | NUMPY
    assert all(row.seconds > 0 for row in result.rows)


def test_of_many_only_the_fastest_are_timed(operands, looks, checked):
    looks.backend("many", candidates(20))
    result = gemmhub.tune(*operands)
    first, second = looks.looks
    assert set(first) == named(*range(20)) | NUMPY
    # numpy takes 1.0, as does c0.
    assert set(second) == named(*range(7)) | NUMPY
    assert len(second) == SCREENED
    assert len(checked) == SCREENED
    assert recorded(result) == set(second)
    assert [row.candidate for row in result.rows if row.backend == "many"] == [f"c{i}" for i in range(20)]
    assert result.best.candidate in ("c0", "default")


def test_the_first_look_is_short(operands, looks):
    looks.backend("many", candidates(20))
    gemmhub.tune(*operands)
    short, full = looks.given
    assert short["rounds"] * short["min_time"] < 1e-3
    assert full.keys() == {"clock"}
    assert short["clock"] is full["clock"]


@pytest.mark.parametrize(("factor", "kept"), [(1.149, True), (1.16, False)])
def test_only_what_is_near_the_fastest_is_timed(operands, looks, factor, kept):
    looks.backend("many", {**{f"c{i}": 1.0 for i in range(3)}, "c3": factor, **{f"c{i}": 9.0 for i in range(4, 12)}})
    result = gemmhub.tune(*operands)
    assert set(looks.looks[1]) == named(0, 1, 2) | NUMPY | (named(3) if kept else set())
    assert (("many", "c3") in recorded(result)) is kept


def test_rows_list_omitted_candidates(operands, looks):
    looks.backend("many", {**candidates(20), "c19": 1.0})
    result = gemmhub.tune(*operands)
    rows = {row.candidate: row for row in result.rows if row.backend == "many"}
    assert len(result.rows) == 21
    for i in range(6, 19):
        assert rows[f"c{i}"].seconds is None
        assert rows[f"c{i}"].remark == f"{1e3 * (1 + 0.01 * i):.4g} ms, {REMARK}"
    timed = [row for row in result.rows if row.seconds is not None]
    assert list(result.rows[: len(timed)]) == timed, "fastest first, then those without a time"
    assert all(not row.remark for row in timed)
    (line,) = (x for x in str(result).splitlines() if x.split()[:2] == ["many", "c18"])
    assert line.endswith(f"  1180 ms, {REMARK}")


def test_the_full_timing_decides(operands, looks):
    """A first look may be wrong about the order of the fastest."""
    looks.backend("many", {**candidates(20, step=0.02), "c3": (1.06, 0.5)})
    result = gemmhub.tune(*operands)
    assert (result.best.candidate, result.best.seconds) == ("c3", 1.0)  # the median of the double
    found = gemmhub.explain(*operands)
    assert (found.chosen, found["many"].candidate, found["many"].source) == ("many", "c3", "measured")


def test_the_first_candidate_of_each_backend_is_kept(operands, looks, checked):
    """An untuned call gets it: records must have its time."""
    looks.backend("many", {"slow": 50.0, **candidates(12, step=0.0)})
    looks.backend("other", {"slower": 80.0, "slowest": 90.0})
    result = gemmhub.tune(*operands)
    kept = {("many", "slow"), ("other", "slower")} | NUMPY
    assert recorded(result) >= kept
    assert ("other", "slowest") not in recorded(result)
    assert {(row.backend, row.candidate) for row in result.rows if row.seconds is None} == {("other", "slowest")}
    assert gemmhub.explain(*operands)["many"].candidate in {f"c{i}" for i in range(12)}
    assert len(checked) == len(recorded(result)) == 15, "equals are not told apart"


def test_the_first_that_runs_is_kept(operands, looks):
    """Where the first cannot be prepared, or fails, an untuned call gets the next."""

    def prepare(problem, candidate, limit):
        if candidate == "refused":
            return gemmhub.Refusal("n is not a multiple of 64", "pad it")
        return backend._kernel(problem, candidate, limit)

    backend = looks.backend("many", {"refused": 1.0, "second": 70.0, **candidates(12)}, prepare=prepare)
    result = gemmhub.tune(*operands)
    rows = {row.candidate: row for row in result.rows}
    assert rows["refused"].remark == "n is not a multiple of 64"
    assert rows["second"].seconds == 140.0
    assert ("many", "second") in recorded(result)


def test_what_does_not_run_does_not_count(operands, looks):
    """Eight that run are not screened, though more were tried."""

    def prepare(problem, candidate, limit):
        if int(candidate[1:]) >= 7:
            raise OSError("no compiler")
        return backend._kernel(problem, candidate, limit)

    backend = looks.backend("many", candidates(20, step=9.0), prepare=prepare)
    result = gemmhub.tune(*operands)
    assert len(looks.looks) == 1
    assert recorded(result) == named(*range(7)) | NUMPY


def test_a_wrong_finalist_is_left_out(operands, looks, checked):
    """It was among the fastest, and is not recorded; the next fastest takes its place."""
    looks.backend("many", candidates(20), wrong={"c2"})
    result = gemmhub.tune(*operands)
    (row,) = [row for row in result.rows if row.candidate == "c2"]
    assert row.seconds is None
    assert row.remark.startswith("wrong: ")
    assert set(looks.looks[1]) == named(0, 1, 3, 4, 5, 6, 7) | NUMPY
    assert recorded(result) == set(looks.looks[1])
    assert len(result.rows) == 21
    assert len(checked) == SCREENED + 1


def test_a_wrong_first_candidate_is_left_out(operands, looks):
    looks.backend("many", candidates(20), wrong={"c0"})
    result = gemmhub.tune(*operands)
    assert recorded(result) == named(*range(1, 8)) | NUMPY
    assert gemmhub.explain(*operands)["many"].candidate == "c1"


def test_what_was_left_out_is_not_checked(operands, looks, checked):
    """It runs once, and is timed at a first look; its result is not checked."""
    backend = looks.backend("many", candidates(20), wrong={f"c{i}" for i in range(10, 20)})
    result = gemmhub.tune(*operands)
    assert len(checked) == SCREENED
    rows = {row.candidate: row.remark for row in result.rows if row.seconds is None}
    assert all(rows[f"c{i}"].endswith(REMARK) for i in range(7, 20))
    assert {backend.runs[f"c{i}"] for i in range(7, 20)} == {2}
    # Once to start, once at each look, once to be checked.
    assert {backend.runs[f"c{i}"] for i in range(7)} == {4}


def test_screened_candidates_see_rotating_operands(operands, looks):
    """Those of a first look, too: none is found in the cache."""
    seen = set()

    def prepare(problem, candidate, limit):
        kernel = backend._kernel(problem, candidate, limit)

        def run(a, b, *rest, **operands):
            seen.add(a.ctypes.data)
            return kernel.run(a, b, *rest, **operands)

        return gemmhub.Kernel(run, "notes addresses")

    backend = looks.backend("many", candidates(20), prepare=prepare)
    gemmhub.tune(*operands)
    assert len(seen) > 1


def test_a_forced_backend_is_screened_alone(operands, looks):
    looks.backend("many", candidates(20, start=5.0))
    result = gemmhub.tune(*operands, backend="many")
    assert {row.backend for row in result.rows} == {"many"}
    assert recorded(result) == named(*range(SCREENED))


def test_records_name_only_finalists_of_this_tuning(operands, looks):
    """Records of an earlier tuning stay, as those of other candidates do."""
    looks.backend("many", candidates(20))
    first = gemmhub.tune(*operands)
    looks.seconds |= {("many", f"c{i}"): 0.5 for i in range(15, 20)}
    looks.looks.clear()
    second = gemmhub.tune(*operands)
    assert set(looks.looks[1]) == named(0, *range(15, 20)) | NUMPY
    assert {(r.backend, r.candidate) for r in second.rows if r.seconds} == set(looks.looks[1])
    assert recorded(second) == recorded(first) | set(looks.looks[1])
    assert gemmhub.explain(*operands)["many"].candidate in {f"c{i}" for i in range(15, 20)}


# How results are checked


def test_large_results_are_sampled_after_the_first(operands, looks, checked, monkeypatch):
    """One of each backend is checked in full."""
    monkeypatch.setattr(tune, "_LARGE", 23)  # the result has 24 elements
    looks.backend("many", candidates(4))
    looks.backend("more", candidates(2))
    gemmhub.tune(*operands)
    assert len(checked) == 7
    assert checked.count(None) == 3
    assert set(checked) == {None, tune._SAMPLES}


def test_results_of_large_operands_are_sampled_after_the_first(operands, looks, checked, monkeypatch):
    """a is 6 x 8. A full check of a result reads all of it."""
    monkeypatch.setattr(tune, "_LARGE_OPERAND", 47)
    looks.backend("many", candidates(4))
    gemmhub.tune(*operands)
    assert checked.count(None) == 2
    assert checked.count(tune._SAMPLES) == 3
    checked.clear()
    monkeypatch.setattr(tune, "_LARGE_OPERAND", 48)
    gemmhub.tune(*operands)
    assert set(checked) == {None}


def test_small_results_are_checked_in_full(operands, looks, checked, monkeypatch):
    monkeypatch.setattr(tune, "_LARGE", 24)
    looks.backend("many", candidates(4))
    gemmhub.tune(*operands)
    assert checked == [None] * 5


def test_a_batch_counts_as_one_result(rng, looks, checked, monkeypatch):
    monkeypatch.setattr(tune, "_LARGE", 5 * 24 - 1)
    looks.backend("many", candidates(3))
    gemmhub.tune(rng.standard_normal((5, 6, 8), np.float32), rng.standard_normal((8, 4), np.float32))
    assert checked.count(None) == 2
    assert checked.count(tune._SAMPLES) == 2


def test_a_wrong_candidate_is_found_by_samples(rng, looks, monkeypatch):
    """All of a real large result is wrong, and a thousand elements of it show that."""
    looks.backend("many", candidates(3), wrong={"c1"})
    a, b = rng.standard_normal((1100, 3), np.float32), rng.standard_normal((3, 1000), np.float32)
    assert tune._LARGE < 1100 * 1000
    result = gemmhub.tune(a, b)
    assert {row.candidate: row.seconds is None for row in result.rows if row.backend == "many"} == {
        "c0": False, "c1": True, "c2": False,
    }  # fmt: skip


def test_the_constants_of_these_tests():
    assert (tune._SCREENED, tune._NEAR) == (SCREENED, NEAR)


def test_a_quick_wrong_candidate_does_not_hide_the_right_ones(operands, looks):
    slow = {f"c{i}": 4.0 - 0.3 * i for i in range(10)}
    looks.backend("many", {**slow, "fast": 0.1}, wrong={"fast"})
    result = gemmhub.tune(*operands, backend="many")
    assert result.best.candidate == "c9"
