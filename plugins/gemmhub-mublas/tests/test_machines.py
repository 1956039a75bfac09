"""Other machines: SDK generations, cards, several devices, and installations with something missing or broken.

Each is a process of its own, as a process has one MUSA home.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("GEMMHUB_TEST_MUSA_SDK", "4.3") != "4.3", reason="these tests choose their SDKs themselves"
)

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++")
SAYS = """
import json
from gemmhub_mublas.{module} import {name}
from gemmhub.capability import Absent, Refusal
from gemmhub_musa.testing import problem, bias
backend = {name}()
found = backend.probe()
if isinstance(found, Absent):
    print(json.dumps([found.reason, found.remedy]))
else:
    answers = [backend.offer(problem(**asked)) for asked in {asked!r}]
    reasons = [answer.reason if isinstance(answer, Refusal) else None for answer in answers]
    print(json.dumps([list(found.features), reasons]))
"""
ALL = "TEST_VARIANTS" in os.environ
"""Whether the kit runs most cases on each machine, as `make test-all` does, or a third of these."""
MUBLAS = {"module": "backend", "name": "MublasBackend"}
MUBLASLT = {"module": "lt.backend", "name": "MublasLtBackend"}


def child(arguments, home, **variables):
    """What a process with that home prints, read as JSON."""
    environment = {**os.environ, "MUSA_HOME": str(home), **variables}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=HERE, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def says(which, home, *asked, **variables):
    return child(["-c", SAYS.format(**which, asked=asked)], home, **variables)


@pytest.fixture
def copied(home, tmp_path):
    """A copy of this process's home, to take parts away from."""
    path = tmp_path / "home"
    shutil.copytree(home, path, symlinks=True)
    return path


@pytest.mark.parametrize(("sdk", "options", "how", "step"), [
    ("3.1", {}, "mangled", 2), ("5.1", {}, None, 2), ("4.3", {"symbols": "scanned"}, "scanned", 4),
])  # fmt: skip
def test_conformance_of_mublas_on_other_sdks(homes, sdk, options, how, step):
    step *= 1 if ALL else 3
    found = child(["kit.py", "mublas", str(step)], homes(sdk, **options))
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8"):
        assert found["accepted"][dtype] > 0 or step > 2, dtype
    assert sum(found["accepted"].values()) > 400 / step
    assert [x for x in found["features"] if "C++ symbols" in x] == ([f"C++ symbols: {how}"] if how else [])


def test_conformance_of_mublaslt_on_a_newer_sdk_and_card(homes):
    """Products with every epilogue, batches in one call, and fp8."""
    found = child(["kit.py", "mublaslt", "1" if ALL else "3"], homes("5.1"), MUSA_SIM_ARCH="31")
    for dtype in ("float16", "bfloat16", "float32", "int8", "float8_e4m3fn"):
        assert found["accepted"][dtype] > (5 if ALL else 1), dtype
    assert "fused: bias, gelu, gelu_bias, relu, relu_bias" in found["features"]


def test_a_library_whose_gelu_is_by_erf_is_refused(homes):
    """A proof distinguishes the formulas: in the second backend the reference is by erf, the library's is by tanh."""
    code = """
import json
from gemmhub.capability import Refusal
from gemmhub.epilogues import EPILOGUES
from gemmhub_mublas.lt.backend import MublasLtBackend
from gemmhub_musa.testing import problem
found = []
for activation in ("gelu_tanh", "gelu"):
    EPILOGUES["gelu_tanh"] = EPILOGUES[activation]
    backend = MublasLtBackend()
    backend.probe()
    for dtype in ("float32", "float16"):
        answer = backend.offer(problem(dtype=dtype, out="float32", activation="gelu_tanh"))
        found.append(answer.reason if isinstance(answer, Refusal) else "")
print(json.dumps(found))
"""
    *right, single, half = child(["-c", code], homes("5.1"))
    assert right == ["", ""]
    assert "is wrong" in single
    assert "is wrong" in half


def test_sdk_3_has_no_mublaslt(homes):
    reason, remedy = says(MUBLASLT, homes("3.1"))
    assert "there is no libmublasLt.so here" in reason
    assert "muBLASLt came with SDK 4.2" in reason
    assert remedy


