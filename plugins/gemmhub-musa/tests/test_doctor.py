"""``gemmhub doctor musa``: its report of a whole installation, of broken ones, and of none."""

from __future__ import annotations

import json

import pytest
from address_backend import Addresses
from click.testing import CliRunner
from gemmhub_musa import attested, doctor, first_run, runtime

from conftest import HERE, link
from gemmhub.backend import Offer
from gemmhub.cli.main import main
from gemmhub.kit import native
from gemmhub.kit.native import cache

MUSA_RUNTIME = """
#pragma once
typedef int musaError_t;
typedef struct MUstream_st* musaStream_t;
enum { musaSuccess = 0, musaErrorInvalidValue = 1, musaErrorNotSupported = 801, musaMemcpyHostToDevice = 5 };
struct musaDeviceProp { char name[100]; };
"""
MCC = """
case "$*" in *--version*) echo "mcc version 4.3.1"; exit 0;; esac
echo 'extern "C" int gemmhub_launch_add(const float* x, float* y, int n, void*) {
  for (int i = 0; i < n; i++) y[i] += x[i];
  return 0;
}' > add.cpp
exec g++ -shared -fPIC add.cpp -o "$out"
"""
"""Compiles what stands for the kernel, whatever its source is."""


@pytest.fixture
def kit(home, tmp_path, monkeypatch, script):
    """The home of this process with a compiler and headers."""
    made = tmp_path / "kit"
    (made / "include").mkdir(parents=True)
    (made / "lib").symlink_to(home / "lib")
    (made / "include" / "musa.h").write_text("#define MUSA_VERSION 4030\n")
    (made / "include" / "musa_runtime.h").write_text(MUSA_RUNTIME)
    script(made / "bin" / "mcc", MCC)
    script(made / "bin" / "musa_version_query", "echo musa_toolkits: 4.3.1")
    monkeypatch.setenv("MUSA_HOME", str(made))
    yield made
    library = runtime.load().library.cdll
    library.fake_plan(b"")
    library.fake_devices(2)


def report():
    """{(section, item): finding}; every finding once, sections in one piece."""
    found = list(doctor.findings())
    sections = [finding.section for finding in found]
    assert sections == sorted(sections, key=sections.index)
    keys = [(finding.section, finding.item) for finding in found]
    assert len(set(keys)) == len(keys)
    assert all("\n" not in finding.text for finding in found)
    return dict(zip(keys, found))


def test_a_whole_installation(kit):
    Addresses.listed()
    found = report()

    def says(section, item):
        return found[section, item].text

    assert says("installation", "home") == f"{kit} (by MUSA_HOME)"
    assert says("installation", "version") == "4.3.0"
    assert found["installation", "musa_version_query"].detail == "musa_toolkits: 4.3.1"
    assert says("installation", "MUSA_HOME") == str(kit)
    assert "libmusart.so.4 (by " in says("libraries", "musart")
    assert says("libraries", "mublasLt").startswith("there is no libmublasLt.so here")
    assert found["libraries", "mublasLt"].ok is None
    assert says("devices", "runtime, driver") == "4.3.0, 5.1.0"
    assert says("devices", "musa:1").startswith("no name, mp_22, 1 of 1 GiB free; multiprocessors 56, ")
    assert "per multiprocessor musaErrorInvalidValue" in says("devices", "musa:1")
    assert says("musa_runtime.h", "musaErrorInvalidValue") == "1, as in public sources"
    assert found["musa_runtime.h", "musaErrorInvalidValue"].ok
    assert says("musa_runtime.h", "musaMemcpyHostToDevice") == "5, 1 in public sources"
    assert found["musa_runtime.h", "musaMemcpyHostToDevice"].ok is False
    assert says("musa_runtime.h", "not public before") == "musaErrorNotSupported 801, sizeof(musaDeviceProp) 100"
    assert "musaDevAttrMaxThreadsPerBlock" in says("musa_runtime.h", "not in this header")
    assert says("compilers", "mcc") == f"{kit}/bin/mcc: mcc version 4.3.1"
    assert found["compilers", "a kernel for mp_22"].ok
    assert says("compilers", "a kernel on musa:1") == "runs, and is right"
    assert says("arrays", "copies on musa:0").startswith("right; 4 kinds")
    assert says("backends", "addresses") == "addresses 1, computes on the host"
    assert says("products", "addresses float16 -> float32 on musa:1") == "right in 8 of 8 storage orders"
    wrong = [finding.item for finding in found.values() if finding.ok is False]
    assert wrong == ["musaMemcpyHostToDevice"]


