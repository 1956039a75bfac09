"""gemmhub matmul: correct products, options, raw dtypes, verdicts, and a clear error for every bad file."""

from __future__ import annotations

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import gemmhub
from gemmhub.cli.main import main


def test_product_is_written_and_reported(run, pair):
    a, b = pair
    out = run("matmul", "a.npy", "b.npy", "--out", "c.npy").stdout
    c = np.load("c.npy")
    assert c.dtype == np.float32
    assert gemmhub.spot_check(a, b, c)
    assert "result   23 x 17 float32\n" in out
    assert "written  c.npy\n" in out
    assert "numpy: numpy.matmul" in out
    assert "chosen" not in out
    assert "check" not in out


def test_integers_exactly(run, rng):
    a = rng.integers(-128, 128, (7, 300), np.int8)
    b = rng.integers(-128, 128, (300, 5), np.int8)
    run("matmul", run.save("a.npy", a), run.save("b.npy", b), "--out", "c.npy")
    assert np.array_equal(np.load("c.npy"), a.astype(np.int64) @ b.astype(np.int64))


def test_all_options_together(run, pair, rng):
    a, b = pair
    c, bias = rng.standard_normal((23, 17)), rng.standard_normal(17)
    run.save("addend.npy", c)
    run.save("bias.npy", bias)
    options = ["--alpha", "-2.5", "--beta", "0.5", "--c", "addend.npy", "--bias", "bias.npy", "--activation", "relu"]
    run("matmul", "a.npy", "b.npy", "--out", "d.npy", "--out-dtype", "float64", *options, "--check")
    expected = np.maximum(-2.5 * (a.astype(np.float64) @ b) + 0.5 * c + bias, 0)
    got = np.load("d.npy")
    assert got.dtype == np.float64
    assert np.abs(got - expected).max() < 1e-11
    assert (got == 0).any()


def test_vectors_batches_and_order(run, rng):
    a, v = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal(5)
    told = run("matmul", run.save("a.npy", np.asfortranarray(a)), run.save("v.npy", v), "--out", "c.npy").stdout
    assert "result   2 x 3 x 4 float64" in told
    assert np.abs(np.load("c.npy") - a @ v).max() < 1e-14
    assert "scalar float64" in run("matmul", "v.npy", "v.npy", "--check").stdout


def test_byte_order_of_another_machine(run, pair):
    a, b = pair
    run("matmul", run.save("x.npy", a.astype(">f4")), "b.npy", "--out", "c.npy")
    assert gemmhub.spot_check(a, b, np.load("c.npy"))


def test_bfloat16_files(run, pair):
    a, b = (x.astype(ml_dtypes.bfloat16) for x in pair)
    run.save("a16.npy", a)
    run.save("b16.npy", b)
    assert "--dtype" in run.error("matmul", "a16.npy", "b16.npy")
    assert "raw elements of 2 bytes, but float8_e5m2 has 1" in run.error(
        "matmul", "a16.npy", "b16.npy", "--dtype", "float8_e5m2"
    )
    told = run("matmul", "a16.npy", "b16.npy", "--dtype", "bfloat16", "--out", "c.npy", "--check").stdout
    assert "raw bfloat16: load with .view(ml_dtypes.bfloat16)" in told
    assert gemmhub.spot_check(a, b, np.load("c.npy").view(ml_dtypes.bfloat16))
    mixed = run.json("matmul", "a16.npy", "b.npy", "--dtype", "bfloat16", "--json")
    assert mixed["dtype"] == "float32"


def test_explain_and_check(run, pair):
    told = run("matmul", "a.npy", "b.npy", "--explain", "--check").stdout
    assert (
        told.index("problem  23x17x31") < told.index("numpy    chosen") < told.index("result ") < told.index("passed")
    )
    assert "391 elements recomputed" in told


def test_json(run, pair):
    data = run.json("matmul", "a.npy", "b.npy", "--explain", "--check", "--json", "--out", "c.npy")
    assert data["shape"] == [23, 17]
    assert data["backend"] == data["decision"]["chosen"] == "numpy"
    assert data["out"] == "c.npy"
    assert data["check"]["ok"] is True
    assert data["seconds"] > 0
    assert data["gflops"] == pytest.approx(2e-9 * 23 * 17 * 31 / data["seconds"])


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_wrong_product_exits_with_1(run, pair, wrong, more):
    """The product is written all the same: the user may want to inspect it."""
    told = run("matmul", "a.npy", "b.npy", "--check", "--out", "c.npy", *more, code=1).stdout
    assert "(22, 0)" in told
    a, b = pair
    assert not gemmhub.spot_check(a, b, np.load("c.npy"))
    assert run.json("matmul", "a.npy", "b.npy", "--check", "--backend", "numpy", "--json")["check"]["ok"]


