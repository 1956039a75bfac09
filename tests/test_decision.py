"""Decisions: the chosen backend, the reason, and every other backend's answer."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import ASKING_FAULTS, Scripted

import gemmhub
from gemmhub import BackendDescription, Copy, Ready, Refusal, api
from gemmhub._call import bind
from gemmhub._call.cache import CallCache
from gemmhub._choice import decide, ranking, records, registry
from gemmhub.errors import AllocationError, InputError, KernelError, NoBackendError
from plugins import GOOD, Site, add


@pytest.fixture
def operands(rng):
    return rng.standard_normal((6, 8), np.float32), rng.standard_normal((8, 4), np.float32)


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path / "site", monkeypatch)


# ---------------------------------------------------------------- backends that fail when asked

REFUSED = {
    "offer_raises": ("offer() raised ZeroDivisionError: division by zero", True),
    "offer_exits": ("offer() raised SystemExit: 1", True),
    "offer_gives_true": ("offer() raised TypeError: it returned True, not an Offer or a Refusal", True),
    "offer_is_empty": ("offer() raised TypeError: a sequence of candidates is needed, one or more, not ()", True),
    "offer_has_text": ("offer() raised TypeError: 'd' is no Candidate with a name", True),
    "offer_has_names": ("offer() raised TypeError: 'default' is no Candidate with a name", True),
    "offer_has_workspace_in_words": (
        "offer() raised TypeError: the workspace is '64 MiB', not a number of bytes",
        True,
    ),
    "remark_raises": ("remark() raised UnicodeError: surrogates", True),
}
UNPREPARED = {
    "prepare_raises": ("prepare() raised RuntimeError: nvrtc: compilation failed", True),
    "prepare_gives_none": ("prepare() raised TypeError: it returned None, not a Kernel or a Refusal", True),
    "prepare_refuses": ("no algorithm found", False),
}
RUNNING = {"run_raises": KernelError, "run_lacks_memory": AllocationError}
SHORT = {"prepare_lacks_memory"}
"""Of memory: see test_guard.py."""


def test_every_fault_is_tested():
    assert ASKING_FAULTS.keys() == REFUSED.keys() | UNPREPARED.keys() | RUNNING.keys() | SHORT


def install(site, fault):
    site.install("gemmhub-example-bad", {"bad": f"gemmhub_example_bad.backend:{fault}"})
    site.install("gemmhub-example-good", GOOD)
    return fault.replace("_", "-")


@pytest.mark.parametrize("fault", REFUSED)
def test_a_backend_that_fails_when_asked(site, operands, fault):
    reason, traced = REFUSED[fault]
    name = install(site, fault)
    a, b = operands
    found = gemmhub.explain(a, b)
    assert found.chosen in ("numpy", "example")
    verdict = found[name]
    assert (verdict.status, verdict.reason, bool(verdict.traceback)) == ("failed", reason, traced)
    assert "gemmhub-example-bad" in verdict.remedy
    assert reason in str(found)
    for _ in range(2):
        with pytest.raises(NoBackendError, match="cannot run it") as caught:
            gemmhub.matmul(a, b, backend=name)
        assert caught.value.decision[name] == verdict
        assert np.array_equal(gemmhub.matmul(a, b, backend="numpy"), a @ b)
        assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b, backend="example"))


@pytest.mark.parametrize("fault", UNPREPARED)
def test_a_backend_that_cannot_prepare_is_passed_over_and_remembered(site, operands, caplog, fault):
    reason, traced = UNPREPARED[fault]
    name = install(site, fault)
    a, b = operands
    assert gemmhub.explain(a, b).chosen == name
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b))
    assert [record.getMessage() for record in caplog.records] == [f"backend {name}: {reason}"]
    found = gemmhub.explain(a, b)
    assert found.chosen in ("numpy", "example")
    status = "failed" if traced else "refused"
    assert (found[name].status, found[name].reason, bool(found[name].traceback)) == (status, reason, traced)
    assert gemmhub.plan(a, b).decision.chosen == found.chosen
    with pytest.raises(NoBackendError) as caught:
        gemmhub.matmul(a, b, backend=name)
    assert caught.value.decision[name].reason == reason
    # The failure was of this problem: others get their chance.
    assert gemmhub.explain(a[:5], b).chosen == name


def test_a_failed_preparation_is_not_repeated(operands):
    backend = Scripted("unprepared", prepare=RuntimeError("no compiler"))
    add(backend)
    a, b = operands
    for options in ({}, {"precision": "tf32"}, {}):
        gemmhub.matmul(a, b, **options)
    for _ in range(3):
        gemmhub.plan(a, b)
        with pytest.raises(NoBackendError, match="no compiler"):
            gemmhub.matmul(a, b, backend="unprepared")
    assert backend.calls["prepare"] == 2  # one for each precision, which makes another problem
    decide.forget()
    api.forget_decisions()
    gemmhub.plan(a, b)
    assert backend.calls["prepare"] == 3


@pytest.mark.parametrize("fault", RUNNING)
def test_a_kernel_that_raises_while_running(site, operands, fault):
    name = install(site, fault)
    a, b = operands
    for _ in range(3):
        with pytest.raises(RUNNING[fault], match=name) as caught:
            gemmhub.matmul(a, b)
        assert isinstance(caught.value.__cause__, type(ASKING_FAULTS[fault]["run"]))
        assert np.array_equal(gemmhub.matmul(a, b, backend="numpy"), a @ b)


@pytest.mark.parametrize("layout_sensitive", [False, True])
@pytest.mark.parametrize("error", [ValueError("launch failed"), MemoryError("scratch")])
def test_the_call_after_a_failed_one_works(operands, layout_sensitive, error):
    flaky = Scripted("flaky", layout_sensitive)
    add(flaky)
    a, b = operands
    for _ in range(2):
        assert np.array_equal(gemmhub.matmul(a, b), a @ b)
        flaky.answers["run"] = error
        with pytest.raises((KernelError, AllocationError), match="flaky"):
            gemmhub.matmul(a, b)
        del flaky.answers["run"]
        assert np.array_equal(gemmhub.matmul(a, b), a @ b)


@pytest.mark.parametrize(
    "estimate", [None, float("nan"), float("inf"), -1.0, 0.0, 10**400, "fast", np.array([1.0, 2.0])]
)
def test_an_estimate_that_is_none_comes_last(operands, estimate):
    add(Scripted("vague", seconds=estimate))
    found = gemmhub.explain(*operands)
    assert found.chosen == "numpy"
    assert (found["vague"].status, found["vague"].seconds, found["vague"].source) == ("eligible", None, "")
    assert ("vague", "eligible", "-", "ranked after numpy") in found.rows()
    assert gemmhub.explain(*operands, backend="vague").chosen == "vague"
    json.dumps(found.to_dict(), allow_nan=False)


def test_operands_on_another_device_than_the_backend_has(operands):
    add(Scripted("card", probe=Ready((gemmhub.Device("cpu", 3),))))
    verdict = gemmhub.explain(*operands)["card"]
    assert verdict.status == "refused"
    assert verdict.remedy == "it runs on cpu"


# ---------------------------------------------------------------- ranking


def test_the_smallest_estimate_wins_and_discovery_breaks_ties(operands):
    for name, seconds in (("slow", 2e-9), ("quick", 1e-9), ("equal", 1e-9)):
        add(Scripted(name, seconds=seconds))
    found = gemmhub.explain(*operands)
    assert found.chosen == "quick"
    assert found.why == "smallest estimate"
    assert [v.backend for v in found.verdicts][:4] == ["quick", "equal", "slow", "numpy"]
    assert [v.reason for v in found.verdicts][1:4] == ["ranked after quick"] * 3


def test_the_only_one_that_can(operands):
    assert gemmhub.explain(*operands).why == "the only one that can"


def record(tmp_path, monkeypatch, a, b, backend, seconds, versions, candidate="default"):
    path = tmp_path / "tuned.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    problem = gemmhub.explain(a, b).problem
    records.write(path, [records.record(problem, backend, candidate, seconds, Ready((), versions))])
    records.forget()


def test_a_tuned_record_beats_every_estimate_within_the_margin(tmp_path, monkeypatch, operands):
    near = 1.01 * 0.25 / ranking.MARGIN
    add(Scripted("tuned", seconds=1.0))
    add(Scripted("estimated", seconds=near))
    assert gemmhub.explain(*operands, backend="estimated").chosen == "estimated"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "tuned.jsonl"))
    gemmhub.reload()
    tuned = Scripted("tuned", seconds=1.0, candidates=("first", "second"))
    add(tuned)
    add(Scripted("estimated", seconds=near))
    record(tmp_path, monkeypatch, *operands, "numpy", 0.5, numpy_versions())
    record(tmp_path, monkeypatch, *operands, "tuned", 0.25, {"example": "1.0"}, "second")
    found = gemmhub.explain(*operands)
    assert (found.chosen, found.why) == ("tuned", "fastest measured")
    assert (found["tuned"].seconds, found["tuned"].source, found["tuned"].candidate) == (0.25, "measured", "second")
    assert ("tuned", "chosen", "250 ms measured", "") in found.rows()
    assert found["estimated"].remark == "not measured: tune again"
    prepared = []
    tuned.answers["prepare"] = lambda *given: prepared.append(given[1]) or tuned._kernel(*given)
    gemmhub.matmul(*operands)
    assert prepared == ["second"]
    # ... but not what the caller asks for.
    assert gemmhub.explain(*operands, backend="estimated").chosen == "estimated"


def numpy_versions():
    return gemmhub.backends()["numpy"].versions


def test_an_estimate_far_below_the_fastest_record_is_chosen(tmp_path, monkeypatch, operands):
    """As after tuning with the core alone, and installing a plugin then."""
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "tuned.jsonl"))
    gemmhub.reload()
    record(tmp_path, monkeypatch, *operands, "numpy", 0.25, numpy_versions())
    assert gemmhub.explain(*operands).why == "the only one that can"
    add(Scripted("newcomer", seconds=0.99 * 0.25 / ranking.MARGIN))
    add(Scripted("slower", seconds=1.0))
    add(Scripted("vague", seconds=None))
    found = gemmhub.explain(*operands)
    assert found.chosen == "newcomer"
    assert found.why == "smallest estimate, far below the fastest measured: tune again"
    assert [v.backend for v in found.verdicts][:4] == ["newcomer", "numpy", "slower", "vague"]
    assert found["newcomer"].remark == "not measured: tune again"
    assert "tune again" not in found["slower"].remark + found["vague"].remark
    gemmhub.tune(*operands)
    again = gemmhub.explain(*operands)
    assert again.why == "fastest measured"
    assert "not measured" not in str(again)


def test_a_record_of_other_thread_limits_is_not_used(tmp_path, monkeypatch, operands):
    limit = ["4"]
    add(Scripted("threaded", seconds=1.0, probe=Ready((gemmhub.Device(),), {}, (), lambda: limit[0])))
    gemmhub.tune(*operands, backend="threaded")
    assert gemmhub.explain(*operands)["threaded"].source == "measured"
    limit[0] = "1"
    found = gemmhub.explain(*operands)["threaded"]
    assert (found.source, found.remark) == ("estimated", "a record is not used: measured with threads 4")
    gemmhub.tune(*operands, backend="threaded")  # both are kept
    for limit[0] in ("1", "4"):
        assert gemmhub.explain(*operands)["threaded"].source == "measured"


def test_thread_limits_that_cannot_be_read(operands):
    for name, threads in (("raises", lambda: 1 / 0), ("counts", lambda: 4)):
        add(Scripted(name, seconds=1.0, probe=Ready((gemmhub.Device(),), {}, (), threads)))
        gemmhub.tune(*operands, backend=name)
        assert gemmhub.explain(*operands)[name].source == "measured"
    add(Scripted("constant", probe=Ready((gemmhub.Device(),), {}, (), "4")))
    assert gemmhub.explain(*operands)["constant"].reason == "probing raised TypeError: threads is '4', not a function"


def test_a_record_of_another_version_of_the_plugin_is_not_used(site, operands):
    """Although its probe reports the same libraries."""
    site.install("gemmhub-example-good", GOOD)
    gemmhub.tune(*operands, backend="example")
    assert gemmhub.explain(*operands)["example"].source == "measured"
    metadata = site.folder / "gemmhub_example_good-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text(encoding="utf-8").replace("1.0", "1.1"), encoding="utf-8")
    gemmhub.reload()
    found = gemmhub.explain(*operands)["example"]
    assert found.source == "estimated"
    assert "a record is not used: measured with gemmhub-example-good 1.0" in found.remark


def test_a_time_of_a_loaded_machine_is_remarked(operands, monkeypatch):
    def record(load):
        problem = gemmhub.explain(*operands).problem
        records.put([records.record(problem, "tuned", "default", 0.25, Ready((), {"example": "1.0"}), load)])
        return gemmhub.explain(*operands)["tuned"].remark

    add(Scripted("tuned", seconds=1.0))
    assert record(None) == record(0.9) == ""
    assert record(3.14159) == "measured under a load of 3.14 for each processor: tune again"


@pytest.mark.parametrize(("candidate", "versions", "reason"), [
    ("default", {"example": "0.9"}, "measured with example 0.9"),
    ("default", {}, "measured with example unknown"),
    ("default", {"example": "1.0", "driver": "5"}, "measured with driver 5"),
    ("gone", None, "there is no candidate gone"),
])  # fmt: skip
def test_a_stale_record_is_not_used(tmp_path, monkeypatch, operands, candidate, versions, reason):
    """Another library version, or a candidate that the backend no longer has."""
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "tuned.jsonl"))
    gemmhub.reload()
    add(Scripted("tuned", seconds=1.0))
    versions = {"example": "1.0"} if versions is None else versions
    record(tmp_path, monkeypatch, *operands, "tuned", 1e-9, versions, candidate)
    found = gemmhub.explain(*operands)
    assert found.chosen == "numpy"
    assert (found["tuned"].seconds, found["tuned"].source) == (1.0, "estimated")
    assert found["tuned"].remark == f"a record is not used: {reason}"
    assert "record" not in found["numpy"].remark


def test_a_record_of_another_device_is_not_used(tmp_path, monkeypatch, operands):
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "tuned.jsonl"))
    gemmhub.reload()
    add(Scripted("tuned", seconds=1.0))
    here = records.record(gemmhub.explain(*operands).problem, "tuned", "default", 1e-9, Ready((), {"example": "1.0"}))
    records.put([replace(here, device="cpu:1"), replace(here, device="cpu:2", versions={"example": "2"}, recorded="")])
    assert gemmhub.explain(*operands)["tuned"].remark == "a record is not used: measured on cpu:1"  # the newest one
    records.put([here])
    assert gemmhub.explain(*operands)["tuned"].remark == ""


# ---------------------------------------------------------------- forced and preferred


def refusing(name="picky"):
    return Scripted(name, refusal=Refusal("it takes only multiples of 16", "pad m to 16"))


@pytest.mark.parametrize("where", ["call", "context"])
def test_a_forced_backend_fails_aloud(operands, where):
    add(refusing())
    a, b = operands
    out = np.full((6, 4), 7, np.float32)
    options = {"backend": "picky"} if where == "call" else {}
    with gemmhub.use(backend="picky" if where == "context" else None):
        with pytest.raises(NoBackendError) as caught:
            gemmhub.matmul(a, b, out=out, **options)
        found = gemmhub.explain(a, b, **options)
        with pytest.raises(NoBackendError):
            gemmhub.plan(a, b, **options)
    assert (out == 7).all()
    assert found.chosen is None
    assert caught.value.decision.verdicts == found.verdicts
    assert found["picky"].reason == "it takes only multiples of 16"
    assert found["numpy"].reason == "not the one asked for"
    assert "it takes only multiples of 16; pad m to 16" in str(caught.value)
    assert found.settings["backend"] == ("the call" if where == "call" else "use()")


@pytest.mark.parametrize("where", ["call", "context"])
def test_a_forced_backend_is_the_only_one_asked(operands, where):
    """Others may take long for an answer without use. explain() asks all."""
    slow = Scripted("slow")
    add(slow)
    a, b = operands
    options = {"backend": "numpy"} if where == "call" else {}
    with gemmhub.use(backend="numpy" if where == "context" else None):
        gemmhub.matmul(a, b, **options)
        verdict = gemmhub.plan(a, b, **options).decision["slow"]
        assert (verdict.status, verdict.reason, verdict.seconds) == ("not asked", "not the one asked for", None)
        assert not slow.calls["offer"]
        assert gemmhub.explain(a, b, **options)["slow"].status == "eligible"
    assert slow.calls["offer"] == 1
    assert gemmhub.plan(a, b).decision.chosen == "slow"


@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_preferred_backend_falls_back_with_a_reason(operands, tmp_path, monkeypatch, caplog, where):
    source = "GEMMHUB_BACKEND"
    if where == "environment":
        monkeypatch.setenv("GEMMHUB_BACKEND", "picky")
    else:
        source = str(tmp_path / "settings.toml")
        (tmp_path / "settings.toml").write_text("backend = ['picky']", encoding="utf-8")
        monkeypatch.setenv("GEMMHUB_CONFIG", source)
    gemmhub.reload()
    add(refusing())
    a, b = operands
    with caplog.at_level(logging.WARNING, "gemmhub"):
        assert np.array_equal(gemmhub.matmul(a, b), a @ b)
    found = gemmhub.explain(a, b)
    assert found.chosen == "numpy"
    assert found.why == f"the only one that can; picky, preferred by {source}, cannot"
    assert found.settings["backend"] == source
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("numpy runs 6x4x8 ")
    assert message.endswith(found.why)
    gemmhub.matmul(a, b)
    assert len(caplog.records) == 1


def test_an_order_of_preference(operands, monkeypatch):
    monkeypatch.setenv("GEMMHUB_BACKEND", "picky, second, first")
    gemmhub.reload()
    for backend in (refusing(), Scripted("first", seconds=1e-12), Scripted("second", seconds=1.0)):
        add(backend)
    found = gemmhub.explain(*operands)
    assert (found.chosen, found.why) == ("second", "preferred by GEMMHUB_BACKEND")
    assert [v.backend for v in found.verdicts if v.status in ("chosen", "eligible")] == ["second", "first", "numpy"]


def test_an_unknown_backend_lists_the_known_ones(operands):
    add(Scripted("known"))
    for call in (gemmhub.matmul, gemmhub.explain, gemmhub.plan):
        with pytest.raises(InputError) as caught:
            call(*operands, backend="nunpy")
        assert caught.value.argument == "backend"
        assert caught.value.given == "no backend is called 'nunpy'"
        assert {"numpy", "known", "hopper"} <= set(caught.value.allowed.split(", "))


# ---------------------------------------------------------------- what a Decision shows


def test_a_decision_is_a_table_and_data(operands):
    copies = (Copy("b", 3 * 2**20, "it needs column-major"),)
    add(Scripted("copying", copies=copies, remark=lambda problem, candidate: f"{candidate} in tiles"))
    add(refusing())
    add(Scripted("raising", refusal=ValueError("a line\nand another")))
    add(Scripted("absent", probe=gemmhub.Absent("no card", "plug one in")))
    found = gemmhub.explain(*operands)
    text = str(found)
    lines = text.splitlines()
    assert lines[0].startswith("problem  6x4x8 ")
    assert lines[0].endswith(" on cpu")
    assert lines[1] == "chosen   copying (smallest estimate)"
    assert lines[3].split() == ["backend", "verdict", "time", "remarks"]
    assert "  ##########  " in lines[5]
    assert lines[4].endswith("default in tiles; copies b: 3 MiB, it needs column-major")
    statuses = {row[0]: row[1] for row in found.rows()}
    expected = {"copying": "chosen", "numpy": "eligible", "picky": "refused", "raising": "failed", "absent": "absent"}
    assert expected.items() <= statuses.items()
    for verdict in found.verdicts:
        assert found[verdict.backend] == verdict
        assert all(line in text for line in (*verdict.reason.split("\n"), *verdict.remedy.split("\n")))
    with pytest.raises(KeyError):
        found["nobody"]
    assert list(found) == [verdict.backend for verdict in found.verdicts]
    assert len(found) == len(list(found.items()))
    assert "picky" in found
    assert "nobody" not in found
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (data["chosen"], data["why"], data["problem"]) == ("copying", found.why, str(found.problem))
    shown = {v["backend"]: v for v in data["verdicts"]}
    assert shown["copying"]["copies"] == [{"operand": "b", "nbytes": 3 * 2**20, "why": "it needs column-major"}]
    assert "ValueError: a line" in shown["raising"]["traceback"]
    assert shown["picky"]["remedy"] == "pad m to 16"
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2.5, "2.5 s"), (0.999, "999 ms"), (1e-3, "1 ms"), (9.99e-4, "999 us"), (1.234e-6, "1.23 us"), (5e-9, "0.005 us")],
)
def test_times_are_shown_in_a_fitting_unit(operands, seconds, shown):
    add(Scripted("timed", seconds=seconds))
    (row,) = [row for row in gemmhub.explain(*operands).rows() if row[0] == "timed"]
    assert row[2] == f"{shown} estimated"


def test_the_error_carries_its_decision_through_pickle(operands):
    add(refusing())
    with pytest.raises(NoBackendError) as caught:
        gemmhub.matmul(*operands, backend="picky")
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.decision == caught.value.decision
    assert str(again) == str(caught.value)


def test_copies_of_strided_operands_are_shown(rng):
    a = rng.standard_normal((20, 33), np.float32)[:, ::3]
    b = rng.standard_normal((11, 5), np.float32)
    found = gemmhub.explain(a, b)
    (copy,) = found["numpy"].copies
    assert (copy.operand, copy.nbytes) == ("a", 20 * 11 * 4)
    assert "copies a: 880 bytes" in str(found)
    assert gemmhub.explain(np.ascontiguousarray(a), b)["numpy"].copies == ()
    assert gemmhub.explain(np.asfortranarray(a), b)["numpy"].copies == ()


def test_the_copy_for_an_overlapping_result_is_shown(rng):
    a = rng.standard_normal((5, 5), np.float32)
    b = rng.standard_normal((5, 5), np.float32)
    expected = a @ b
    for out, name in ((a, "a"), (b.T, "b")):
        found = gemmhub.explain(a, b, out=out)
        (copy,) = found.copies
        assert (copy.operand, copy.nbytes) == ("out", 100)
        assert f"copy     out: 100 bytes, it overlaps {name}" in str(found)
        assert found.to_dict()["copies"][0]["nbytes"] == 100
    assert gemmhub.explain(a, b, out=np.empty((5, 5), np.float32)).copies == ()
    assert gemmhub.explain(a, b, out=a[::-1], c=a[::-1], beta=1, bias=b[0]).copies != ()
    c = np.zeros((5, 5), np.float32)
    assert gemmhub.explain(a, b, out=c, c=c, beta=1).copies == ()
    assert gemmhub.matmul(a, b, out=a) is a
    assert np.array_equal(a, expected)


# ---------------------------------------------------------------- layouts


def leading_dimensions_of_8(problem):
    ld = problem.a.layout.leading_dimension("row")
    if ld % 8:
        return Refusal(f"leading dimension {ld} is not a multiple of 8", f"pad or copy a to {-(-ld // 8) * 8} columns")
    return None


def test_a_backend_that_wants_aligned_rows_is_chosen_call_by_call(rng):
    """Equal shapes, other strides: each call gets the decision of its own layout, in any order."""
    picky = Scripted("aligned", True, refusal=leading_dimensions_of_8)
    add(picky)
    aligned = rng.standard_normal((6, 4104), np.float32)[:, :4097]
    odd = rng.standard_normal((6, 4097), np.float32)
    b = rng.standard_normal((4097, 3), np.float32)
    found = gemmhub.explain(odd, b)
    assert found["aligned"].status == "refused"
    assert found["aligned"].reason == "leading dimension 4097 is not a multiple of 8"
    assert found["aligned"].remedy == "pad or copy a to 4104 columns"
    out = np.empty((6, 3), np.float32)
    runs = 0
    for a in (odd, aligned, aligned, odd, aligned, odd, odd, aligned):
        runs += 2 * (a is aligned)
        assert gemmhub.explain(a, b).chosen == ("aligned" if a is aligned else "numpy")
        assert np.array_equal(gemmhub.matmul(a, b), a @ b)
        assert np.array_equal(gemmhub.matmul(a, b, out=out), a @ b)
        assert picky.calls["run"] == runs
    plan = gemmhub.plan(aligned, b)
    assert np.array_equal(plan(aligned, b), aligned @ b)
    with pytest.raises(InputError, match="make another plan"):
        plan(odd, b)
    with pytest.raises(NoBackendError, match="leading dimension 4097"):
        gemmhub.matmul(odd, b, backend="aligned")


def test_a_kernel_sees_the_strides_of_its_problem(rng):
    """Also of a result that overlaps an operand and is made beside it."""
    seen = []

    def prepare(problem, candidate, limit):
        kernel = backend._kernel(problem, candidate, limit)
        layouts = [(x.layout.row_stride, x.layout.col_stride) for x in (problem.a, problem.b, problem.out)]

        def run(a, b, out, *rest, **operands):
            seen.append([tuple(s // x.itemsize for s in x.strides) for x in (a, b, out)] == layouts)
            kernel.run(a, b, out, *rest, **operands)

        return gemmhub.Kernel(run, "checks strides")

    backend = Scripted("strict", True, prepare=prepare)
    add(backend)
    memory = rng.standard_normal((3, 12, 16), np.float32)
    a, b = memory[0, :6, 2:8], memory[1, 4:10, :12:2]
    for out in (None, memory[2, ::2, ::3][:, :6], memory[2, :6, :6].T, a, a.T, b[::-1], memory[0, 3:9, 4:10]):
        expected = (a @ b).copy()
        before = memory.copy()
        assert np.array_equal(gemmhub.matmul(a, b, out=out), expected)
        memory[...] = before
    assert seen == [True] * 7


def test_a_twin_has_the_strides_and_none_of_the_memory(rng):
    base = rng.standard_normal((7, 8, 6))
    views = [base, base.T, base[::-1, 2:, ::-2], base[1:1], base[:, 3:4, ::5], np.broadcast_to(base[0], (7, 8, 6))]
    for view in views:
        twin = bind.NUMPY.empty_strided_like(view)
        assert (twin.shape, twin.strides, twin.dtype) == (view.shape, view.strides, view.dtype)
        assert not np.shares_memory(twin, base)
        twin[...] = view
        assert np.array_equal(twin, view)


def test_a_mistyped_preference_is_named(monkeypatch):
    monkeypatch.setenv("GEMMHUB_BACKEND", "nunpy, numpy")
    gemmhub.reload()
    a = np.ones((3, 3))
    assert gemmhub.explain(a, a).why == "preferred by GEMMHUB_BACKEND"
    monkeypatch.setenv("GEMMHUB_BACKEND", "nunpy")
    gemmhub.reload()
    told = gemmhub.explain(a, a).why
    assert told == "the only one that can; GEMMHUB_BACKEND: no backend is called 'nunpy' (did you mean 'numpy'?)"


def test_a_preference_for_another_device_has_a_row(operands, monkeypatch):
    """Installed or not: the table has why a backend that a setting names does not run, and the plugin is not loaded."""
    monkeypatch.setenv("GEMMHUB_BACKEND", "elsewhere, cublas")
    gemmhub.reload()
    elsewhere = Scripted("elsewhere")
    described = BackendDescription("elsewhere", lambda: elsewhere, "for tests", contract=2, device_types=("cuda",))
    registry.registry().add(described, "elsewhere", "gemmhub-elsewhere")
    found = gemmhub.explain(*operands)
    assert found.chosen == "numpy"
    verdict = found["elsewhere"]
    assert (verdict.status, verdict.reason, verdict.remedy) == ("refused", "the operands are on cpu", "it is for cuda")
    assert found["cublas"].status == "not installed"
    assert found["cublas"].remedy.startswith("pip install ")
    assert found["cublas"].reason.startswith("for cuda: ")
    assert not elsewhere.calls


def test_a_decision_that_is_forgotten_at_once(monkeypatch):
    """As another thread may do it, between keeping a decision and using it."""

    put = CallCache.put

    def remember(cache, key, value):
        put(cache, key, value)
        api.forget_decisions()

    monkeypatch.setattr(CallCache, "put", remember)
    a, b = np.full((2, 3), 2.0), np.full((3, 2), 5.0)
    assert np.array_equal(gemmhub.matmul(a, b, alpha=2.0), np.full((2, 2), 60.0))
    assert np.array_equal(gemmhub.plan(a, b)(a, b), np.full((2, 2), 30.0))


@pytest.mark.parametrize(
    "candidates",
    [
        (gemmhub.Candidate("one", copies=None),), (gemmhub.Candidate("one", copies=("a",)),), (gemmhub.Candidate(""),),
        (gemmhub.Candidate("one", order=["k"]),), (gemmhub.Candidate("one"), gemmhub.Candidate("one")),
    ],
    ids=repr,
)  # fmt: skip
def test_an_offer_that_breaks_the_contract_fails_its_backend_alone(operands, candidates):
    add(Scripted("broken", offer=gemmhub.Offer(candidates)))
    for call in (gemmhub.matmul, gemmhub.tune):
        call(*operands)
    found = gemmhub.explain(*operands)
    assert found.chosen != "broken"
    assert found["broken"].status == "failed"
    assert found["broken"].reason.startswith("offer() raised TypeError: ")


def test_what_is_refused_at_its_own_size_is_shown_so():
    """Where the end of its bucket is not."""
    picky = Scripted("picky", refusal=lambda x: Refusal("m is 97", "pad m") if x.m == 97 else None)
    picky.by_bucket = True
    add(picky)
    a, b = np.ones((97, 4), np.float32), np.ones((4, 6), np.float32)
    assert gemmhub.explain(a, b)["picky"].reason == "m is 97"
