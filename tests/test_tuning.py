"""tune(): every candidate is checked, timed and recorded; wrong ones are not."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub._base import processors
from gemmhub._base.timing import Timing, interleave
from gemmhub._choice import records
from gemmhub._measure import tune as tuning
from gemmhub.errors import InputError, NoBackendError, RecordError
from plugins import GOOD, Site, add


@pytest.fixture
def operands(rng):
    return rng.standard_normal((6, 8), np.float32), rng.standard_normal((8, 4), np.float32)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Little time is spent on timing."""
    monkeypatch.setattr(tuning, "interleave", partial(interleave, rounds=3, min_time=1e-5))


def lazy(name, **answers):
    """Three candidates; the second is much the fastest."""

    def run(a, b, out, candidate):
        time.sleep({"slow": 4e-3, "quick": 0.0, "medium": 2e-3}[candidate])

    return Scripted(name, candidates=("slow", "quick", "medium"), run=run, **answers)


def test_the_records_of_one_product_in_a_file(operands, tmp_path, monkeypatch):
    """Those of failures too, whether or not records are in force; of another product they are merged."""
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    add(lazy("lazy"))
    add(Scripted("wrong", run=lambda a, b, out, candidate: out.fill(7)))
    a, b = operands
    first = gemmhub.tune(a, b)
    first.save(tmp_path / "model.jsonl")
    content = records.read(tmp_path / "model.jsonl")
    timed = {(row.backend, row.candidate): row.seconds for row in first.rows if row.seconds is not None}
    assert {(r.backend, r.candidate): r.seconds for r in content.records.values()} == timed
    assert [r.backend for r in content.failures.values()] == ["wrong"]
    with gemmhub.use(records=tmp_path / "model.jsonl"):
        assert gemmhub.explain(a, b).chosen == first.best.backend
        assert gemmhub.explain(a, b)["lazy"].candidate == "quick"
    gemmhub.tune(a[:2], b).save(str(tmp_path / "model.jsonl"))
    assert len({r.problem for r in records.read(tmp_path / "model.jsonl").all}) == 2
    with pytest.raises(RecordError, match="cannot be written"):
        first.save(tmp_path)


def test_every_backend_and_candidate_is_timed_and_recorded(operands, tmp_path, monkeypatch):
    Site(tmp_path / "site", monkeypatch).install("gemmhub-example-good", GOOD)
    add(lazy("lazy", seconds=1.0))
    a, b = operands
    assert gemmhub.explain(a, b)["lazy"].candidate == "slow"
    result = gemmhub.tune(a, b)
    timed = {(row.backend, row.candidate) for row in result.rows}
    mine = {("lazy", name) for name in ("slow", "quick", "medium")} | {("example", "block64"), ("example", "block256")}
    assert timed >= mine | {("numpy", "default")}
    assert all(row.seconds > 0 for row in result.rows)
    assert list(result.rows) == sorted(result.rows, key=lambda row: row.seconds)
    assert result.best == result.rows[0]
    assert result.path == records.path()
    kept = records.read(result.path).records.values()
    assert {(r.backend, r.candidate): r.seconds for r in kept} == {
        (row.backend, row.candidate): row.seconds for row in result.rows
    }
    assert {r.problem for r in kept} == {gemmhub.explain(a, b).problem.key}
    assert {r.backend: r.versions for r in kept}["lazy"] == {"example": "1.0"}
    found = gemmhub.explain(a, b)
    assert (found.chosen, found.why) == (result.best.backend, "fastest measured")
    assert (found["lazy"].candidate, found["lazy"].source) == ("quick", "measured")
    # Another process would find the same.
    gemmhub.reload()
    add(lazy("lazy", seconds=1.0))
    assert gemmhub.explain(a, b)["lazy"].candidate == "quick"
    # Another problem is not affected.
    assert gemmhub.explain(a[:3], b)["lazy"].source == "estimated"


