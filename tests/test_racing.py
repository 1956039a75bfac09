"""Racing: the first call of a kind times the best candidates, once, and writes to nothing of the caller's."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Kernel
from gemmhub._choice import answers, decide, records
from gemmhub._measure import race
from plugins import add


@pytest.fixture
def operands(rng):
    return rng.standard_normal((6, 8), np.float32), rng.standard_normal((8, 4), np.float32)


def scripted(*args, **answers):
    backend = Scripted(*args, **answers)
    add(backend)
    return backend


def sleeping(name, times, estimate, **answers):
    """A backend whose candidates take so many seconds; the estimate is that of the first."""

    def run(a, b, out, candidate):
        time.sleep(times[candidate])

    return scripted(name, candidates=tuple(times), run=run, seconds=estimate, **answers)


def test_the_fastest_of_all_backends_wins_and_is_recorded(operands):
    sleeping("optimist", {"only": 3e-3}, 1e-7)
    sleeping("honest", {"slow": 2e-3, "quick": 1e-4}, 2e-7)
    with gemmhub.use(tune="first"):
        before = gemmhub.explain(*operands)
        assert before.chosen == "optimist"
        assert before.race == "3 candidates of optimist, honest, 50 ms and one launch at most, at the first call"
        result = gemmhub.matmul(*operands)
        assert gemmhub.spot_check(*operands, result)
        plan = gemmhub.plan(*operands)
    kept = {(r.backend, r.candidate) for r in records.read(records.path()).records.values()}
    assert {("optimist", "only"), ("honest", "slow"), ("honest", "quick")} <= kept
    found = gemmhub.explain(*operands)  # without the setting, too: a record is a record
    assert found.chosen in ("honest", "numpy")
    assert found["honest"].candidate == "quick"
    assert found.why == "fastest measured"
    assert "recorded" in plan.decision.race


def test_never_twice(operands):
    slow = scripted("slow", candidates=("one", "two"), seconds=1e-7)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
        raced = slow.calls["run"]
        assert raced > 2
        gemmhub.matmul(*operands, alpha=1)
        gemmhub.plan(*operands)
        assert gemmhub.explain(*operands).race == "none: a record of this problem exists"
    assert slow.calls["run"] <= raced + 1


def test_without_a_record_file_it_counts_in_this_process(operands, monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    sleeping("two", {"slow": 2e-3, "quick": 0.0}, 1e-9)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert gemmhub.explain(*operands)["two"].candidate == "quick"


def test_an_unwritable_record_file_is_no_reason_to_fail(operands, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "folder" / "r.jsonl"))
    gemmhub.reload()
    sleeping("two", {"slow": 2e-3, "quick": 0.0}, 1e-9)

    def full(*given):
        raise gemmhub.RecordError("no room")

    monkeypatch.setattr(records, "write", full)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert gemmhub.explain(*operands)["two"].candidate == "quick"
    assert "not recorded: no room" in caplog.text


def test_out_is_written_once_and_operands_never(operands):
    a, b = (x.copy() for x in operands)
    a.flags.writeable = b.flags.writeable = False
    out = np.full((6, 4), np.nan, np.float32)
    seen = []

    def run(left, right, target, candidate):
        seen.append(np.shares_memory(target, out))

    scripted("two", candidates=("one", "two"), run=run, seconds=1e-9)
    with gemmhub.use(tune="first", backend="two"):
        gemmhub.matmul(a, b, out=out)
    assert len(seen) > 2
    assert seen.count(True) == 1
    assert seen[-1] is True


def test_c_in_place_is_added_once(operands, rng):
    out = rng.standard_normal((6, 4)).astype(np.float32)
    before = out.copy()

    def run(a, b, target, alpha, beta, stream, c=None, bias=None):
        np.add(a @ b, beta * c, out=target)

    prepare = {"prepare": lambda problem, candidate, limit: Kernel(run, candidate), "refusal": None}
    two = scripted("two", candidates=("one", "two"), seconds=1e-9, **prepare)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands, out=out, c=out, beta=1)
    assert two.calls["prepare"] > 2
    np.testing.assert_allclose(out, operands[0] @ operands[1] + before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "estimate", "reason"),
    [
        ({"reproducible": "run"}, 1e-9, "equal bits from run to run are asked for"),
        ({}, 0.03, "one launch takes 30 ms by estimate, more than half of 50 ms"),
    ],
)
def test_what_is_not_raced(operands, settings, estimate, reason):
    backend = scripted("two", candidates=("one", "two"), seconds=estimate)
    with gemmhub.use(tune="first", backend="two", **settings):
        assert gemmhub.explain(*operands).race == f"none: {reason}"
        gemmhub.matmul(*operands)
    assert backend.calls["run"] == 1
    assert not records.path().exists()


def test_ranks_of_a_process_group_choose_alike(operands, monkeypatch):
    backend = scripted("two", candidates=("one", "two"), seconds=1e-9)
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    with gemmhub.use(tune="first"):
        assert "several ranks" in gemmhub.explain(*operands).race
        gemmhub.matmul(*operands)
    assert backend.calls["run"] == 1


def test_off_by_default(operands, monkeypatch):
    backend = scripted("two", candidates=("one", "two"), seconds=1e-9)
    resolve, found = decide.resolve, []
    monkeypatch.setattr(decide, "resolve", lambda *given: found.append(resolve(*given)) or found[-1])
    assert gemmhub.plan(*operands).decision is found[0].decision  # no copy of it
    gemmhub.matmul(*operands)
    assert backend.calls["run"] == 1
    assert gemmhub.explain(*operands).race == ""
    assert "race:" not in str(gemmhub.explain(*operands))


def test_no_scratch_memory(operands, monkeypatch):
    backend = scripted("two", candidates=("one", "two"), seconds=1e-9)
    real, calls = np.empty, []

    def empty(shape, *rest):
        if shape == (6, 4):
            calls.append(shape)
            if len(calls) == 1:
                raise MemoryError
        return real(shape, *rest)

    monkeypatch.setattr("gemmhub._arrays.host.operands.np.empty", empty)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert backend.calls["run"] == 1


def test_the_budget_is_kept(operands):
    """Estimates that are too small do not make the race long."""
    sleeping("liar", {"one": 0.04, "two": 0.04, "three": 0.04}, 1e-9)
    with gemmhub.use(tune="first", backend="liar"):
        begin = time.perf_counter()
        gemmhub.matmul(*operands)
        spent = time.perf_counter() - begin
    assert spent < 0.25  # two launches of one candidate, and the call itself


def test_a_launch_that_takes_the_whole_budget_is_the_last(operands):
    """Whatever its estimate was. Its time is known then; the others are chosen by their estimates."""
    slow = sleeping("slow", {"one": 2 * race.BUDGET, "two": 0.0}, 1e-12)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert slow.calls["run"] == 1
    (kept,) = records.read(records.path()).records.values()
    assert (kept.backend, kept.candidate) == ("slow", "one")
    assert kept.seconds >= 2 * race.BUDGET
    found = gemmhub.explain(*operands)
    assert (found.chosen, found["numpy"].remark) == ("numpy", "BLAS; not measured: tune again")


def test_a_first_launch_longer_than_the_rest_is_not_repeated(operands, monkeypatch):
    monkeypatch.setattr(race, "BUDGET", 0.5)  # so that a busy machine does not spend it
    slow = sleeping("slow", {"one": 0.7 * race.BUDGET}, 1e-9)
    quick = sleeping("quick", {"one": 0.0, "two": 0.0}, 2e-9)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert slow.calls["run"] == 1
    assert quick.calls["run"] > 2
    assert {r.backend for r in records.read(records.path()).records.values()} >= {"slow", "quick"}


def test_a_first_launch_is_no_sample_where_there_are_others(operands, monkeypatch):
    """It may load code and start threads."""
    monkeypatch.setattr(race, "BUDGET", 0.5)
    monkeypatch.setattr(race, "_ROUNDS", 1)
    launches = []

    def run(a, b, out, candidate):
        time.sleep(0.0 if launches else 0.2 * race.BUDGET)
        launches.append(candidate)

    scripted("loading", candidates=("one", "two"), run=run, seconds=1e-9)
    with gemmhub.use(tune="first", backend="loading"):
        gemmhub.matmul(*operands)
    assert all(r.seconds < 0.08 * race.BUDGET for r in records.read(records.path()).records.values())


def test_a_newcomer_is_raced_against_the_fastest_record(operands):
    """Where its estimate is far below it: it was not installed when the others were measured."""
    old = sleeping("old", {"one": 4e-3, "two": 5e-3}, 1e-7)
    gemmhub.tune(*operands, backend="old")
    gemmhub.tune(*operands, backend="numpy")
    old.calls.clear()
    new = sleeping("new", {"only": 1e-3}, 1e-12)
    late = sleeping("late", {"only": 1e-3}, 1.0)
    with gemmhub.use(tune="first"):
        assert gemmhub.explain(*operands).race.startswith("2 candidates of new, numpy, ")
        gemmhub.matmul(*operands)
        assert gemmhub.explain(*operands).race == "none: a record of this problem exists"
    assert new.calls["run"] > 1
    assert old.calls["run"] == late.calls["run"] == 0
    found = gemmhub.explain(*operands)
    assert (found.chosen, found["new"].source) == ("numpy", "measured")


def test_a_newcomer_of_one_candidate_is_raced_where_the_record_is_too_slow_to_repeat(operands):
    add(Scripted("old"))
    problem = gemmhub.explain(*operands).problem
    records.put(records.record(problem, name, "default", 1.0, x.ready) for name, x in able(operands))
    new = sleeping("new", {"only": 1e-3}, 1e-12)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert new.calls["run"] > 2
    assert gemmhub.explain(*operands)["new"].source == "measured"


def able(operands):
    """Each backend that can multiply ``operands``, by name."""
    return [(x.entry.name, x) for x in answers.eligible_backends(gemmhub.explain(*operands).problem)]


def test_what_fails_in_a_race_is_not_chosen_by_its_estimate(operands):
    """Not in this process, and not in the next one."""
    broken = scripted("broken", candidates=("one", "two"), run=RuntimeError("illegal address"), seconds=1e-12)
    with gemmhub.use(tune="first"):
        for _ in range(2):
            assert gemmhub.spot_check(*operands, gemmhub.matmul(*operands))
            found = gemmhub.explain(*operands)
            assert found.chosen == "numpy"
            assert "one failed when it was measured: " in found["broken"].remark
            gemmhub.reload()
            add(broken)
    assert broken.calls["run"] == 2
    assert not {r.backend for r in records.read(records.path()).records.values()} & {"broken"}
    with pytest.raises(gemmhub.KernelError, match="illegal address"):
        gemmhub.matmul(*operands, backend="broken")


def test_a_lack_of_memory_in_a_race_is_no_failure(operands):
    scripted("short", candidates=("one", "two"), run=MemoryError("scratch"), seconds=1e-12)
    with gemmhub.use(tune="first"), pytest.raises(gemmhub.AllocationError):
        gemmhub.matmul(*operands)
    assert records.read(records.path()).failures == {}


def test_a_candidate_that_fails_is_left_out(operands):
    def run(a, b, out, candidate):
        if candidate == "bad":
            raise RuntimeError("illegal address")

    scripted("mixed", candidates=("bad", "good"), run=run, seconds=1e-9)
    with gemmhub.use(tune="first", backend="mixed"):
        result = gemmhub.matmul(*operands)
    assert gemmhub.spot_check(*operands, result)
    assert {r.candidate for r in records.read(records.path()).records.values()} == {"good"}


def test_a_call_from_within_a_race_is_not_raced(operands):
    inner = []

    def run(a, b, out, candidate):
        if len(inner) < 1:
            inner.append(gemmhub.plan(operands[0][:3], operands[1]).decision.race)

    scripted("nested", candidates=("one", "two"), run=run, seconds=1e-9)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert inner == ["none: a call from within a race"]


def test_threads_race_one_after_the_other(rng):
    active, most = [0], [0]
    lock = threading.Lock()

    def run(a, b, out, candidate):
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        time.sleep(1e-3)
        with lock:
            active[0] -= 1

    scripted("counted", candidates=("one", "two"), run=run, seconds=1e-9)
    racers = []

    def work(n):
        a = np.ones((n, n), np.float32)
        with gemmhub.use(tune="first"):
            racers.append(gemmhub.plan(a, a).decision.race)

    threads = [threading.Thread(target=work, args=(n,)) for n in (5, 6, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert all("recorded" in x for x in racers)


@pytest.mark.parametrize("value", ["always", True, 1])
def test_other_values_are_refused(value):
    with pytest.raises(gemmhub.ConfigError, match="tune"):
        gemmhub.use(tune=value)


def test_an_estimate_that_is_far_too_low_excludes_no_backend(operands):
    """The estimate excludes numpy, which is faster than the measured candidates."""
    sleeping("liar", {"one": 4e-3, "two": 4e-3}, 1e-12)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*operands)
    assert gemmhub.explain(*operands).chosen == "numpy"
    assert "numpy" in {r.backend for r in records.read(records.path()).records.values()}
