"""mcc: the vendor's command line, what it refuses, and where its messages point."""

import os
import subprocess

import pytest
from gemmhub_musa_sim import mcc
from gemmhub_musa_sim.rewrite import LaunchError, rewrite
from simulated import KERNELS, home

PROGRAM = r"""#include <musa_runtime.h>
#include <stdio.h>
__global__ void fill(int* p, int value) { p[threadIdx.x] = value; }
int main() {
  int *p, got[4];
  musaMalloc(&p, sizeof got);
  fill<<<1, 4>>>(p, VALUE);
  musaMemcpy(got, p, sizeof got, musaMemcpyDeviceToHost);
  printf("%d %d\n", got[0] + got[3], __MUSA_ARCH__);
  return musaFree(p);
}
"""


def run(*arguments, cwd=None, **environment):
    command = [home() / "bin" / "mcc", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C", "MUSA_SIM_CHECK": "0", **environment},
    )


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.mu"
    path.write_text(PROGRAM)
    return path


def link():
    return ["-L", str(home() / "lib"), "-lmusart"]


def test_version():
    first, second = run("--version").stdout.splitlines()
    assert first == "mcc version 4.3.0"
    assert second.startswith("simulator: engine simt, without checks")
    assert "with checks" in run("--version", MUSA_SIM_CHECK="1").stdout


@pytest.mark.parametrize(
    "flags", [[], ["--offload-arch=mp_22"], ["--cuda-gpu-arch=mp_31"], ["--offload-arch=mp_22,mp_31"]]
)
def test_a_program(program, flags):
    arch = 310 if flags and flags[0].endswith("gpu-arch=mp_31") else 220
    done = run(program, "-o", "program", "-DVALUE=21", *flags, *link(), cwd=program.parent)
    assert (done.returncode, done.stderr) == (0, "")
    environment = {**os.environ, "MUSA_SIM_ARCH": str(arch // 10)}
    done = subprocess.run([program.parent / "program"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, f"42 {arch}\n")


def test_the_vendors_flags(program):
    """What public projects pass, all at once; objects linked in a second step."""
    object_flags = [
        "-x",
        "musa",
        "-c",
        "-Od3",
        "-O3",
        "-DNDEBUG",
        "-D",
        "VALUE=1",
        "-fno-strict-aliasing",
        "-fno-signed-zeros",
    ]
    object_flags += [
        "-mllvm",
        "-mtgpu-load-cluster-mutation=1",
        "-mllvm",
        "--num-dwords-of-load-in-mutation=64",
        "-mtgpu",
    ]
    object_flags += ["-std=c++17", "-fPIC", "--offload-arch=mp_22", "-Wall", "-Wextra", "-Werror"]
    assert run(*object_flags, program, "-o", "a.o", cwd=program.parent).stderr == ""
    done = run("a.o", "-o", "a.out", *link(), cwd=program.parent)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([program.parent / "a.out"], capture_output=True, text=True).stdout == "2 220\n"


def test_objects_with_hooks_link_in_a_second_step(program):
    checked = {"MUSA_SIM_CHECK": "1"}
    assert run("-c", program, "-DVALUE=3", "-o", "a.o", cwd=program.parent, **checked).stderr == ""
    assert run("a.o", "-o", "a.out", *link(), cwd=program.parent, **checked).stderr == ""
    assert subprocess.run([program.parent / "a.out"], capture_output=True, text=True).stdout == "6 220\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cuda-device-only", "x.mu"], "--cuda-device-only: a simulated card runs no device images"),
        (["-S", "x.mu"], "compile with -fPIC -shared"),
        (["--offload-arch=mp_99", "x.mu"], "allowed: mp_21, mp_22, mp_31"),
        (["-x", "fortran", "x.mu"], "the languages are musa and c++"),
        (["x.mu", "-o"], "-o needs a value"),
        (["-c", "x.mu", "y.mu", "-o", "z.o"], "2 sources cannot all become z.o"),
        (["-O2"], "no input files"),
        ([], "no input files"),
    ],
)
def test_refused(arguments, words):
    done = run(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.startswith("mcc: error: ")


def test_a_missing_compiler():
    done = run(KERNELS / "vector_add.mu", "-c", "-o", os.devnull, CXX="/no/such/compiler")
    assert done.returncode == 1
    assert "/no/such/compiler: not found" in done.stderr


def test_errors_point_into_the_source(tmp_path):
    (tmp_path / "header.h").write_text("\n\n#define LAUNCH(kernel, ...) kernel<<<1, 1>>>(__VA_ARGS__)\n")
    source = tmp_path / "wrong.mu"
    source.write_text(
        '#include "header.h"\n__global__ void k(int a) {\n  a = nothing;\n}\nvoid f() {\n  LAUNCH(k, 1, 2);\n}\n'
    )
    done = run("-c", source, "-o", os.devnull)
    assert done.returncode == 1
    assert "wrong.mu:3:7: error: 'nothing' was not declared" in done.stderr
    assert "wrong.mu:6" in done.stderr
    assert "a kernel must be launched with as many arguments as it has parameters" in done.stderr


def test_a_launch_without_end_is_an_error_with_its_place(tmp_path):
    source = tmp_path / "wrong.mu"
    source.write_text("__global__ void k() {}\nvoid f() {\n  k<<<1, 1)();\n}\n")
    done = run("-c", source, "-o", os.devnull)
    assert done.returncode == 1
    assert f"{source}:3: error: <<< without >>>" in done.stderr


def test_wide_fragments_need_wide_warps(tmp_path):
    done = run("-c", KERNELS / "gemm_wmma.mu", "-o", tmp_path / "x.o", "--offload-arch=mp_31")
    assert done.returncode == 1
    assert "wmma 32x32x16 needs warps of 128 threads: mp_22" in done.stderr


def test_checks_can_be_built_into_a_home(tmp_path):
    for name in ("include", "lib"):
        (tmp_path / name).symlink_to(home() / name)
    from gemmhub_musa_sim.profiles import PROFILES

    compiler = mcc.install(tmp_path, PROFILES["4.3"], checks=True)
    environment = {key: value for key, value in os.environ.items() if key != "MUSA_SIM_CHECK"}
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, env=environment)
    assert "with checks" in done.stdout