def test_a_wrong_backend_and_one_that_refuses(kit, monkeypatch):
    from gemmhub import Refusal

    backend = Addresses.listed(spoil=lambda result: -result)
    no = Refusal("no bfloat16 on this card", "convert")
    rows = Refusal("row-major results only", "pass another out")

    def offer(problem):
        if problem.a.dtype.name == "bfloat16":
            return no
        return rows if problem.a.dtype.name == "int8" and problem.out.layout.order == "col" else Offer()

    monkeypatch.setattr(backend, "offer", offer)
    found = report()
    assert found["products", "addresses float32 on musa:0"].ok is False
    assert "it has [[-4, 1, -1]" in found["products", "addresses float32 on musa:0"].text
    assert found["products", "addresses bfloat16 on musa:0"].ok is None
    assert found["products", "addresses bfloat16 on musa:0"].text == "refused: no bfloat16 on this card"
    backend.spoil = None
    assert report()["products", "addresses int8 on musa:0"].text == (
        "right in 4 of 8 storage orders; the others are refused: row-major results only"
    )


def test_a_backend_that_does_not_prepare_what_it_offers(kit, monkeypatch):
    from gemmhub import Refusal

    backend = Addresses.listed()
    no = Refusal("the kernel does not compile", "report it", "error: out of registers")
    monkeypatch.setattr(backend, "prepare", lambda problem, candidate, limit: no)
    finding = report()["products", "addresses float32 on musa:0"]
    assert finding.ok is False
    assert finding.text == "the kernel does not compile"
    assert finding.detail == "error: out of registers"


def test_a_backend_that_was_not_configured_is_no_failure(kit, monkeypatch):
    from gemmhub_musa.sdk import NotConfigured

    backend = Addresses.listed()
    monkeypatch.setattr(backend, "probe", lambda: NotConfigured("THING_HOME is not set", "set it"))
    finding = report()["backends", "addresses"]
    assert finding.text == "absent: THING_HOME is not set; set it"
    assert finding.ok is None


def test_a_backend_that_is_absent(kit, monkeypatch):
    from gemmhub import Absent

    backend = Addresses.listed()
    monkeypatch.setattr(backend, "probe", lambda: Absent("no libmublas.so", "install it"))
    found = report()
    assert found["backends", "addresses"].text == "no libmublas.so; install it"
    assert found["backends", "addresses"].ok is False
    assert not [item for section, item in found if section == "products"]


def test_a_compiler_that_fails_shows_its_output(kit, script):
    script(kit / "bin" / "mcc", 'echo "doctor.mu:4: error: no such type" >&2; exit 1')
    finding = report()["compilers", "a kernel for mp_22"]
    assert finding.ok is False
    assert "error: no such type" in finding.text
    assert "--offload-arch=mp_22" in finding.detail


def test_without_compilers(kit, monkeypatch, tmp_path):
    report()  # native code has passed in a child process, whose program is compiled
    (kit / "bin" / "mcc").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = report()
    assert found["compilers", "mcc"].ok is False
    assert found["compilers", "C++"].ok is False
    assert found["musa_runtime.h", "all"].text == "there is no C++ compiler (looked for g++, c++, clang++)"
    assert found["arrays", "copies on musa:0"].ok
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "cache"))
    first_run._child.close()
    runtime._counted.clear()  # as in a process that has not loaded the runtime
    finding = report()["devices", "runtime"]
    assert finding.ok is False
    assert "to build the program that runs native code first; install g++" in finding.text


def test_a_launch_that_fails_or_is_wrong(kit, script):
    script(kit / "bin" / "mcc", MCC.replace("return 0", "return 700"))
    assert "launching: musaErrorIllegalAddress" in report()["compilers", "a kernel on musa:0"].text
    script(kit / "bin" / "mcc", MCC.replace("y[i] += x[i]", "y[i] += x[i] + (i == 7)"))
    assert "1 of 300 results are wrong, the first at 7" in report()["compilers", "a kernel on musa:0"].text


