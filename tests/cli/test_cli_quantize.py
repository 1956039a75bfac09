"""gemmhub quantize: files that the other commands multiply, in every granularity, and an error for every mistake."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

import gemmhub
from gemmhub import accuracy

GROUPS = {"tensor": None, "row": None, "column": None, "block": "128x128"}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_the_files_are_what_quantize_returns(run, rng, target, group):
    x = rng.standard_normal((150, 260)).astype(np.float32)
    run.save("x.npy", x)
    more = ["--block", GROUPS[group]] if GROUPS[group] else []
    told = run(
        "quantize", "x.npy", "--to", target, "--granularity", group, *more, "--out", "q.npy", "--out-scale", "s.npy"
    ).stdout  # fmt: skip
    dtype = gemmhub.dtypes.as_dtype(target)
    q, scale = np.load("q.npy").view(dtype), np.load("s.npy")
    expected = gemmhub.quantize(x, target, group, block=(128, 128) if more else None)
    assert q.tobytes() == expected[0].tobytes()
    assert np.array_equal(scale, expected[1])
    assert scale.dtype == np.float32
    assert f"result         150 x 260 {target}\n" in told
    assert "saturated      0 elements" in told


@pytest.mark.parametrize("link", [None, os.link, os.symlink])
@pytest.mark.parametrize("option", ["--out", "--out-scale", "--scale"])
def test_no_file_is_read_and_written(run, rng, option, link):
    """By its name, another path, or a link; --out-scale over the file of --scale neither."""
    run.save("x.npy", rng.standard_normal((3, 4)).astype(np.float32)), run.save("s.npy", np.float32(1))
    source = "s.npy" if option == "--scale" else "x.npy"
    before = (run.folder / source).read_bytes()
    name = f"../{run.folder.name}/{source}"
    if link is not None:
        link(run.folder / source, run.folder / "link.npy")
        name = "link.npy"
    paths = {"--out": "q.npy", "--out-scale": "t.npy", "--scale": "s.npy"}
    paths["--out-scale" if option == "--scale" else option] = name
    message = run.error("quantize", "x.npy", "--to", "int8", *(x for pair in paths.items() for x in pair))
    assert "name one file, which would be lost" in message
    assert (run.folder / source).read_bytes() == before
    assert not (run.folder / "q.npy").exists()


def test_one_file_for_both_results(run, rng):
    run.save("x.npy", rng.standard_normal((3, 4)).astype(np.float32)), run.save("q.npy", np.zeros(1))
    os.link(run.folder / "q.npy", run.folder / "s.npy")
    for names in (("q.npy", "s.npy"), ("new.npy", "./new.npy"), ("new.npy", f"../{run.folder.name}/new.npy")):
        message = run.error("quantize", "x.npy", "--to", "int8", "--out", names[0], "--out-scale", names[1])
        assert "--out and --out-scale name one file" in message


@pytest.mark.parametrize("target", ["e4m3", "e5m2", "int8"])
def test_a_product_of_quantized_files(run, rng, target):
    """Raw elements have the dtype that --dtype names; the result of float8 is a raw file again."""
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 256), (256, 24)))
    run.save("x.npy", x), run.save("w.npy", w)
    run("quantize", "x.npy", "--to", target, "--granularity", "row", "--out", "q.npy", "--out-scale", "sa.npy")
    run("quantize", "w.npy", "--to", target, "--granularity", "column", "--out", "p.npy", "--out-scale", "sb.npy")
    scales = ["--scale-a", "sa.npy", "--scale-b", "sb.npy", "--dtype", target]
    for out in ("float32", "bfloat16") + ("e4m3", "e5m2") * (target != "int8"):
        told = run("matmul", "q.npy", "p.npy", *scales, "--out-dtype", out, "--out", "y.npy", "--check").stdout
        assert "passed" in told
        y = np.load("y.npy")
        y = y if out == "float32" else y.view(gemmhub.dtypes.as_dtype(out))
        assert np.abs(y.astype(np.float64) - x @ w).max() / np.abs(x @ w).max() < 0.3
        verdict = run("spot-check", "q.npy", "p.npy", "y.npy", *scales, "--out-dtype", out).stdout
        assert "passed" in verdict


def test_a_bias_of_16_bits_beside_a_float8_result(run, rng):
    a = rng.standard_normal((6, 8)).astype(np.float32)
    bias = rng.standard_normal(8).astype(ml_dtypes.bfloat16)
    run.save("a.npy", a), run.save("b.npy", np.eye(8, dtype=np.float32)), run.save("bias.npy", bias)
    run("matmul", "a.npy", "b.npy", "--bias", "bias.npy", "--out-dtype", "e4m3", "--out", "y.npy", "--check")
    y = np.load("y.npy").view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.abs(y - (a + bias.astype(np.float32))).max() < 0.26


def test_a_scale_of_the_users(run, rng):
    """Static scaling, of a bfloat16 file; what is beyond the scale's range saturates and is counted."""
    x = rng.standard_normal((4, 300)).astype(ml_dtypes.bfloat16)
    x[0, 0] = 1000
    run.save("x.npy", x), run.save("s.npy", np.float32(1))
    data = run.json(
        "quantize", "x.npy", "--to", "e4m3", "--scale", "s.npy", "--dtype", "bf16", "--out", "q.npy", "--out-scale",
        "t.npy", "--json",
    )  # fmt: skip
    assert data["saturated"] == 1
    assert data["error"] == 552
    assert data["shape"] == [4, 300]
    q = np.load("q.npy").view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert q[0, 0] == 448
    bound = accuracy.quantization_bound(x, np.float32(1), gemmhub.dtypes.as_dtype("e4m3"))
    assert np.all(np.abs(q - x.astype(np.float64)) <= bound)


