"""Locks in forked children and in nested calls. Every process that forks here is separate, with a time limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gemmhub
from gemmhub.kit import locks

ROOT = Path(gemmhub.__file__).parent.parent
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

PRELUDE = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks while there are threads, which is what is tested
import numpy as np, gemmhub
from gemmhub._choice import registry
from gemmhub.kit import locks

a = np.arange(12.0, dtype=np.float32).reshape(3, 4)
b = np.arange(20.0, dtype=np.float32).reshape(4, 5)
expected = a @ b

def child(work):
    "Fork; the child's exit code after work(), -14 if it took five seconds."
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(5)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def multiply():
    assert np.array_equal(gemmhub.matmul(a, b), expected)
    assert np.array_equal(gemmhub.matmul(a.astype(np.float16), b.astype(np.float16)), expected)
"""


def run(script, *, modules=(), folder=None, timeout=60, **variables):
    """The output of a fresh interpreter, which may import ``folder`` and has the plugins installed there."""
    path = os.pathsep.join(map(str, (*([folder] if folder else []), ROOT, *modules)))
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", **variables}
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.fixture
def slow_plugin(tmp_path):
    """A plugin whose import, and whose probe, take as long as the script wants. Its name sorts first of several."""
    for name, body in {
        "gemmhub_slow": "import builtins\nbuiltins.wait_in('import')\n",
        "gemmhub_brisk": "",
    }.items():
        plugin = name.removeprefix("gemmhub_")
        (tmp_path / f"{name}.py").write_text(
            f"{body}import builtins\n"
            "from gemmhub import Absent, Backend, BackendDescription, hookimpl\n"
            "class Slow(Backend):\n"
            f"    name = {plugin!r}\n"
            "    def probe(self):\n"
            "        builtins.wait_in('probe')\n"
            "        return Absent('no card', 'none')\n"
            "    def offer(self, problem): ...\n"
            "    def prepare(self, problem, candidate, workspace_limit): ...\n"
            "@hookimpl\n"
            f"def gemmhub_backends(): return [BackendDescription({plugin!r}, Slow, '', contract=2)]\n",
            encoding="utf-8",
        )
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[gemmhub]\n{plugin} = {name}\n", encoding="utf-8")
    return tmp_path


@forks
@pytest.mark.parametrize("step", ["import", "probe"])
def test_a_fork_while_another_thread_discovers(slow_plugin, step):
    """The child finds every plugin, once, and multiplies; so does its parent."""
    out = run(
        f"""
import builtins
gate, inside = threading.Event(), threading.Event()
def wait_in(step):
    if step == {step!r} and threading.current_thread() is not threading.main_thread():
        inside.set()
        gate.wait(0.3 if step == "import" else 30)  # the fork waits for the import, the probe is cut off
locks._PATIENCE = 5 if {step!r} == "import" else 0.2
builtins.wait_in = wait_in
thread = threading.Thread(target=multiply)
thread.start()
inside.wait(30)
def work():
    multiply()
    assert [e.name for e in registry.registry()] == ["numpy", "brisk", "slow"], registry.registry().entries
    assert {{s.state for s in gemmhub.backends().values() if s.name in ("brisk", "slow")}} == {{"absent"}}
print(child(work))
gate.set()
thread.join()
print(child(work))
work()
""",
        folder=slow_plugin,
    )
    assert out == ["0", "0"]


@forks
def test_forks_at_any_time_of_another_threads_first_product():
    """The moments are spread over the time of a first product, its imports included."""
    out = run(
        """
def first():
    try:
        multiply()
    finally:
        done.set()
codes = []
for step in range(12):
    def attempt():
        global done
        done = threading.Event()
        threading.Thread(target=first, daemon=True).start()
        time.sleep(0.008 * step)
        code = child(multiply)
        assert code == 0, code
        done.wait(30)
    codes.append(child(attempt))
print(*codes)
"""
    )
    assert out == ["0"] * 12


@forks
def test_forks_while_another_thread_reloads():
    out = run(
        """
end = threading.Event()
def loop():
    while not end.is_set():
        gemmhub.reload()
        multiply()
thread = threading.Thread(target=loop)
thread.start()
time.sleep(0.2)
codes = []
for _ in range(30):
    codes.append(child(multiply))
end.set()
thread.join()
print(*codes)
"""
    )
    assert out == ["0"] * 30


@forks
def test_locks_of_other_threads_are_free_in_a_child_and_ones_own_are_kept():
    out = run(
        """
lock, mine, busy = locks.lock(), locks.lock(), locks.Busy()
held, end = threading.Event(), threading.Event()
def hold():
    with lock, busy:
        held.set()
        end.wait(30)
thread = threading.Thread(target=hold)
thread.start()
held.wait(30)
assert not lock.acquire(blocking=False)
def work():
    assert lock.acquire(blocking=False)
    lock.release()
    assert not busy.now
    taken = []
    other = threading.Thread(target=lambda: taken.append(mine.acquire(blocking=False)))
    other.start()
    other.join()
    assert taken == [False]  # the thread that forked holds it, and goes on in the child
with mine:
    print(child(work))
assert not lock.acquire(blocking=False)  # the parent's is as it was
end.set()
thread.join()
"""
    )
    assert out == ["0"]


