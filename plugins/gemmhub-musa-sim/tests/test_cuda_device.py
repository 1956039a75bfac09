"""The CUDA engine on an NVIDIA GPU: kernels, libmusart, and gemmhub_musa over it. cuda_calls.py is what runs there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gemmhub_musa_sim import make_home
from gemmhub_musa_sim.cuda import gpu, nvcc

from gemmhub.capability import Refusal

pytest.importorskip("gemmhub_musa")

pytestmark = pytest.mark.device

GPU = gpu.capability()
if isinstance(GPU, Refusal):
    pytest.skip(GPU.reason, allow_module_level=True)
if nvcc.describe() == "no nvcc":
    pytest.skip("nvcc is not installed: nothing can be compiled", allow_module_level=True)

SCRIPT = Path(__file__).parent / "cuda_calls.py"
PRODUCTS = ["gemm_tiled_f32", "gemm_tiled_f16", "gemm_tiled_bf16", "gemm_wmma_f16", "gemm_wmma_bf16"]
SECTIONS = [
    "machine", "attributes", "memory", "vector_add", "products", "wide", "features", "streams", "events", "copies",
    "errors", "arrays", "threads", "devices", "doctor",
]  # fmt: skip
SECONDS = 300
NOT_READY, INVALID_VALUE, OUT_OF_MEMORY, CONFIGURATION, DIRECTION, DEVICE, HANDLE = 600, 1, 2, 9, 21, 101, 400


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = make_home(tmp_path_factory.mktemp("musa") / "home", engine="cuda")
    others = [name for name in os.environ if name.startswith("MUSA_") and name != nvcc.ARCH_VARIABLE]
    kept = {name: value for name, value in os.environ.items() if name not in others}
    return {**kept, "MUSA_HOME": str(home), "GEMMHUB_PLUGINS": "", "GEMMHUB_RECORDS": "off"}


def outcomes(text):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"section"')]
    return {line.pop("section"): line for line in lines}


def call(environment, sections, *before):
    command = [*before, sys.executable, str(SCRIPT), *sections]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture(scope="module")
def compiled(environment):
    """Every kernel is in the cache; the environment to run them in."""
    done = call(environment, ["compile"])
    assert "found" in outcomes(done.stdout).get("compile", {}), done.stdout + done.stderr
    return environment


@pytest.fixture(scope="module")
def ran(compiled):
    """All sections, in one process: what each printed, and the process's own complaints."""
    done = call(compiled, SECTIONS)
    return outcomes(done.stdout), f"exit code {done.returncode}\n{done.stderr}"


@pytest.fixture
def found(ran):
    """``found(section)``: what it found; fails with the section's own traceback."""

    def get(section):
        by_section, complaints = ran
        assert section in by_section, complaints
        assert "error" not in by_section[section], f"{by_section[section]['error']}\n{complaints}"
        return by_section[section]["found"]

    return get


def test_the_device_is_that_of_a_musa_program(found):
    """The GPU reports that it is an mp_22, so that kernels for mp_22 run."""
    machine = found("machine")
    assert (machine["arch"], machine["warp"]) == ("mp_22", 32)
    assert machine["versions"]["musa runtime"] == "4.3.0"


def test_attributes_are_the_gpu_s(found):
    values = found("attributes")
    assert len(values) == 21
    capability = [values.pop(f"musaDevAttrComputeCapability{part}") for part in ("Major", "Minor")]
    assert capability == [[2, GPU[0]], [2, GPU[1]]]
    assert {name: pair for name, pair in values.items() if pair[0] != pair[1]} == {}


def test_memory_info(found):
    memory = found("memory")
    (free, total), (during, _), (after, _) = memory["before"], memory["during"], memory["after"]
    assert total == memory["total"]
    assert free <= total
    assert free - during >= 1 << 28
    assert after > during


def test_vector_add(found):
    assert set(found("vector_add").values()) == {True}


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_products(found, kernel):
    """Products of random numbers are within gemmhub's bound of the product in float64; of small ones they are exact."""
    by_shape = found("products")[kernel]
    assert len(by_shape) == 10
    assert {shape: pair for shape, pair in by_shape.items() if not (pair[0] <= 1 and pair[1])} == {}
    assert max(worst for worst, _ in by_shape.values()) > 0, "random sums cannot all be exact"


def test_fragments_of_128_threads(found):
    """All layouts of both operands, sums loaded, stored by rows and by columns, eight groups in a block."""
    by_case = found("wide")
    assert len(by_case) == 12
    assert {case: right for case, right in by_case.items() if right != [True, True]} == {}


def test_the_language(found):
    assert found("features") == {
        "dynamic": [0, True],
        "more, not allowed": INVALID_VALUE,
        "more, allowed": [0, True],
        "warps": 0,
        "lanes": True,
        "atomics": 0,
        "counts": [True, 500.0],
        "run_multiply_16": [True, True],
        "run_multiply_16_half": [True, True],
        "run_multiply_8": [True, True],
    }