def test_without_a_device_all_else_is_still_reported(kit):
    runtime.load().library.cdll.fake_devices(0)
    found = report()
    assert found["devices", "runtime"].ok is False
    assert found["compilers", "a kernel for mp_22"].ok
    assert found["compilers", "a kernel for mp_31"].ok
    assert ("arrays", "copies on musa:0") not in found


def test_a_device_that_is_broken(kit):
    runtime.load().library.cdll.fake_plan(b"musaMalloc=700")
    found = report()
    assert "musaErrorIllegalAddress" in found["arrays", "copies on musa:1"].text
    runtime.load().library.cdll.fake_plan(b"musaSetDevice=999")
    assert "musaSetDevice: unknown error (999)" in report()["devices", "musa:1"].text


def test_a_cache_that_cannot_be_used_is_named(kit, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    monkeypatch.setattr(cache, "temporary_folders", {})
    assert f"({tmp_path}/file/native cannot be made" in report()["installation", "build cache"].text
    assert native.folder().note


def test_a_header_that_does_not_compile(kit):
    (kit / "include" / "musa_runtime.h").write_text("#error not for the host\n")
    finding = report()["musa_runtime.h", "all"]
    assert finding.ok is False
    assert "not for the host" in finding.text


def test_the_command_prints_it_all(kit, monkeypatch):
    monkeypatch.setenv("HOME", str(kit.parent))
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    Addresses.listed()
    result = CliRunner().invoke(main, ["doctor", "musa"], prog_name="gemmhub")
    assert result.exit_code == 3  # the one wrong number of the header
    told = result.stdout
    assert " ~/kit (by MUSA_HOME)" in told
    assert "hush" not in told
    assert "gemmhub-musa" in told
    data = json.loads(CliRunner().invoke(main, ["doctor", "musa", "--json"], prog_name="gemmhub").stdout)
    assert data["ok"] is False
    assert [x["ok"] for x in data["findings"] if x["item"] == "copies on musa:0"] == [True]


def test_without_an_installation_it_reports_what_was_tried(python, tmp_path):
    code = """
        from gemmhub_musa import doctor
        for finding in doctor.findings():
            print(finding.section, finding.item, finding.ok, finding.text)
    """
    told = python(code, PATH=tmp_path)
    assert told.startswith("installation SDK False no MUSA installation was found (the usual place: ")
    assert len(told.splitlines()) == 1


def test_headers_of_another_version_are_pointed_out(kit):
    (kit / "include" / "musa.h").write_text("#define MUSA_VERSION 50100\n")
    finding = report()["devices", "versions"]
    assert (finding.ok, finding.text) == (False, "the headers are of 5.1.0, the runtime of 4.3.0")


def test_a_library_from_elsewhere_is_pointed_out(tmp_path, python):
    """Two installations mixed: the headers of one, the runtime of another."""
    link(tmp_path / "one" / "lib" / "libmusart.so.4", HERE / "fake_musart.cpp")
    link(tmp_path / "two" / "libmusart.so.4", HERE / "fake_musart.cpp")
    code = f"""
        import ctypes
        ctypes.CDLL("{tmp_path}/two/libmusart.so.4")
        from gemmhub_musa import doctor
        for finding in doctor._libraries(doctor.sdk.find()):
            if finding.item == "musart":
                print(finding.ok, finding.text)
    """
    told = python(code, MUSA_HOME=tmp_path / "one")
    assert told == (f"False {tmp_path}/two/libmusart.so.4 (by in the process already), which is not in {tmp_path}/one")


def test_the_table_of_public_numbers_is_sound():
    for _, names in attested.HEADERS:
        assert names
        assert all(value is None or type(value) is int for value in names.values())
    assert attested.MUBLAS["MUBLAS_OP_T"] == 112
    assert attested.RUNTIME["musaDevAttrComputeCapabilityMajor"] == runtime.MAJOR
    assert attested.RUNTIME["musaDevAttrMultiProcessorCount"] == runtime.MULTIPROCESSORS
    assert attested.RUNTIME["musaMemcpyDeviceToHost"] == runtime.TO_HOST