def test_a_warm_call_takes_what_tuning_found(operands):
    """The cache of decided calls is emptied: the next call is decided again."""
    a, b = operands
    slow = Scripted("slow", run=lambda *given: time.sleep(2e-3))
    add(slow)
    for _ in range(3):
        gemmhub.matmul(a, b)
    assert slow.calls["run"] == 3
    assert gemmhub.tune(a, b).best.backend == "numpy"
    slow.calls.clear()
    gemmhub.matmul(a, b)
    assert slow.calls["run"] == 0


def test_a_result_prints(operands):
    add(Scripted("wrong", run=lambda a, b, out, candidate: out.fill(3)))
    result = gemmhub.tune(*operands)
    lines = str(result).splitlines()
    assert lines[0] == f"problem  {result.problem}"
    assert lines[2].split()[:2] == ["backend", "candidate"]
    assert lines[3].split()[:2] == ["numpy", "default"]
    assert lines[3].split()[3] in ("ms", "us", "ns")
    assert lines[4].split()[:5] == ["wrong", "default", "-", "-", "wrong:"]
    assert lines[-1] == f"recorded  {records.path()}"


def wrong_by_one(a, b, out, candidate):
    if candidate == "wrong":
        out[-1, -1] += 1


def raising(a, b, out, candidate):
    if candidate == "wrong":
        raise RuntimeError("illegal address")


@pytest.mark.parametrize(
    ("run", "remark"), [(wrong_by_one, "times its bound"), (raising, "backend 'mixed': RuntimeError: illegal address")]
)
def test_a_wrong_candidate_is_reported_and_not_recorded(operands, run, remark):
    add(Scripted("mixed", candidates=("wrong", "right"), run=run))
    result = gemmhub.tune(*operands)
    rows = {row.candidate: row for row in result.rows if row.backend == "mixed"}
    assert rows["wrong"].seconds is None
    assert remark in rows["wrong"].remark
    assert rows["right"].seconds > 0
    assert result.rows[-1] == rows["wrong"]
    kept = {(r.backend, r.candidate) for r in records.read(result.path).records.values()}
    assert kept == {("mixed", "right"), ("numpy", "default")}
    found = gemmhub.explain(*operands)["mixed"]
    assert (found.candidate, found.source) == ("right", "measured")


def test_a_candidate_that_cannot_be_prepared(operands):
    def prepare(problem, candidate, limit):
        if candidate == "wide":
            return gemmhub.Refusal("n is not a multiple of 64", "pad it")
        if candidate == "broken":
            raise OSError("no compiler")
        return backend._kernel(problem, candidate, limit)

    backend = Scripted("choosy", candidates=("wide", "broken", "plain"), prepare=prepare)
    add(backend)
    rows = {row.candidate: row for row in gemmhub.tune(*operands).rows if row.backend == "choosy"}
    assert rows["wide"].remark == "n is not a multiple of 64"
    assert rows["broken"].remark == "prepare() raised OSError: no compiler"
    assert rows["plain"].seconds > 0


def test_what_failed_is_not_chosen_by_its_estimate(operands):
    """The file has the reason, so that other processes do not either, but for the one who asks for it."""
    add(Scripted("wrong", run=lambda a, b, out, candidate: out.fill(3)))
    result = gemmhub.tune(*operands)
    (failed,) = records.read(result.path).failures.values()
    assert (failed.backend, failed.candidate, failed.failure[:7]) == ("wrong", "default", "wrong: ")
    gemmhub.reload()
    repaired = Scripted("wrong")
    add(repaired)
    found = gemmhub.explain(*operands)
    assert found.chosen == "numpy"
    assert found["wrong"].remark.startswith("default failed when it was measured: wrong: ")
    assert found["wrong"].remark.endswith("; tune again once that is mended")
    assert gemmhub.explain(*operands, backend="wrong").chosen == "wrong"
    gemmhub.tune(*operands)
    assert gemmhub.explain(*operands)["wrong"].source == "measured"


def test_a_lack_of_memory_is_not_recorded(operands):
    add(Scripted("short", run=MemoryError("scratch")))
    assert records.read(gemmhub.tune(*operands).path).failures == {}


