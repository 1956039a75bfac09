"""gemmhub tune and bench."""

from __future__ import annotations

import json
import os
import statistics
import sys
from functools import partial

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub.backend import Imported
from gemmhub.cli import by_name, contenders, heatmap, measurements, roofline
from gemmhub.cli.errors import Failure
from gemmhub.cli.operands import random_operand
from gemmhub.cli.options import SHAPES
from gemmhub.dtypes import SUPPORTED, as_dtype
from gemmhub.errors import InputError
from gemmhub.kit import install
from plugins import add

NUMPY_MATMUL = "numpy.matmul"

# ---------------------------------------------------------------- tune


def test_tune_records_what_later_calls_use(run):
    told = run("tune", 24, 16, 8, "--shape", "12x10x8", "--dtype", "float64").stdout
    assert told.count("problem  ") == 2
    assert "recorded  " in told
    data = run.json("explain", 12, 10, 8, "--dtype", "float64", "--json")
    assert {v["backend"]: v["source"] for v in data["verdicts"]}["numpy"] == "measured"
    data = run.json("tune", "--show", "--json")
    assert len(data["records"]) == 2
    assert data["skipped"] == []
    shown = run("tune", "--show").stdout
    assert "records  2" in shown
    assert "12x10x8 batch=1 float64" in shown


