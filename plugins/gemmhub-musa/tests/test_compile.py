"""Compilers and header values: the command lines, and the message of each failure."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from gemmhub_musa import compile, sdk

from gemmhub import Refusal
from gemmhub.kit import native
from gemmhub.kit.native import cache

NOTE = 'echo "$@" >> "$(dirname "$0")/log"'
VERSION = 'case "$*" in *--version*) echo "mcc version 4.3.1"; exit 0;; esac'
MCC = f'''{VERSION}; {NOTE}
for x in "$@"; do case "$x" in *.mu) source="$x";; esac; done
g++ -x c++ -shared -fPIC "$source" -o "$out"'''
HEADER = """
#pragma once
typedef enum { FIRST = 7, SECOND = -3, LARGE = 0x7fffffff } order_t;
#define MACRO (FIRST + 1)
struct wide { char bytes[96]; };
namespace space { struct Holder { enum class Type { HALF = 42 }; }; }
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@pytest.fixture
def kit(tmp_path, script):
    """An installation with a compiler that notes its command lines, and a header."""
    home = tmp_path / "kit"
    (home / "lib").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "include" / "odd.h").write_text(HEADER)
    mcc = script(home / "bin" / "mcc", MCC)
    return sdk.Sdk(home, "MUSA_HOME", (home / "lib",), home / "include", mcc)


@pytest.fixture
def log(kit):
    path = kit.home / "bin" / "log"
    return lambda: path.read_text().splitlines() if path.exists() else []


# mcc


def test_mcc_gets_the_flags_that_public_builds_use(kit, log, fresh, tmp_path):
    source = tmp_path / "answer.mu"
    source.write_text('extern "C" int answer() { return 42; }')
    made = compile.compile_mu(
        source, kit, "mp_22", name="answer", flags=("-DX=1",), include=(tmp_path,), libraries=("musart", "mublas")
    )
    assert native.load(made).answer() == 42
    (line,) = log()
    words = line.split()
    assert words[:4] == ["-x", "musa", str(source), "-o"]
    assert words[5:] == [
        "-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "--offload-arch=mp_22", "-DX=1",
        f"-I{tmp_path}", f"-I{kit.include}", f"-L{kit.home / 'lib'}", "-lmusart", "-lmublas",
    ]  # fmt: skip
    assert (
        compile.compile_mu(
            source, kit, "mp_22", name="answer", flags=("-DX=1",), include=(tmp_path,), libraries=("musart", "mublas")
        )
        == made
    )
    assert len(log()) == 1
    compile.compile_mu(source, kit, "mp_31", name="answer")
    assert len(log()) == 2


def test_a_source_may_be_a_text(kit, fresh):
    made = compile.compile_mu('extern "C" int f() { return 1; }', kit, "mp_22", name="text")
    assert native.load(made).f() == 1
    (source,) = fresh.glob("text-*.mu")
    assert source.read_text() == 'extern "C" int f() { return 1; }'


def test_a_new_compiler_version_compiles_again(kit, log, fresh, script):
    text = 'extern "C" int f() { return 1; }'
    first = compile.compile_mu(text, kit, "mp_22", name="k")
    script(kit.mcc, MCC.replace("4.3.1", "5.1.0"))
    assert compile.compile_mu(text, kit, "mp_22", name="k") != first
    assert len(log()) == 2


def test_changed_headers_compile_again(kit, log, fresh):
    text = 'extern "C" int f() { return 1; }'
    first = compile.compile_mu(text, kit, "mp_22", name="k")
    (kit.include / "odd.h").write_text(HEADER + "// of another SDK, but as long as before\n")
    assert compile.compile_mu(text, kit, "mp_22", name="k") != first


def test_a_compiler_that_fails_is_quoted(kit, fresh, script):
    script(kit.mcc, f'{VERSION}; echo "k.mu:2:9: error: unknown type name half" >&2; exit 1')
    no = compile.compile_mu("half x;", kit, "mp_22", name="k")
    assert no.reason == "building k failed: mcc: exit code 1: k.mu:2:9: error: unknown type name half"
    assert "--offload-arch=mp_22" in no.traceback


