"""Finding the installation, and loading its libraries in an order that works."""

from __future__ import annotations

import os
import shutil

import pytest
from gemmhub_musa import sdk

from conftest import link
from gemmhub import Refusal
from gemmhub.capability import Absent


def install(path, lib="lib", names=("libmusart.so",)):
    """Something that looks like an installation; its libraries are never loaded."""
    (path / lib).mkdir(parents=True)
    for name in names:
        (path / lib / name).touch()
    return path


def number(path, value, name=None, flags=()):
    """A library whose ``number()`` is ``value``."""
    return link(path, f'extern "C" int number() {{ return {value}; }}', name, flags)


# Where


def test_every_variable_leads_there_the_first_before_the_others(tmp_path, monkeypatch):
    homes = {name: install(tmp_path / name) for name in sdk.VARIABLES}
    for name in reversed(sdk.VARIABLES):
        monkeypatch.setenv(name, str(homes[name]))
        found = sdk.find()
        assert found.home == homes[name]
        assert found.found_by == name
        assert found.libraries == (homes[name] / "lib",)
        assert found.notes == ()


def test_mcc_on_path_leads_to_its_home(tmp_path, monkeypatch, script):
    home = install(tmp_path / "somewhere")
    script(home / "bin" / "mcc", "exit 0")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mcc").symlink_to(home / "bin" / "mcc")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = sdk.find()
    assert (found.home, found.found_by, found.mcc) == (home, "mcc on PATH", home / "bin" / "mcc")


def test_the_usual_place_comes_last(tmp_path, monkeypatch):
    home = install(tmp_path / "usual")
    assert (sdk.find().home, sdk.find().found_by) == (home, "the usual place")
    monkeypatch.setenv("MUSA_ROOT", str(install(tmp_path / "other")))
    assert sdk.find().home == tmp_path / "other"


def test_lib_comes_before_lib64_and_either_will_do(tmp_path, monkeypatch):
    home = install(install(tmp_path / "both"), "lib64")
    monkeypatch.setenv("MUSA_HOME", str(home))
    assert sdk.find().libraries == (home / "lib", home / "lib64")
    home = install(tmp_path / "wide", "lib64", ["libmusart.so.5"])
    monkeypatch.setenv("MUSA_HOME", str(home))
    assert sdk.find().libraries == (home / "lib64",)


def test_a_machine_that_only_runs_has_no_headers_and_no_compiler(tmp_path, monkeypatch):
    home = install(tmp_path / "home", names=["libmusart.so.4"])
    monkeypatch.setenv("MUSA_HOME", str(home))
    found = sdk.find()
    assert (found.include, found.mcc) == (None, None)
    assert not found.has_header("mublas.h")
    (home / "bin").mkdir()
    (home / "bin" / "mcc").touch(mode=0o644)  # not executable
    (home / "include").mkdir()
    (home / "include" / "mublas.h").touch()
    sdk._find.cache_clear()
    found = sdk.find()
    assert found.mcc is None
    assert found.has_header("mublas.h")


def test_a_variable_that_leads_nowhere_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSA_HOME", str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("MUSA_PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("MUSA_ROOT", str(install(tmp_path / "home")))
    found = sdk.find()
    assert found.home == tmp_path / "home"
    assert found.notes == (
        f"MUSA_HOME: no folder {tmp_path / 'nowhere'}",
        f"MUSA_PATH: {tmp_path / 'empty'} has no lib or lib64 with libmusart.so*",
    )


def test_without_any_the_refusal_lists_what_was_tried(tmp_path, python):
    code = "from gemmhub_musa import sdk\nno = sdk.find()\nprint(type(no).__name__, no.reason, no.remedy, sep='\\n')"
    kind, reason, remedy = python(code, MUSA_HOME=tmp_path / "nowhere", PATH=tmp_path).splitlines()
    assert kind == "Absent"
    assert f"MUSA_HOME: no folder {tmp_path / 'nowhere'}" in reason
    assert "the usual place: no folder /usr/local/musa" in reason or os.path.isdir("/usr/local/musa")
    assert "the loader: no libmusart.so" in reason
    assert "set MUSA_HOME" in remedy
    assert issubclass(Absent, Refusal)