def test_old_cards_have_no_half_precision(home):
    types = {"dtype": "float16"}, {"dtype": "bfloat16"}, {"dtype": "float32"}
    _, answers = says(MUBLAS, home, *types, MUSA_SIM_ARCH="21")
    assert "mublasGemmEx does not run float16 by float16 with a result of float16 on this device" in answers[0]
    assert "NOT_IMPLEMENTED" in answers[1]
    assert answers[2] is None


def test_two_devices(home):
    code = """
import json
import numpy as np
from gemmhub_mublas.backend import MublasBackend
from gemmhub_mublas.lt.backend import MublasLtBackend
from gemmhub_musa import runtime
from gemmhub_musa.testing import Operands, operand, problem
right = []
for make in (MublasBackend, MublasLtBackend):
    backend = make()
    for index in (1, 0, 1):
        asked = problem(20, 21, 22, index=index, c=operand("float32", 20, 21), alpha_is_one=False)
        for candidate in backend.offer(asked).names:
            run, operands = backend.prepare(asked, candidate, 2**26).run, Operands(asked)
            for alpha in (2, 0):
                expected = alpha * operands.wide + operands.c[1]
                right.append(bool(np.array_equal(operands.run(run, alpha=alpha, beta=1), expected)))
    right.append(runtime.load().current_device == 0)
print(json.dumps(right))
"""
    right = child(["-c", code], home, MUSA_SIM_DEVICES="2")
    assert len(right) > 20
    assert all(right)


def test_no_library(copied):
    for path in copied.glob("lib/libmublas*"):
        path.unlink()
    for which, stem in ((MUBLAS, "mublas"), (MUBLASLT, "mublasLt")):
        reason, remedy = says(which, copied)
        assert f"there is no lib{stem}.so here" in reason
        assert "install the part of the MUSA SDK" in remedy


def test_no_home(tmp_path):
    reason, remedy = says(MUBLAS, tmp_path / "nowhere")
    assert "no MUSA installation was found" in reason
    assert "MUSA_HOME" in remedy


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(("source", "words"), [
    # Of another SDK than the runtime, which lacks what it refers to.
    ('extern "C" int muGone(); extern "C" int mublasCreate(void**) { return muGone(); }', "undefined symbol: muGone"),
    ('extern "C" int mublasCreate(void**) { return 0; }', "has no function mublasSetStream"),
    ('extern "C" int mublasCreate(void**) { return 3; }\n'
     'extern "C" int mublasSetStream(void*, void*) { return 0; } extern "C" int mublasSetPointerMode(void*, int) '
     "{ return 0; }", "muBLAS cannot be set up: mublasCreate: status 3"),
])  # fmt: skip
def test_libraries_of_another_version(copied, tmp_path, source, words):
    path = tmp_path / "other.cpp"
    path.write_text(source)
    for library in copied.glob("lib/libmublas.*"):
        library.unlink()
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", copied / "lib/libmublas.so.1", path], check=True)
    (copied / "lib/libmublas.so").symlink_to("libmublas.so.1")
    reason, remedy = says(MUBLAS, copied)
    assert words in reason
    assert remedy


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler(copied, tmp_path, compiler):
    """Functions that this machine has not run are run in a child process first, whose program is compiled."""
    variables = {"GEMMHUB_CACHE_DIR": str(tmp_path / "cache"), "CXX": compiler}
    for which in (MUBLAS, MUBLASLT):
        reason, remedy = says(which, copied, **variables)
        assert "building musa_first_run failed: false" in reason or "to build the program that runs native" in reason
        assert remedy


@pytest.mark.parametrize("breakage", ["header", "headers"])
def test_without_headers(copied, tmp_path, breakage):
    """The public numbers serve muBLAS; muBLASLt has none."""
    variables = {"GEMMHUB_CACHE_DIR": str(tmp_path / "cache")}
    if breakage == "header":
        (copied / "include/mublas.h").unlink()
        (copied / "include/mublasLt.h").unlink()
    else:
        shutil.rmtree(copied / "include")
    types = {"dtype": "float32"}, {"dtype": "float16"}, {"dtype": "complex128"}, {"dtype": "bfloat16"}
    features, answers = says(MUBLAS, copied, *types, **variables)
    assert "public numbers only, as" in features[-1]
    assert answers[:3] == [None] * 3
    assert "the number of MUSA_R_16BF is not public" in answers[3]
    reason, remedy = says(MUBLASLT, copied, **variables)
    assert "muBLASLt's numbers are only in its header" in reason
    assert remedy
