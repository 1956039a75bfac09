"""The simulated home: its files in each generation, and how making one fails."""

import importlib
import json
import os
import re
import subprocess

import pytest
from click.testing import CliRunner
from gemmhub_musa_sim import cli, make_home
from gemmhub_musa_sim.enums import enums
from gemmhub_musa_sim.profiles import PROFILES
from stubs import home

from gemmhub.errors import BackendError, InputError
from gemmhub.kit.native import forget

LIBRARIES = {
    "3.1": {"libmusart.so.1.0", "libmublas.so", "libmudnn.so.2", "libmusa.so.1"},
    "4.3": {"libmusart.so.4", "libmublas.so.1", "libmublasLt.so.1", "libmudnn.so.3", "libmusa.so.1"},
    "5.1": {
        "libmusart.so.5",
        "libmublas.so.1",
        "libmublasLt.so.1",
        "libmudnn.so.3",
        "libmudnncxx.so.3",
        "libmusa.so.1",
    },
}


def soname(library):
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return re.search(r"SONAME.*\[(.+)\]", text)[1]


@pytest.mark.parametrize("sdk", PROFILES)
def test_libraries_have_the_vendors_sonames(sdk):
    lib = home(sdk) / "lib"
    bare = {re.sub(r"\.so.*", ".so", name) for name in LIBRARIES[sdk]}
    assert {path.name for path in lib.iterdir()} == LIBRARIES[sdk] | bare
    for name in LIBRARIES[sdk]:
        assert soname(lib / name) == name
    for name in bare:
        assert (lib / name).resolve() in {(lib / versioned).resolve() for versioned in LIBRARIES[sdk]}