def test_libraries_alone_will_do_where_the_loader_finds_them(tmp_path, python):
    number(tmp_path / "libs" / "libmusart.so.5", 5)
    code = """
        from gemmhub_musa import sdk
        found = sdk.find()
        print(found.home, found.found_by, found.load("musart").number(), found.library("musart").where)
        print(found.load("mublas").reason)
    """
    first, second = python(code, LD_LIBRARY_PATH=tmp_path / "libs", PATH=tmp_path).splitlines()
    assert first == f"None the loader 5 {tmp_path / 'libs' / 'libmusart.so.5'}"
    assert second == ("there is no libmublas.so here: looked for libmublas.so, libmublas.so.1 in the loader's path")


# Version


@pytest.mark.parametrize(
    ("number", "text"), [(50100, "5.1.0"), (50203, "5.2.3"), (4030, "4.3.0"), (3010, "3.1.0"), (40307, "4.3.7")]
)
def test_version_numbers_in_both_scales(number, text):
    assert sdk.decimal(number) == text


def test_the_version_is_the_headers_else_the_folders(tmp_path, monkeypatch):
    home = install(tmp_path / "musa-4.3.1")
    (tmp_path / "musa").symlink_to(home)
    monkeypatch.setenv("MUSA_HOME", str(tmp_path / "musa"))
    assert sdk.find().version == "4.3.1"
    (home / "include").mkdir()
    (home / "include" / "musa.h").write_text("//\n#  define MUSA_VERSION (50100)\n")
    sdk._find.cache_clear()
    assert sdk.find().version == "5.1.0"
    assert sdk.find().macro("musa.h", "MUSA_VERSION") == 50100
    assert sdk.find().macro("musa.h", "MUSA") is None
    (home / "include" / "musa.h").write_text('#include "musa_version.h"\n')
    (home / "include" / "musa_version.h").write_text("#define MUSA_VERSION 4030\n")
    sdk._find.cache_clear()
    assert sdk.find().version == "4.3.0"
    assert sdk.find().macro("mublas.h", "MUBLAS_VERSION") is None
    other = install(tmp_path / "plain")
    monkeypatch.setenv("MUSA_HOME", str(other))
    assert sdk.find().version == ""


# Loading


def test_the_named_home_comes_before_the_loaders_path(tmp_path, python):
    home = tmp_path / "home"
    number(home / "lib" / "libmusart.so.4", 1)
    number(tmp_path / "libs" / "libmusart.so", 2)
    code = """
        from gemmhub_musa import sdk
        found = sdk.find().library("musart")
        print(found.cdll.number(), found.where, found.by)
    """
    told = python(code, MUSA_HOME=home, LD_LIBRARY_PATH=tmp_path / "libs")
    assert told == f"1 {home}/lib/libmusart.so.4 {home}/lib"


def test_the_loaders_path_comes_before_an_unnamed_home(tmp_path, python, script):
    home = tmp_path / "home"
    number(home / "lib" / "libmusart.so.4", 1)
    script(home / "bin" / "mcc", "exit 0")
    number(tmp_path / "libs" / "libmusart.so.1.0", 2)
    code = """
        from gemmhub_musa import sdk
        print(sdk.find().home, sdk.find().load("musart").number(), sdk.find().library("musart").by)
    """
    told = python(code, PATH=home / "bin", LD_LIBRARY_PATH=tmp_path / "libs")
    assert told == f"{home} 2 the loader"


def test_what_is_in_the_process_already_is_what_counts(tmp_path, python):
    """Where torch_musa was imported first, its runtime is used: a second one would not have its streams."""
    home = tmp_path / "home"
    number(home / "lib" / "libmusart.so.4", 1)
    number(tmp_path / "torch" / "libmusart.so.4", 2)
    code = f"""
        import ctypes
        ctypes.CDLL("{tmp_path}/torch/libmusart.so.4")
        from gemmhub_musa import sdk
        found = sdk.find().library("musart")
        print(found.cdll.number(), found.where, found.by)
    """
    told = python(code, MUSA_HOME=home)
    assert told == f"2 {tmp_path}/torch/libmusart.so.4 in the process already"


def test_newer_runtimes_come_before_older_ones(tmp_path, python):
    for value, name in enumerate(("libmusart.so.1.0", "libmusart.so.1.5", "libmusart.so.4", "libmusart.so.5")):
        number(tmp_path / "home" / "lib" / name, value)
        told = python(
            "from gemmhub_musa import sdk; print(sdk.find().load('musart').number())", MUSA_HOME=tmp_path / "home"
        )
        assert told == str(value)