def test_wrong_product_with_an_epilogue(run, rng, wrong):
    run.save("a.npy", rng.standard_normal((3, 4)))
    run.save("b.npy", rng.standard_normal((4, 5)))
    assert (
        "failed (recomputed: 15 elements recomputed)"
        in run("matmul", "a.npy", "b.npy", "--alpha", "2", "--check", code=1).stdout
    )


def test_nan_in_json(run, pair):
    a, _ = pair
    a[3] = np.inf
    run.save("a.npy", a)
    assert run.json("matmul", "a.npy", "b.npy", "--check", "--json")["check"]["ok"] is True


# ---------------------------------------------------------------- what cannot be used


def _bytes(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a .npy file"),
        (b"1 2 3\n", "not a .npy file"),
        (b"PK\x03\x04", "an archive"),
        (_bytes(np.array([[{}]]), allow_pickle=True), "Python objects"),
        (_bytes(np.ones((5, 5)))[:-1], "truncated"),
        (_bytes(np.ones((5, 5)))[:40], "not a readable .npy file"),
        (_bytes(np.ones((5, 5))).replace(b"(5, 5)", b"(5,-5)"), "not a readable .npy file"),
        (_bytes(np.ones((5, 5))).replace(b"}", b"{"), "not a readable .npy file"),
        (_bytes(np.array([["text"]])), "is not supported"),
        (_bytes(np.zeros((2, 2), "f4,f4")), "is not supported"),
        (_bytes(np.zeros((2, 2), "M8[s]")), "is not supported"),
    ],
    ids=[
        "empty",
        "text",
        "npz",
        "objects",
        "short",
        "half a header",
        "negative size",
        "no dict",
        "text array",
        "records",
        "dates",
    ],
)
def test_files_that_are_no_matrix(run, pair, content, message):
    (run.folder / "x.npy").write_bytes(content)
    for files in (("x.npy", "b.npy"), ("a.npy", "x.npy")):
        told = run.error("matmul", *files, "--out", "c.npy")
        assert told.startswith("error: x.npy: ")
        assert message in told
    assert not (run.folder / "c.npy").exists()


def test_no_header_makes_a_traceback(run, pair, rng):
    """Bytes of the header replaced at random: a product or an error, never an exception."""
    good = _bytes(np.ones((23, 31), np.float32))
    letters = np.frombuffer(b"'{}(),:0123456789-<>|VfOc# \n\x00\xff", np.uint8)
    codes = set()
    for _ in range(150):
        content = np.frombuffer(good, np.uint8).copy()
        places = rng.integers(6, 90, rng.integers(1, 4))
        content[places] = rng.choice(letters, len(places))
        (run.folder / "x.npy").write_bytes(content.tobytes())
        result = CliRunner().invoke(main, ["matmul", "x.npy", "b.npy"])
        assert isinstance(result.exception, (SystemExit, type(None))), content.tobytes()
        codes.add(result.exit_code)
    assert 2 in codes
    assert codes <= {0, 2}


def test_files_that_are_not_there(run, pair):
    assert run.error("matmul", "nope.npy", "b.npy") == "error: nope.npy: No such file or directory\n"
    assert "directory" in run.error("matmul", ".", "b.npy")


def test_out_that_cannot_be_written(run, pair):
    assert "there is no directory nowhere" in run.error("matmul", "a.npy", "b.npy", "--out", "nowhere/c.npy")
    assert "is a directory" in run.error("matmul", "a.npy", "b.npy", "--out", ".")
    if Path("/dev/full").exists():
        assert "cannot be written: No space left" in run.error("matmul", "a.npy", "b.npy", "--out", "/dev/full", code=3)


def test_products_that_are_none(run, pair):
    assert "inner dimensions 31 and 23 differ" in run.error("matmul", "a.npy", "a.npy", "--out", "c.npy")
    assert "c with beta" in run.error("matmul", "a.npy", "b.npy", "--c", "a.npy")
    assert "no backend is called 'nope'" in run.error("matmul", "a.npy", "b.npy", "--backend", "nope")
    assert not (run.folder / "c.npy").exists()


def test_no_backend_shows_the_table(run, pair, choosy):
    told = run.error("matmul", "a.npy", "b.npy", "--backend", "choosy", code=3)
    assert told.startswith("error: no backend may run this product")
    assert "it is Monday; wait a day" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["matmul", "a.npy"],
        ["matmul", "a.npy", "b.npy", "--alpha", "two"],
        ["matmul", "a.npy", "b.npy", "--out-dtype", "float12"],
        ["matmul", "a.npy", "b.npy", "--precision", "double"],
        ["multiply"],
    ],
)
def test_usage(run, pair, arguments):
    assert run.error(*arguments).startswith("Usage: gemmhub")


def test_bad_configuration_is_one_message(run, pair, monkeypatch):
    monkeypatch.setenv("GEMMHUB_PRECISION", "double")
    gemmhub.reload()
    told = run.error("matmul", "a.npy", "b.npy")
    assert told.startswith("error: environment variable GEMMHUB_PRECISION: ")
    assert len(told.splitlines()) == 1
