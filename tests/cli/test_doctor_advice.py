"""The recommendations of gemmhub doctor for fake machines."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gemmhub.cli import doctor_advice
from gemmhub.cli.main import main
from gemmhub.kit import install

CARD = ("card", ("gemmhub-cublas", "gemmhub-cuda"))


@pytest.fixture
def no_frameworks(monkeypatch):
    monkeypatch.setattr(doctor_advice, "find_spec", lambda name: None)


def advice(*hardware, installed=()):
    """The advice for a machine with this hardware and these distributions."""
    return doctor_advice.advice(lambda: [lambda: hardware], installed.__contains__)


def test_a_machine_without_hardware_needs_nothing(no_frameworks):
    assert advice() == []


def test_only_missing_distributions_are_recommended(no_frameworks):
    missing = doctor_advice.Advice("card", ("gemmhub-cuda",), install.command("gemmhub-cuda"))
    assert advice(CARD, installed=("gemmhub-cublas",)) == [missing]
    assert advice(CARD, installed=("gemmhub-cublas", "gemmhub-cuda")) == []


def test_installed_distributions_are_found():
    assert doctor_advice.installed("pytest")
    assert not doctor_advice.installed("gemmhub-no-such-plugin")


@pytest.mark.parametrize(
    ("flags", "title"),
    [("sse2 avx2", "CPU"), ("amx_tile amx_bf16 avx512_vnni amx_int8", "CPU with AMX, AVX-512 VNNI")],
)
def test_cpu(tmp_path, flags, title):
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert list(doctor_advice.cpu(tmp_path / "cpuinfo")) == [(title, ("gemmhub-cpu",))]
    assert list(doctor_advice.cpu(tmp_path / "none")) == []


def test_nvidia(tmp_path):
    device = tmp_path / "nvidiactl"
    assert list(doctor_advice.nvidia((str(device),))) == []
    device.touch()
    assert list(doctor_advice.nvidia((str(tmp_path / "none"), str(device)))) == [
        (f"an NVIDIA driver ({device})", ("gemmhub-cublas", "gemmhub-cuda"))
    ]


def test_a_plugins_look_replaces_ours(entry_points, no_frameworks, monkeypatch, caplog):
    """The others stay, and one that raises finds nothing, with a warning."""
    monkeypatch.setattr(doctor_advice, "LOOKS", {name: lambda name=name: [(name, (name,))] for name in "ab"})
    entry_points(doctor_advice.GROUP, "a", "closer", cards=lambda: [("card", ("gemmhub-card",))])
    assert [x.found for x in doctor_advice.advice()] == ["card", "b"]
    entry_points(doctor_advice.GROUP, "a", "broken", cards=lambda: 1 / 0)
    assert [x.found for x in doctor_advice.advice()] == ["b"]
    assert "broken:cards raised ZeroDivisionError" in caplog.text


def test_musa(tmp_path, monkeypatch):
    monkeypatch.delenv("MUSA_HOME", raising=False)
    assert list(doctor_advice.musa((str(tmp_path / "none"),))) == []
    monkeypatch.setenv("MUSA_HOME", str(tmp_path))
    ((title, distributions),) = doctor_advice.musa(())
    assert str(tmp_path) in title
    assert "gemmhub-mublas" in distributions


def test_a_framework_without_what_gemmhub_needs(monkeypatch):
    monkeypatch.setattr(doctor_advice, "find_spec", lambda name: object() if name in ("jax", "dask") else None)
    assert [x.distributions for x in advice()] == [("gemmhub[jax]",), ("gemmhub[dask]",)]


def test_the_report_has_it(no_frameworks, monkeypatch):
    made = doctor_advice.Advice("CPU with AMX", ("gemmhub-cpu",), install.command("gemmhub-cpu"))
    monkeypatch.setattr(doctor_advice, "advice", lambda: [made])
    report = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert [x["distributions"] for x in report["recommended"]] == [["gemmhub-cpu"]]
    shown = CliRunner().invoke(main, ["doctor"], terminal_width=200).stdout
    assert "CPU with AMX" in shown