@pytest.mark.parametrize(("load", "warned"), [(0.99, False), (1.01, True)])
def test_a_loaded_machine_is_warned_of(operands, monkeypatch, caplog, load, warned):
    monkeypatch.setattr(os, "getloadavg", lambda: (load * processors.cores(), 0.0, 0.0))
    monkeypatch.setattr(tuning, "_SPREAD", 1e9)
    result = gemmhub.tune(*operands)
    assert ("1.01 for each processor" in result.warning) == warned
    assert str(result).splitlines()[-2].startswith("warning   the load average was 1.01") == warned
    assert ("warning" in result._repr_html_()) == warned
    assert [r.levelname for r in caplog.records] == ["WARNING"] * warned
    assert {r.load for r in records.read(result.path).records.values()} == {load}


def test_a_disturbed_measurement_is_warned_of(operands, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    rounds = Timing(3e-3, 1e-3, 4e-3, ())
    monkeypatch.setattr(tuning, "interleave", lambda calls, **_: [rounds] * len(calls))
    assert gemmhub.tune(*operands).warning.startswith("the fastest candidate took from 1 to 4 ms: other work")
    rounds = Timing(1.2e-3, 1e-3, 4e-3, ())
    assert gemmhub.tune(*operands).warning == ""


def test_a_system_without_a_load_average(operands, monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.setattr(tuning, "_SPREAD", 1e9)
    result = gemmhub.tune(*operands)
    assert result.warning == ""
    assert {r.load for r in records.read(result.path).records.values()} == {None}


@pytest.mark.parametrize("names", [(1, 2), ("default", 64), (["a"],), [None]], ids=repr)
def test_a_backend_whose_candidates_have_no_names(operands, names):
    add(Scripted("nameless", candidates=names))
    result = gemmhub.tune(*operands)
    assert result.best.backend == "numpy"
    assert {r.backend for r in records.read(result.path).records.values()} == {"numpy"}
    verdict = gemmhub.explain(*operands)["nameless"]
    assert verdict.status == "failed"
    assert "is no Candidate with a name" in verdict.reason


def test_nothing_right_is_left(operands):
    add(Scripted("wrong", run=lambda a, b, out, candidate: out.fill(3)))
    with pytest.raises(NoBackendError, match="nothing to tune") as caught:
        gemmhub.tune(*operands, backend="wrong")
    assert caught.value.decision["wrong"].status == "chosen"
    assert not records.path().exists()


def test_the_error_names_why_nothing_was_tuned(operands):
    """Each candidate that ran wrongly with its reason; where none was present, that."""
    a, b = operands
    add(Scripted("liar", run=lambda a, b, out, candidate: out.fill(7)))
    with pytest.raises(NoBackendError, match="no candidate ran this product correctly\nliar default: wrong: "):
        gemmhub.tune(a, b, backend="liar")
    add(Scripted("picky", refusal=gemmhub.Refusal("k is odd", "pad it")))
    with pytest.raises(NoBackendError, match="nothing to tune: backend='picky' cannot run it\n") as caught:
        gemmhub.tune(a, b, backend="picky")
    assert "ran this product" not in str(caught.value)
    assert "k is odd; pad it" in str(caught.value)


def test_a_forced_backend_is_tuned_alone(operands):
    add(lazy("lazy"))
    result = gemmhub.tune(*operands, backend="lazy")
    assert {row.backend for row in result.rows} == {"lazy"}
    with gemmhub.use(backend="numpy"):
        assert {row.backend for row in gemmhub.tune(*operands).rows} == {"numpy"}
    with pytest.raises((NoBackendError, InputError), match="nobody"):
        gemmhub.tune(*operands, backend="nobody")


def test_records_switched_off(operands, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    result = gemmhub.tune(*operands)
    assert result.path is None
    assert str(result).endswith("\nrecorded  no: records are off")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(operands, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "file" / "records.jsonl"))
    gemmhub.reload()
    with pytest.raises(RecordError, match=r"records\.jsonl: cannot be"):
        gemmhub.tune(*operands)


def test_an_unwritable_file_is_an_error_before_anything_is_timed(operands, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "file" / "records.jsonl"))
    gemmhub.reload()
    monkeypatch.setattr(tuning, "interleave", lambda *given, **named: pytest.fail("timed"))
    with pytest.raises(RecordError, match="cannot be written"):
        gemmhub.tune(*operands)


def test_operands_and_results_stay_as_they_are(operands):
    a, b = operands
    before = a.copy(), b.copy()
    out = np.full((6, 4), 7, np.float32)
    gemmhub.tune(a, b, out=out)
    assert np.array_equal(a, before[0])
    assert np.array_equal(b, before[1])
    assert (out == 7).all()


def test_candidates_see_the_strides_of_their_problem(rng):
    """Operands are copied for timing with their strides: a kernel prepared for a leading dimension relies on it."""
    seen = set()

    def prepare(problem, candidate, limit):
        kernel = backend._kernel(problem, candidate, limit)
        layouts = [(x.layout.row_stride, x.layout.col_stride) for x in (problem.a, problem.b, problem.out)]

        def run(a, b, out, *rest, **operands):
            assert [tuple(s // x.itemsize for s in x.strides) for x in (a, b, out)] == layouts
            seen.add((id(a), id(b)))
            kernel.run(a, b, out, *rest, **operands)

        return gemmhub.Kernel(run, "checks strides")

    backend = Scripted("strict", True, prepare=prepare)
    add(backend)
    memory = rng.standard_normal((40, 40), np.float32)
    a, b, out = memory[3:9, 2:10], memory[12:20, ::-3][:, :4], np.empty((8, 6), np.float32).T[:, 2:6]
    for result in (gemmhub.tune(a, b), gemmhub.tune(a, b, out=out)):
        (row,) = [row for row in result.rows if row.backend == "strict"]
        assert row.seconds, row.remark
    assert len(seen) > 2  # several sets of operands, so that none stays in the cache


def test_every_kind_of_call_can_be_tuned(rng):
    a, b = rng.standard_normal((5, 4, 3), np.float32), rng.standard_normal((3, 2), np.float32)
    c, bias = rng.standard_normal((5, 4, 2), np.float32), rng.standard_normal(2, np.float32)
    for given in (
        (a, b),
        (a[0, 0], b[:, 0]),
        (a.tolist(), b.tolist()),
        (a.astype(np.float16), b.astype(np.float16)),
        (a[:, :0], b),
        (a[..., :0], b[:0]),
        (a[0], gemmhub.pack(b)),
    ):
        assert gemmhub.tune(*given).best.seconds > 0
    result = gemmhub.tune(a, b, out=c, c=c, beta=2, alpha=3, bias=bias, activation="relu")
    assert result.best.seconds > 0
    assert "epilogue=alpha+c+bias_n+relu" in result.problem


def test_only_the_packer_is_tuned_on_a_packed_operand(operands):
    a, b = operands
    packed = gemmhub.pack(b, backend="numpy")
    add(Scripted("other", pack=None))
    assert {row.backend for row in gemmhub.tune(a, packed).rows} == {"numpy"}


def test_threads_may_tune_at_once(rng):
    """Each its own problem; also the same one. All is recorded, and the products meanwhile are right."""
    add(Scripted("extra"))
    gate = threading.Barrier(5)
    pairs = [(rng.standard_normal((m, 8), np.float32), rng.standard_normal((8, 4), np.float32)) for m in (3, 4, 5, 5)]

    def tune(pair):
        gate.wait()
        return gemmhub.tune(*pair)

    def multiply():
        gate.wait()
        return all(np.allclose(gemmhub.matmul(a, b), a @ b) for _ in range(50) for a, b in pairs)

    with ThreadPoolExecutor(5) as pool:
        product = pool.submit(multiply)
        results = list(pool.map(tune, pairs))
        assert product.result()
    kept = {(r.problem, r.backend) for r in records.read(records.path()).records.values()}
    assert kept == {(gemmhub.explain(a, b).problem.key, name) for a, b in pairs for name in ("numpy", "extra")}
    assert all(result.best.seconds > 0 for result in results)
