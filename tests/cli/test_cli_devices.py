"""Commands with operands on a fake device in the host's memory (fake_cupy.py)."""

from __future__ import annotations

import json
import sys
import types

import fake_cupy
import numpy as np
import pytest
from fake_cupy import Pretended

import gemmhub
from gemmhub import BackendDescription, BackendError, DeviceError, InputError, Offer
from gemmhub._arrays.cupy.operands import cupy_arrays
from gemmhub._arrays.torch.operands import TorchArrays, torch_arrays
from gemmhub._choice import registry
from gemmhub.capability import Device
from gemmhub.cli import by_name, measurements
from gemmhub.cli.operands import random_operand
from gemmhub.dtypes import PRECISIONS
from gemmhub.errors import DTypeError


def add(backend):
    description = BackendDescription(backend.name, lambda: backend, "pretends", ("cuda",), contract=2)
    registry.registry().add(description, backend.name, f"gemmhub-{backend.name}")
    return backend


@pytest.fixture
def no_libraries(monkeypatch):
    """Neither torch nor cupy, and no cached array library of one."""
    for name in ("torch", "torch_musa", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    caches = (cupy_arrays, torch_arrays)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def cupy(no_libraries, monkeypatch):
    module = fake_cupy.make()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def pretended(cupy):
    return add(Pretended())


# ---------------------------------------------------------------- devices by name


def test_names_of_devices():
    assert [by_name.parse_device(x) for x in ("cpu", "cuda", "cuda:1")] == [
        Device(), Device("cuda", 0), Device("cuda", 1),
    ]  # fmt: skip
    for name in ("", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "CUDA", "cuda:1 "):
        with pytest.raises(InputError, match="allowed: cpu, cuda, cuda:N"):
            by_name.parse_device(name)


def test_the_cpu_needs_no_library(no_libraries):
    assert by_name.arrays_for().name == "numpy"
    assert by_name.arrays_for("cpu", "numpy").name == "numpy"
    with pytest.raises(InputError, match="cupy for the device cpu"):
        by_name.arrays_for("cpu", "cupy")


def test_a_library_that_is_not_installed(no_libraries):
    with pytest.raises(DeviceError, match=r"torch is not installed; cupy is not installed.*pip install torch or pip"):
        by_name.arrays_for("cuda")
    with pytest.raises(InputError, match=r"'numpy' for cuda:0; allowed: torch, cupy"):
        by_name.arrays_for("cuda", "numpy")


def test_a_device_that_is_not_there(cupy, monkeypatch):
    assert str(by_name.arrays_for("cuda:1").device) == "cuda:1"
    with pytest.raises(DeviceError, match=r"cupy sees 2 cuda device\(s\).*up to cuda:1"):
        by_name.arrays_for("cuda:2", "cupy")
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.make(devices=0))
    with pytest.raises(DeviceError, match="cupy sees no CUDA device: RuntimeError: cudaErrorNoDevice: no CUDA") as told:
        by_name.arrays_for("cuda")
    assert "more lines" not in str(told.value)


def torch_module(**cuda):
    runtime = types.SimpleNamespace(**cuda)
    return types.SimpleNamespace(__version__="2.11", version=types.SimpleNamespace(hip=None, cuda="13.0"), cuda=runtime)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (torch_module(is_available=lambda: False), "torch sees no CUDA device"),
        (torch_module(is_available=lambda: True, device_count=lambda: 0), "torch sees no CUDA device"),
        (torch_module(), "torch sees no CUDA device: AttributeError"),
    ],
)
def test_torch_without_a_device(no_libraries, monkeypatch, module, reason):
    monkeypatch.setitem(sys.modules, "torch", module)
    with pytest.raises(DeviceError, match=reason):
        by_name.arrays_for("cuda", "torch")


def test_torch_is_preferred_where_it_reaches_the_device(cupy, monkeypatch):
    module = torch_module(is_available=lambda: True, device_count=lambda: 1, get_device_name=lambda index: "Real")
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(by_name, "torch_arrays", lambda kind, index: ("torch", kind, index))
    assert by_name.arrays_for("cuda") == ("torch", "cuda", 0)
    # It sees one device only, cupy two.
    assert by_name.arrays_for("cuda:1").name == "cupy"
    assert [(s.library, s.devices, s.reason) for s in by_name.library_statuses()] == [
        ("cupy", ("cuda:0 Pretender 0", "cuda:1 Pretender 1"), ""), ("torch", ("cuda:0 Real",), ""),
    ]  # fmt: skip