def test_streams(found):
    """Work on two streams overlaps unless an event orders it; the default stream orders all but independent ones."""
    assert found("streams") == {
        "idle": 0,
        "busy": NOT_READY,
        "too early": [0.0],
        "not waited for": NOT_READY,
        "in order": [2.0],
        "default after stream": [2.0],
        "stream after default": [8.0],
        "created": 0,
        "independent": NOT_READY,
        "handles": [True, True],
    }


def test_events(found):
    events = found("events")
    milliseconds, backwards = events.pop("ms"), events.pop("backwards")
    assert 10 < milliseconds < 5000
    assert backwards == pytest.approx(-milliseconds, rel=1e-3)
    assert events == {
        "before": NOT_READY, "after": 0, "never recorded": HANDLE, "created": 0, "untimed": HANDLE,
    }  # fmt: skip


def test_copies(found):
    assert found("copies") == {
        "to and fro": True,
        "on the device": True,
        "default kind": True,
        "on the host": True,
        "memset": True,
        "rows": True,
        "musaMallocHost": [0, True, 0],
        "musaHostAlloc": [0, True, 0],
        "musaMallocAsync": [0, True, 0],
    }


def test_errors_are_reported_and_harmless(found):
    errors = found("errors")
    assert "1.638e+04 GiB" in errors["allocation"]
    assert "musaErrorMemoryAllocation" in errors.pop("allocation")
    for what in ("0 blocks", "0 threads", "1025 threads"):
        assert errors.pop(f"launch, {what}") in (CONFIGURATION, INVALID_VALUE), "which one is up to CUDA's version"
    assert errors == {
        "musaMalloc, 16 TiB": OUT_OF_MEMORY,
        "peek": [OUT_OF_MEMORY] * 2,
        "last": [OUT_OF_MEMORY, 0, 0],
        "musaMalloc, nowhere": INVALID_VALUE,
        "musaMemcpy, kind 7": DIRECTION,
        "musaSetDevice, 1000": DEVICE,
        "musaDeviceGetAttribute, device 1000": DEVICE,
        "musaDeviceGetAttribute, attribute 100000": INVALID_VALUE,
        "musaStreamCreateWithFlags, 77": INVALID_VALUE,
        "launch, 1 MiB of shared memory": INVALID_VALUE,
        "launch": 0,
        "exception": ["musaMemcpy", DIRECTION, "musaErrorInvalidMemcpyDirection"],
        "names": ["musaSuccess", "musaErrorIllegalAddress", "unrecognized error code"],
        "left": "",
        "still right": True,
    }


def test_arrays(found):
    by_dtype = found("arrays")
    assert len(by_dtype) == 9
    wrong = {(dtype, case) for dtype, cases in by_dtype.items() for case, right in cases.items() if not right}
    assert wrong == set()


def test_threads_launch_at_once(found):
    assert found("threads") == [True] * 4


def test_every_device(found):
    devices = found("devices")
    assert devices == [True] * max(1, len(devices))


def test_doctor_finds_nothing_wrong(found):
    assert found("doctor") == []


# Under NVIDIA's checker of kernels


def sanitizer():
    beside = Path(shutil.which(nvcc.nvcc()) or "nvcc").resolve().parent / "compute-sanitizer"
    places = ("compute-sanitizer", str(beside), "/usr/local/cuda/bin/compute-sanitizer")
    return next((path for path in map(shutil.which, places) if path), None)


@pytest.fixture
def checked(compiled):
    """``checked(tool, section)``: its exit code and report."""
    program = sanitizer()
    if program is None:
        pytest.skip("there is no compute-sanitizer on PATH or beside nvcc")

    def run(tool, section):
        options = ["--tool", tool, "--target-processes", "application-only", "--error-exitcode", "9"]
        done = call(compiled, [section], program, *options)
        text = done.stdout + done.stderr
        if "Device not supported" in text:
            pytest.skip("compute-sanitizer does not support this machine")
        return done.returncode, text

    return run


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_sanitizer_finds_nothing_in_the_pipelined_kernel(checked, tool):
    code, text = checked(tool, "small")
    assert outcomes(text).get("small", {}).get("found", 2) <= 1, text
    assert re.search(r"SUMMARY: 0 (errors|hazards)", text), text
    assert code == 0, text


def test_the_sanitizer_finds_a_race_that_is_there(checked):
    """The sanitizer detects a fault; otherwise its silence about the others would prove nothing."""
    code, text = checked("racecheck", "racy")
    assert outcomes(text).get("racy") == {"found": 0}, text
    assert "gemm_wmma" in text, text
    assert code == 9, text