def test_tune_warns_of_a_loaded_machine(run, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    told = run("tune", 24, 16, 8, "--shape", "12x10x8").stdout
    assert told.count("warning   the load average was ") == 2
    assert told.index("warning   ") < told.index("recorded  ")
    assert run.json("tune", 24, 16, 8, "--json")[0]["warning"].endswith("tune again on an idle machine")


def test_tune_takes_orders_batches_and_operands(run):
    (result,) = run.json("tune", 24, 16, 8, "--a-order", "col", "--b-order", "col", "--batch", "3", "--json")
    assert result["problem"].startswith("24x16x8 batch=3 float32,float32->float32 order=ccr epilogue=none")
    (result,) = run.json("tune", 24, 16, 8, "--bias", "n", "--activation", "relu", "--json")
    assert "epilogue=bias_n+relu" in result["problem"]
    data = run.json("explain", 24, 16, 8, "--bias", "n", "--activation", "relu", "--json")
    assert {v["backend"]: v["source"] for v in data["verdicts"]}["numpy"] == "measured"
    both = run.json("tune", "--shape", "8,12x4x4", "--c", "matrix", "--beta", "2", "--json")
    assert all("epilogue=c" in result["problem"] for result in both)
    assert len(both) == 2


def test_tune_json_and_cubes(run):
    (result,) = run.json("tune", "--shape", "16", "--json")
    assert result["problem"].startswith("16x16x16")
    assert result["rows"][0]["seconds"] > 0


def test_tune_reports_the_wrong_and_records_the_right(run, wrong):
    told = run("tune", 24, 16, 8).stdout
    assert "wrong: " in told
    shown = run.json("tune", "--show", "--json")
    assert [r["backend"] for r in shown["records"]] == ["numpy"]
    ((failed, seconds, failure),) = [(r["backend"], r["seconds"], r["failure"]) for r in shown["failures"]]
    assert (failed, seconds, failure[:7]) == ("wrong", None, "wrong: ")
    assert "failed   wrong default, 24x16x8 batch=1 float32" in run("tune", "--show").stdout
    assert "nothing to tune" in run.error("tune", 24, 16, 8, "--backend", "wrong", code=3)


def test_merge(run, monkeypatch):
    for name, size in (("one", 8), ("two", 12)):
        monkeypatch.setenv("GEMMHUB_RECORDS", str(run.folder / f"{name}.jsonl"))
        gemmhub.reload()
        run("tune", size, size, size)
    two = run.folder / "two.jsonl"
    two.write_text(two.read_text() + "junk\n")
    told = run("tune", "--merge", "one.jsonl", "two.jsonl", "--into", "three.jsonl").stdout
    assert "records  2" in told
    assert "skipped  two.jsonl:2: not JSON" in told
    assert len(run.json("tune", "--show", "three.jsonl", "--json")["records"]) == 2
    # Into those in force, which are two.jsonl.
    assert run.json("tune", "--merge", "one.jsonl", "--json")["records"] == 2
    assert "two.jsonl:3: not JSON" in run("tune", "--show").stdout
    assert "error: missing.jsonl: no such file" in run.error("tune", "--merge", "missing.jsonl")


class Profiled(Scripted):
    """Its library's profiler writes lines of a product's size and seconds."""

    def import_times(self, path, device):
        problem = gemmhub.explain(*np.ones((2, 8, 8), np.float32)).problem
        lines = path.read_text().splitlines()
        times = [(problem, "default", float(line)) for line in lines if line != "other"]
        return self._answer("import_times", Imported(times, {"it is another's": lines.count("other")}), path, device)


def test_import(run):
    add(Profiled("profiled", seconds=1.0))
    (run.folder / "profile.txt").write_text("1e-9\nother\nother\n")
    told = run("tune", "--import", "profile.txt", "--backend", "profiled").stdout
    assert "records  1" in told
    assert "skipped  profile.txt: 2 rows: it is another's" in told
    (verdict,) = (v for v in run.json("explain", 8, 8, 8, "--json")["verdicts"] if v["backend"] == "profiled")
    assert (verdict["status"], verdict["source"], verdict["seconds"]) == ("chosen", "measured", 1e-9)
    data = run.json("tune", "--import", "profile.txt", "--backend", "profiled", "--into", "other.jsonl", "--json")
    assert data == {"into": "other.jsonl", "records": 1, "skipped": ["profile.txt: 2 rows: it is another's"]}
    assert len(run.json("tune", "--show", "other.jsonl", "--json")["records"]) == 1


@pytest.mark.parametrize(("arguments", "answer", "words", "code"), [
    (["--backend", "nobody"], None, "no backend is called 'nobody'", 2),
    (["--backend", "profiled", "--device", "cuda:1"], None, "does not run on cuda:1", 2),
    (["--backend", "numpy"], None, "profile.txt: numpy reads no profiler's file; measure with gemmhub tune", 2),
    (["--backend", "profiled"], ValueError("broken"), "import_times() raised ValueError: broken", 2),
    (["--backend", "profiled"], 5, "import_times() returned int", 2),
    (["--backend", "gone"], None, "backend 'gone': not here; nothing to do", 3),
])  # fmt: skip
def test_import_of_nothing(run, arguments, answer, words, code):
    add(Profiled("profiled", **({} if answer is None else {"import_times": answer})))
    add(Scripted("gone", probe=gemmhub.Absent("not here", "nothing to do")))
    (run.folder / "profile.txt").write_text("0.25\n")
    assert words in run.error("tune", "--import", "profile.txt", *arguments, code=code)
    assert "does not exist" in run("tune", "--show").stdout


def test_show_of_nothing(run):
    assert "does not exist" in run("tune", "--show").stdout


@pytest.mark.parametrize("content", ["a list\nof things\n", '{"format": 99}\n', "\x00\x01"])
def test_show_of_a_file_without_records(run, content):
    (run.folder / "junk.jsonl").write_text(content)
    (run.folder / "none.jsonl").write_text("\n")
    for more in ((), ("--json",), ("none.jsonl",)):
        message = run.error("tune", "--show", "junk.jsonl", *more)
        assert "no line is a tuning record that this gemmhub reads: junk.jsonl:1: " in message
    assert "records  0" in run("tune", "--show", "none.jsonl").stdout


def test_records_may_be_off(run, monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    assert "records are off" in run("tune", 8, 8, 8).stdout
    assert "records are off" in run.error("tune", "--show")
    assert "records are off" in run.error("tune", "--merge", "x.jsonl")


@pytest.mark.parametrize(
    "arguments",
    [
        [], [8, 8], ["a.npy", "b.npy"], ["--shape", "8x8"], ["--shape", "8xAx8"], ["--merge"], ["--show", "--merge"],
        ["--into", "x"], ["--show", "--shape", "8"], [8, 8, 8, "--dtype", "float8_e5m2"], ["--shape", "8x8x8,"],
        [8, 8, 8, "--b-order", "both"], ["--import", "x.csv"], ["--import", "--backend", "numpy"],
        ["--import", "--merge", "x", "--backend", "numpy"],
    ],
)  # fmt: skip
def test_tune_usage(run, arguments):
    run.error("tune", *arguments)


# ---------------------------------------------------------------- bench


def test_bench_warns_of_what_disturbs_it(run, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setenv("MKL_NUM_THREADS", "77")
    options = ("bench", "--shape", 8, "--rounds", 1)
    told = run(*options)
    assert "warning: the load average is 1e+03 for the " in told.stderr
    assert "warning: MKL_NUM_THREADS=77 sets the threads" in told.stderr
    assert "warning" not in told.stdout
    assert len(run.json(*options, "--json", "-")["warnings"]) >= 2
    run(*options, "--html", "x.html")
    assert "MKL_NUM_THREADS=77" in (run.folder / "x.html").read_text()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.delenv("MKL_NUM_THREADS")
    assert run.json(*options, "--json", "-")["warnings"] == []


def test_bench_table(run, reference):
    told = run("bench", "--shape", "24x16x8", "--shape", "16", "--rounds", 2, "--dtype", "float64").stdout
    lines = told.splitlines()
    assert lines[0].split()[-2:] == ["numpy.matmul", "remarks"]
    assert {line.split()[2] for line in lines[1:] if line.startswith(("24x16x8", "16x16x16"))} <= {
        "numpy", "reference", "numpy.matmul",
    }  # fmt: skip
    assert told.count("float64") == 2
    assert told.count(" 1.00x") >= 2


def test_bench_json(run, reference):
    run("bench", "--shape", "24x16x8", "--dtype", "float16", "--dtype", "int8", "--rounds", 3, "--json", "b.json")
    data = json.loads((run.folder / "b.json").read_text())
    assert data["command"][:4] == ["gemmhub", "bench", "--shape", "24x16x8"]
    assert data["versions"]["numpy"] == np.__version__
    assert data["versions"]["backends"]["reference"] == {"scripted": "1"}
    assert [(c["dtype"], c["out_dtype"]) for c in data["cases"]] == [("float16", "float16"), ("int8", "int32")]
    for case in data["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        assert set(rows) == {"numpy", "reference", "numpy.matmul"}
        baseline = rows["numpy.matmul"]["median"]
        for row in rows.values():
            assert len(row["samples"]) == 3
            assert row["median"] == pytest.approx(statistics.median(row["samples"]))
            assert row["minimum"] == min(row["samples"]) <= max(row["samples"]) == row["maximum"]
            assert row["ratio"] == pytest.approx(baseline / row["median"])
            assert row["gflops"] == pytest.approx(2e-9 * 24 * 16 * 8 / row["median"])
        assert [r["median"] for r in case["rows"]] == sorted(r["median"] for r in case["rows"])


def test_bench_json_on_stdout(run):
    data = run.json("bench", "--shape", 8, "--rounds", 1, "--baseline", "numpy", "--json", "-")
    (row,) = data["cases"][0]["rows"]
    assert row["name"] == "numpy"
    assert row["ratio"] == 1


def test_bench_does_not_time_the_wrong(run, wrong):
    data = run.json("bench", "--shape", 24, "--rounds", 1, "--json", "-", code=1)
    rows = {row["name"]: row for row in data["cases"][0]["rows"]}
    assert rows["wrong"]["verdict"] == "failed"
    assert rows["wrong"]["median"] is None
    assert "(23, 0)" in rows["wrong"]["remark"]
    assert rows["numpy"]["median"] > 0


@pytest.mark.parametrize(("dtype", "out"), [("e4m3", "e4m3"), ("int8", "bfloat16"), ("bfloat16", "float16")])
def test_bench_with_scales_and_addends(run, dtype, out, monkeypatch):
    """By their forms, of the sizes of each product; the library's own function runs without them. What is timed is
    the scaled product, and so is what is checked."""
    options = ["bench", "--shape", "24x16x300,40", "--dtype", dtype, "--out-dtype", out, "--rounds", 1, "--json", "-"]
    forms = ["--scale-a", "1x128", "--scale-b", "column", "--bias", "n", "--c", "matrix", "--beta", "0.5"]
    for case in run.json(*options, *forms, "--host")["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        assert rows["numpy"]["verdict"] == "passed"
        assert "scale_b=column" in case["problem"]
        assert "without c, bias, scale_a, scale_b" in rows["numpy.matmul"]["remark"]
    monkeypatch.setattr(contenders.Product, "check", lambda product, x: product.check_plain(x, product.problem.m))
    failed = run.json(*options, *forms, code=1)["cases"][0]["rows"]
    assert {row["name"]: row["verdict"] for row in failed}["numpy"] == "failed"
    assert "no form; forms: tensor, " in run.error(*options, "--scale-a", "rows")


def test_bench_of_a_backend_that_refuses(run, choosy):
    """It is omitted with its reason; where no other backend runs, that is an error."""
    told = run("bench", "--shape", 8, "--rounds", 1, "--backend", "choosy", "--backend", "numpy").stdout
    assert "it is Monday; wait a day" in told
    result = run("bench", "--shape", 8, "--rounds", 1, "--backend", "choosy", code=3)
    assert result.stderr == "error: no backend was timed; the remarks have the reasons\n"
    assert "choosy" not in run("bench", "--shape", 8, "--rounds", 1).stdout


def test_slow_baselines_get_fewer_rows(monkeypatch):
    monkeypatch.setattr(contenders, "_LONGEST", 1e-4)
    case = measurements.run_case(400, 50, 60, dtype="float16", rounds=1)
    slow = next(row for row in case.rows if row.name == NUMPY_MATMUL)
    rows = int(slow.remark.split()[0])
    assert slow.remark == f"{rows} of 400 rows measured, scaled"
    assert 4 <= rows < 400
    assert slow.gflops == pytest.approx(2e-9 * 400 * 50 * 60 / slow.median)
    full = measurements.run_case(rows, 50, 60, dtype="float16", rounds=1)
    whole = next(row for row in full.rows if row.name == NUMPY_MATMUL)
    assert 1 / 20 < slow.median / (whole.median * 400 / rows) < 20


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_every_dtype(dtype, rng):
    x = random_operand(rng, (7, 5), as_dtype(dtype))
    assert x.dtype == as_dtype(dtype)
    assert x.shape == (7, 5)
    assert len(np.unique(x.astype(np.complex128))) > 1
    counted = []
    out = "float32" if dtype.startswith("float8") else None
    case = measurements.run_case(7, 6, 5, dtype=dtype, out_dtype=out, rounds=2, progress=lambda: counted.append(1))
    assert {row.name for row in case.timed} == {"numpy", NUMPY_MATMUL}
    assert len(counted) == 2


def test_operands_are_fresh(rng):
    x, y = (random_operand(rng, (20, 20), np.dtype(np.float64)) for _ in range(2))
    assert not np.any(x == y)
    bytes_ = random_operand(rng, (100, 100), np.dtype(np.int8))
    assert bytes_.min() == -128
    assert bytes_.max() == 127


def test_several_shapes_at_once(run):
    assert SHAPES.convert("8", None, None) == ((8, 8, 8),)
    assert SHAPES.convert("8,16", None, None) == ((8, 8, 8), (16, 16, 16))
    assert SHAPES.convert("1,2x3x4,5", None, None) == ((1, 3, 4), (1, 3, 5), (2, 3, 4), (2, 3, 5))
    data = run.json("bench", "--shape", "8,4x6x5", "--shape", "4x6x5", "--rounds", 1, "--json", "-")
    assert [(c["m"], c["n"], c["k"]) for c in data["cases"]] == [(8, 6, 5), (4, 6, 5)]


def test_b_stored_by_columns(run):
    for order, letters in (("row", "rrr"), ("col", "rcr")):
        data = run.json("bench", "--shape", "9x8x7", "--rounds", 1, "--b-order", order, "--json", "-")
        assert f"order={letters}" in data["cases"][0]["problem"]
        (result,) = run.json("tune", 9, 8, 7, "--b-order", order, "--json")
        assert f"order={letters}" in result["problem"]
    assert run("bench", "--shape", 8, "--b-order", "row", "--orders", "rrr", code=2).stderr


def test_every_order_of_the_operands_and_the_result(run):
    data = run.json("bench", "--shape", "9x8x7", "--rounds", 1, "--orders", "all", "--json", "-")
    assert [case["orders"] for case in data["cases"]] == list(measurements.ORDERS)
    for case in data["cases"]:
        assert f"order={case['orders']}" in case["problem"]
        assert {row["verdict"] for row in case["rows"]} == {"passed"}
    data = run.json(
        "bench",
        "--shape",
        "9x8x7",
        "--rounds",
        1,
        "--orders",
        "rrc",
        "--orders",
        "ccc",
        "--orders",
        "rrc",
        "--json",
        "-",
    )
    assert [case["orders"] for case in data["cases"]] == ["rrc", "ccc"]
    assert "9x8x7 rrc" in run("bench", "--shape", "9x8x7", "--rounds", 1, "--orders", "rrc").stdout
    with pytest.raises(InputError, match=r"orders.*'rrx'.*rrr, rrc"):
        measurements.run_case(4, 4, 4, orders="rrx")


@pytest.mark.parametrize("orders", ["rrr", "ccc"])
def test_warmup_and_iterations_count_calls(orders, reference):
    run_case = partial(measurements.run_case, 4, 4, 4, orders=orders, backends=("reference",), baseline="reference")
    run_case(rounds=1, warmup=0, iterations=1)
    checks, reference.runs = reference.runs - 1, 0
    run_case(rounds=3, warmup=2, iterations=5)
    assert reference.runs == checks + 2 + 3 * 5
    assert checks == 1


def test_the_json_has_warmup_and_iterations(run):
    data = run.json("bench", "--shape", 8, "--rounds", 1, "--warmup", 0, "--iterations", 3, "--json", "-")
    assert (data["warmup"], data["iterations"]) == (0, 3)


def test_the_json_describes_the_machine(run):
    data = run.json("bench", "--shape", 8, "--rounds", 1, "--json", "-")
    assert data["device"]["index"] == "cpu"
    assert data["device"]["library"] == "numpy"
    assert data["clock"] == "host"
    assert data["copy_bytes_per_second"] is None
    (case,) = data["cases"]
    assert (case["device"], case["clock"], case["nbytes"], case["host"]) == ("cpu", "host", 3 * 8 * 8 * 4, [])
    assert {row["check"] for row in case["rows"]} == {"recomputed"}


def test_commands_name_no_folder(run):
    (run.folder / "deep").mkdir()
    for option in (["--json", run.folder / "deep" / "b.json"], ["--json=deep/b.json"]):
        run("bench", "--shape", 8, "--rounds", 1, *option)
        data = json.loads((run.folder / "deep" / "b.json").read_text())
        assert data["command"][-1] in ("b.json", "--json=b.json")


def test_host_times(run, reference):
    told = run("bench", "--shape", 8, "--rounds", 1, "--host").stdout
    table = told[told.index("host time") :]
    assert [line.split()[-4] for line in table.splitlines()[1:] if line.startswith("8x8x8")] == ["matmul"]
    case = measurements.run_case(8, 8, 8, rounds=1, host=True)
    times = {(h.name, h.call): h for h in case.host}
    assert set(times) == {
        ("numpy", "matmul"), ("numpy", "plan"), ("reference", "matmul"), ("reference", "plan"),
        (NUMPY_MATMUL, "itself"),
    }  # fmt: skip
    assert all(0 < h.seconds < 1e-2 and h.ratio > 0 for h in case.host)
    assert times[NUMPY_MATMUL, "itself"].ratio == 1
    # A backend's own calls are timed, not those of the fastest.
    assert times["reference", "matmul"].seconds > times["numpy", "matmul"].seconds


def test_copy_bandwidth(monkeypatch):
    monkeypatch.setattr(measurements, "_COPIED_CACHES", 1 / 16)
    assert 1e7 < measurements.copy_bandwidth(by_name.arrays_for(), rounds=2) < 1e13


# ---------------------------------------------------------------- plots: tests/cli/test_cli_plots.py has how they look


def test_axes_of_a_heat_map():
    assert heatmap.axes([(1, 2, 3), (4, 2, 5)]) == ("m", "k")
    assert heatmap.axes([(1, 2, 3), (1, 2, 5)]) == ("m", "k")
    assert heatmap.axes([(1, 2, 3), (1, 3, 3)]) == ("m", "n")
    assert heatmap.axes([(1, 2, 3)]) == ("m", "n")
    with pytest.raises(Failure, match="m, n and k all differ"):
        heatmap.axes([(1, 1, 1), (2, 2, 2)])


class Pen:
    """The parts of a plot that tests inspect."""

    def __init__(self, monkeypatch, module):
        self.texts, self.lines, self.images = [], [], []
        monkeypatch.setattr(module, "save", self.save)

    def save(self, figure, path):
        for axis in figure.axes:
            self.texts += [text.get_text() for text in axis.texts]
            self.lines += [(line.get_label(), *line.get_data()) for line in axis.lines]
            self.images += list(axis.images)


def case(m, n, k, ratio, dtype="float32"):
    rows = (
        measurements.Measurement("fast", "", "passed", 1.0, 1.0, 1.0, (1.0,), 2000.0 * ratio, ratio),
        measurements.Measurement(NUMPY_MATMUL, "", "passed", 1.0, 1.0, 1.0, (1.0,), 2000.0, 1.0),
        measurements.Measurement("refused", "", "", remark="no"),
    )
    return measurements.Case(
        "", m, n, k, dtype, dtype, 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n), "cpu", "numpy", "host", 1,
        NUMPY_MATMUL, rows,
    )  # fmt: skip


def test_what_a_roofline_shows(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    pen = Pen(monkeypatch, roofline)
    cases = [case(60, 60, 60, 1.5), case(600, 600, 600, 2.0)]
    assert roofline.intensity(cases[0]) == pytest.approx(10)
    roofline.draw(cases, 1e11, "machine", tmp_path / "x.png")
    points = {label: (list(x), list(y)) for label, x, y in pen.lines}
    assert points["fast"] == (pytest.approx([10, 100]), pytest.approx([3, 4]))
    assert points[NUMPY_MATMUL] == (pytest.approx([10, 100]), pytest.approx([2, 2]))
    # The roof: 0.1 TB/s until 4 TFLOP/s, at 40 FLOP/byte.
    (_, x, y) = next(line for line in pen.lines if line[0] not in points or line[0].startswith("_"))
    assert (x[1], y[1], y[2]) == (pytest.approx(40), pytest.approx(4), pytest.approx(4))
    assert y[0] / x[0] == pytest.approx(0.1)
    assert "copy, 100 GB/s" in pen.texts
    assert "best rate of this run, 4.00 TFLOP/s" in pen.texts
    assert {"60", "600"} <= set(pen.texts)


def test_what_a_heat_map_shows(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    pen = Pen(monkeypatch, heatmap)
    cases = [case(8, 4, 16, 2.0), case(8, 4, 32, 0.5), case(16, 4, 16, 12.34)]
    heatmap.draw(cases, "machine", tmp_path / "x.png")
    (image,) = pen.images
    values = np.ma.filled(image.get_array(), np.nan)
    np.testing.assert_allclose(values, [[1.0, -1.0], [np.log2(12.34), np.nan]])
    assert pen.texts == ["2.00", "0.50", "12.3", "-"]
    assert image.get_clim() == (-2.0, 2.0)  # a factor of 4, though one ratio is larger
    pen.images.clear()
    heatmap.draw([case(8, 4, 16, 1.01)], "machine", tmp_path / "x.png")
    assert image.get_cmap()(0.5) == pytest.approx((0.97, 0.97, 0.97, 1), abs=0.01)
    low, high = pen.images[0].get_clim()
    assert (2**low, 2**high) == pytest.approx((0.8, 1.25))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within matplotlib, of its own dependencies
def test_roofline_and_heat_map(run, reference, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(measurements, "_COPIED_CACHES", 1 / 16)
    data = run.json(
        "bench", "--shape", "8,16x4,8x32", "--rounds", 2, "--dtype", "float32", "--dtype", "int8",
        "--roofline", "r.svg", "--heatmap", "h.png", "--json", "-",
    )  # fmt: skip
    assert data["copy_bytes_per_second"] > 0
    assert "<svg" in (run.folder / "r.svg").read_text()
    content = (run.folder / "h.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") > 800


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within matplotlib, of its own dependencies
def test_plot(run, reference):
    pytest.importorskip("matplotlib")
    run(
        "bench",
        "--shape",
        8,
        "--shape",
        16,
        "--dtype",
        "float32",
        "--dtype",
        "float16",
        "--rounds",
        2,
        "--plot",
        "p.png",
    )
    content = (run.folder / "p.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert width > 800
    assert height > 600
    run("bench", "--shape", "8x4x2", "--rounds", 1, "--plot", "p.svg")
    assert "<svg" in (run.folder / "p.svg").read_text()


def test_plot_needs_matplotlib(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for option in ("--plot", "--roofline", "--heatmap"):
        told = run.error("bench", "--shape", 8, option, "p.png")
        assert told == f"error: {option} needs matplotlib: {install.command('gemmhub[plot]')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shape", "0"], ["--shape", "8x8"], ["--dtype", "float12"], ["--rounds", "0"], ["--backend", "nope"],
        ["--baseline", "nope"], ["--json", "nowhere/x.json"], ["--plot", "nowhere/x.png"], ["--plot", "x.docx"],
        ["--dtype", "float8_e5m2"], ["--dtype", "float32", "--out-dtype", "int32"], ["--device", "gpu"],
        ["--library", "torch"], ["--baseline", "torch.matmul"], ["--roofline", "nowhere/x.png"],
        ["--heatmap", "x.docx"], ["--heatmap", "x.png", "--shape", "16"], ["--b-order", "diagonal"],
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bench_bad_input(run, arguments):
    run.error("bench", "--shape", 8, "--rounds", 1, *arguments)
