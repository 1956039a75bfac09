"""use(records=...): files of tuning records that decide the calls of a block before the records in force."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub._choice import records
from gemmhub.errors import ConfigError, RecordError
from plugins import add

ONE = np.ones((4, 4), np.float32)
VERSIONS = {"example": "1.0"}


@pytest.fixture(autouse=True)
def backends():
    """Two backends, of which estimates choose "left"; each has two candidates, and estimates choose "first"."""
    both = [Scripted(name, candidates=("first", "second"), seconds=x) for name, x in (("left", 1e-9), ("right", 2e-9))]
    for backend in both:
        add(backend)
    return both


def record(backend, candidate, seconds, *, versions=VERSIONS, a=ONE, b=ONE, **changes):
    problem = gemmhub.explain(a, b).problem
    ready = gemmhub.Ready((gemmhub.Device("cpu"),), versions)
    made = records.record(problem, backend, candidate, seconds, ready)
    return records.Record(**{**vars(made), **changes})


def written(path, *entries):
    records.write(path, entries)
    return path


@pytest.fixture
def model(tmp_path):
    """A file in which the second candidate of "right" is the fastest."""
    return written(
        tmp_path / "model.jsonl",
        record("left", "first", 3e-10), record("right", "first", 2e-10), record("right", "second", 1e-10),
    )  # fmt: skip


def chosen(a=ONE, b=ONE, **options):
    decision = gemmhub.explain(a, b, **options)
    verdict = decision[decision.chosen]
    return verdict.backend, verdict.candidate, verdict.source, verdict.record


BY_ESTIMATE = ("left", "first", "estimated", "")


@pytest.mark.parametrize("as_given", [str, Path, lambda path: [path], lambda path: (str(path),)])
def test_a_file_decides_the_calls_of_the_block(model, backends, as_given):
    assert chosen() == BY_ESTIMATE
    with gemmhub.use(records=as_given(model)):
        assert chosen() == ("right", "second", "measured", str(model))
        gemmhub.matmul(ONE, ONE)
        gemmhub.matmul(ONE, ONE)
        assert gemmhub.plan(ONE, ONE).decision.chosen == "right"
    assert chosen() == BY_ESTIMATE
    gemmhub.matmul(ONE, ONE)
    left, right = backends
    assert (left.calls["run"], right.calls["run"]) == (1, 2)


def test_explain_names_the_file(model):
    with gemmhub.use(records=model):
        decision = gemmhub.explain(ONE, ONE)
        assert decision.why == "fastest measured"
        lines = str(decision).splitlines()
        assert lines[-2:] == ["setting  records from use()", f"record   in {model}"]
        assert f"record     in {model}" in str(decision["right"]).splitlines()
        assert decision.to_dict()["verdicts"][0]["record"] == str(model)
    assert "record  " not in str(gemmhub.explain(ONE, ONE))
    written(records.path(), record("right", "first", 1e-10))
    gemmhub.reload()
    for name in ("left", "right"):
        add(Scripted(name, candidates=("first", "second")))
    assert str(gemmhub.explain(ONE, ONE)).splitlines()[-1] == f"record   in {records.path()}"


def test_the_file_is_before_the_records_in_force(model):
    """Of each backend; those of other backends count beside it."""
    store = written(records.path(), record("right", "first", 1e-12), record("left", "second", 1.5e-10))
    records.forget()
    assert chosen() == ("right", "first", "measured", str(store))
    with gemmhub.use(records=model):
        assert chosen() == ("right", "second", "measured", str(model))
        assert gemmhub.explain(ONE, ONE)["left"].record == str(model)


def test_the_order_of_files_and_of_blocks(tmp_path):
    one = written(tmp_path / "one.jsonl", record("left", "second", 1e-10))
    two = written(tmp_path / "two.jsonl", record("left", "first", 1e-12), record("right", "first", 1e-10))
    with gemmhub.use(records=[one, two]):
        assert gemmhub.explain(ONE, ONE)["left"].candidate == "second"
        assert gemmhub.explain(ONE, ONE)["right"].record == str(two)
    with gemmhub.use(records=one):
        with gemmhub.use(records=two):  # the inner block's first
            assert gemmhub.explain(ONE, ONE)["left"].candidate == "first"
            with gemmhub.use(profile=True), gemmhub.use(records=one):
                assert gemmhub.explain(ONE, ONE)["left"].candidate == "second"
                assert gemmhub.explain(ONE, ONE)["right"].source == "measured"
        assert gemmhub.explain(ONE, ONE)["left"].candidate == "second"
        assert gemmhub.explain(ONE, ONE)["right"].source == "estimated"


def test_no_block_writes_its_file(model):
    before, times, names = model.read_bytes(), os.stat(model), os.listdir(model.parent)
    with gemmhub.use(records=model, tune="first"):
        gemmhub.matmul(ONE, ONE)
        gemmhub.matmul(ONE[:2], ONE)  # raced
        gemmhub.tune(ONE[:3], ONE)
        gemmhub.tune(gemmhub.matmul, ONE[:1], ONE)
    assert model.read_bytes() == before
    assert os.stat(model).st_mtime_ns == times.st_mtime_ns
    assert os.listdir(model.parent) == names
    assert len({entry.problem for entry in records.read(records.path()).all}) == 3


def test_a_reference_file_that_cannot_be_written(model):
    model.chmod(0o400)
    model.parent.chmod(0o500)
    try:
        with gemmhub.use(records=model):
            assert chosen()[0] == "right"
    finally:
        model.parent.chmod(0o700)


def test_other_threads_and_tasks_are_not_affected(model):
    inside, outside = threading.Event(), []

    def other():
        inside.wait(60)
        outside.append(chosen())

    thread = threading.Thread(target=other)
    thread.start()
    with gemmhub.use(records=model):
        inside.set()
        thread.join()
    assert outside == [BY_ESTIMATE]

    async def within():
        with gemmhub.use(records=model):
            await asyncio.sleep(0)
            return chosen()

    async def without():
        await asyncio.sleep(0)
        return chosen()

    async def both():
        return await asyncio.gather(within(), without())

    first, second = asyncio.run(both())
    assert (first[0], second) == ("right", BY_ESTIMATE)


def test_a_decorator(model):
    decorated = gemmhub.use(records=model)(chosen)
    assert decorated()[0] == "right"
    assert chosen() == BY_ESTIMATE


def test_sizes_of_a_file_are_decided_by_themselves(tmp_path):
    """Not by the bucket that another size has settled, in a file that was opened later, too."""

    class ByBucket(Scripted):
        by_bucket = True

    backend = ByBucket("buckets", candidates=("first", "second"), seconds=1e-12)
    used = []

    def prepare(problem, candidate, limit):
        made = backend._kernel(problem, candidate, limit)

        def run(*arguments, **operands):
            used.append((arguments[0].shape[0], candidate))
            made.run(*arguments, **operands)

        return gemmhub.Kernel(run, "counted", any_size=True)

    backend.answers["prepare"] = prepare
    add(backend)

    def product(m):
        gemmhub.matmul(np.ones((m, 4), np.float32), ONE)

    product(50)
    product(51)
    mine = written(tmp_path / "mine.jsonl", record("buckets", "second", 1e-13, a=np.ones((49, 4), np.float32)))
    with gemmhub.use(records=mine):
        for m in (50, 51, 49, 50, 49):
            product(m)
    product(49)
    assert used == [(50, "first"), (51, "first"), (50, "first"), (51, "first"), (49, "second"), (50, "first"),
                    (49, "second"), (49, "first")]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"versions": {"example": "0.9"}}, "measured with example 0.9"),
        ({"device": "cuda:0"}, "measured on cuda:0"),
        ({"threads": "99"}, "measured with threads 99"),
        ({"candidate": "gone"}, "there is no candidate gone"),
    ],
)
def test_records_of_something_else_are_not_used(tmp_path, changes, remark):
    """As those in force are not: the table has the reason, and the next file, or those, decide."""
    other = written(tmp_path / "other.jsonl", record("left", **{"candidate": "second", "seconds": 1e-12, **changes}))
    with gemmhub.use(records=other):
        assert chosen() == BY_ESTIMATE
        assert gemmhub.explain(ONE, ONE)["left"].remark == f"a record is not used: {remark}"
    mine = written(tmp_path / "mine.jsonl", record("left", "second", 1e-10))
    with gemmhub.use(records=[other, mine]):
        assert chosen() == ("left", "second", "measured", str(mine))
    written(records.path(), record("left", "second", 1e-10))
    records.forget()
    with gemmhub.use(records=other):
        assert chosen() == ("left", "second", "measured", str(records.path()))


def test_a_failure_in_a_file(tmp_path):
    failed = written(
        tmp_path / "failed.jsonl", record("left", "first", float("inf"), failure="wrong: 3 times its bound")
    )
    with gemmhub.use(records=failed):
        assert chosen()[0] == "right"
        assert "first failed when it was measured: wrong: 3 times" in gemmhub.explain(ONE, ONE)["left"].remark


def test_a_failure_in_a_file_hides_no_time_of_a_later_one(tmp_path, model):
    """But that of the candidate that failed: it is not run because an older file has its time."""
    failure = {"failure": "wrong: 3 times its bound"}
    other = written(tmp_path / "other.jsonl", record("right", "first", float("inf"), **failure))
    same = written(tmp_path / "same.jsonl", record("right", "second", float("inf"), **failure))
    with gemmhub.use(records=model), gemmhub.use(records=other):
        assert chosen() == ("right", "second", "measured", str(model))
    with gemmhub.use(records=model), gemmhub.use(records=same):
        assert chosen() == ("right", "first", "measured", str(model))
    with gemmhub.use(records=other), gemmhub.use(records=same):
        assert chosen()[0] == "left"


def test_files_without_records_in_force(model, monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    for name in ("left", "right"):
        add(Scripted(name, candidates=("first", "second"), seconds=1e-9))
    with gemmhub.use(records=model):
        assert chosen()[:3] == ("right", "second", "measured")


FOREIGN = {
    "empty": ("", r"has no tuning records; gemmhub\.tune"),
    "text": ("a list of things\nto do\n", "no line of it is a tuning record that can be used: not JSON; name a file"),
    "JSON": ('{"a": 1}\n', "no line of it is a tuning record that can be used: format None"),
    "later version": ('{"format": 99, "problem": "1x1x1"}\n', r"format 99, this gemmhub reads 1; tune again"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_has_no_records(tmp_path, model, case):
    content, match = FOREIGN[case]
    path = tmp_path / "foreign.jsonl"
    path.write_text(content)
    for value in (path, [model, path]):
        with pytest.raises(RecordError, match=match) as caught:
            gemmhub.use(records=value)
        assert str(caught.value).startswith(str(path))
    assert chosen() == BY_ESTIMATE


def test_records_of_another_version(tmp_path):
    """Of gemmhub, or of an installed plugin: an error where the file has no others."""
    old = record("left", "first", 1e-10, versions={"gemmhub": "0.0.9", "numpy": np.__version__})
    path = written(tmp_path / "old.jsonl", old)
    expected = f"measured with gemmhub 0.0.9, installed is {gemmhub.__version__}; tune again"
    with pytest.raises(RecordError, match=re.escape(expected)) as caught:
        gemmhub.use(records=path)
    assert str(caught.value).startswith(str(path))
    written(path, record("left", "second", 1e-10, versions={"gemmhub": gemmhub.__version__, "numpy": "1.0"}))
    with gemmhub.use(records=path):
        assert chosen() == BY_ESTIMATE
        assert "a record is not used: measured with" in gemmhub.explain(ONE, ONE)["left"].remark


@pytest.mark.parametrize("versions", [{"gemmhub-none": "0.0.9"}, {"numpy": "1.0"}, {"gemmhubs": "0.0.9"}])
def test_records_of_another_machine_are_no_error(tmp_path, versions):
    path = written(tmp_path / "other.jsonl", record("left", "first", 1e-10, versions=versions))
    with gemmhub.use(records=path):
        assert chosen() == BY_ESTIMATE


def test_lines_that_are_broken_are_passed_over(model):
    with model.open("a") as file:
        file.write('{"format": 99}\nbroken\n')
    with gemmhub.use(records=model):
        assert chosen()[0] == "right"


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(RecordError, match=r"missing\.jsonl: cannot be read: .*; name a file of tuning records"):
        gemmhub.use(records=tmp_path / "missing.jsonl")
    with pytest.raises(RecordError, match="cannot be read"):
        gemmhub.use(records=tmp_path)


@pytest.mark.parametrize("value", [3, b"model.jsonl", "", [None], {"a": 1}, "a\0b", [], ()], ids=repr)
def test_what_is_no_path(value):
    with pytest.raises(ConfigError, match=r"use\(\): records = .* is not valid; allowed: a path, or a list of paths"):
        gemmhub.use(records=value)


@pytest.mark.parametrize("value", ["off", "default", ["off"]])
def test_settings_of_the_process(value):
    with pytest.raises(ConfigError, match="holds for the process: set GEMMHUB_RECORDS"):
        gemmhub.use(records=value)


def test_a_file_is_read_again_where_it_has_changed(model):
    with gemmhub.use(records=model) as first, gemmhub.use(records=model) as second:
        assert second is first
    shared = gemmhub.use(records=model)
    model.write_text(record("left", "second", 1e-10).line() + "\n")
    with gemmhub.use(records=model) as third:
        assert third is not first
        assert chosen()[:2] == ("left", "second")
    with shared:  # it has what was there when it was called
        assert chosen()[:2] == ("right", "second")


def test_the_records_of_a_file_do_not_outlive_its_settings(model):
    gemmhub.reload()
    gc.collect()
    assert len(records._opened) == 0
    with gemmhub.use(records=model):
        assert (4, 4, 4) in records.sizes()
        assert len(records._opened) == 1
        assert list(records.sizes()) == [(4, 4, 4)]
        assert len(records.sizes()) == 1
    gemmhub.reload()
    gc.collect()
    assert len(records._opened) == 0
