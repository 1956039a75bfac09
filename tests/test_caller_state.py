"""Floating-point and warning state of the caller changes no result, decision or backend, and is not changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Candidate, Kernel, Offer
from gemmhub._base import guard
from plugins import add

SCRIPT = """
import os, sys, traceback, warnings
import ml_dtypes, numpy as np
import gemmhub, gemmhub.numpy

STATES = {
    "none": "np.seterr(all='ignore')",
    "raise": "np.seterr(all='raise')",
    "call": "np.seterr(all='call'); np.seterrcall(lambda *_: 1 / 0)",
    "warnings": "np.seterr(all='warn'); warnings.simplefilter('error')",
    "both": "np.seterr(all='raise'); warnings.simplefilter('error')",
}
rng = np.random.default_rng(0)
PAIRS = {}
for kind in (np.float32, np.float64, np.complex64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64):
    PAIRS[np.dtype(kind).name] = [(8 * rng.standard_normal((48, 48))).astype(kind) for _ in range(2)]
LARGE = {"float32": 1e38, "float64": 1e200, "complex64": 1e38, "float16": 6e4, "bfloat16": 1e38}
WILD = {}  # products that overflow, with infinities less infinities
for name, large in LARGE.items():
    a, b = (x.copy() for x in PAIRS[name])
    a[0], b[:, 0], a[1, :2] = large, large, (np.inf, -np.inf)
    WILD[name] = a, b
f32, half, brain = PAIRS["float32"], PAIRS["float16"], PAIRS["bfloat16"]
f32_product = f32[0] @ f32[1]

def products():
    for pair in (*PAIRS.values(), *WILD.values()):
        yield lambda: gemmhub.matmul(*pair)
        yield lambda: gemmhub.matmul(*pair, alpha=2)
        yield lambda: gemmhub.matmul(*pair, c=gemmhub.matmul(*pair), beta=3)
        if pair[0].dtype.kind in "fV":
            for activation in ("relu", "silu", "gelu"):
                yield lambda: gemmhub.matmul(*pair, bias=pair[1][0], activation=activation)

def under(**settings):
    with gemmhub.use(**settings):
        return gemmhub.matmul(*brain)

CALLS = {
    "matmul": lambda: b"".join(fixed(call) for call in products()),
    "backends": lambda: [(name, x.state) for name, x in gemmhub.backends().items()],
    "explain": lambda: gemmhub.explain(*brain).chosen,
    "plan": lambda: gemmhub.plan(*half)(*half),
    "plan of one that overflows": lambda: gemmhub.plan(*WILD["float32"])(*WILD["float32"]),
    "pack": lambda: gemmhub.matmul(brain[0], gemmhub.pack(brain[1])),
    "tune": lambda: sorted((x.backend, x.candidate, x.seconds is None) for x in gemmhub.tune(*half).rows),
    "spot_check": lambda: gemmhub.spot_check(*f32, f32_product, seed=1).ok,
    "spot_check of infinities": lambda: gemmhub.spot_check(*WILD["float16"], gemmhub.matmul(*WILD["float16"])).ok,
    "compare": lambda: [(x.backend, x.ok) for x in gemmhub.compare(*WILD["float16"], seed=1).rows],
    "reload": lambda: (gemmhub.reload(), gemmhub.matmul(*PAIRS["int8"]))[1],
    "use": lambda: under(backend="numpy"),
    "a race": lambda: under(tune="first"),
    "numpy": lambda: gemmhub.numpy.asarray(PAIRS["int8"][0]) @ PAIRS["int8"][1],
}

def fixed(call):
    "The bytes of a product, which repetitions have too."
    first, *others = call(), call(), call()
    assert all(first.dtype == x.dtype and first.tobytes() == x.tobytes() for x in others), "differs when repeated"
    return str(first.dtype).encode() + first.tobytes()

def value(call, state):
    "What a child prints, whose first call this is."
    exec(STATES[state])
    before = np.geterr(), list(warnings.filters)
    try:
        found = call()
        text = found.tobytes().hex() if isinstance(found, np.ndarray) else repr(found)
    except BaseException:
        text = traceback.format_exc()
    return text if (np.geterr(), list(warnings.filters)) == before else "the caller's state is another now"

def in_child(call, state):
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            with os.fdopen(writer, "w") as out:
                out.write(value(call, state))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        text = source.read()
    os.waitpid(pid, 0)
    return text

name = sys.argv[1]
expected, *others = (in_child(CALLS[name], state) for state in STATES)
assert "Traceback" not in expected, expected
for state, found in zip(list(STATES)[1:], others):
    assert found == expected, (state, found[-2000:])
"""
CALLS = [line.split('"')[1] for line in SCRIPT.splitlines() if line.startswith('    "') and ": lambda: " in line]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("name", CALLS)
def test_a_first_call_under_any_state_is_as_under_none(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, name], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "GEMMHUB_RECORDS": "off"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def noisy(result=None):
    """A plugin's method that warns and overflows on its way to a right answer."""

    def method(*_):
        warnings.warn("by the way", UserWarning, stacklevel=1)
        np.array([1e38], np.float32) * np.float32(1e38)
        return result

    return method


def test_whatever_a_plugin_does_on_the_way_no_state_disables_it(rng):
    """Each question to a backend, and its kernel's run."""

    def run(a, b, out, *_):
        noisy()()
        out[...] = 7

    kernel = Kernel(run, "sevens")
    backend = Scripted("noisy", offer=noisy(Offer((Candidate("one", 1e-9),), noisy(""))), prepare=noisy(kernel))
    probe = backend.probe
    backend.probe = lambda: (noisy()(), probe())[1]
    add(backend)
    a = rng.standard_normal((3, 3)).astype(np.float32)
    before = list(warnings.filters)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gemmhub.explain(a, a).chosen == "noisy"
        warnings.simplefilter("ignore")  # a kernel's own warnings are the caller's concern
        assert gemmhub.matmul(a, a)[0, 0] == 7
    assert list(warnings.filters) == before


def test_neutral_concerns_one_thread_and_leaves_the_filters_as_they_were():
    before, inside, leave, seen = list(warnings.filters), threading.Event(), threading.Event(), []

    def neutral():
        with guard.neutral():
            inside.set()
            leave.wait(30)
            warnings.warn("not an error here", UserWarning, stacklevel=1)

    other = threading.Thread(target=neutral)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        other.start()
        inside.wait(30)
        with pytest.raises(UserWarning, match="an error here"):
            warnings.warn("an error here", UserWarning, stacklevel=1)
        with guard.neutral():
            leave.set()
            other.join()  # the two overlap, and the first to enter is the first to leave
            np.array([1e38], np.float32) * np.float32(1e38)
            warnings.warn("none", UserWarning, stacklevel=1)
        with pytest.raises(FloatingPointError):
            np.array([1e38], np.float32) * np.float32(1e38)
        seen = [x for x in warnings.filters if not isinstance(x[1], (str, type(None))) and not hasattr(x[1], "pattern")]
    assert seen == []
    assert list(warnings.filters) == before