@pytest.mark.parametrize("target", ["e4m3", "int8"])
def test_numbers_that_are_not_finite(run, target):
    """NaN is counted: in int8 all of its group. Infinities saturate."""
    run.save("x.npy", np.array([[1, np.nan, 2], [np.inf, 3, 4]], np.float32))
    command = ("quantize", "x.npy", "--to", target, "--granularity", "row", "--out", "q.npy", "--out-scale", "s.npy")
    data, told = run.json(*command, "--json"), run(*command).stdout
    assert (data["saturated"], data["nan"]) == (1, 3 if target == "int8" else 1)
    assert f"NaN            {'3 elements' if target == 'int8' else '1 element'} without an error\n" in told


def test_a_large_error_is_short(run):
    run.save("x.npy", np.array([1e300]))
    told = run("quantize", "x.npy", "--to", "int8", "--out", "q.npy", "--out-scale", "s.npy").stdout
    assert "largest error  1e+300\nsaturated      1 element\n" in told
    assert "NaN" not in told


@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf])
def test_scales_that_are_refused(run, scale):
    run.save("x.npy", np.ones((2, 3), np.float32)), run.save("s.npy", np.array([[1], [scale]], np.float32))
    told = run.error(
        "quantize", "x.npy", "--to", "int8", "--granularity", "row", "--scale", "s.npy", "--out", "q.npy",
        "--out-scale", "t.npy",
    )  # fmt: skip
    assert "scale: numbers that are 0, negative, infinite or NaN; allowed: positive finite numbers" in told
    assert not (run.folder / "q.npy").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--to", "int4"], "'int4'; allowed: float8_e4m3fn, float8_e5m2, int8"),
        (["--to", "int8", "--granularity", "rows"], "'rows' is not one of"),
        (["--to", "int8", "--block", "1x128"], "block: given for granularity 'tensor'"),
        (["--to", "int8", "--out-scale", "q.npy"], "--out and --out-scale name one file"),
        (["--to", "int8", "--out", "nowhere/q.npy"], "there is no directory nowhere"),
        (["--to", "int8", "--scale", "x.npy"], "scale: shape"),
    ],
)
def test_mistakes(run, rng, more, message):
    run.save("x.npy", rng.standard_normal((4, 5)).astype(np.float32))
    assert message in run.error("quantize", "x.npy", "--out", "q.npy", "--out-scale", "s.npy", *more)
    run.save("i.npy", np.ones((2, 2), np.int32))
    told = run.error("quantize", "i.npy", "--to", "int8", "--out", "q.npy", "--out-scale", "s.npy")
    assert "x: dtype int32; allowed: real floating" in told
