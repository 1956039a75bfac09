"""What only some compilers accept: tried once for a compiler, and remembered."""

from __future__ import annotations

import pytest
from gemmhub_musa import attempts, sdk

from gemmhub.kit import native
from gemmhub.kit.native import cache

MCC = """case "$*" in *--version*) echo "mcc version {version}"; exit 0;; esac
echo "$@" >> "$(dirname "$0")/log"
{refuse}
for x in "$@"; do case "$x" in *.mu) source="$x";; esac; done
while [ "$1" != -o ]; do shift; done
g++ -D__global__= -I"$(dirname "$0")/../include" -x c++ -shared -fPIC "$source" -o "$2" """
REFUSES = 'case "$*" in *-Od3*) echo "error: unknown argument: -Od3" >&2; exit 1;; esac'
OLD = 'case "$*" in *mp_22*-Od3*) echo "error: not for mp_22" >&2; exit 1;; esac'
BROKEN = 'echo "error: no license" >&2; exit 1'
KILLED = 'case "$*" in *-Od3*) echo "Killed" >&2; exit 137;; esac'


@pytest.fixture
def compiler(tmp_path, script, monkeypatch):
    """``compiler(refuse, version)``: an installation with that compiler, and its command lines so far."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    home = tmp_path / "kit"
    (home / "include").mkdir(parents=True)
    log = home / "bin" / "log"

    def make(refuse="", version="4.3"):
        native.forget()
        mcc = script(home / "bin" / "mcc", MCC.format(refuse=refuse, version=version))
        kit = sdk.Sdk(home, "MUSA_HOME", (), home / "include", mcc)
        return kit, lambda: len(log.read_text().splitlines())

    return make


def test_a_flag_that_is_accepted(compiler):
    kit, runs = compiler()
    assert attempts.device_flags(kit, "mp_22") == ("-Od3",)
    before = runs()
    assert attempts.device_flags(kit, "mp_22") == ("-Od3",)
    assert runs() == before == 1


def test_a_flag_that_is_refused_is_dropped_and_that_is_remembered(compiler):
    kit, runs = compiler(REFUSES)
    assert attempts.device_flags(kit, "mp_22") == ()
    before = runs()
    native.forget()  # as in another process
    assert attempts.device_flags(kit, "mp_22") == ()
    assert runs() == before == 2  # with the flag, and without


def test_another_compiler_is_tried_again(compiler):
    kit, _ = compiler(REFUSES)
    assert attempts.device_flags(kit, "mp_22") == ()
    kit, _ = compiler(version="5.1")
    assert attempts.device_flags(kit, "mp_22") == ("-Od3",)


def test_each_architecture_is_tried(compiler):
    kit, _ = compiler(OLD)
    assert attempts.device_flags(kit, "mp_22") == ()
    assert attempts.device_flags(kit, "mp_31") == ("-Od3",)


def test_another_compiler_of_the_same_version_is_tried_again(compiler, script, tmp_path, monkeypatch):
    kit, _ = compiler(REFUSES)
    assert attempts.device_flags(kit, "mp_22") == ()
    monkeypatch.setenv("GEMMHUB_MCC", str(script(tmp_path / "other" / "mcc", MCC.format(refuse="", version="4.3"))))
    assert attempts.device_flags(kit, "mp_22") == ("-Od3",)


def test_another_header_is_tried_again(compiler):
    kit, _ = compiler()
    text = "#include <late.h>\n" + attempts.KERNEL
    assert not attempts.accepted(kit, "mp_22", text, (f"-I{kit.include}",))
    (kit.include / "late.h").write_text("#pragma once\n")
    native.forget()
    assert attempts.accepted(kit, "mp_22", text, (f"-I{kit.include}",))


@pytest.mark.parametrize("fault", [BROKEN, KILLED], ids=["broken", "killed"])
def test_a_compiler_that_fails_otherwise_is_tried_again(compiler, fault):
    kit, runs = compiler(fault)
    assert attempts.device_flags(kit, "mp_22") == ()
    before = runs()
    native.forget()
    assert attempts.device_flags(kit, "mp_22") == ()
    assert runs() > before


def test_nothing_is_accepted_without_a_compiler(compiler, monkeypatch):
    kit, _ = compiler()
    monkeypatch.setenv("GEMMHUB_MCC", "/nowhere/mcc")
    assert attempts.device_flags(kit, "mp_22") == ()
