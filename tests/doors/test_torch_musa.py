"""Tensors of the real torch on simulated MUSA devices: a plugin registers the device type, and muBLAS computes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.compiler, pytest.mark.emulator]

torch = pytest.importorskip("torch")
pytest.importorskip("scipy_openblas32", reason="the simulated muBLAS computes with it")
ROOT = Path(__file__).resolve().parents[2]
PLUGINS = [ROOT / "plugins" / name for name in ("gemmhub-musa", "gemmhub-musa-sim", "gemmhub-mublas")]
BEGIN = """
import sys
import torch, numpy as np, gemmhub
import torch_musa_stub as stub
sys.modules["torch_musa"] = stub
from gemmhub.array_library import register_device_type
from gemmhub_musa.devices import device_type
from gemmhub_musa.testing import stream_of_its_own
from gemmhub_mublas.backend import MublasBackend
register_device_type(device_type)
gemmhub.register(MublasBackend())
rng = np.random.default_rng()

def drawn(*shape, dtype=torch.float32):
    return torch.from_numpy(rng.integers(-4, 5, shape)).to(dtype)

def right(c, *operands):
    return torch.equal(c.cpu().double(), torch.linalg.multi_dot([x.double() for x in operands]))
"""


@pytest.fixture(scope="module")
def home():
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    code = "from gemmhub_musa_sim.testing import kept_home; print(kept_home())"
    return run(code, {}).splitlines()[-1]


def run(code, variables):
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent, *PLUGINS)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "GEMMHUB_RECORDS": "off", "GEMMHUB_PLUGINS": "", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def prints(home):
    """``prints(code)``: the lines that it prints in a process with two simulated devices, whose work is done late."""
    options = {"MUSA_HOME": home, "MUSA_SIM_DEVICES": "2", "MUSA_SIM_LAZY": "1"}
    return lambda code: run(BEGIN + textwrap.dedent(code), options).splitlines()


def test_results_are_tensors_on_the_operands_device(prints):
    lines = prints("""
        for index in (0, 1):
            for dtype in (torch.float32, torch.float16):
                a, b = drawn(37, 29, dtype=dtype), drawn(29, 53, dtype=dtype)
                x, y = a.to(f"musa:{index}"), b.to(f"musa:{index}")
                for _ in range(2):  # the first call decides, later ones are warm
                    c = gemmhub.matmul(x, y)
                    print(type(c) is torch.Tensor, c.device, c.dtype, c.stride(), right(c, a, b))
        print(stub.rt.current_device)
    """)
    *results, current = lines
    expected = [
        f"True musa:{index} torch.{dtype} (53, 1) True" for index in (0, 1) for dtype in ("float32", "float16")
        for _ in range(2)
    ]  # fmt: skip
    assert results == expected
    assert current == "0"


def test_storage_orders_and_out(prints):
    """Views of torch: transposed, with an offset and a gap between rows; the gaps of ``out`` keep their elements."""
    lines = prints("""
        wide, b = drawn(40, 64), drawn(33, 29)
        x, y = wide.to("musa:1")[3:, 4:33], b.to("musa:1").T
        assert x.stride() == (64, 1) and y.stride() == (1, 29)
        target = torch.full((37, 40), 9.0)
        out = target.to("musa:1")
        given = out[:, :33]
        assert gemmhub.matmul(x, y, out=given) is given
        stub.synchronize(1)
        print(right(out.cpu()[:, :33], wide[3:, 4:33], b.T), bool((out.cpu()[:, 33:] == 9).all()))
        print(right(gemmhub.matmul(x, y, alpha=1, beta=0), wide[3:, 4:33], b.T))
    """)
    assert lines == ["True True", "True"]


def test_the_current_stream(prints):
    """Operands that are filled late on a stream of their own are read after that, on that stream alone."""
    lines = prints("""
        a, b = drawn(16, 24), drawn(24, 8)
        x, y = (torch.zeros(s.shape).to("musa:1") for s in (a, b))
        with stub.rt.device(1):
            stream = stream_of_its_own(stub.rt)
        gemmhub.matmul(x, y)  # a proof waits for the device
        for argument in (False, True):
            kept = [stub.fill_late(to, source, stream) for to, source in ((x, a), (y, b))]
            if argument:
                c = gemmhub.matmul(x, y, stream=stream)
            else:
                with torch.musa.stream(torch.musa.ExternalStream(stream, x.device)):
                    c = gemmhub.matmul(x, y)
            with stub.rt.device(1):
                stub.rt.stream_synchronize(0)  # a product there would read zeros
                stub.rt.stream_synchronize(stream)
            print(right(c, a, b))
            a, b = drawn(16, 24), drawn(24, 8)
    """)
    assert lines == ["True", "True"]


def test_devices_do_not_mix(prints):
    lines = prints("""
        a = drawn(4, 4)
        for others in (a.to("musa:1"), a):
            try:
                gemmhub.matmul(a.to("musa:0"), others)
            except gemmhub.errors.DeviceError as error:
                print(error)
        print(gemmhub.explain(a.to("musa:0"), a.to("musa:0")).chosen)
    """)
    assert "b is torch on musa:1, a is torch on musa:0" in lines[0]
    assert "cpu" in lines[1]
    assert lines[2:] == ["mublas"]
