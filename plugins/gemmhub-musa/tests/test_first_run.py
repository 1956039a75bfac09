"""Functions that run in a child process first: what comes back, faults, hangs, and outcomes that are kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import time
from ctypes import byref, c_char_p, c_double, c_int, c_longlong, c_size_t, c_uint64, c_void_p

import pytest
from gemmhub_musa import compile, first_run, runtime, sdk
from gemmhub_musa.child import Child, ChildError

from conftest import HERE, link
from gemmhub.capability import Absent, Refusal

SOURCE = """
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
struct Pair { int64_t one; double two; };
typedef void* (*Grow)(size_t);
static Grow growers[2];
extern "C" {
int many(int a, long long b, void* c, int d, int e, int f, int g, long long h, int i, void* j) {
    return a + b + (long)c + d + e + f + g + h + i + (long)j;
}
int minus() { return -3; }
size_t large() { return size_t(1) << 63; }
void* nothing() { return nullptr; }
const char* words(int code) { return code ? "some words" : nullptr; }
int length(const char* text) { return strlen(text); }
int fill(Pair* pair, int* more, int* numbers) {
    pair->one += 1; pair->two *= 2; *more = 7;
    for (int i = 0; i < 3; ++i) numbers[i] *= 10;
    return 0;
}
void set(int place, Grow grow) { growers[place] = grow; }
void* get(int place, size_t bytes) { return growers[place](bytes); }
int dies(int number) { fputs("the last words\\n", stderr); signal(number, SIG_DFL); raise(number); return 0; }
int hangs() { for (;;) pause(); }
int leaves(int code) { puts("printed"); fflush(stdout); exit(code); }
int throws() { throw 1; }
void talks() { puts("to standard output"); fflush(stdout); }
}
"""


@pytest.fixture
def library(tmp_path):
    return link(tmp_path / "libtried.so", SOURCE)


@pytest.fixture
def child(named):
    made = Child(first_run._program(), 5.0)
    yield made
    made.close()


@pytest.fixture
def found(named):
    made = sdk.find()
    assert isinstance(made, sdk.Sdk)
    return made


def passed(found, library, name, *arguments, facts=()):
    """Call one function first; the refusal, and how often it was called here and there."""
    calls = []

    def prove(there):
        calls.append(there)
        there.loader.open(str(library), os.RTLD_NOW)[name](*arguments)

    return first_run.passed(found, f"the function {name}", (library, *facts), prove), len(calls)


def test_arguments_and_results(child, library):
    with child.turn():
        there = child.load(library)
        assert there.many(1, 2**33, 3, True, 5, 6, None, 8, c_int(9), 10) == 43  # an int has 32 bits
        assert there.minus() == -3
        large = there["large"]
        large.restype = c_size_t
        assert large() == 2**63
        assert there.nothing() == 0
        words = there["words"]
        words.restype = c_char_p
        assert (words(1), words(0)) == (b"some words", None)
        assert there.length(b"four") == 4
        assert there.talks() is not None  # what it prints does not disturb the replies
        assert there.minus() == -3


class Pair(ctypes.Structure):
    _fields_ = (("one", c_longlong), ("two", c_double))


def test_memory_is_copied_there_and_back(child, library):
    with child.turn():
        pair, more, numbers = Pair(1, 2.5), c_int(), (c_int * 3)(1, 2, 3)
        assert child.load(library).fill(byref(pair), byref(more), numbers) == 0
        assert (pair.one, pair.two, more.value, list(numbers)) == (2, 5.0, 7, [10, 20, 30])


def test_callbacks_may_call_functions(child, library):
    grow = ctypes.CFUNCTYPE(c_void_p, c_size_t)
    with child.turn():
        there = child.load(library)
        get = there["get"]
        get.restype = c_size_t
        first, second = grow(lambda n: n + there.many(*[1] * 10)), grow(lambda n: None)
        there.set(0, first)
        there.set(1, second)
        assert get(0, 100) == 110
        assert get(1, 100) == 0


def test_what_is_missing(child, library):
    with child.turn():
        there = child.load(library)
        assert not hasattr(there, "gone")
        with pytest.raises(AttributeError, match="undefined symbol: gone"):
            there["gone"]
        with pytest.raises(OSError, match="cannot open shared object file"):
            child.open("libgone.so", os.RTLD_NOW)
        assert isinstance(child.load(library.with_name("gone.so")), Refusal)


def test_calls_outside_of_a_turn_do_nothing(child, library):
    with child.turn():
        there = child.load(library)
        minus = there.minus
    assert minus() == 0
    with child.turn():
        assert minus() == -3


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT"])
def test_a_fault_is_a_refusal_that_is_kept(found, library, name):
    refusal, calls = passed(found, library, "dies", getattr(signal, name), facts=(name,))
    assert calls == 1
    assert f"was killed by signal {int(getattr(signal, name))} ({name})" in refusal.reason
    assert refusal.reason.startswith("the function dies ")
    assert "to try again, remove" in refusal.remedy
    assert "the last words" in refusal.traceback
    assert passed(found, library, "dies", getattr(signal, name), facts=(name,)) == (refusal, 0)


def test_an_exception_of_c_is_a_fault(found, library):
    assert "(SIGABRT)" in passed(found, library, "throws")[0].reason


def test_a_hang_is_a_refusal_that_is_kept(found, library, monkeypatch):
    if first_run._child is not None:
        first_run._child.close()
    monkeypatch.setattr(first_run, "PATIENCE", 0.5)
    start = time.monotonic()
    refusal, calls = passed(found, library, "hangs")
    assert (calls, refusal.reason) == (
        1, "the function hangs did not return within 0.5 s and was killed, run for the first time in a child process",
    )  # fmt: skip
    assert time.monotonic() - start < 20
    assert passed(found, library, "hangs") == (refusal, 0)


@pytest.mark.parametrize(("function", "argument"), [("leaves", 3), ("dies", signal.SIGKILL), ("dies", signal.SIGTERM)])
def test_an_end_that_may_have_another_cause_is_tried_again(found, library, function, argument):
    for _ in range(2):
        refusal, calls = passed(found, library, function, argument, facts=(argument,))
        assert calls == 1
        assert "to try again" not in refusal.remedy
    assert ("exit code 3" if function == "leaves" else f"signal {int(argument)} ") in refusal.reason


def test_success_is_kept_until_the_installation_changes(found, library, home):
    assert passed(found, library, "minus") == (None, 1)
    assert passed(found, library, "minus") == (None, 0)
    assert passed(found, library, "minus", facts=("other",)) == (None, 1)
    os.utime(home / "lib" / "libmusart.so.4", ns=(1, time.time_ns()))
    assert passed(found, library, "minus") == (None, 1)


def test_a_verdict_and_an_exception_are_returned_and_not_kept(found):
    no = Refusal("wrong", "do something")
    for _ in range(2):
        assert first_run.passed(found, "something", ("verdict",), lambda there: no) is no
        with pytest.raises(ZeroDivisionError):
            first_run.passed(found, "something", ("raises",), lambda there: 1 // 0)
    assert first_run.passed(found, "something", ("verdict",), lambda there: None) is None


def test_a_process_serves_many_and_ends_when_it_is_idle(found, library):
    passed(found, library, "minus", facts=("one",))
    child = first_run._child
    passed(found, library, "minus", facts=("two",))
    assert first_run._child is child
    assert child._process.wait(20) == 0
    assert passed(found, library, "minus", facts=("three",)) == (None, 1)
    assert first_run._child is not child


def test_a_nested_call_gets_a_process_of_its_own(found, library):
    inner = []

    def prove(there):
        outer = there.loader
        inner.append(passed(found, library, "minus", facts=("inner",)))
        inner.append(passed(found, library, "dies", signal.SIGSEGV, facts=("inner",))[0].reason)
        assert there.loader is outer
        assert there.loader.load(library).minus() == -3

    assert first_run.passed(found, "something", ("outer",), prove) is None
    assert inner[0] == (None, 1)
    assert "(SIGSEGV)" in inner[1]


def test_a_forked_child_starts_its_own(found, library):
    passed(found, library, "minus", facts=("parent",))
    pid = os.fork()
    if pid == 0:
        right = passed(found, library, "minus", facts=("forked",)) == (None, 1)
        first_run._child.close()
        os._exit(not right)
    assert os.waitpid(pid, 0)[1] == 0
    assert passed(found, library, "minus", facts=("parent again",)) == (None, 1)


def test_an_interrupt_ends_the_process(child, library):
    def interrupted(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt), child.turn():
            child.load(library).hangs()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert child._process.returncode == -signal.SIGKILL
    assert not child.free


def test_a_runtime_that_dies_is_absent(tmp_path, python):
    """In the constructor of the library, and in the first function that counts devices."""
    code = "from gemmhub_musa import runtime; no = runtime.machine(); print(type(no).__name__, no.reason, no.remedy)"
    source = (HERE / "fake_musart.cpp").read_text()
    begun = "#include <csignal>\n__attribute__((constructor)) static void begin() { raise(SIGILL); }\n" + source
    counting = "#include <cstdlib>\n" + source.replace('ENTER("musaGetDeviceCount");', "abort();")
    for name, planted, expected in (("begun", begun, "SIGILL"), ("counting", counting, "SIGABRT")):
        link(tmp_path / name / "lib" / "libmusart.so.4", planted)
        (tmp_path / name / "lib" / "libmusart.so").symlink_to("libmusart.so.4")
        told = python(code, MUSA_HOME=tmp_path / name)
        assert told.startswith("Absent the MUSA runtime, when it counted its devices, was killed by signal")
        assert f"({expected})" in told


def test_where_no_process_can_be_started(found, library, monkeypatch, tmp_path):
    if first_run._child is not None:
        first_run._child.close()
    monkeypatch.setattr(first_run, "_program", lambda: tmp_path / "gone")
    refusal, calls = passed(found, library, "minus", facts=("not started",))
    assert calls == 0
    assert "none can be started" in refusal.reason
    assert "noexec" in refusal.remedy
    monkeypatch.setattr(first_run, "_program", lambda: Refusal("no compiler", "install it"))
    assert passed(found, library, "minus", facts=("not started",))[0].reason == "no compiler"


def test_the_program_of_a_wheel_needs_no_compiler(found, library, monkeypatch, tmp_path):
    content = first_run._program().read_bytes()
    whole, damaged = ((tmp_path / name) for name in ("whole", "damaged"))
    for folder, written in ((whole, content), (damaged, content[:-1])):
        folder.mkdir()
        (folder / f"first_run.{hashlib.sha256(content).hexdigest()[:32]}.run").write_bytes(written)
    monkeypatch.setenv("CXX", "gone")
    monkeypatch.setattr(first_run, "_GLUE", damaged)
    assert isinstance(first_run._program(), Refusal)
    monkeypatch.setattr(first_run, "_GLUE", whole)
    if first_run._child is not None:
        first_run._child.close()
    assert passed(found, library, "minus", facts=("of a wheel",)) == (None, 1)


def test_without_a_compiler(found, monkeypatch):
    monkeypatch.setenv("CXX", "gone")
    assert isinstance(compile.host_compiler(), Refusal)
    refusal = first_run._program()
    assert "to build the program that runs native code first" in refusal.reason
    assert refusal.remedy == "install g++, or set CXX"


def test_the_runtime_is_the_same_there(rt, found):
    """Copies both ways, host memory that the runtime allocates, errors with their names."""

    def prove(there):
        seen = runtime._loaded(there)
        assert isinstance(seen, runtime.Runtime)
        assert (seen.version, seen.device_count()) == (rt.version, 2)
        address, given, back = seen.malloc(24), (c_uint64 * 3)(1, 2, 3), (c_uint64 * 3)()
        seen.memcpy(address, ctypes.addressof(given), 24, runtime.TO_DEVICE)
        seen.memcpy(ctypes.addressof(back), address, 24, runtime.TO_HOST)
        assert list(back) == [1, 2, 3]
        host = seen.malloc_host(8)
        seen.write_host(host, b"abcdefgh")
        with pytest.raises(runtime.MusaError, match="musaErrorInvalidValue"):
            seen.free(12345)
        seen.free_host(host)
        seen.free(address)

    first_run.passed(found, "the runtime there", (time.time_ns(),), prove)
    assert not isinstance(runtime.machine(), Absent)


def test_a_child_that_has_ended_is_reported_once(child, library):
    with child.turn():
        there = child.load(library)
        minus = there.minus
        with pytest.raises(ChildError, match="SIGSEGV"):
            there.dies(signal.SIGSEGV)
        assert minus() == 0  # clean-up goes on
