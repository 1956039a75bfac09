"""The conformance cases and the benchmark of a report, on the fake runtime."""

from __future__ import annotations

import pytest
from address_backend import Addresses
from gemmhub_musa import trial

from gemmhub.capability import Refusal


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(trial, "_SIZES", (16, 32))
    monkeypatch.setattr(trial, "_STEP", 60)
    monkeypatch.setattr(Addresses, "takes", {})


def sections(found):
    return [(finding.section, finding.item, finding.ok) for finding in found]


def test_a_backend_that_is_right(rt):
    Addresses.listed()
    cases, *speeds = trial.findings()
    assert (cases.section, cases.item, cases.ok) == ("conformance", "addresses", True)
    assert " 0 failed" in cases.text
    assert not cases.text.startswith("0 cases right")
    assert sections(speeds) == [
        ("speed", f"addresses {dtype} {size}x{size}x{size}", None)
        for dtype in ("float16", "float32")
        for size in (16, 32)
    ]
    assert all("TFLOPS" in finding.text for finding in speeds)


def test_what_fails_is_found_and_the_report_goes_on(rt):
    Addresses.listed(spoil=lambda x: x + 1)
    *failed, cases = trial._cases(Addresses(spoil=lambda x: x + 1))
    assert len(failed) == trial._FAILURES
    assert all(finding.ok is False and "wrong result" in finding.detail for finding in failed)
    assert cases.ok is False
    assert f" {trial._FAILURES} failed" in cases.text
    assert [finding.section for finding in trial.findings()].count("speed") == 4


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("bad")])
def test_a_product_that_raises_ends_the_benchmark_of_its_dtype(rt, error):
    def raises(x):
        raise error

    (finding,) = trial._speed(Addresses(spoil=raises), "float16")
    assert finding.ok is False
    assert finding.text == f"{type(error).__name__}: {error}"


def test_what_is_refused_is_listed(rt, monkeypatch):
    monkeypatch.setattr(Addresses, "offer", lambda self, problem: Refusal("no half precision", "use another"))
    (finding,) = trial._speed(Addresses(), "float16")
    assert (finding.ok, finding.text) == (None, "refused: no half precision")


def test_no_more_cases_after_the_time(rt, monkeypatch):
    monkeypatch.setattr(trial, "_SECONDS", -1.0)
    (cases,) = trial._cases(Addresses())
    assert cases.text.startswith("0 cases right")


def test_no_larger_product_after_a_long_one(rt, monkeypatch):
    monkeypatch.setattr(trial, "_timed", lambda backend, dtype, size: (1.0, "slow"))
    (finding,) = trial._speed(Addresses(), "float16")
    assert finding.text.startswith("1000 ms")