def test_a_compiler_that_hangs_is_killed(kit, fresh, script):
    script(kit.mcc, f"{VERSION}; sleep 300")
    no = compile.compile_mu("", kit, "mp_22", name="k", timeout=0.5)
    assert "did not end within 0.5 s" in no.reason


def test_which_mcc(kit, tmp_path, monkeypatch, script):
    bare = sdk.Sdk(kit.home, "MUSA_HOME", kit.libraries, kit.include, None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    no = compile.mcc(bare)
    assert no.reason == f"there is no MUSA compiler mcc in {kit.home / 'bin'} or on PATH"
    assert compile.compile_mu("", bare, "mp_22", name="k") == no
    assert compile.mcc(sdk.Sdk(None, "the loader")).reason == "there is no MUSA compiler mcc in PATH"
    on_path = script(tmp_path / "bin" / "mcc", "exit 0")
    assert compile.mcc(bare) == on_path
    assert compile.mcc(kit) == kit.mcc
    named = script(tmp_path / "mine" / "mcc-5", "exit 0")
    monkeypatch.setenv("GEMMHUB_MCC", str(named))
    assert compile.mcc(kit) == named
    monkeypatch.setenv("GEMMHUB_MCC", str(tmp_path / "none"))
    assert "GEMMHUB_MCC" in compile.mcc(kit).reason


# The host's compiler


def test_which_host_compiler(tmp_path, monkeypatch, script, kit):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert compile.host_compiler().reason == "there is no C++ compiler (looked for g++, c++, clang++)"
    clang = script(tmp_path / "bin" / "clang++", "exit 0")
    assert compile.host_compiler() == (str(clang),)
    gxx = script(tmp_path / "bin" / "g++", "exit 0")
    assert compile.host_compiler() == (str(gxx),)
    monkeypatch.setenv("CXX", "clang++ -stdlib=libc++")
    assert compile.host_compiler() == (str(clang), "-stdlib=libc++")
    monkeypatch.setenv("CXX", "gone")
    assert compile.host_compiler().reason == "there is no C++ compiler (looked for CXX=gone)"
    assert isinstance(compile.compile_host("", kit, name="k"), Refusal)
    assert isinstance(compile.enumerators(kit, "odd.h", ["FIRST"]), Refusal)


def test_glue_is_compiled_against_the_headers(kit, fresh):
    made = compile.compile_host('#include <odd.h>\nextern "C" int f() { return MACRO; }', kit, name="glue")
    assert native.load(made).f() == 8


def test_without_headers_nothing_is_compiled(kit):
    bare = sdk.Sdk(kit.home, "MUSA_HOME", kit.libraries)
    for no in (compile.compile_host("", bare, name="k"), compile.enumerators(bare, "odd.h", ["FIRST"])):
        assert no.reason == f"{kit.home} has no MUSA headers"
    assert compile.no_headers(sdk.Sdk(None, "the loader")).reason == "there are no MUSA headers"
    assert compile.headers_digest(bare) == ""


def test_an_unwritable_cache_still_compiles(kit, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    monkeypatch.setattr(cache, "temporary_folders", {})
    made = compile.compile_host('extern "C" int f() { return 3; }', kit, name="glue")
    assert native.load(made).f() == 3

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "temporary_folders", {})
    monkeypatch.setattr(cache.tempfile, "mkdtemp", full)
    no = compile.compile_host('extern "C" int f() { return 4; }', kit, name="glue")
    assert no.reason == "the source of glue cannot be written: [Errno 28] No space left on device"


# Header values

NAMES = ["FIRST", "GONE", "SECOND", "LARGE", "MACRO", "sizeof(wide)", "sizeof(never)", "space::Holder::Type::HALF"]
VALUES = {"FIRST": 7, "SECOND": -3, "LARGE": 2**31 - 1, "MACRO": 8, "sizeof(wide)": 96, "space::Holder::Type::HALF": 42}


def test_values_are_the_headers_and_unknown_names_are_left_out(kit, fresh):
    assert compile.enumerators(kit, "odd.h", NAMES) == VALUES


def test_one_compilation_where_all_names_exist(kit, fresh, monkeypatch):
    calls = []
    host = compile.compile_host
    monkeypatch.setattr(compile, "compile_host", lambda *x, **y: calls.append(1) or host(*x, **y))
    assert compile.enumerators(kit, "odd.h", list(VALUES)) == VALUES
    assert len(calls) == 1
    assert compile.enumerators(kit, "odd.h", ["GONE", "NEVER"]) == {}
    assert compile.enumerators(kit, "odd.h", []) == {}


def test_values_are_kept_by_the_headers_contents(kit, fresh, monkeypatch):
    compile.enumerators(kit, "odd.h", NAMES)
    host = compile.compile_host

    def never(*_, **__):
        raise AssertionError("it was compiled")

    monkeypatch.setattr(compile, "compile_host", never)
    assert compile.enumerators(kit, "odd.h", NAMES) == VALUES
    with pytest.raises(AssertionError):
        compile.enumerators(kit, "odd.h", [*NAMES, "OTHER"])
    monkeypatch.setattr(compile, "compile_host", host)
    (kit.include / "odd.h").write_text(HEADER.replace("FIRST = 7", "FIRST = 8"))
    assert compile.enumerators(kit, "odd.h", NAMES)["FIRST"] == 8


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"FIRST": "7"}'])
def test_a_damaged_file_is_made_again(kit, fresh, content):
    compile.enumerators(kit, "odd.h", NAMES)
    (kept,) = fresh.glob("values-*.json")
    kept.write_text(content)
    assert compile.enumerators(kit, "odd.h", NAMES) == VALUES


