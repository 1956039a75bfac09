"""What a caller set in its thread or process changes no product, now or later, and is left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from gemmhub_cpu import library, limits, threads

import gemmhub
from gemmhub.testing import modes

NAMES = library.load().units
needs_units = pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
needs_modes = pytest.mark.skipif(not modes.known(), reason="the floating-point mode of this system is not known")
ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
needs_cores = pytest.mark.skipif(len(ALL) < 2, reason="it takes two processors")

OPEN = """
from gemmhub_cpu.backend import CpuBackend
CpuBackend.__init__.__defaults__ = (None, False)  # no estimate of a busy machine decides
"""


def child(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process whose pools have not started."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "error", "-c", OPEN + code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, errors="replace")


def passed(code: str) -> None:
    done = child(code)
    assert done.returncode == 0, done.stderr[-2000:]


MODES = """
import numpy as np, gemmhub, ml_dtypes
from gemmhub.testing import modes
one = np.ones((400, 400), np.float16)
a = np.full((400, 400), 2.0**-130, np.float32)
b = np.full((400, 400), 4.0, np.float16)
bias = np.full(400, 2.0**-130, np.float32)
def products():
    yield gemmhub.matmul(a, b, backend="cpu")
    yield gemmhub.matmul(a[:1], b, backend="cpu")
    yield gemmhub.matmul(a, b, bias=bias, activation="silu", backend="cpu")  # finished by NumPy
    yield gemmhub.matmul(a, gemmhub.pack(b, a_dtype="float32", backend="cpu"))
    yield gemmhub.matmul(b, gemmhub.pack(a, a_dtype="float16", backend="cpu"))
with modes.flushing():
    gemmhub.matmul(one, one, backend="cpu")   # the first call
    gemmhub.matmul(one, one, activation="silu", backend="cpu")
    before = modes.control()
    changed = list(products())
    assert modes.control() == before
usual = list(products())
for x, y in zip(changed, usual):
    assert (y != 0).all()
    assert np.array_equal(x.view(np.int32), y.view(np.int32))
    assert len(np.unique(y)) == 1
"""


@needs_units
@needs_modes
def test_the_mode_of_a_caller_changes_no_product() -> None:
    """A thread that flushes subnormals makes the first call: its own products and later ones are the same."""
    passed(MODES)


@needs_modes
def test_python_threads_have_the_default_mode() -> None:
    threads._after_fork()  # new threads
    seen: dict[int, int] = {}
    barrier = threading.Barrier(2)
    usual = modes.control()

    def look(start: int, stop: int) -> None:
        if threading.get_ident() not in seen:
            seen[threading.get_ident()] = modes.control()
            barrier.wait(30)

    if len(ALL) < 2:
        pytest.skip("it takes two processors")
    with modes.flushing():
        threads.each(look, 32, 16)
    seen.pop(threading.get_ident())
    assert set(seen.values()) == {usual}


SIGNALS = """
import os, signal
import numpy as np, gemmhub
a = np.ones((600, 600), np.float16)
gemmhub.matmul(a, a, backend="cpu")
raised = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
found = 0
for task in os.listdir("/proc/self/task"):
    lines = open(f"/proc/self/task/{task}/status").read().splitlines()
    if lines[0].split()[1] == "gemmhub-cpu":
        found += 1
        blocked = int(next(x for x in lines if x.startswith("SigBlk")).split()[1], 16)
        assert not any(blocked >> (number - 1) & 1 for number in raised), hex(blocked)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM))
assert found
"""


@needs_units
@needs_cores
def test_threads_block_no_signal_that_an_instruction_raises() -> None:
    passed(SIGNALS)


FAULT = """
import faulthandler, os, tempfile
import numpy as np, gemmhub
faulthandler.enable()
one = np.ones((600, 600), np.float16)
gemmhub.matmul(one, one, backend="cpu")
with tempfile.NamedTemporaryFile() as file:
    file.truncate(2 * 600 * 4096)
    a = np.memmap(file.name, np.float16, "r", shape=(600, 4096))
    os.truncate(file.name, 2 * 600 * 4096 - 4096)   # the last row ends early: one thread alone reads it
    gemmhub.matmul(a, np.ones((4096, 600), np.float16), backend="cpu")