def test_a_library_that_does_not_import(no_libraries, monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise OSError('libcuda.so.1: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(DeviceError, match=r"importing cupy failed: OSError: libcuda.so.1"):
        by_name.arrays_for("cuda", "cupy")
    (status,) = by_name.library_statuses()
    assert (status.library, status.devices) == ("cupy", ())
    assert "libcuda" in status.reason


def test_a_late_error_of_a_device_is_a_backend_error(cupy):
    arrays = by_name.arrays_for("cuda")
    with pytest.raises(BackendError, match="cuda:0 failed: RuntimeError: illegal address"), by_name.entered(arrays):
        raise RuntimeError("illegal address\n(more lines)")
    with pytest.raises(InputError), by_name.entered(arrays):
        raise InputError("a", "x", "y")
    with by_name.entered(by_name.arrays_for("cuda:1")):
        assert fake_cupy.Context.current[-1] == 1
    assert fake_cupy.Context.current[-1] == 0


def test_placing_operands(cupy, rng):
    arrays = by_name.arrays_for("cuda:1")
    x = rng.standard_normal((5, 3))
    for order, strides in (("row", (24, 8)), ("col", (8, 40))):
        there = by_name.place(x, arrays, order)
        assert (there.strides, there.device.id) == (strides, 1)
        assert np.array_equal(arrays.to_host(there), x)
        assert by_name.place(x, by_name.arrays_for(), order).strides == strides
    with pytest.raises(DTypeError, match=r"cupy has no arrays of float8_e5m2.*use torch"):
        by_name.place(random_operand(rng, (2, 2), gemmhub.dtypes.as_dtype("float8_e5m2")), arrays)
    with pytest.raises(InputError, match="order"):
        by_name.place(x, arrays, "both")


# ---------------------------------------------------------------- bench


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within matplotlib, of its own dependencies
def test_bench_on_a_device(run, pretended, monkeypatch):
    monkeypatch.setattr(measurements, "_COPIED_CACHES", 1)
    files = [run.folder / name for name in ("b.json", "r.png", "h.png")]
    options = ("--json", files[0], f"--roofline={files[1]}", "--heatmap", files[2])
    told = run(
        "bench", "--device", "cuda:1", "--shape", "16,32x24x8", "--rounds", 3, "--b-order", "col", "--host", *options
    ).stdout
    assert "vs cupy.matmul" in told.splitlines()[0]
    assert "host time" in told
    document = json.loads(files[0].read_text())
    assert document["device"] == {"name": "Pretender 1", "index": "cuda:1", "library": "cupy"}
    assert document["clock"] == "device events"
    assert document["copy_bytes_per_second"] > 0
    assert document["command"][-4:] == ["b.json", "--roofline=r.png", "--heatmap", "h.png"]
    assert str(run.folder) not in files[0].read_text()
    versions = document["versions"]
    assert (versions["cupy"], versions["cuda"], versions["cuda driver"]) == ("14.0", "12.4", "13.0")
    assert versions["backends"]["pretended"] == {"pretended": "1"}
    assert [case["m"] for case in document["cases"]] == [16, 32]
    for case in document["cases"]:
        assert (case["device"], case["library"], case["clock"]) == ("cuda:1", "cupy", "device events")
        assert "order=rcr" in case["problem"]
        assert case["nbytes"] == 4 * (case["m"] * 8 + 24 * 8 + case["m"] * 24)
        assert case["operand_sets"] == -(-2 * fake_cupy.CACHE // int(case["nbytes"]))
        assert {row["name"]: row["verdict"] for row in case["rows"]} == {"pretended": "passed", "cupy.matmul": "passed"}
        assert {row["check"] for row in case["rows"]} == {"recomputed"}
        assert all(len(row["samples"]) == 3 for row in case["rows"])
        assert {(h["name"], h["call"]) for h in case["host"]} == {
            ("pretended", "matmul"), ("pretended", "plan"), ("cupy.matmul", "itself"),
        }  # fmt: skip
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:])
    # Every set was used, operands and results alike. (The second case may get memory of the first.)
    for position in range(3):
        assert len({call[position] for call in pretended.seen}) >= max(c["operand_sets"] for c in document["cases"])
    assert {str(problem.device) for problem in pretended.problems} == {"cuda:1"}


def test_sets_of_operands_are_bounded(pretended, monkeypatch):
    one = 4 * (16 * 8 + 8 * 16 + 16 * 16)
    monkeypatch.setattr(measurements, "_MOST_BYTES", 3 * one)
    assert measurements.run_case(16, 16, 8, device="cuda", rounds=1).operand_sets == 3
    monkeypatch.setattr(measurements, "_MOST_BYTES", 1)
    assert measurements.run_case(16, 16, 8, device="cuda", rounds=1).operand_sets == 1


def test_fewer_sets_where_memory_ends(pretended, cupy, monkeypatch):
    """The last sets do not fit: those that do are used."""
    made = []

    def empty(shape, dtype):
        if len(shape) == 2:
            made.append(shape)
            if len(made) > 6:
                raise cupy.cuda.memory.OutOfMemoryError("no memory")
        return fake_cupy.ndarray(shape, dtype)

    arrays = by_name.arrays_for("cuda")
    monkeypatch.setattr(cupy, "empty", empty)
    case = measurements.run_case(16, 16, 8, device="cuda", rounds=1)
    assert 1 < case.operand_sets < measurements.rotation(case.nbytes, arrays.clock().cache_bytes)


def test_a_wrong_result_on_a_device(run, pretended):
    add(Pretended("wrong", error=1e3))
    data = run.json("bench", "--device", "cuda", "--shape", 24, "--rounds", 1, "--json", "-", code=1)
    rows = {row["name"]: row for row in data["cases"][0]["rows"]}
    assert rows["wrong"]["verdict"] == "failed"
    assert rows["wrong"]["median"] is None
    assert "(23, 0)" in rows["wrong"]["remark"]
    assert rows["pretended"]["median"] > 0


def test_large_results_are_sampled(pretended, monkeypatch):
    monkeypatch.setattr("gemmhub.cli.contenders._CHECK_WHOLE", 100)
    monkeypatch.setattr("gemmhub.cli.contenders._SAMPLES", 5)
    case = measurements.run_case(16, 16, 8, device="cuda", rounds=1)
    assert {row.check for row in case.rows} == {"sampled"}


def test_a_library_that_does_not_multiply_a_dtype(pretended):
    """Then there are times without ratios."""
    case = measurements.run_case(16, 16, 8, dtype="bfloat16", device="cuda", rounds=1, host=True)
    (row,) = case.timed
    assert (row.name, row.ratio) == ("pretended", None)
    (left_out,) = (row for row in case.rows if row.median is None)
    assert (left_out.name, left_out.remark) == ("cupy.matmul", "TypeError: no kernel for bfloat16")
    assert [(h.call, h.ratio) for h in case.host] == [("matmul", None), ("plan", None)]


def test_integers_accumulate_in_our_dtype(pretended):
    case = measurements.run_case(9, 9, 200, dtype="int8", device="cuda", rounds=1)
    assert {row.name for row in case.timed} == {"pretended", "cupy.matmul"}


def test_precision_that_the_library_does_not_take(pretended):
    case = measurements.run_case(9, 9, 9, precision="tf32", device="cuda", rounds=1)
    assert next(row for row in case.rows if row.name == "cupy.matmul").remark == "float32 not rounded to tf32"


def test_baselines_of_other_libraries(run, pretended):
    told = run.error("bench", "--device", "cuda", "--baseline", "numpy.matmul", "--shape", 8)
    assert "baseline: numpy.matmul for cupy arrays on cuda:0; allowed: cupy.matmul, or the name of a backend" in told
    data = run.json(
        "bench", "--device", "cuda", "--baseline", "pretended", "--shape", 8, "--rounds", 1, "--host", "--json", "-"
    )
    (case,) = data["cases"]
    assert [row["name"] for row in case["rows"]] == ["pretended"]
    assert case["rows"][0]["ratio"] == 1
    assert {h["call"] for h in case["host"]} == {"matmul", "plan"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_heat_maps_need_ratios(run, pretended):
    told = run(
        "bench", "--device", "cuda", "--shape", "8", "--dtype", "bfloat16", "--rounds", 1, "--heatmap", "h.png", code=3
    )
    assert "no contender has a ratio to cupy.matmul" in told.stderr
    assert "pretended" in told.stdout


# ---------------------------------------------------------------- torch's rounding of float32


@pytest.mark.parametrize("name", ["fp32_precision", "allow_tf32"])
def test_torch_rounds_as_far_as_gemmhub_may(name):
    from gemmhub.cli.contenders import rounding_of_torch

    before = "none" if name == "fp32_precision" else True
    switch = types.SimpleNamespace(**{name: before})
    arrays = TorchArrays.__new__(TorchArrays)
    arrays.device = Device("cuda", 0)
    arrays.module = types.SimpleNamespace(backends=types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=switch)))
    seen = []
    for precision in PRECISIONS:
        with rounding_of_torch(arrays, precision):
            seen.append(getattr(switch, name))
        assert vars(switch) == {name: before}
    assert seen == (["ieee", "ieee", "tf32", "tf32"] if name == "fp32_precision" else [False, False, True, True])
    arrays.device = Device("musa", 0)
    with rounding_of_torch(arrays, "tf32"):
        assert vars(switch) == {name: before}