def test_a_header_that_is_missing_or_does_not_compile(kit, fresh):
    assert compile.enumerators(kit, "gone.h", NAMES).reason == f"{kit.include} has no gone.h"
    (kit.include / "broken.h").write_text("int f({")
    no = compile.enumerators(kit, "broken.h", NAMES)
    assert no.reason.startswith("the values of broken.h cannot be read: building values_broken_h failed: ")
    assert "broken.h:1" in no.traceback


def test_a_compiler_in_trouble_makes_no_name_unknown(kit, fresh, script, monkeypatch, tmp_path):
    """It compiles the header by itself, and is out of memory for anything more."""
    body = (
        'case "$*" in *--version*) echo 1; exit 0;; esac; for x in "$@"; do case "$x" in *.cpp) s="$x";; esac; done\n'
    )
    body += 'if grep -q FIRST "$s"; then echo "fatal: out of memory"; exit 1; fi; exec g++ "$@"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "weak", body)))
    no = compile.enumerators(kit, "odd.h", NAMES)
    assert isinstance(no, Refusal)
    assert "out of memory" in no.reason
    assert not list(fresh.glob("values-*.json"))


def test_a_library_that_cannot_be_loaded_makes_no_name_unknown(kit, fresh, monkeypatch):
    no = Refusal("loading failed: noexec", "elsewhere")
    monkeypatch.setattr(native, "load", lambda path: no)
    assert (
        compile.enumerators(kit, "odd.h", NAMES).reason == "the values of odd.h cannot be read: loading failed: noexec"
    )


def test_identity(tmp_path, script):
    tool = script(tmp_path / "tool", "echo one")
    assert compile.identity((str(tool),)) == "one\n"
    assert compile.identity((str(script(tmp_path / "bad", "exit 1")),)) == ""
    assert compile.identity((str(tmp_path / "none"),)) == ""
    assert os.path.exists(tool)
    assert isinstance(Path(tool), Path)
    assert ctypes.sizeof(ctypes.c_longlong) == 8