"""


@needs_units
def test_a_fault_in_a_thread_is_reported() -> None:
    """A file that shrinks under its memory map is SIGBUS, in whichever thread reads it: faulthandler shows it."""
    done = child(FAULT)
    assert done.returncode == -7
    assert "Fatal Python error: Bus error" in done.stderr


PINNED = """
import os
everything = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(everything)})
import numpy as np, gemmhub
from gemmhub_cpu import library, limits, threads
a = np.ones((600, 600), np.float16)
for options in ({}, {"activation": "gelu"}):
    gemmhub.matmul(a, a, backend="cpu", **options)
assert limits.threads() == 1
packed = gemmhub.pack(a, backend="cpu")
gemmhub.matmul(a, packed)
threads.each(lambda start, stop: None, 32, 16)
os.sched_setaffinity(0, everything)
count = len(everything)
assert limits.threads() == min(count, limits.ceiling())
seen, kernels = [], library.load().library
def watched(function):
    def watch(prepared, threads, *operands):
        seen.append(threads)
        return function(prepared, threads, *operands)
    return watch
for name in ("gemmhub_cpu_product", "gemmhub_cpu_product_with"):
    setattr(kernels, name, watched(getattr(kernels, name)))
gemmhub.matmul(a, a, backend="cpu")
gemmhub.matmul(a, packed)
assert len(seen) == 2 and min(seen) >= min(count, limits.ceiling()), seen
tasks = {}
for task in os.listdir("/proc/self/task"):
    tasks.setdefault(open(f"/proc/self/task/{task}/comm").read().strip(), []).append(os.sched_getaffinity(int(task)))
assert tasks["gemmhub-cpu"] and all(x == everything for x in tasks["gemmhub-cpu"]), tasks
places = []
def look(start, stop):
    places.append(os.sched_getaffinity(0))
    while len(places) < 2: pass
threads.each(look, 32, 16)
assert places == [everything] * 2, places
os.sched_setaffinity(0, {min(everything)})
assert limits.threads() == 1 and limits.most() == limits.ceiling() > 1
"""


@needs_units
@needs_cores
def test_a_first_call_on_a_pinned_thread_limits_no_later_one() -> None:
    passed(PINNED)


@needs_units
@needs_cores
def test_threadpoolctl_entered_on_a_pinned_thread_restores_the_limit_of_the_process() -> None:
    pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    passed("""
import os
import threadpoolctl, numpy as np, gemmhub
from gemmhub_cpu import limits
a = np.ones((300, 300), np.float16)
gemmhub.matmul(a, a, backend="cpu")
everything, before = os.sched_getaffinity(0), limits.threads()
os.sched_setaffinity(0, {min(everything)})
with threadpoolctl.threadpool_limits(1):
    assert limits.threads() == limits.most() == 1
os.sched_setaffinity(0, everything)
assert limits.threads() == before > 1
""")


@pytest.mark.parametrize("text", ["²", "1²", "٣", "+2", "-1", "0", "0x2", "2_0", "9" * 5000, "", "many", ",2"])
def test_what_is_not_a_number_of_threads_limits_nothing(text: str) -> None:
    assert limits._from_environment(text) == sys.maxsize


def test_numbers_of_threads() -> None:
    assert [limits._from_environment(x) for x in ("1", "3,2", " 4 ", "007", "16 , 2")] == [1, 3, 4, 7, 16]


@needs_units
def test_an_odd_number_of_threads_loses_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "²")
    limits._surroundings.cache_clear()
    try:
        gemmhub.reload()
        assert gemmhub.backends()["cpu"].state == "ready"
        a = np.ones((600, 600), np.float16)
        assert (gemmhub.matmul(a, a, backend="cpu") == 600).all()
    finally:
        limits._surroundings.cache_clear()
