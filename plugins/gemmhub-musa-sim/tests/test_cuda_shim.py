"""The CUDA engine, as far as a machine without a GPU goes: the same sources compile and link."""

import os
import re
import subprocess

import pytest
from gemmhub_musa_sim import make_home, mcc
from gemmhub_musa_sim.cuda import nvcc
from gemmhub_musa_sim.profiles import PROFILES
from gemmhub_musa_sim.runtime import build_runtime, include_files
from simulated import KERNELS, home

pytestmark = pytest.mark.skipif(nvcc.describe() == "no nvcc", reason="nvcc is not installed: nothing can be compiled")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "include").symlink_to(home() / "include")
    return mcc.install(folder, PROFILES["4.3"], "cuda")


def exported(library):
    text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" T (\w+)", text))


def test_version(compiler):
    text = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    assert text.startswith("mcc version 4.3.0\nsimulator: engine cuda, Cuda compilation tools")


def test_a_home_of_this_engine_has_no_stub_libraries(tmp_path):
    """They would work on the host's memory."""
    made = make_home(tmp_path / "home", engine="cuda")
    assert {path.name for path in (made / "lib").iterdir()} == {
        "libmusart.so.4", "libmusart.so", "libmusa.so.1", "libmusa.so",
    }  # fmt: skip
    text = subprocess.run([made / "bin" / "mcc", "--version"], capture_output=True, text=True, check=True).stdout
    assert "engine cuda" in text


@pytest.mark.parametrize("kernel", ["vector_add", "gemm_wmma"])
def test_kernels_become_libraries(compiler, tmp_path, kernel):
    made = tmp_path / f"{kernel}.so"
    # The flags of gemmhub's own builds, the home's headers among them, which nvcc must not see.
    command = [compiler, "-x", "musa", KERNELS / f"{kernel}.mu", "-o", made, "-std=c++17", "-O2", "-fPIC", "-shared"]
    command += ["-fno-strict-aliasing", "--offload-arch=mp_22", f"-I{home() / 'include'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    launchers = set(re.findall(r'extern "C" int (\w+)', (KERNELS / f"{kernel}.mu").read_text()))
    assert exported(made) >= launchers


def test_the_wide_fragment_is_four_matrix_instructions_of_a_warp(compiler, tmp_path):
    """32x32x16 belongs to four warps here: each has a 16x16x16 instruction, and named barriers go with stores."""
    source = tmp_path / "wide.mu"
    source.write_text(
        "#include <mma.h>\nusing namespace mtmusa::wmma;\n"
        "__global__ void wide(const half* a, const half* b, float* c) {\n"
        "  fragment<matrix_a, 32, 32, 16, half, row_major> left;\n"
        "  fragment<matrix_b, 32, 32, 16, half, col_major> right;\n"
        "  fragment<accumulator, 32, 32, 16, float> sum; fill_fragment(sum, 0.0f);\n"
        "  load_matrix_sync(left, a, 16); load_matrix_sync(right, b, 16); mma_sync(sum, left, right, sum);\n"
        "  store_matrix_sync(c, sum, 32, mem_row_major);\n}\n"
    )
    made = tmp_path / "wide.ptx"
    command = [nvcc.nvcc(), "-arch=sm_80", "-std=c++17", "-I", nvcc.INCLUDE, "-include", "musa_runtime.h"]
    subprocess.run([*command, "-x", "cu", "-ptx", source, "-o", made], check=True, capture_output=True)
    text = made.read_text()
    assert len(re.findall(r"wmma\.mma\S*m16n16k16", text)) == 1
    assert len(re.findall(r"bar(?:rier)?\.sync\S*\s+%r", text)) == 1


def test_the_runtime_has_all_names_of_the_header():
    """Those that programs call by name, from Python: what a kernel's own module must answer is left out."""
    library = build_runtime(PROFILES["4.3"], "cuda")
    assert os.path.exists(library), library
    header = include_files(PROFILES["4.3"])["musa_runtime_api.h"].read_text()
    names = set(re.findall(r"\b(musa[A-Z]\w*)\(", header))
    of_kernels = {name for name in names if name.startswith(("musaFunc", "musaOccupancy"))}
    assert names - exported(library) == of_kernels | {"musaGetDeviceProperties"}