@forks
def test_signals_that_multiply_during_discovery_and_decisions(slow_plugin):
    """The same thread acquires every lock of the first product again; a decision made meanwhile is not kept."""
    out = run(
        """
import builtins
builtins.wait_in = lambda step: signal.raise_signal(signal.SIGUSR1)
seen = []
def handler(*_):
    seen.append(np.array_equal(gemmhub.matmul(a, b), expected))
    gemmhub.matmul(b.T, a.T)
signal.signal(signal.SIGUSR1, handler)
signal.alarm(30)
multiply()
assert [e.name for e in registry.registry()] == ["numpy", "brisk", "slow"]
assert registry.registry().complete
print(len(seen), all(seen))
verdicts = gemmhub.plan(b.T, a.T).decision.verdicts
print(*sorted(v.backend for v in verdicts if v.status == "absent"))
""",
        folder=slow_plugin,
    )
    assert out == ["3", "True", "brisk", "slow"]


@forks
def test_hooks_that_are_registered_while_a_fork_waits_are_called_in_pairs():
    """The parent's hooks of a module that another thread imports meanwhile: a lock is taken before it is released."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + """
inside, seen, register = threading.Event(), [], os.register_at_fork
def first():
    with locks.deciding:
        inside.set()
        time.sleep(0.3)  # the fork waits
        import concurrent.futures.thread
        for name in "ab":
            def before(name=name): seen.append("before " + name)
            def after(name=name): seen.append(name)
            os.register_at_fork(before=before, after_in_parent=after)
        os.register_at_fork(after_in_child=lambda: None)
thread = threading.Thread(target=first)
thread.start()
inside.wait(30)
print(child(multiply))
thread.join()
assert seen == ["before b", "before a", "a", "b"], seen
assert os.register_at_fork is register
print(child(multiply))
assert seen == ["before b", "before a", "a", "b"] * 2, seen
"""],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["0", "0"], "")


LAUNCHING = {
    "mublas/pointers.py", "mublas/memory.py", "musa_kernels/scratch.py",
    "mutlass/workspace.py", "mudnn/engine.py", "cublas/workspace.py", "cublas/kernel.py",
}  # fmt: skip
"""Modules whose locks order launches on a device, which a forked child has none of."""


def test_every_other_lock_comes_from_one_place():
    places = [ROOT / "gemmhub", *ROOT.glob("plugins/*/gemmhub_*")]
    found = set()
    for path in (path for place in places for path in place.rglob("*.py")):
        if "testing" not in path.parts and re.search(r"threading\.R?Lock\(\)", path.read_text(encoding="utf-8")):
            found.add(f"{path.parent.name.removeprefix('gemmhub_')}/{path.name}")
    assert found - LAUNCHING == {"kit/locks.py"}
    assert locks.lock() is not locks.lock()


FIRST = """
import os, signal, sys, threading, time
import numpy as np, gemmhub

a = np.ones((64, 64))
calls = {
    "reload": gemmhub.reload, "tune": lambda: gemmhub.tune(a, a), "spot_check": lambda: gemmhub.spot_check(a, a, a @ a),
    "compare": lambda: gemmhub.compare(a, a), "explain": lambda: gemmhub.explain(a, a),
}
threading.Thread(target=calls[sys.argv[1]], daemon=True).start()
time.sleep(float(sys.argv[2]))
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(int(gemmhub.matmul(a, a)[0, 0] != 64))
os._exit(os.waitpid(child, 0)[1] != 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are tested where there are any")
@pytest.mark.parametrize("name", ["reload", "tune", "spot_check", "compare", "explain"])
@pytest.mark.parametrize("delay", [0.004, 0.03])
def test_a_fork_during_any_first_call_of_another_thread(name, delay):
    """Modules that that thread was importing are complete in the child."""
    command = [sys.executable, "-W", "ignore", "-c", FIRST, name, str(delay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


NESTED = """
import sys, numpy as np, gemmhub

a, seen, count = np.ones((8, 8)), [], 0

def interrupt(frame, event, argument):
    global count
    count += event == "call"
    if event == "call" and count % 101 == 0:
        sys.setprofile(None)
        try:
            seen.append(gemmhub.matmul(a, a)[0, 0] == 8)
        except gemmhub.BackendError as error:
            seen.append("imports modules" in str(error))
        sys.setprofile(interrupt)

sys.setprofile(interrupt)
result = gemmhub.matmul(a, a)
sys.setprofile(None)
assert result[0, 0] == 8 and gemmhub.matmul(a, a)[0, 0] == 8
assert len(seen) > 20 and all(seen), seen
"""


def test_what_interrupts_a_first_call_gets_a_product_or_an_error_of_gemmhubs():
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