# ---------------------------------------------------------------- the other commands


def test_explain_needs_no_device(run, no_libraries):
    """Nothing is imported or allocated: the answers are those of the backends for the device."""
    backend = add(Pretended())
    data = run.json("explain", 40000, 30000, 100000, "--device", "cuda:1", "--b-order", "col", "--json")
    assert data["problem"].startswith("40000x30000x100000")
    assert "order=rcr" in data["problem"]
    assert data["problem"].endswith("on cuda:1")
    assert data["chosen"] == "pretended"
    assert "numpy" not in {v["backend"] for v in data["verdicts"]}
    assert backend.problems == []
    assert "allowed: cpu, cuda" in run.error("explain", 1, 2, 3, "--device", "gpu")
    unplugged = run.json("explain", 1, 2, 3, "--device", "musa", "--json")  # plugins for it could be installed
    assert unplugged["problem"].endswith("on musa:0")


def test_explain_describes_what_a_call_would_be(run, pretended):
    """The problem is the one that operands on the device have."""
    asked = []
    pretended.offer = lambda problem: asked.append(problem) or Offer()
    run("explain", 6, 5, 4, "--device", "cuda", "--dtype", "float16")
    run("matmul", run.save("a.npy", np.ones((6, 4), np.float16)), run.save("b.npy", np.ones((4, 5), np.float16)),
        "--device", "cuda")  # fmt: skip
    assert asked[0] == asked[-1]


