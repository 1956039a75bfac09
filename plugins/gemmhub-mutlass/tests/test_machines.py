"""Other machines: cards, SDK generations, versions of MUTLASS, several devices, and what may be missing.

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
SAYS = """
import json
from gemmhub_musa.testing import problem
from gemmhub_mutlass.backend import MutlassBackend
from gemmhub.capability import Absent, Refusal
backend = MutlassBackend()
found = backend.probe()
if isinstance(found, Absent):
    print(json.dumps([found.reason, found.remedy]))
else:
    answers = [backend.offer(problem(**asked)) for asked in {asked!r}]
    devices = [device.index for device in found.devices]
    print(json.dumps([devices, [answer.reason if isinstance(answer, Refusal) else None for answer in answers]]))
"""


def child(arguments, **variables):
    """What a process prints, read as JSON; MUSA_HOME and MUTLASS_HOME are this process's unless given."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=HERE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def says(*asked, **variables):
    return child(["-c", SAYS.format(asked=asked)], **variables)


@pytest.mark.parametrize("sdk", ["3.1", "5.1"])
def test_conformance_on_other_sdks(homes, sdk):
    found = child(["kit.py", "0", "90"], MUSA_HOME=homes(sdk))
    assert sum(found["accepted"].values()) > 3
    assert found["worst"] <= 1


def test_conformance_on_a_newer_card(checkouts):
    """mp_31, the short spelling, and kernels that take aligned operands only."""
    found = child(["kit.py", "0", "16"], MUTLASS_HOME=checkouts((0, 3, 0)), MUSA_SIM_ARCH="31")
    assert sum(found["accepted"].values()) > 3
    assert found["worst"] <= 1
    assert found["features"][0].startswith("MUTLASS 0.3.0")
    assert any("for mp_31 move 16 bytes at a time" in reason for reason in found["refused"])


def test_newer_cards_need_a_newer_mutlass(checkouts):
    reason, remedy = says(MUSA_SIM_ARCH="31")
    assert "musa:0 is mp_31: MUTLASS 0.1.1 has kernels for mp_22 only" in reason
    assert "MUTLASS_HOME to MUTLASS 0.2" in remedy
    half, ieee, tf32 = {"dtype": "float16"}, {}, {"precision": "tf32"}
    _, answers = says(half, ieee, tf32, MUSA_SIM_ARCH="31", MUTLASS_HOME=checkouts((0, 2, 0)))
    assert answers[0] is None
    assert "rounded to TF32" in answers[1]
    assert answers[2] is None


def test_older_cards():
    reason, remedy = says(MUSA_SIM_ARCH="21")
    assert "musa:0 is mp_21: MUTLASS has kernels for mp_22 and mp_31" in reason
    assert "mublas" in remedy


def test_two_devices():
    code = """
import json
import numpy as np
from gemmhub_musa import runtime
from gemmhub_musa.testing import Operands, problem
from gemmhub_mutlass.backend import MutlassBackend
backend = MutlassBackend()
right = []
for index in (1, 0, 1):
    asked = problem(20, 21, 22, "float16", "float32", index=index)
    operands = Operands(asked)
    kernel = backend.prepare(asked, backend.offer(asked).first.name, 2**26)
    right.append(bool(np.array_equal(operands.run(kernel.run), operands.wide)))
right.append(len(backend.probe().devices) == 2)
right.append(runtime.load().current_device == 0)
print(json.dumps(right))
"""
    assert child(["-c", code], MUSA_SIM_DEVICES="2") == [True] * 5


def test_no_home_no_mutlass_no_compiler(home, tmp_path):
    reason, remedy = says(MUSA_HOME=tmp_path / "nowhere")
    assert "no MUSA installation was found" in reason
    reason, remedy = says(MUTLASS_HOME="")
    assert "MUTLASS_HOME is not set" in reason
    assert remedy
    reason, _ = says(MUTLASS_HOME=tmp_path)
    assert "has no include/mutlass/mutlass.h" in reason
    copied = tmp_path / "home"
    shutil.copytree(home, copied, symlinks=True)
    (copied / "bin" / "mcc").unlink()
    reason, remedy = says(MUSA_HOME=copied)
    assert "there is no MUSA compiler mcc" in reason
    assert "MUSA_HOME" in remedy


def test_found_by_gemmhub():
    """From the entry point to the result, as a user calls it."""
    code = """
import json
import numpy as np
import gemmhub
from gemmhub_musa import from_numpy
a, b = np.arange(6, dtype=np.float16).reshape(2, 3), np.arange(12, dtype=np.float16).reshape(3, 4)
on = from_numpy(a), from_numpy(b)
right = np.array_equal(gemmhub.matmul(*on, backend="mutlass").numpy(), a @ b)
print(json.dumps([bool(right), str(gemmhub.explain(*on, backend="mutlass"))]))
"""
    right, explained = child(["-c", code])
    assert right
    assert "tensor_256x128x32" in explained