def test_the_driver_is_loaded_first_and_its_symbols_are_seen(tmp_path, python):
    """muBLAS of some versions calls functions of the driver that its runtime does not bring along."""
    lib = tmp_path / "home" / "lib"
    number(lib / "libmusart.so.5", 5)
    link(tmp_path / "system" / "libmusa.so.1", 'extern "C" int muThreadExchange() { return 7; }')
    link(lib / "libmublas.so.1", 'extern "C" int muThreadExchange(); extern "C" int f() { return muThreadExchange(); }')
    code = "from gemmhub_musa import sdk; print(sdk.find().load('mublas').f())"
    assert python(code, MUSA_HOME=tmp_path / "home", LD_LIBRARY_PATH=tmp_path / "system") == "7"


def test_dependencies_are_found_in_the_home(tmp_path, python):
    """Libraries without a run path, in a home that the loader does not search."""
    lib = tmp_path / "home" / "lib"
    number(lib / "libmusart.so.4", 1)
    link(lib / "libdeepest.so.2", 'extern "C" int deepest() { return 4; }')
    (lib / "libdeepest.so").symlink_to("libdeepest.so.2")
    link(
        lib / "libmublas.so.1", 'extern "C" int deepest(); extern "C" int middle() { return 10 * deepest(); }',
        flags=(f"-L{lib}", "-ldeepest"),
    )  # fmt: skip
    (lib / "libmublas.so").symlink_to("libmublas.so.1")
    link(
        lib / "libmublasLt.so.1", 'extern "C" int middle(); extern "C" int top() { return 1 + middle(); }',
        flags=(f"-L{lib}", "-lmublas"),
    )  # fmt: skip
    code = "from gemmhub_musa import sdk; print(sdk.find().load('mublasLt').top())"
    assert python(code, MUSA_HOME=tmp_path / "home") == "41"


def test_a_dependency_that_is_nowhere_is_named(tmp_path, python):
    lib = tmp_path / "home" / "lib"
    number(lib / "libmusart.so.4", 1)
    link(lib / "libgone.so.3", 'extern "C" int gone() { return 4; }')
    (lib / "libgone.so").symlink_to("libgone.so.3")
    link(
        lib / "libmublas.so.1", 'extern "C" int gone(); extern "C" int f() { return gone(); }',
        flags=(f"-L{lib}", "-lgone"),
    )  # fmt: skip
    (lib / "libgone.so.3").unlink()
    code = "from gemmhub_musa import sdk; print(sdk.find().load('mublas').reason)"
    told = python(code, MUSA_HOME=tmp_path / "home")
    assert told.startswith("libmublas.so could not be loaded: ")
    assert "libgone.so.3: cannot open shared object file" in told


def test_a_library_of_another_kind_of_machine_is_named(tmp_path, python):
    lib = tmp_path / "home" / "lib"
    lib.mkdir(parents=True)
    (lib / "libmusart.so").write_text("not a library")
    code = "from gemmhub_musa import runtime; no = runtime.load(); print(type(no).__name__, no.reason)"
    told = python(code, MUSA_HOME=tmp_path / "home")
    assert told.startswith("Absent libmusart.so could not be loaded: ")
    assert f"{lib}/libmusart.so: " in told


def test_without_a_runtime_nothing_else_is_loaded(tmp_path, python):
    lib = tmp_path / "home" / "lib"
    lib.mkdir(parents=True)
    (lib / "libmusart.so").write_text("not a library")
    number(lib / "libmublas.so", 1)
    code = "from gemmhub_musa import sdk; print(sdk.find().load('mublas').reason)"
    assert python(code, MUSA_HOME=tmp_path / "home").startswith("libmusart.so could not be loaded: ")


def test_an_answer_is_kept(named):
    found = sdk.find()
    assert found is sdk.find()
    assert found.library("musart") is found.library("musart")
    assert found.library("mudnn") is found.library("mudnn")
    assert isinstance(found.library("mudnn"), Refusal)


def test_a_link_that_leads_nowhere_is_passed_over(tmp_path, python):
    lib = tmp_path / "home" / "lib"
    number(lib / "libmusart.so.4", 3)
    (lib / "libmusart.so").symlink_to("libmusart.so.9")
    assert (
        python("from gemmhub_musa import sdk; print(sdk.find().load('musart').number())", MUSA_HOME=lib.parent) == "3"
    )


def test_a_copied_home_is_another_home(home, tmp_path, monkeypatch):
    shutil.copytree(home, tmp_path / "copy", symlinks=True)
    monkeypatch.setenv("MUSA_HOME", str(tmp_path / "copy"))
    assert sdk.find().home == tmp_path / "copy"
