"""Building: when files are compiled, which failures are kept, and the message of each failure."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

import gemmhub
from gemmhub import Refusal
from gemmhub.kit.native import Recipe, build, forget, load

COUNTING = 'echo run >> "$(dirname "$0")/log"; echo made > "$out"'
"""A compiler that notes each run."""
FAILING = 'echo run >> "$(dirname "$0")/log"; echo "x.cpp:3:1: error: no such thing" >&2; echo "1 error" >&2; exit 2'


@pytest.fixture
def runs(tmp_path):
    return lambda: len((tmp_path / "log").read_text().splitlines()) if (tmp_path / "log").exists() else 0


def test_a_real_compiler_makes_a_library_that_loads(recipe, gxx):
    made = build(recipe(gxx, 'extern "C" int answer() { return 42; }', flags=("-shared", "-fPIC"), name="answer"))
    assert made.name.startswith("answer-")
    assert made.suffix == ".so"
    assert load(made).answer() == 42


def test_flags_follow_the_sources_and_the_compilers_own_arguments_come_first(recipe, script, tmp_path):
    compiler = script('echo "$*" > "$out"')
    given = recipe(compiler, flags=("-shared", "-lmusart"))
    made = build(replace(given, compiler=(str(compiler), "-x", "musa")))
    words = made.read_text().split()
    assert words[:2] == ["-x", "musa"]
    assert words[2] == str(tmp_path / "code.cpp")
    assert words[3] == "-o"
    assert words[5:] == ["-shared", "-lmusart"]


def test_the_second_build_compiles_nothing(recipe, script, runs):
    given = recipe(script(COUNTING))
    first = build(given)
    assert build(given) == first
    assert runs() == 1


def test_everything_that_the_result_depends_on_is_in_the_key(recipe, script, tmp_path):
    compiler = script(COUNTING)
    header = tmp_path / "header.h"
    header.write_text("1")
    given = recipe(compiler, depends=(header,))
    base = build(given)
    others = [
        build(replace(given, flags=("-O2",))),
        build(replace(given, identity="mcc 4.3")),
        build(replace(given, name="other")),
        build(replace(given, suffix=".bin")),
        build(replace(given, compiler=(*given.compiler, "-pipe"))),
        build(replace(given, compiler=(*given.compiler, "-O1"), flags=())),
        build(recipe(compiler, "another text", depends=(header,))),
    ]
    recipe(compiler)
    header.write_text("2")
    others.append(build(given))
    header.write_text("1")
    assert build(given) == base
    script(COUNTING + " # upgraded")
    others.append(build(given))
    assert len({base, *others}) == 1 + len(others)
    assert all(path.exists() for path in (base, *others))


def test_the_folder_of_the_sources_is_not_in_the_key(script, tmp_path):
    compiler = script(COUNTING)
    made = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.cpp").write_text("same")
        made.add(build(Recipe((str(compiler),), (), (tmp_path / folder / "x.cpp",))))
    assert len(made) == 1


def test_a_failing_compiler_is_quoted(recipe, script):
    no = build(recipe(script(FAILING), name="glue"))
    assert isinstance(no, Refusal)
    assert no.reason == "building glue failed: cc: exit code 2: x.cpp:3:1: error: no such thing"
    lines = no.traceback.splitlines()
    assert "code.cpp -o " in lines[0]
    assert lines[1:] == ["x.cpp:3:1: error: no such thing", "1 error", "exit code 2"]


def test_only_the_last_lines_are_kept_of_a_long_complaint(recipe, script):
    no = build(recipe(script("seq 1 5000; exit 1")))
    assert no.reason.endswith("exit code 1: 5000")
    lines = no.traceback.splitlines()
    assert len(lines) == 42
    assert lines[-2] == "5000"


@pytest.mark.parametrize("forget", [forget, gemmhub.reload])
def test_a_failure_is_remembered_until_it_is_forgotten(recipe, script, runs, forget):
    given = recipe(script(FAILING))
    no = build(given)
    assert build(given) is no
    assert runs() == 1
    forget()
    assert build(given) == no
    assert runs() == 2
    assert isinstance(build(recipe(script(FAILING), "another source")), Refusal)
    assert runs() == 3


def test_a_failed_build_leaves_no_files(recipe, script, cache_dir):
    build(recipe(script('echo half > "$out"; exit 1')))
    assert [path.suffix for path in cache_dir.iterdir()] == [".lock"]


def test_a_compiler_that_hangs_is_killed_with_its_children(recipe, script, tmp_path):
    compiler = script('sleep 300 & echo $! > "$(dirname "$0")/child"; echo "still at it"; wait')
    start = time.monotonic()
    no = build(recipe(compiler), timeout=0.5)
    assert time.monotonic() - start < 20
    assert no.reason == "building kernel failed: cc: did not end within 0.5 s and was killed: still at it"
    child = int((tmp_path / "child").read_text())
    for _ in range(100):  # whoever inherits it has to reap it
        if not _alive(child):
            break
        time.sleep(0.05)
    assert not _alive(child)


def _alive(process):
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_compiler_that_dies_of_a_signal(recipe, script):
    assert "was killed by signal 11" in build(recipe(script("kill -SEGV $$"))).reason


def test_a_compiler_that_writes_nothing(recipe, script):
    assert build(recipe(script("exit 0"))).reason == "building kernel failed: cc: no file was written"


def test_a_missing_compiler_is_not_remembered(recipe, script, tmp_path):
    given = recipe(tmp_path / "cc")
    no = build(given)
    assert no.reason == f"there is no compiler {tmp_path / 'cc'} to build kernel with"
    script(COUNTING)
    assert build(given).exists()


def test_a_compiler_that_cannot_be_executed(recipe, tmp_path):
    (tmp_path / "cc").write_text("not a program")
    (tmp_path / "cc").chmod(0o700)
    no = build(recipe(tmp_path / "cc"))
    assert "cannot be started: Exec format error" in no.reason


def test_a_missing_source(recipe, script, tmp_path):
    given = recipe(script(COUNTING))
    (tmp_path / "code.cpp").unlink()
    no = build(given)
    assert "a file that kernel is built from cannot be read" in no.reason
    assert "code.cpp" in no.reason


def test_an_empty_file_in_the_cache_is_built_again(recipe, script, runs):
    made = build(recipe(script(COUNTING)))
    made.write_bytes(b"")
    assert build(recipe(script(COUNTING))).read_text() == "made\n"


def test_threads_that_ask_at_once_compile_once(recipe, script, runs):
    given = recipe(script("sleep 0.3; " + COUNTING))
    made = []
    threads = [threading.Thread(target=lambda: made.append(build(given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert runs() == 1


def test_threads_that_ask_at_once_fail_once(recipe, script, runs):
    given = recipe(script("sleep 0.3; " + FAILING))
    made = []
    threads = [threading.Thread(target=lambda: made.append(build(given))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(no) for no in made] == [Refusal] * 3
    assert runs() == 1


SCRIPT = """
import sys
from pathlib import Path
from gemmhub.kit.native import Recipe, build
print(build(Recipe((sys.argv[1],), ("-O1",), (Path(sys.argv[2]),)), timeout=float(sys.argv[3])))
"""


def test_processes_that_ask_at_once_compile_once(recipe, script, runs):
    given = recipe(script("sleep 1; " + COUNTING))
    command = [sys.executable, "-c", SCRIPT, *given.compiler, str(given.sources[0]), "60"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {process.communicate()[0] for process in processes}
    assert len(answers) == 1
    assert "kernel-" in answers.pop()
    assert runs() == 1


def test_a_process_that_never_lets_go_of_the_lock(recipe, script, cache_dir, monkeypatch):
    import filelock

    given = recipe(script(COUNTING))
    made = build(given)
    made.unlink()
    (lock,) = cache_dir.glob("*.lock")
    acquire = filelock.FileLock.acquire
    monkeypatch.setattr(filelock.FileLock, "acquire", lambda self, timeout: acquire(self, timeout=0.1))
    with open(lock) as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        no = build(given, timeout=1.0)
    assert no.reason == "another process has been building kernel for 1 s"
    assert build(given) == made  # it was not the compiler's failure: nothing is remembered


def test_a_file_system_without_locks_builds_all_the_same(recipe, script, monkeypatch):
    import filelock

    def refuse(self, timeout):
        raise NotImplementedError("no flock here")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    assert build(recipe(script(COUNTING))).exists()


def test_an_interrupted_build_kills_the_compiler_and_leaves_nothing(recipe, script, cache_dir, monkeypatch, tmp_path):
    def interrupt(self, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(recipe(script("sleep 300")))
    monkeypatch.undo()
    assert [path.suffix for path in cache_dir.iterdir()] == [".lock"]


def test_a_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "x.so").write_text("text")
    no = load(tmp_path / "x.so")
    assert no.reason.startswith("loading x.so failed: ")
    assert "GEMMHUB_CACHE_DIR" in no.remedy


def test_a_library_is_loaded_in_the_mode_asked_for(recipe, gxx):
    flags = ("-shared", "-fPIC")
    made = build(recipe(gxx, 'extern "C" int gemmhub_test_global_symbol() { return 7; }', flags=flags))
    load(made, mode=ctypes.RTLD_GLOBAL)
    assert ctypes.CDLL(None).gemmhub_test_global_symbol() == 7


def test_no_descriptor_stays_open(recipe, script):
    given = recipe(script(COUNTING))
    build(given)
    before = len(os.listdir("/proc/self/fd"))
    build(recipe(script(COUNTING), "one"))
    build(recipe(script(FAILING), "two"))
    assert len(os.listdir("/proc/self/fd")) == before
