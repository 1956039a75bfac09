"""The command line as users guess it: short names, sizes in any spelling, and the messages of mistakes."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub._choice import records
from gemmhub.cli.options import SHORT_DTYPES, SHORT_PRECISIONS
from gemmhub.dtypes import PRECISIONS, SUPPORTED

# ---------------------------------------------------------------- names


@pytest.mark.parametrize(("short", "dtype"), SHORT_DTYPES.items())
def test_short_names_of_dtypes(run, short, dtype):
    assert short not in SUPPORTED
    for name in (short, short.upper(), dtype):
        problem = run.json("explain", 3, 4, 5, "--dtype", name, "--out-dtype", _result(dtype), "--json")["problem"]
        assert f" {dtype},{dtype}->" in problem


def _result(dtype):
    return dtype if dtype.startswith(("c", "i", "u")) else "f32"


@pytest.mark.parametrize(("short", "precision"), [*SHORT_PRECISIONS.items(), *zip(PRECISIONS, PRECISIONS)])
def test_short_names_of_precisions(run, short, precision):
    assert f"precision={precision} " in run.json("explain", 3, 4, 5, "--precision", short, "--json")["problem"]


def test_every_command_takes_short_names(run, rng):
    a = run.save("a.npy", rng.random((4, 4), np.float32))
    run.save("c.npy", np.load("a.npy") @ np.load("a.npy"))
    options = ("--dtype", "bf16", "--precision", "bfloat16")
    assert "bfloat16" in run("compare", 3, 4, 5, *options).stdout
    assert "bfloat16" in run("tune", 3, 4, 5, *options).stdout
    assert "bfloat16" in run("bench", "--shape", "3x4x5", "--rounds", 1, *options).stdout
    assert "4 x 4 float16" in run("matmul", a, a, "--out-dtype", "fp16", "--precision", "BF16").stdout
    assert "passed" in run("spot-check", a, a, "c.npy", "--precision", "bfloat16").stdout


def test_an_unknown_name_is_an_error(run):
    told = run.error("explain", 3, 4, 5, "--dtype", "f8")
    assert "'f8'; allowed: float16, " in told
    assert "short: bf16, fp16, " in told
    told = run.error("explain", 3, 4, 5, "--precision", "fp16")
    assert "'fp16'; allowed: ieee, bf16x3, tf32, bf16; short: bfloat16, " in told


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("command", ["explain", "compare"])
@pytest.mark.parametrize(("arguments", "words"), [
    ([100, 200], "100 200 are two sizes; K is missing. Give three sizes M N K (or two files A.npy B.npy)"),
    ([100], "100 is one size; N and K are missing. Give three sizes M N K"),
    (["100x200"], "100x200 are two sizes; K is missing"),
    (["a.npy"], "One file, a.npy; B is missing: give A.npy B.npy, or three sizes M N K."),
    ([1, 2, 3, 4], "'1 2 3 4': 4 sizes. Give three sizes M N K"),
    ([100, 200, "x"], "'x' is not a size. Give three sizes M N K"),
    ([4, "²", 4], "'²' is not a size. Give three sizes M N K"),
    ([4, "٣", 4], "'٣' is not a size. Give three sizes M N K"),
    ([4, "9" * 5000, 4], "9' is not a size. Give three sizes M N K"),
    (["a.npy", "b.npy", "c.npy"], "'a.npy' is not a size. Give three sizes M N K (or two files A.npy B.npy): A is"),
])  # fmt: skip
def test_sizes_that_are_none(run, command, arguments, words):
    assert words in run.error(command, *arguments)


def test_sizes_as_one_word(run):
    assert "problem  3x4x5 " in run("explain", "3x4x5").stdout
    assert "problem  3x4x5 " in run("compare", "3x4x5").stdout
    assert "problem  3x4x5 " in run("tune", "3x4x5").stdout


def test_files_may_have_numbers_for_names(run, rng):
    for name in ("100", "200"):
        with open(name, "wb") as file:
            np.save(file, rng.random((3, 3)))
    assert "3x3x3" in run("explain", 100, 200).stdout


def test_tune_without_sizes(run):
    assert "M, N and K are missing. Give three sizes M N K or --shape MxNxK (files go with" in run.error("tune")
    assert "8 8 are two sizes; K is missing" in run.error("tune", 8, 8)


def test_commands_of_files_given_sizes(run):
    told = run.error("matmul", 100, 200)
    assert told == "error: 100: No such file or directory; sizes go with explain, compare, tune and bench\n"


# ---------------------------------------------------------------- mistakes

MEANT = [("spot_check", "spot-check"), ("benchmark", "bench"), ("Explain", "explain"), ("docter", "doctor")]


@pytest.mark.parametrize(("given", "meant"), MEANT)
def test_commands_that_were_meant(run, given, meant):
    assert f"No such command {given!r}. Did you mean {meant!r}?" in run.error(given)


def test_commands_without_a_similar_name(run):
    assert "No such command 'xyzzy'. Allowed: matmul, quantize, explain, " in run.error("xyzzy")


def test_a_missing_file_of_records_is_no_success(run):
    assert run.error("tune", "--show", "nofile") == "error: nofile: no such file\n"
    run("tune", 3, 4, 5)
    run("tune", "--merge", records.path(), "--into", "all.jsonl")
    run("tune", "--show", "all.jsonl")
    assert run.error("tune", "--show", "all.jsonl", "nofile") == "error: nofile: no such file\n"


@pytest.mark.parametrize(("arguments", "words"), [
    (["--show", "--dtype", "float32"], "--dtype: not used by --show, which times nothing; omit it."),
    (["--show", "--shape", 8, "--reproducible", "run"], "--shape, --reproducible: not used by --show"),
    (["--merge", "x", "--backend", "numpy"], "--backend: not used by --merge"),
    (["--import", "x", "--backend", "numpy", "--alpha", 2], "--alpha: not used by --import"),
])  # fmt: skip
def test_options_that_would_be_ignored(run, arguments, words):
    assert words in run.error("tune", *arguments)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16", "int8"])
def test_a_precision_that_does_not_count_is_no_setting(run, monkeypatch, dtype):
    monkeypatch.setenv("GEMMHUB_PRECISION", "tf32")
    gemmhub.reload()
    data = run.json("explain", 3, 4, 5, "--dtype", dtype, "--reproducible", "run", "--json")
    counts = dtype in ("float32", "complex64")
    assert ("precision" in data["settings"]) is counts
    assert ("precision=tf32" in data["problem"]) is counts
    assert data["settings"]["reproducible"] == "the call"


def test_empty_variables_set_nothing(run, monkeypatch):
    for name in ("BACKEND", "REPRODUCIBLE", "DISABLE"):
        monkeypatch.setenv(f"GEMMHUB_{name}", "")
    gemmhub.reload()
    assert not {"backend", "reproducible", "deny"} & set(run.json("explain", 3, 4, 5, "--json")["settings"])
    (run.folder / "gemmhub.toml").write_text("backend = 'numpy'\n")
    monkeypatch.delenv("GEMMHUB_CONFIG", raising=False)
    gemmhub.reload()
    # It takes back what a file sets.
    assert run.json("explain", 3, 4, 5, "--json")["settings"]["backend"] == "GEMMHUB_BACKEND"
    monkeypatch.setenv("GEMMHUB_PLUGINS", "")
    gemmhub.reload()
    assert run.json("explain", 3, 4, 5, "--json")["settings"]["allow"] == "GEMMHUB_PLUGINS"
