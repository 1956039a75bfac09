"""gemmhub explain, backends, compare, spot-check, doctor."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

import gemmhub
from gemmhub import Absent, Backend, Device, Ready
from gemmhub._choice.registry import BUILTIN
from gemmhub.numpy_backend.backend import NumpyBackend
from plugins import Site, add

# ---------------------------------------------------------------- explain


def test_explain_sizes(run):
    told = run("explain", 30, 20, 10, "--dtype", "float16").stdout
    assert told.startswith("problem  30x20x10 batch=1 float16,float16->float16 order=rrr")
    assert "chosen   numpy (" in told
    assert "backend " in told


def test_explain_lays_operands_out_as_asked(run):
    """Transposed operands are column-major to gemmhub; batches and a second dtype arrive too."""
    data = run.json("explain", 30, 20, 10, "--a-order", "col", "--batch", "4,2", "--b-dtype", "float64", "--json")
    assert data["problem"].startswith("30x20x10 batch=4x2 float32,float64->float64 order=crr")
    data = run.json("explain", 30, 20, 10, "--b-order", "col", "--dtype", "int8", "--out-dtype", "float32", "--json")
    assert "int8,int8->float32 order=rcr" in data["problem"]


def test_explain_takes_options(run, reference):
    data = run.json("explain", 3, 2, 1, "--backend", "numpy", "--precision", "tf32", "--activation", "gelu", "--json")
    assert "epilogue=gelu precision=tf32" in data["problem"]
    assert data["chosen"] == "numpy"
    assert data["settings"]["backend"] == "the call"
    verdicts = {v["backend"]: v["status"] for v in data["verdicts"]}
    assert verdicts["reference"] == "eligible"
    assert run.json("explain", 3, 2, 1, "--json")["chosen"] == "reference"


def test_explain_takes_operands_by_their_form(run, pair):
    """The operands are sizes or files; the device need not be there."""

    def problem(*options):
        return run.json("explain", 300, 260, 200, *options, "--json")["problem"]

    assert "epilogue=bias_n " in problem("--bias", "n")
    assert "epilogue=bias_m " in problem("--bias", "m")
    assert "epilogue=c+bias_n " in problem("--c", "matrix", "--beta", "1", "--bias", "n")
    assert "scale_a=row scale_b=128x128 scale_out=tensor" in problem(
        "--scale-a", "row", "--scale-b", "128x128", "--scale-out", "tensor"
    )
    assert "bias_n " in problem("--bias", "n", "--batch", "3", "--b-order", "col", "--out-dtype", "float64")
    assert "bias_n " in problem("--bias", "n", "--device", "cuda", "--dtype", "bf16")
    run.save("bias.npy", np.zeros(17, np.float32))
    assert "bias_n " in run.json("explain", "a.npy", "b.npy", "--bias", "bias.npy", "--json")["problem"]
    assert "bias_n " in run.json("explain", "a.npy", "b.npy", "--bias", "n", "--json")["problem"]
    told = run.error("explain", 3, 4, 5, "--bias", "rows")
    assert "--bias rows: No such file, and no form; forms: " in told
    assert {"n", "m"} <= {*told.partition("forms: ")[2].strip().split(", ")}
    assert "--scale-a x: No such file" in run.error("explain", 3, 4, 5, "--scale-a", "x")
    assert "c: given without beta" in run.error("explain", 3, 4, 5, "--c", "matrix")


def test_explain_names_switches_that_switch_nothing(run, monkeypatch):
    monkeypatch.setenv("GEMMHUB_DISABLE", "cublass,nothing-like-it")
    gemmhub.reload()
    told = run("explain", 3, 4, 5).stdout
    wrong = "no plugin is called 'cublass' (did you mean 'cublas'?), 'nothing-like-it'"
    assert f"setting  deny from GEMMHUB_DISABLE; {wrong}" in told
    assert f"warning  GEMMHUB_DISABLE: {wrong}" in run("doctor").stdout
    monkeypatch.setenv("GEMMHUB_DISABLE", "cublas")
    gemmhub.reload()
    assert "no plugin is called" not in run("explain", 3, 4, 5).stdout
    assert "deny from GEMMHUB_DISABLE" in run("explain", 3, 4, 5).stdout
    monkeypatch.setenv("GEMMHUB_DISABLE", "gemmhub-cublas,gemmhub_cublas,numpy")
    gemmhub.reload()
    told = run("explain", 3, 4, 5).stdout
    assert "'gemmhub-cublas' (did you mean 'cublas'?), 'gemmhub_cublas' (did you mean 'cublas'?)" in told
    assert "; 'numpy' is built in and cannot be disabled" in told


def test_doctor_names_preferred_backends_that_do_not_exist(run, monkeypatch):
    monkeypatch.setenv("GEMMHUB_BACKEND", "nump,numpy")
    gemmhub.reload()
    told = run("doctor").stdout
    assert "warning  GEMMHUB_BACKEND: no backend is called 'nump' (did you mean 'numpy'?)" in told


def test_explain_costs_no_memory(run):
    """60 GiB of operands: their pages are never touched."""
    assert "40000x40000x100000" in run("explain", 40000, 40000, 100000).stdout


def test_explain_when_no_backend_can(run, choosy):
    data = run.json("explain", 3, 2, 1, "--backend", "choosy", "--json")
    assert data["chosen"] is None


def test_explain_files(run, pair):
    assert "23x17x31" in run("explain", "a.npy", "b.npy").stdout
    assert "with sizes" in run.error("explain", "a.npy", "b.npy", "--a-order", "col")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [3, 4],
        ["a.npy"],
        [3, 4, -5],
        [3, 4, "x"],
        [1, 2, 3, 4],
        [3, 4, 5, "--batch", "2;3"],
        [3, 4, 5, "--dtype", "x"],
    ],
)
def test_explain_usage(run, arguments):
    run.error("explain", *arguments)


def test_explain_of_the_impossible(run):
    message = run.error("explain", 10**9, 10**9, 10**10, code=2)
    assert "error: shape: 1000000000 x 10000000000 float32: 3.638e+07 TiB; allowed: at most 128 TiB" in message
    assert "128 TiB" in run.error("explain", 10**30, 3, 3, code=2)
    assert "128 TiB" in run.error("explain", 10**30, 0, 0, code=2)  # an empty array may have too long sides


# ---------------------------------------------------------------- backends


def test_backends(run):
    lines = run("backends").stdout.splitlines()
    assert lines[0].split() == ["backend", "state", "details"]
    assert lines[1].split()[:2] == ["numpy", "ready"]
    assert f"numpy {np.__version__}" in lines[1]
    assert any("not installed" in line and "pip install" in line for line in lines)


def test_backends_json_is_the_api(run):
    data = run.json("backends", "--json")
    assert [(s["name"], s["state"]) for s in data] == [(s.name, s.state) for s in gemmhub.backends().values()]
    assert data[0]["distribution"] == BUILTIN


def test_backends_that_fail_show_why(run, monkeypatch):
    site = Site(run.folder / "site", monkeypatch)
    site.install("gemmhub-example-bad", {"broken": "gemmhub_example_bad.import_raises"})
    told = run("backends").stdout
    line = next(line for line in told.splitlines() if line.startswith("broken"))
    assert "failed" in line
    assert "importing the plugin raised" in line
    assert "Traceback" not in told
    assert "Traceback" in run("backends", "--verbose").stdout
    assert run.json("matmul", *(run.save(f"{x}.npy", np.eye(3)) for x in "ab"), "--json")["backend"] == "numpy"


def test_absent_backends_show_the_remedy(run):
    class Away(Backend):
        name = "away"

        def probe(self):
            return Absent("no such device", "buy one")

        def offer(self, problem):
            raise AssertionError

        def prepare(self, problem, candidate, workspace_limit):
            raise AssertionError

    add(Away())
    line = next(line for line in run("backends").stdout.splitlines() if line.startswith("away"))
    assert line.split()[1] == "absent"
    assert line.endswith("no such device; buy one")


# ---------------------------------------------------------------- compare


def test_compare(run, pair, reference):
    told = run("compare", "a.npy", "b.npy").stdout
    assert "problem  23x17x31" in told
    rows = {line.split()[0]: line.split()[1] for line in told.splitlines()[3:5]}
    assert rows == {"numpy": "passed", "reference": "passed"}
    data = run.json("compare", 30, 20, 10, "--dtype", "int8", "--backend", "numpy", "--json")
    assert data["ok"] is True
    assert data["deviating"] == []
    assert [row["backend"] for row in data["rows"]] == ["numpy"]
    assert "int8,int8->int32" in data["problem"]


def test_compare_takes_orders_batches_and_operands(run, reference):
    data = run.json("compare", 20, 16, 12, "--a-order", "col", "--b-order", "col", "--batch", "2,3", "--json")
    assert data["problem"].startswith("20x16x12 batch=2x3 float32,float32->float32 order=ccr ")
    data = run.json("compare", 20, 16, 12, "--bias", "m", "--scale-a", "row", "--json")
    assert "epilogue=bias_m" in data["problem"]
    assert "scale_a=row" in data["problem"]
    run.save("a.npy", np.ones((3, 4)))
    assert "with sizes" in run.error("compare", "a.npy", "a.npy", "--b-order", "col")


def test_compare_exits_with_1_when_a_backend_deviates(run, wrong):
    told = run("compare", 30, 20, 10, code=1).stdout
    assert "(29, 0)" in told
    data = run.json("compare", 30, 20, 10, "--json", code=1)
    assert data["deviating"] == ["wrong"]
    run("compare", 30, 20, 10, "--backend", "numpy")


def test_compare_is_repeatable(run):
    first, second, other = (run.json("compare", 40, 30, 20, "--seed", s, "--json")["rows"] for s in (5, 5, 6))
    assert first == second != other


def test_compare_bad_input(run, choosy):
    assert "it is Monday" in run.error("compare", 3, 4, 5, "--backend", "choosy")
    assert "no backend is called 'nope'" in run.error("compare", 3, 4, 5, "--backend", "nope")
    run.error("compare", 3, 4)


# ---------------------------------------------------------------- spot-check


def test_spot_check(run, pair):
    a, b = pair
    c = a @ b
    run.save("c.npy", c)
    told = run("spot-check", "a.npy", "b.npy", "c.npy").stdout
    assert told.splitlines()[0].startswith("verdict  passed (")
    c[11, 7] += 1
    run.save("c.npy", c)
    told = run("spot-check", "a.npy", "b.npy", "c.npy", code=1).stdout
    assert told.splitlines()[0].startswith("verdict  failed (")
    assert "(11, 7)" in told
    data = run.json("spot-check", "a.npy", "b.npy", "c.npy", "--json", code=1)
    assert data["ok"] is False
    assert data["where"] == [11, 7]
    assert data["got"] == pytest.approx(float(c[11, 7]))


def test_spot_check_of_chosen_and_random_points(run, pair):
    a, b = pair
    c = a @ b
    c[11, 7] += 1
    run.save("c.npy", c)
    files = ("a.npy", "b.npy", "c.npy")
    assert run.json("spot-check", *files, "--points", "0,0", "--points", "11,8", "--json")["checked"] == 2
    run("spot-check", *files, "--points", "0,0", "--points", "11,7", code=1)
    assert run.json("spot-check", *files, "--samples", "400", "--json", code=1)["method"] == "sampled"
    first = run.json("spot-check", *files, "--samples", "3", "--seed", "7", "--json")
    assert first == run.json("spot-check", *files, "--samples", "3", "--seed", "7", "--json")


def test_spot_check_precision(run, pair):
    """What is wrong by the standard of float32 may be right by that of bf16."""
    a, b = pair
    run.save("c.npy", ((a @ b) * np.float32(1 + 2.0**-12)).astype(np.float32))
    run("spot-check", "a.npy", "b.npy", "c.npy", code=1)
    run("spot-check", "a.npy", "b.npy", "c.npy", "--precision", "bf16")


def test_spot_check_of_infinities(run, pair):
    a, b = pair
    c = a @ b
    c[0, 0] = np.nan
    run.save("c.npy", c)
    assert run.json("spot-check", "a.npy", "b.npy", "c.npy", "--json", code=1)["got"] == "nan"


def test_spot_check_with_every_option(run, pair, rng):
    a, b = pair
    m, n = a.shape[0], b.shape[1]
    given = {
        "c": rng.standard_normal((m, n)), "bias": rng.standard_normal((m, 1)), "scale-a": rng.random(m),
        "scale-b": rng.random((1, n)),
    }  # fmt: skip
    files = []
    for name, x in given.items():
        run.save(f"{name}.npy", x.astype(np.float32) if name.startswith("scale") else x)
        files += [f"--{name}", f"{name}.npy"]
    options = [*files, "--beta", "-2", "--alpha", "3", "--activation", "silu", "--out-dtype", "float64"]
    run("matmul", "a.npy", "b.npy", "--out", "d.npy", "--check", *options)
    assert np.load("d.npy").dtype == np.float64
    run("spot-check", "a.npy", "b.npy", "d.npy", *options)
    run("compare", "a.npy", "b.npy", *options)
    for name in given:
        left_out = [x for x in options if x not in (f"--{name}", f"{name}.npy")]
        if name == "c":
            left_out = [x for x in left_out if x not in ("--beta", "-2")]
        run("spot-check", "a.npy", "b.npy", "d.npy", *left_out, code=1)
    swapped = [{"silu": "relu"}.get(x, x) for x in options]
    assert run.json("spot-check", "a.npy", "b.npy", "d.npy", *swapped, "--json", code=1)["ok"] is False
    assert "c: given without beta" in run.error("spot-check", "a.npy", "b.npy", "d.npy", "--c", "c.npy")
    assert "No such file" in run.error("spot-check", "a.npy", "b.npy", "d.npy", "--bias", "none.npy")


def test_raw_elements_of_operands_and_result_have_the_dtype_of_the_result(run, rng):
    a, b = (rng.standard_normal((20, 20)).astype(ml_dtypes.float8_e4m3fn) for _ in range(2))
    bias = rng.standard_normal(20).astype(ml_dtypes.bfloat16)
    result = gemmhub.matmul(a, b, bias=bias, out_dtype="bfloat16")
    for name, x in (("a", a), ("b", b), ("bias", bias), ("d", result)):
        run.save(f"{name}.npy", x)
    options = ["--dtype", "e4m3", "--out-dtype", "bf16", "--bias", "bias.npy"]
    run("spot-check", "a.npy", "b.npy", "d.npy", *options)
    run("spot-check", "a.npy", "b.npy", "d.npy", *options, "--alpha", "2", code=1)


def test_spot_check_bad_input(run, pair):
    run.save("c.npy", np.ones((3, 3), np.float32))
    assert "shape (23, 17)" in run.error("spot-check", "a.npy", "b.npy", "c.npy")
    run.save("c.npy", np.ones((23, 17), np.float32))
    assert "inside the shape" in run.error("spot-check", "a.npy", "b.npy", "c.npy", "--points", "23,0")
    run.error("spot-check", "a.npy", "b.npy", "c.npy", "--points", "1.5,0")
    run.error("spot-check", "a.npy", "b.npy", "c.npy", "--points", "1,0", "--samples", "3")
    run.error("spot-check", "a.npy", "b.npy", "c.npy", "--samples", "0")


# ---------------------------------------------------------------- doctor


def test_doctor(run):
    told = run("doctor").stdout
    assert told.partition("\n")[0].split() == ["gemmhub", gemmhub.__version__]
    assert "GEMMHUB_RECORDS" in told
    assert "failed" not in told
    data = run.json("doctor", "--json")
    assert data["ok"] is True
    assert {t["product"] for t in data["self_test"]} >= {"float32", "float16", "bfloat16", "int8"}
    assert all(row["status"] == "passed" for test in data["self_test"] for row in test["rows"])
    assert data["settings"]["precision"] == {"value": "ieee", "origin": "default"}
    assert data["settings"]["records"]["origin"] == "GEMMHUB_RECORDS"


def test_doctor_warns(run, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "77")
    monkeypatch.setenv("GEMMHUB_PRECISON", "bf16")
    gemmhub.reload()
    told = run("doctor").stdout
    assert "warning  the load average is 1e+03 for the " in told
    assert "warning  OPENBLAS_NUM_THREADS=77 sets the threads" in told
    assert "warning  environment variable GEMMHUB_PRECISON: neither gemmhub" in told
    assert "did you mean GEMMHUB_PRECISION?" in told
    assert any("GEMMHUB_PRECISON" in text for text in run.json("doctor", "--json")["warnings"])


def test_doctor_reports_the_warnings_of_backends(run, monkeypatch):
    def probe(self):
        return Ready((Device(),), features=("a fast unit",), warnings=("its archive is damaged; install it again",))

    monkeypatch.setattr(NumpyBackend, "probe", probe)
    gemmhub.reload()
    told = run("doctor").stdout
    assert "warning  numpy: its archive is damaged; install it again" in told
    assert "a fast unit" in told
    assert gemmhub.backends()["numpy"].warnings == ("its archive is damaged; install it again",)
    assert "its archive is damaged" in str(gemmhub.backends()["numpy"])


def test_doctor_tests_backends_that_are_ready(run, monkeypatch):
    monkeypatch.setenv("GEMMHUB_BACKEND", "cublas,nump")
    gemmhub.reload()
    told = run("doctor").stdout
    assert told.count("cublas is not installed") == 1
    assert "warning  GEMMHUB_BACKEND: cublas is not installed; pip install " in told
    assert "nan" not in told
    assert "refused" not in told
    assert {row["backend"] for test in run.json("doctor", "--json")["self_test"] for row in test["rows"]} == {"numpy"}


def test_doctor_names_an_unreadable_record_file_once(run, monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", "/")
    gemmhub.reload()
    (line,) = (x for x in run("doctor", code=3).stdout.splitlines() if " products " in x)
    assert line.startswith("5 products")
    assert " failed " in line


def test_doctor_finds_a_wrong_backend(run, wrong):
    assert " failed " in run("doctor", code=1).stdout
    data = run.json("doctor", "--json", code=1)
    assert data["ok"] is False
    assert not any(test["ok"] for test in data["self_test"])


def test_doctor_shows_broken_plugins_and_passes(run, monkeypatch):
    Site(run.folder / "site", monkeypatch).install(
        "gemmhub-example-bad", {"broken": "gemmhub_example_bad.import_raises"}
    )
    told = run("doctor").stdout
    assert "importing the plugin raised" in told
    assert "Traceback" in told
    assert run.json("doctor", "--json")["libraries"]["gemmhub-example-bad"] == "1.0"


def test_doctor_survives_a_broken_configuration(run, monkeypatch):
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "nan")
    gemmhub.reload()
    assert "GEMMHUB_WORKSPACE_MIB" in run("doctor", code=2).stdout
    assert run.json("doctor", "--json", code=2)["ok"] is False


def test_doctor_counts_records(run, monkeypatch):
    path = run.folder / "records.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    gemmhub.reload()
    run("tune", 8, 8, 8)
    path.write_text(path.read_text() + "junk\n")
    data = run.json("doctor", "--json")["records"]
    assert data["count"] == 1
    assert data["skipped"] == [f"{data['file']}:2: not JSON"]


def test_doctor_keeps_secrets(run, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "hunter2")
    monkeypatch.setenv("GEMMHUB_UNKNOWN", "hunter2")
    monkeypatch.setenv("HOME", str(run.folder))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(run.folder / "records.jsonl"))
    gemmhub.reload()
    for told in (run("doctor").stdout, run("doctor", "--json").stdout):
        assert "hunter2" not in told
        assert str(run.folder) not in told
        assert "~" in told
