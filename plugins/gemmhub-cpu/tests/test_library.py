"""The library: found in the wheel or compiled, verified, and tried in another process before this one runs it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gemmhub_cpu import library, sources
from gemmhub_cpu.units import AVX2, UNITS, UNLISTED

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub.kit.native import cache
from gemmhub.numpy_backend.probe import cpu_flags

pytestmark = pytest.mark.compiler
NAMES = library.load().units
needs_units = pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
FAULTS = {
    "dies": ("__builtin_trap();", r"was killed by signal \d+ \(SIG(ILL|TRAP)\)"),
    "hangs": ("for (;;) asm volatile(\"\");", r"did not end within 0\.5 s"),
    "is wrong": ("static_cast<int32_t*>(out)[0] += 1;", "multiplies wrongly on this CPU"),
}  # fmt: skip
"""Statements of a planted kernel, and the reason for which its unit is not used."""
PLANTED = """
namespace {
void planted(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
             int64_t stride, int64_t rows, int64_t columns) {
  KERNEL(a, b, words, start, first, out, stride, rows, columns);
  FAULT
}
}  // namespace
"""
PROGRAM = """
import sys, numpy as np, gemmhub, gemmhub.kit.native
sys.modules["gemmhub.kit.native.first_run"].PATIENCE = 0.5
rng = np.random.default_rng()
a = rng.integers(-128, 128, (600, 600), dtype=np.int8)
assert np.array_equal(gemmhub.matmul(a, a), a.astype(np.int32) @ a.astype(np.int32))
x = rng.standard_normal((600, 600)).astype(np.float16)
assert gemmhub.spot_check(x, x, gemmhub.matmul(x, x))
print(*[(status.state, *status.features) for status in gemmhub.backends().values() if status.name == "cpu"])
"""


@pytest.fixture
def package(tmp_path: Path):
    """A copy of the plugin's package without compiled files, and an environment that uses it and its own cache."""
    copy = tmp_path / "copy" / "gemmhub_cpu"
    shutil.copytree(sources.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.bin"))
    environment = {**os.environ, "GEMMHUB_CACHE_DIR": str(tmp_path / "cache"), "GEMMHUB_RECORDS": "off"}
    environment["PYTHONPATH"] = os.pathsep.join([str(copy.parent), *filter(None, sys.path)])
    return copy, environment


def run(environment: dict[str, str], *arguments: str) -> str:
    """What Python prints with these arguments; it must not fail."""
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def plant(package: Path, pair: str, fault: str) -> None:
    """Put the fault into every kernel for ``pair``."""
    for path in package.joinpath("kernels").glob(f"*/{pair}_*.cpp"):
        text, kernel = path.read_text(), r"(multiply_\w+(?:<Product>)?)(?=, )"
        (original,) = re.findall(kernel, text)
        begin = text.index("const gemmhub::Unit")
        planted = PLANTED.replace("KERNEL", original).replace("FAULT", fault)
        path.write_text(text[:begin] + planted + re.sub(kernel, "planted", text[begin:]))


@needs_units
@pytest.mark.parametrize("faults", [{"int8": "dies", "float": "hangs"}, {"int8": "is wrong"}], ids=str)
def test_a_kernel_that_fails_is_refused_and_nothing_else_is_harmed(faults, package) -> None:
    """Products, tables and the command line survive, and the other units run."""
    copy, environment = package
    for pair, fault in faults.items():
        plant(copy, pair, FAULTS[fault][0])
    printed = run(environment, "-c", PROGRAM)
    assert "ready" in printed
    for unit in UNITS:
        if unit.name in NAMES and unit.pair in faults:
            reason = FAULTS[faults[unit.pair]][1]
            assert re.search(f"{unit.name}:? (its self-check )?{reason}", printed), printed
    rest = ", ".join(unit.name for unit in UNITS if unit.name in NAMES and unit.pair not in faults)
    assert not rest or f"kernels of its own: {rest}" in printed
    assert re.search(r"remove \S*first-run-", printed)
    assert "ready" in run(environment, "-m", "gemmhub", "backends")
    assert "GEMMHUB_DISABLE" not in run(environment, "-m", "gemmhub", "doctor")


@pytest.fixture
def built(tmp_path: Path):
    """A folder for the cache that has the compiled files, and no outcome yet."""
    (tmp_path / "cache" / "native").mkdir(parents=True, mode=0o700)
    for part in (sources.library(), sources.self_check()):
        path = native.build(library.recipe(part))
        assert isinstance(path, Path)
        shutil.copy(path, tmp_path / "cache" / "native")
    return tmp_path / "cache"


@needs_units
def test_without_child_processes_no_kernel_runs(built) -> None:
    """A sandbox, for example: the reason and the remedy are reported, and the product is right."""
    environment = {**os.environ, "GEMMHUB_CACHE_DIR": str(built), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    forbid = "import subprocess\ndef refuse(*_, **__): raise PermissionError(1, 'Operation not permitted')\n"
    printed = run(environment, "-c", forbid + "subprocess.Popen = refuse\n" + PROGRAM)
    assert "no kernels of its own: native code is not run before its self-check has passed" in printed
    assert "allow child processes" in printed


@needs_units
def test_a_self_check_takes_a_tenth_of_a_second_and_its_outcome_is_kept(built, monkeypatch, tmp_path) -> None:
    """At most 0.1 s of the processor's time: the least of three, as other processes share caches and cores."""
    import resource

    seconds = []
    for i in range(3):
        monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(shutil.copytree(built, tmp_path / str(i))))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert library.load_from(cpu_flags()).units == NAMES
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(seconds) < 0.1

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a second process is started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    assert library.load_from(cpu_flags()).units == NAMES


@needs_units
@pytest.mark.skipif("site-packages" not in sources.ROOT.parts, reason="the plugin is not installed as a wheel")
def test_the_compiled_files_of_the_installed_wheel_are_those_that_run() -> None:
    found = [native.shipped(sources.FOLDER, part.file_name) for part in (sources.library(), sources.self_check())]
    assert found[0] is not None
    assert found[1] is not None
    assert os.access(found[1], os.X_OK)
    assert library.load().library._name == str(found[0])


def test_the_facts_do_not_change_from_one_reading_to_the_next() -> None:
    facts = library.facts()
    assert facts == library.facts()
    assert not [fact for fact in facts if "MHz" in fact or "processor" in fact]
    if NAMES and sys.platform == "linux":
        assert any(fact.startswith(("flags", "Features")) for fact in facts)


def test_without_a_compiler(package, tmp_path) -> None:
    """The reason is reported, and the product is right."""
    assert "no kernels of its own: " in run({**package[1], "PATH": str(tmp_path)}, "-c", PROGRAM)


@pytest.fixture
def wheel(monkeypatch, tmp_path: Path):
    """(library, self-check) as a wheel has them, in a folder of their own; compiling is refused."""
    contents = []
    for part in (sources.library(), sources.self_check()):
        built = native.build(library.recipe(part))
        assert isinstance(built, Path)
        contents.append((part, built.read_bytes()))
    monkeypatch.setattr(sources, "FOLDER", tmp_path / "kernels")
    monkeypatch.setattr(
        sources, "files", lambda machine="", kept=(contents[0][0].sources, contents[0][0].headers): kept
    )
    monkeypatch.setattr(sources, "library", lambda machine="": contents[0][0])
    monkeypatch.setattr(sources, "self_check", lambda machine="": contents[1][0])
    monkeypatch.setattr(native, "build", lambda recipe: Refusal("compiled anew", ""))
    (tmp_path / "kernels").mkdir()
    paths = []
    for part, content in contents:
        paths.append(tmp_path / "kernels" / part.shipped_name(content))
        assert paths[-1].name == cache.named(part.file_name, paths[-1].name.split(".")[-2])
        paths[-1].write_bytes(content)
        paths[-1].chmod(0o755)
    return paths


@needs_units
def test_the_files_of_a_wheel_need_no_compiler(wheel) -> None:
    loaded = library.load_from(cpu_flags())
    assert loaded.library._name == str(wheel[0])
    assert loaded.units == NAMES


@needs_units
@pytest.mark.parametrize("part", [0, 1], ids=["library", "self-check"])
@pytest.mark.parametrize("damage", ["half", "4096", "bit", "empty", "missing", "text"])
def test_a_damaged_file_of_a_wheel_is_not_loaded(part, damage, wheel) -> None:
    """A truncated library would end the process in the loader. It is compiled anew."""
    path, content = wheel[part], bytearray(wheel[part].read_bytes())
    content[len(content) // 3] ^= 4
    whole = path.read_bytes()
    path.unlink()
    damaged = {
        "half": whole[: len(whole) // 2],
        "4096": whole[:4096],
        "bit": content,
        "empty": b"",
        "text": b"#!/bin/sh",
    }
    if damage in damaged:
        path.write_bytes(damaged[damage])
    assert "compiled anew" in library.load_from(cpu_flags()).reason


def test_the_name_of_a_compiled_library_follows_what_it_is_made_from(monkeypatch, tmp_path: Path) -> None:
    def names() -> list[str]:
        return [
            part(machine).file_name
            for part in (sources.library, sources.self_check)
            for machine in ("aarch64", "x86_64")
        ]

    before = names()
    copy = tmp_path / "gemmhub_cpu"
    shutil.copytree(sources.ROOT, copy)
    monkeypatch.setattr(sources, "ROOT", copy)
    monkeypatch.setattr(sources, "FOLDER", copy / "kernels")
    assert names() == before
    with (copy / "kernels" / "aarch64" / "vector.h").open("a") as file:
        file.write("\n")
    assert [now == then for now, then in zip(names(), before)] == [False, True, True, True]
    with (copy / "kernels" / "gemm.h").open("a") as file:
        file.write("\n")
    assert not {*names()} & {*before}


@needs_units
def test_instructions_that_linux_does_not_list_come_from_the_library(monkeypatch) -> None:
    """A CPU that has AVX-VNNI and AMX may have their younger relatives: the library reads CPUID and XCR0."""
    loaded = library.load().library
    if platform.machine() == "x86_64":
        bits = loaded.gemmhub_cpu_features()
        assert library._unlisted(loaded) == {word for bit, word in UNLISTED.items() if bits & bit}
        assert "amx_fp16" not in library._unlisted(loaded) or "amx_tile" in cpu_flags()
        assert "avx_vnni_int8" not in library._unlisted(loaded) or "avx2" in cpu_flags()
    checked: list[str] = []
    monkeypatch.setattr(library, "_unlisted", lambda _: frozenset({"avx_vnni_int8", "amx_fp16"}))
    monkeypatch.setattr(
        library, "_checked", lambda check, path, here: (checked.extend(u.name for u in here), (set(), []))[1]
    )
    library.load_from(frozenset({*AVX2, "avx_vnni", "amx_tile"}))
    if platform.machine() == "x86_64":
        assert {"int8 on AVX-VNNI-INT8", "float16 on AMX"} <= {*checked}


def test_a_cpu_without_the_instructions() -> None:
    assert library.load_from(frozenset({"sse2"})).reason == "the CPU has no avx2, fma, f16c"
    if NAMES:
        expected = {f"{name} on AVX2" for name in ("int8", "float32", "float64", "int32", "int64")}
        assert library.load_from(frozenset({"avx2", "fma", "f16c"})).units == expected
