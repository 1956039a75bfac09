"""A MemoryError at any line of a call: it is an AllocationError or a correct product, and the next call is correct."""

from __future__ import annotations

import linecache
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub._choice import registry
from plugins import add

HERE = os.path.dirname(gemmhub.__file__)
STEP = int(os.environ.get("TEST_MEMORY_STEP", "97"))
"""Every so many lines one is tried; 1 tries all, in minutes."""


NOTHING_ALLOCATED = {"matmul", "_call", "decorated"}
"""Functions whose own lines do no more than call others, in which a MemoryError becomes ours."""


class Injected:
    """Raises MemoryError at the n-th line that gemmhub executes; counts the lines where ``at`` is None."""

    def __init__(self, at=None):
        self.at, self.lines, self.place = at, 0, ""

    def __call__(self, frame, event, _):
        name = frame.f_code.co_filename
        if not name.startswith(HERE) or frame.f_code.co_name in NOTHING_ALLOCATED or name.endswith("locks.py"):
            return None
        return self.line

    def line(self, frame, event, _):
        # A with statement has a line event before __exit__, where no exception can come from; try: does nothing, and
        # the return of a local variable allocates nothing.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not text.startswith(("with ", "try:", "return result\n")):
            self.lines += 1
            if self.lines == self.at:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise MemoryError("injected")
        return self.line

    def run(self, call):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)


RNG = np.random.default_rng(0)
A, B = RNG.integers(-4, 5, (3, 4)), RNG.integers(-4, 5, (4, 5))
OPERANDS = {name: (A.astype(name), B.astype(name)) for name in ("float32", "float16", "int8")}
OPERANDS["bfloat16"] = tuple(x.astype(__import__("ml_dtypes").bfloat16) for x in (A, B))
BATCH = np.stack([OPERANDS["float16"][0]] * 2)

CALLS = {
    "float32": lambda: gemmhub.matmul(*OPERANDS["float32"]),
    "float16": lambda: gemmhub.matmul(*OPERANDS["float16"]),
    "float16, numpy": lambda: gemmhub.matmul(*OPERANDS["float16"], backend="numpy"),
    "int8, numpy": lambda: gemmhub.matmul(*OPERANDS["int8"], backend="numpy"),
    "bfloat16": lambda: gemmhub.matmul(*OPERANDS["bfloat16"]),
    "int8, out": lambda: gemmhub.matmul(*OPERANDS["int8"], out=np.zeros((3, 5), np.int32)),
    "batch": lambda: gemmhub.matmul(BATCH, OPERANDS["float16"][1]),
    "lists": lambda: gemmhub.matmul(A.tolist(), B.tolist()),
    "epilogue": lambda: gemmhub.matmul(*OPERANDS["float32"], alpha=2, bias=np.ones(5, np.float32), activation="relu"),
    "plan": lambda: gemmhub.plan(*OPERANDS["float16"])(*OPERANDS["float16"]),
    "plan with bias": lambda: gemmhub.plan(*OPERANDS["float32"], bias=np.ones(5, np.float32))(
        *OPERANDS["float32"], bias=np.ones(5, np.float32)
    ),
    "pack": lambda: gemmhub.matmul(OPERANDS["float16"][0], gemmhub.pack(OPERANDS["float16"][1])),
    "explain": lambda: gemmhub.explain(*OPERANDS["float32"]) is not None,
    "spot_check": lambda: gemmhub.spot_check(*OPERANDS["float32"], OPERANDS["float32"][0] @ OPERANDS["float32"][1]).ok,
}


def prepare(warm, call):
    gemmhub.reload()
    add(Scripted("other", layout_sensitive=True))
    if warm:
        for _ in range(2):
            call()


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("name", CALLS)
def test_the_call_after_a_failed_allocation_is_right(name, warm):
    call, outcomes, wrong = CALLS[name], Counter(), []
    try:
        prepare(False, call)
        expected, chosen = call(), gemmhub.explain(*OPERANDS["float32"]).chosen
    except gemmhub.NoBackendError:
        pytest.skip("no backend here packs")
    prepare(warm, call)
    count = Injected()
    count.run(call)
    first = 1 + RNG.integers(STEP)
    for at in range(first, count.lines + 1, STEP):
        prepare(warm, call)
        injected = Injected(at)
        try:
            outcome = "right" if np.array_equal(injected.run(call), expected) else "wrong"
        except gemmhub.AllocationError:
            outcome = "AllocationError"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"[:120]
        for _ in range(2):
            try:
                if not np.array_equal(call(), expected):
                    outcome = "later call wrong"
            except BaseException as error:
                outcome = f"later {type(error).__name__}: {error}"[:120]
        if gemmhub.explain(*OPERANDS["float32"]).chosen != chosen or not registry.registry().complete:
            outcome = "later another backend"
        outcomes[outcome] += 1
        if outcome not in ("right", "AllocationError"):
            wrong.append((injected.place, outcome))
    print(name, warm, count.lines, dict(outcomes))
    assert not wrong
