"""What gemmhub doctor recommends, on machines that are made up."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gemmhub.capability import Absent
from gemmhub.cli import doctor_advice
from gemmhub.cli.main import main
from gemmhub.kit import install


@pytest.fixture
def nothing(monkeypatch):
    """A machine without hardware, frameworks and plugins."""
    for look in ("_cpu", "_nvidia", "_musa"):
        monkeypatch.setattr(doctor_advice, look, lambda: ())
    monkeypatch.setattr(doctor_advice, "_installed", lambda name: False)
    monkeypatch.setattr(doctor_advice, "find_spec", lambda name: None)


def test_nothing(nothing):
    assert doctor_advice.advice() == []


def test_only_what_is_missing(nothing, monkeypatch):
    monkeypatch.setattr(doctor_advice, "_nvidia", lambda: [("card", ("gemmhub-cublas", "gemmhub-cuda"))])
    monkeypatch.setattr(doctor_advice, "_installed", lambda name: name == "gemmhub-cublas")
    assert doctor_advice.advice() == [doctor_advice.Advice("card", ("gemmhub-cuda",), install.command("gemmhub-cuda"))]
    monkeypatch.setattr(doctor_advice, "_installed", lambda name: True)
    assert doctor_advice.advice() == []


@pytest.mark.parametrize(
    ("flags", "title"),
    [("sse2 avx2", "CPU"), ("amx_tile amx_bf16 avx512_vnni amx_int8", "CPU with AMX, AVX-512 VNNI")],
)
def test_cpu(tmp_path, flags, title):
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert list(doctor_advice._cpu(tmp_path / "cpuinfo")) == [(title, ("gemmhub-cpu",))]
    assert list(doctor_advice._cpu(tmp_path / "none")) == []


def test_nvidia(monkeypatch):
    gpus = [
        SimpleNamespace(name="H100", capability=(9, 0)), SimpleNamespace(name="A10", capability=(8, 6)),
        SimpleNamespace(name="H100", capability=(9, 0)),
    ]  # fmt: skip
    monkeypatch.setattr(doctor_advice.cuda, "look", lambda *_: (None, gpus))
    assert dict(doctor_advice._nvidia()) == {
        "H100, compute capability 9.0": ("gemmhub-cublas", "gemmhub-cuda", "gemmhub-hopper"),
        "A10, compute capability 8.6": ("gemmhub-cublas", "gemmhub-cuda"),
    }
    monkeypatch.setattr(doctor_advice.cuda, "look", lambda *_: Absent("no driver", "install one"))
    assert list(doctor_advice._nvidia()) == []


def test_musa(tmp_path, monkeypatch):
    monkeypatch.delenv("MUSA_HOME", raising=False)
    assert list(doctor_advice._musa((str(tmp_path / "none"),))) == []
    monkeypatch.setenv("MUSA_HOME", str(tmp_path))
    ((title, distributions),) = doctor_advice._musa(())
    assert str(tmp_path) in title
    assert "gemmhub-mublas" in distributions


def test_a_framework_without_what_gemmhub_needs(nothing, monkeypatch):
    monkeypatch.setattr(doctor_advice, "find_spec", lambda name: object() if name in ("jax", "dask") else None)
    assert [x.distributions for x in doctor_advice.advice()] == [("gemmhub[jax]",), ("gemmhub[dask]",)]


def test_the_report_has_it(nothing, monkeypatch):
    monkeypatch.setattr(doctor_advice, "_cpu", lambda: [("CPU with AMX", ("gemmhub-cpu",))])
    report = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert [x["distributions"] for x in report["recommended"]] == [["gemmhub-cpu"]]
    shown = CliRunner().invoke(main, ["doctor"], terminal_width=200).stdout
    assert "CPU with AMX" in shown
