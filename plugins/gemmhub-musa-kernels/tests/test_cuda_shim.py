"""The same sources for NVIDIA GPUs, without one: nvcc compiles them by the simulator's headers."""

from __future__ import annotations

import re
import subprocess

import pytest
from gemmhub_musa.compile import compile_mu
from gemmhub_musa_kernels.choose import Candidate, defines
from gemmhub_musa_kernels.sources import KERNELS, PIPELINED, SCALAR, TRANSPOSE, WARP, WMMA, text
from gemmhub_musa_kernels.tiles import SMALL
from simulator import sdk_of

from conftest import INSTALLED, SDK
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype


@pytest.fixture(scope="module")
def cuda_sdk():
    if INSTALLED:
        pytest.skip("needs the simulator")
    from gemmhub_musa_sim.cuda import nvcc
    from gemmhub_musa_sim.testing import kept_home

    if nvcc.describe() == "no nvcc":
        pytest.skip("nvcc is not installed: nothing can be compiled")
    return sdk_of(kept_home(SDK, engine="cuda"))


@pytest.mark.parametrize(
    ("kernel", "arch", "operand", "result"),
    [
        (SCALAR, "mp_22", "bfloat16", "float32"),
        (WMMA, "mp_22", "bfloat16", "bfloat16"),
        (PIPELINED, "mp_22", "bfloat16", "float32"),
        (PIPELINED, "mp_31", "float16", "bfloat16"),
        (TRANSPOSE, "mp_22", "float16", "float16"),
    ],
)
def test_every_kernel_becomes_a_library(cuda_sdk, kernel, arch, operand, result):
    way = Candidate(kernel, SMALL[WARP[arch]] if kernel == PIPELINED else None)
    flags = () if kernel == TRANSPOSE else defines(way, arch, as_dtype(operand), as_dtype(result))
    built = compile_mu(text(kernel), cuda_sdk, arch, name=f"cuda_{kernel}", flags=flags, include=(KERNELS,))
    assert not isinstance(built, Refusal), built.traceback
    names = subprocess.run(["nm", "-D", "--defined-only", built], capture_output=True, text=True, check=True).stdout
    launchers = set(re.findall(r'extern "C" int (\w+)', text(kernel)))
    assert set(re.findall(r" T (\w+)", names)) >= launchers
