"""Any exception of a plugin at any step: the product is correct, or the exception is one of gemmhub's."""

# ruff: noqa: N818

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import traceback

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub._base import guard
from gemmhub._choice import registry
from gemmhub.backend import Kernel
from plugins import add


class Panic(BaseException):
    """As pyo3's PanicException: no Exception."""


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Gagged(BaseException):
    def __str__(self):
        raise Panic("no words")

    __repr__ = __str__


class Numbers(Exception):
    def __str__(self):
        return 7


class Starving(Exception):
    def __str__(self):
        raise MemoryError


class Text(str):
    def strip(self, *_):
        raise Panic("stripped")

    __str__ = encode = __len__ = __getitem__ = strip


class Subclassed(Exception):
    def __str__(self):
        return Text("text")


class Classless(Exception):
    @property
    def __class__(self):
        raise Panic("asked for its class")


class Noted(Exception):
    __notes__ = property(lambda self: 1 / 0)


class Nameless(type):
    @property
    def __name__(cls):
        raise Panic("asked for its name")


class Anonymous(Exception, metaclass=Nameless):
    pass


class Attributes(Exception):
    def __getattribute__(self, name):
        raise Panic(name)


def chained():
    error = ValueError("loop")
    error.__cause__ = error
    return error


def array_memory_error():
    """NumPy's own exception for lack of memory."""
    try:
        np.empty(2**62, np.uint8)
    except MemoryError as error:
        return type(error)(*error.args)


HOSTILE = {
    kind.__name__ if kind is not Anonymous else "Anonymous": kind
    for kind in (
        Panic, Mute, Gagged, Numbers, Starving, Subclassed, Classless, Noted, Anonymous, Attributes,
        BaseException, Exception, RecursionError, StopIteration, StopAsyncIteration, AssertionError, ImportError,
        OSError, RuntimeError,
        ValueError, KeyError, SystemError, UnboundLocalError, SyntaxError, BufferError, ArithmeticError, Warning,
        DeprecationWarning, GeneratorExit, SystemExit, asyncio.CancelledError, gemmhub.GemmhubError,
        gemmhub.ConfigError,
    )
} | {
    "chained": chained,
    "long": lambda: ValueError("x" * 10**6),
    "surrogates": lambda: ValueError("\udc80"),
    "decode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\udcff"),
    "MemoryError": MemoryError,
    "AllocationError": lambda: gemmhub.AllocationError("8 GiB"),
    "ArrayMemoryError": array_memory_error,
}  # fmt: skip
FOR_THE_CALLER = {"GeneratorExit", "SystemExit", "CancelledError"}
HOOKS = ("offer", "remark", "prepare", "probe", "load")


def describe(backend, load=None):
    return gemmhub.BackendDescription(backend.name, load or (lambda: backend), "for tests", contract=2)


@pytest.fixture
def entry_point(monkeypatch):
    """Install one fake plugin, whose import and hook are functions of the test."""

    def install(load):
        class Point:
            name, value, dist = "hostile", "hostile:plugin", None

        Point.load = staticmethod(load)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point])
        gemmhub.reload()

    yield install
    monkeypatch.undo()


A, B = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(20, dtype=np.float32).reshape(4, 5)
EXPECTED = A @ B


def assert_right_whatever_happens():
    for _ in range(2):
        assert np.array_equal(gemmhub.matmul(A, B), EXPECTED)
    for state in gemmhub.backends().rows:
        str(state).encode()
        assert len(state.reason) < 5000
    str(gemmhub.explain(A, B)).encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_plugin_raises_before_it_is_asked(entry_point, name):
    """While it is imported and in its hook; a lack of memory is not kept."""

    def importing():
        raise HOSTILE[name]()

    class Plugin:
        @gemmhub.hookimpl
        def gemmhub_backends(self):
            raise HOSTILE[name]()

    for load in (importing, Plugin):
        entry_point(load)
        assert_right_whatever_happens()
        (found,) = [s for s in gemmhub.backends().rows if s.name == "hostile"]
        assert found.state == "failed"
        assert found.traceback
        assert [e.name for e in registry.registry()] == ["numpy", "hostile"]
        kept = "Memory" not in name and name not in ("AllocationError", "RecursionError")
        assert registry.registry().complete == kept


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_backend_raises_when_it_is_asked(name):
    for hook in HOOKS:
        gemmhub.reload()

        def hostile(*_):
            raise HOSTILE[name]()

        if hook == "load":
            description = describe(Scripted("hostile"), hostile)
            registry.registry().add(description, "hostile", "gemmhub-hostile")
        else:
            add(Scripted("hostile", **{hook: hostile}))
        assert_right_whatever_happens()
        refused = gemmhub.AllocationError if "Memory" in name or name == "AllocationError" else gemmhub.NoBackendError
        with pytest.raises(refused):
            gemmhub.matmul(A, B, backend="hostile")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("direct", [False, True])
def test_what_a_kernel_raises(name, direct):
    raising = [False]

    def run(a, b, out=None, *_):
        if raising[0]:
            raise HOSTILE[name]()
        return np.matmul(a, b, out=out)

    kernel = Kernel(run, "hostile", direct=run if direct else None)
    add(Scripted("hostile", prepare=lambda *_: kernel))
    plan = gemmhub.plan(A, B)
    out = np.empty_like(EXPECTED)
    calls = [
        lambda: gemmhub.matmul(A, B), lambda: gemmhub.matmul(A, B, out=out),
        lambda: gemmhub.matmul(A, B, reproducible="run"), lambda: plan(A, B), lambda: plan(A, B, out),
    ]  # fmt: skip
    if name in FOR_THE_CALLER:
        expected = HOSTILE[name]
    elif "Memory" in name or name == "AllocationError":
        expected = gemmhub.AllocationError
    else:
        expected = gemmhub.GemmhubError
    for turn in range(3):  # cold, warm, and warm after a failure
        for call in calls:
            raising[0] = True
            with pytest.raises(expected) as caught:
                call()
            assert type(caught.value).__module__ != __name__
            raising[0] = False
            assert np.array_equal(call(), EXPECTED), turn