@pytest.mark.parametrize("sdk", PROFILES)
def test_headers_compile_alone_and_hold_the_tables(sdk):
    profile = PROFILES[sdk]
    include = home(sdk) / "include"
    names = ["library_types.h", "mublas.h", *(["mublasLt.h"] if profile.mublas_lt else []), "mudnn.h"]
    names += ["mudnncxx/mudnn.h"] if profile.mudnn_cxx else []
    assert all((include / name).is_file() for name in names)
    assert (include / "mublasLt.h").exists() == bool(profile.mublas_lt)
    for name in names:
        language = "c++" if ("dnn" in name and name != "mudnn.h") or (sdk != "5.1" and name == "mudnn.h") else "c"
        command = ["gcc", "-x", language, "-fsyntax-only", "-Wall", "-Werror", f"-I{include}", "-"]
        done = subprocess.run(command, input=f"#include <{name}>\n", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    tables = enums(profile)
    members = {name: number for enum in ("mublasOperation_t", "mublasMath_t") for name, number in tables[enum].items()}
    checks = "\n".join(f'static_assert({name} == {number}, "");' for name, number in members.items())
    done = subprocess.run(
        ["gcc", "-x", "c++", "-fsyntax-only", f"-I{include}", "-"],
        input=f"#include <mublas.h>\n{checks}\n", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_attested_numbers_are_the_same_everywhere():
    for profile in PROFILES.values():
        tables = enums(profile)
        assert tables["mublasOperation_t"] == {"MUBLAS_OP_N": 111, "MUBLAS_OP_T": 112, "MUBLAS_OP_C": 113}
        assert tables["musaDataType_t"]["MUSA_R_16F"] == 2
        assert tables["mublasComputeType_t"]["MUBLAS_COMPUTE_32F"] == 68
        assert tables["mublasStatus_t"]["MUBLAS_STATUS_SUCCESS"] == 0
        assert tables["mublasGemmAlgo_t"] == {"MUBLAS_GEMM_DEFAULT": 0, "MUBLAS_GEMM_DEFAULT_TENSOR_OP": 1}
        for enum in tables.values():
            assert len(set(enum.values())) == len(enum)


def test_tools_answer():
    for sdk, profile in PROFILES.items():
        query = home(sdk) / "bin/musa_version_query"
        answer = json.loads(subprocess.run([query], capture_output=True, text=True, check=True).stdout)
        assert answer["musa_toolkits"]["version"] == profile.toolkit
        assert os.access(home(sdk) / "bin/mcc", os.X_OK)


def test_a_second_home_costs_no_compiler(tmp_path, monkeypatch):
    home("4.3")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CXX", subprocess.__file__)  # cannot be executed
    forget()
    with pytest.raises(BackendError, match="compiler"):
        make_home(tmp_path / "none")
    monkeypatch.undo()
    building = importlib.import_module("gemmhub.kit.native.build")
    monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
    made = make_home(tmp_path / "second")
    assert (made / "lib/libmublas.so.1").resolve() == (home("4.3") / "lib/libmublas.so.1").resolve()


def test_a_home_is_made_again_and_nothing_else_is_touched(tmp_path):
    made = make_home(tmp_path / "home", sdk="4.3")
    (made / "lib/libmublas.so.1").unlink()
    (made / "notes.txt").write_text("mine")
    make_home(made, sdk="5.1")
    assert (made / "lib/libmublas.so.1").exists()
    assert not (made / "lib/libmusart.so.4").exists()
    assert (made / "notes.txt").read_text() == "mine"
    assert json.loads((made / "gemmhub-musa-sim.json").read_text())["sdk"] == "5.1"
    other = tmp_path / "other"
    other.mkdir()
    (other / "lib").mkdir()
    with pytest.raises(InputError, match="holds something else"):
        make_home(other)


@pytest.mark.parametrize("wrong", [{"sdk": "4.2"}, {"engine": "gpu"}, {"symbols": "none"}])
def test_wrong_arguments(tmp_path, wrong):
    with pytest.raises(InputError) as caught:
        make_home(tmp_path, **wrong)
    assert caught.value.argument == next(iter(wrong))
    assert not any(tmp_path.iterdir())


def test_a_failing_compiler_is_reported(tmp_path, monkeypatch):
    failing = tmp_path / "g++"
    failing.write_text("#!/bin/sh\necho 'error: no can do' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    with pytest.raises(BackendError, match="no can do"):
        make_home(tmp_path / "home")
    assert not (tmp_path / "home" / "lib").exists()


def test_the_command(tmp_path):
    home("4.3")
    done = CliRunner().invoke(cli.main, [str(tmp_path / "home"), "--sdk", "4.3"])
    assert done.output == f"export MUSA_HOME={tmp_path / 'home'}\n"
    assert done.exit_code == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    done = CliRunner().invoke(cli.main, [str(tmp_path / "full")])
    assert done.exit_code == 1
    assert "holds something else" in done.output


def test_a_program_that_knows_only_the_home(tmp_path):
    """Compiled and linked as against an installed SDK: headers, libraries, nothing else."""
    source = tmp_path / "program.cpp"
    source.write_text(r"""
#include <mublas.h>
#include <musa_runtime.h>
#include <cstdio>
int main() {
    float host[4] = {1, 2, 3, 4}, one = 1, zero = 0, *a, *c;
    musaMalloc(reinterpret_cast<void**>(&a), 16);
    musaMalloc(reinterpret_cast<void**>(&c), 16);
    musaMemcpy(a, host, 16, musaMemcpyHostToDevice);
    mublasHandle_t handle;
    if (mublasCreate(&handle) != MUBLAS_STATUS_SUCCESS) return 1;
    if (mublasGemmEx(handle, MUBLAS_OP_N, MUBLAS_OP_T, 2, 2, 2, &one, a, MUSA_R_32F, 2, a, MUSA_R_32F, 2, &zero, c,
                     MUSA_R_32F, 2, MUBLAS_COMPUTE_32F, MUBLAS_GEMM_DEFAULT) != MUBLAS_STATUS_SUCCESS) return 2;
    musaMemcpy(host, c, 16, musaMemcpyDeviceToHost);
    std::printf("%g %g %g %g\n", host[0], host[1], host[2], host[3]);
    return mublasDestroy(handle) == MUBLAS_STATUS_SUCCESS ? 0 : 3;
}
""")
    for sdk in PROFILES:
        root = home(sdk)
        flags = [f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-lmublas", "-lmusart"]
        subprocess.run(["g++", source, "-o", tmp_path / sdk, *flags], check=True)
        done = subprocess.run([tmp_path / sdk], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "10 14 14 20\n"), done.stderr