def test_the_wrapper_follows_links(tmp_path):
    (tmp_path / "mcc").symlink_to(home() / "bin" / "mcc")
    done = subprocess.run([tmp_path / "mcc", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("mcc version 4.3.0")


class TestRewriting:
    """Rewriting of preprocessed text, without a compiler."""

    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            (
                "k<<<1, 2>>>(p);",
                ["Configuration(1, 2)", '"k"', "decltype(::musa_sim::pointer(musa_sim_x, k))", ")(p);"],
            ),
            ("a::b<3, (2 > 1)><<<g, b, 0, s>>>();", ["Configuration(g, b, 0, s)", '"a::b<3, (2 > 1)>"']),
            ("t::k<<<dim3(1, (x >> 2)), f<4>(3)>>>(1);", ["Configuration(dim3(1, (x >> 2)), f<4>(3))"]),
            ("(*pointer)<<<1, 1>>>();", ["(*pointer)(musa_sim_x...)"]),
            ("__shared__ half a[4][5], b;", ["struct {", "half a[4][5], b;", "auto& a = ", "auto& b = "]),
            ("__shared__ __align__(32) float f[2];", ["__attribute__((aligned(32)))", "auto& f ="]),
            ("static __shared__ struct { int x; } s;", ["static thread_local", "struct { int x; } s;"]),
            (
                "extern __shared__ alignas(16) char raw[];",
                ["char* const raw = reinterpret_cast<char*>(musaSimDynamicShared);"],
            ),
            ("__global__ void k(int a) { if (a) {} }", ['Registered musa_sim_registered_k{k, "k"};']),
            ('extern "C" __global__ __launch_bounds__(256, (2)) void k() {}', ['extern "C"', "Registered"]),
            ("static inline __forceinline__ int f();", ["static inline __attribute__((always_inline)) int f();"]),
            ("__device__ __forceinline__ int f();", ["inline __attribute__((always_inline)) int f();"]),
            ("__attribute__((__noinline__)) void f();", ["__attribute__((__noinline__)) void f();"]),
        ],
    )
    def test_what_comes_out(self, text, parts):
        got = rewrite(text)
        for part in parts:
            assert part in got
        assert "__shared__" not in got
        assert "<<<" not in got

    @pytest.mark.parametrize(
        "text",
        ['f("<<<", R"x(k<<<1)" >>>)x", \'<\');', "std::operator<<<char>(a, b);", "1'000 << 2'000; a << b >> c;"],
    )
    def test_what_stays(self, text):
        assert rewrite(text) == text

    @pytest.mark.parametrize(
        "text",
        [
            "template <class T> __global__ void k(T a) {}",
            "__global__ void k();",
            "__global__ void k(int) {} __global__ void k() {}",
        ],
    )
    def test_no_kernel_to_register(self, text):
        assert "Registered" not in rewrite(text)

    @pytest.mark.parametrize("source", sorted(KERNELS.glob("*.mu")), ids=lambda path: path.stem)
    def test_no_line_moves(self, source):
        text = source.read_text()
        assert rewrite(text).count("\n") == text.count("\n")

    def test_lines_of_a_launch_over_several_lines(self):
        text = "k<int,\n  2><<<1,\n  2>>>(a,\n b);\nrest"
        assert rewrite(text).splitlines()[-1] == "rest"
        assert rewrite(text).count("\n") == 4

    @pytest.mark.parametrize("text", ["k<<<1, 2(p);", "= <<<1, 2>>>(p);"])
    def test_errors(self, text):
        with pytest.raises(LaunchError, match=r"line 1: error: <<<"):
            rewrite(text)