def test_keyboard_interrupts_in_every_step_leave_a_state_that_goes_on(entry_point):
    interrupted, asked = [], []

    def step(name):
        asked.append(name)
        if name not in interrupted:
            interrupted.append(name)
            raise KeyboardInterrupt

    class Steps(Scripted):
        def __init__(self):
            step("load")
            super().__init__("hostile", **{hook: self.hook(hook) for hook in HOOKS[:-1]})

        def hook(self, name):
            def answer(*given):
                step(name)
                return {
                    "probe": gemmhub.Ready((gemmhub.Device(),)), "remark": "",
                    "offer": gemmhub.Offer((gemmhub.Candidate("one", 1e-9),), self.hook("remark")),
                    "prepare": Kernel(self.run, ""),
                }[name]  # fmt: skip

            return answer

        def run(self, a, b, out, *_):
            step("run")
            np.matmul(a, b, out=out)

    class Plugin:
        @gemmhub.hookimpl
        def gemmhub_backends(self):
            step("hook")
            return [describe(self, Steps)]

        name = "hostile"

    def load():
        step("import")
        return Plugin()

    entry_point(load)
    interrupts = 0
    while True:
        try:
            product = gemmhub.matmul(A, B)
            break
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == len(interrupted) == 8
    assert np.array_equal(product, EXPECTED)
    assert np.array_equal(gemmhub.matmul(A, B), EXPECTED)
    assert asked[-1] == "run"
    assert [e.name for e in registry.registry()] == ["numpy", "hostile"]


def test_an_interrupted_discovery_lists_nothing_twice(monkeypatch):
    class Point:
        value, dist = "some:plugin", None

        def __init__(self, name, error=None):
            self.name, self.error = name, error

        def load(self):
            error, self.error = self.error, None
            if error:
                raise error

            class Plugin:
                @gemmhub.hookimpl
                def gemmhub_backends(self, name=self.name):
                    return [describe(Scripted(name))]

            return Plugin()

    points = [Point("a"), Point("b", KeyboardInterrupt()), Point("c", MemoryError())]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    gemmhub.reload()
    with pytest.raises(KeyboardInterrupt):
        gemmhub.matmul(A, B)
    assert [e.name for e in registry.registry()] == ["numpy", "a", "b", "c"]
    assert not [e.name for e in registry.registry() if e.description is None]  # c was short of memory once
    assert registry.registry().complete


def test_a_call_from_a_plugins_import_decides_nothing_for_later(entry_point):
    class Plugin:
        @gemmhub.hookimpl
        def gemmhub_backends(self):
            return [describe(Scripted("hostile"))]

    def load():
        assert np.array_equal(gemmhub.matmul(A, B), EXPECTED)
        half = gemmhub.matmul(A.astype(np.float16), B.astype(np.float16))
        assert np.array_equal(half, EXPECTED.astype(np.float16))
        return Plugin()

    entry_point(load)
    gemmhub.matmul(A, B)
    assert gemmhub.plan(A, B).decision.chosen == "hostile"


WRONG = {
    "None": lambda a, b, out: None,
    "list": lambda a, b, out: (a @ b).tolist(),
    "shape": lambda a, b, out: (a @ b)[:2],
    "dtype": lambda a, b, out: (a @ b).astype(np.float64),
    "another out": lambda a, b, out: a @ b,
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_direct_that_returns_no_product(fault):
    def run(a, b, out, *_):
        np.matmul(a, b, out=out)

    kernel = Kernel(run, "", direct=WRONG[fault])
    add(Scripted("wrong", prepare=lambda *_: kernel))
    out = np.empty_like(EXPECTED)
    plan = gemmhub.plan(A, B)
    calls = [lambda: gemmhub.matmul(A, B, out=out), lambda: plan(A, B, out)]
    if fault != "another out":
        calls += [lambda: gemmhub.matmul(A, B), lambda: plan(A, B)]
    for call in calls * 3:
        with pytest.raises(gemmhub.KernelError, match="'wrong': its direct returned"):
            call()


def test_the_log_names_a_plugin_before_its_code_runs(entry_point, caplog):
    seen = []

    def load():
        seen.append(caplog.records[-1].getMessage())
        raise ImportError

    entry_point(load)
    add(Scripted("other", probe=lambda: seen.append(caplog.records[-1].getMessage())))
    with caplog.at_level(logging.DEBUG, "gemmhub"):
        gemmhub.matmul(A, B)
    assert seen == ["plugin hostile: importing the plugin", "plugin other: probing for the backend 'other'"]


def test_words_of_an_ordinary_exception():
    assert guard.words(ValueError("seven")) == "ValueError: seven"
    assert guard.words(KeyError()) == "KeyError: no message"
    assert "Traceback" in guard.guarded(lambda: 1 / 0, "dividing", "do not").traceback
    assert not traceback.format_exc().startswith("Traceback")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 5 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError("not enough memory: you tried"),
    ],
    ids=str,
)  # fmt: skip
def test_array_libraries_without_memory(error):
    @guard.array_memory_errors
    def operation():
        raise error

    with pytest.raises(gemmhub.AllocationError, match="memory ran out: ") as caught:
        operation()
    assert caught.value.__cause__ is error


def test_other_errors_of_array_libraries_stay():
    @guard.array_memory_errors
    def operation():
        raise RuntimeError("another one")

    with pytest.raises(RuntimeError, match="another one"):
        operation()