def test_compare_on_a_device(run, pretended):
    add(Pretended("wrong", error=1e3))
    data = run.json("compare", 30, 20, 10, "--device", "cuda:1", "--library", "cupy", "--json", code=1)
    assert {row["backend"]: row["status"] for row in data["rows"]} == {
        "pretended": "passed", "wrong": "failed", "numpy": "passed",
    }  # fmt: skip
    assert data["problem"].endswith("on cuda:1")


def test_tune_on_a_device(run, pretended):
    told = run("tune", "--shape", "16,24x8x8", "--device", "cuda:1", "--b-order", "col").stdout
    assert told.count("order=rcr") == 2
    assert told.count("on cuda:1") == 2
    data = run.json("explain", 24, 8, 8, "--device", "cuda:1", "--b-order", "col", "--json")
    assert data["verdicts"][0]["source"] == "measured"
    assert run.json("explain", 24, 8, 8, "--device", "cuda:1", "--json")["verdicts"][0]["source"] != "measured"


def test_matmul_on_a_device(run, pair, pretended):
    a, b = pair
    data = run.json("matmul", "a.npy", "b.npy", "--device", "cuda:1", "--out", "c.npy", "--check", "--json")
    assert data["backend"] == "pretended"
    assert data["check"]["ok"] is True
    assert gemmhub.spot_check(a, b, np.load("c.npy"))
    assert fake_cupy.Context.current == [0]
    data = run.json("matmul", "a.npy", "b.npy", "--device", "cuda", "--alpha", "2", "--check", "--json")
    assert data["check"]["ok"] is True
    assert data["check"]["method"] == "recomputed"
    add(Pretended("wrong", error=1e3))
    run("matmul", "a.npy", "b.npy", "--device", "cuda", "--backend", "wrong", "--check", code=1)


def test_a_device_that_fails_is_one_message(run, pair, pretended, cupy, monkeypatch):
    def broken(x):
        raise RuntimeError("an illegal memory access\n(more lines)")

    monkeypatch.setattr(cupy, "asnumpy", broken)
    told = run.error("matmul", "a.npy", "b.npy", "--device", "cuda", code=3)
    assert told == "error: cuda:0 failed: RuntimeError: an illegal memory access\n"
    result = run("bench", "--shape", 8, "--device", "cuda", "--rounds", 1, code=3)
    assert "the device failed: RuntimeError: an illegal memory access" in result.stdout


@pytest.mark.parametrize("command", [["bench"], ["compare", 3, 4, 5], ["tune", 3, 4, 5], ["matmul", "a.npy", "b.npy"]])
def test_no_device_is_one_message(run, pair, no_libraries, command):
    assert "cuda:0 cannot be used: torch is not installed" in run.error(*command, "--device", "cuda")
    assert "for the device cpu" in run.error(*command, "--library", "cupy")


def test_doctor_lists_devices(run, cupy, monkeypatch):
    told = run("doctor").stdout
    assert "cupy  cuda:0 Pretender 0, cuda:1 Pretender 1\n" in told
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.make(devices=0))
    assert "cupy  no device: cupy sees no CUDA device: RuntimeError: cudaErrorNoDevice" in run("doctor").stdout
    assert run.json("doctor", "--json")["devices"][0]["devices"] == []
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "devices  none: neither torch nor cupy is installed\n" in run("doctor").stdout
