"""The structure that keeps calls cheap: the work that a warm call omits, and the modules that an import omits."""

from __future__ import annotations

import builtins
import dataclasses
import importlib.metadata
import os
import subprocess
import sys

import numpy as np
import pytest
from products import F16, F32, F64, I8, I64, draw

import gemmhub
from gemmhub import Backend, BackendDescription, Device, Kernel, Ready
from gemmhub._choice import answers, decide, pins, registry

THIS = __name__


def python_calls(function, *arguments, **options):
    """(module, name) of every Python function that a call enters."""
    entered = []

    def watch(frame, event, _):
        if event == "call":
            entered.append((frame.f_globals.get("__name__", "?"), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        function(*arguments, **options)
    finally:
        sys.setprofile(before)
    return entered


def warmed(function, *arguments, **options):
    for _ in range(3):
        function(*arguments, **options)
    return python_calls(function, *arguments, **options)


# Warm calls


@pytest.mark.parametrize("dtype", [F32, F64, np.dtype(np.complex64), np.dtype(np.complex128)], ids=str)
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5))], ids=str)
def test_a_warm_matmul_enters_one_python_function(dtype, shapes, rng):
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    assert warmed(gemmhub.matmul, a, b) == [("gemmhub.api", "matmul")]
    if shapes[0] == (3, 4):
        out = np.empty((3, 5), dtype)
        assert warmed(gemmhub.matmul, a, b, out=out) == [("gemmhub.api", "matmul")]
        # other layouts are no other calls
        assert python_calls(gemmhub.matmul, a[::-1], b[:, ::-1]) == [("gemmhub.api", "matmul")]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5))], ids=str)
def test_a_planned_call_enters_one_python_function(dtype, shapes, rng):
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    planned = gemmhub.plan(a, b)
    out = np.empty(planned(a, b).shape, dtype)  # the first product of a plan is checked
    assert len(python_calls(planned, a, b)) == 1
    if out.shape:
        (entered,) = python_calls(planned, a, b, out)
        assert entered[0] == "gemmhub._call.plan"


OF_OPTIONS = [("gemmhub.api", "matmul"), ("gemmhub._call.keys", "call_key"), ("gemmhub.numpy_backend.small", "run")]


@pytest.mark.parametrize("names", ["bias", "alpha c beta", "scale_a scale_b", "bias activation"])
def test_a_warm_matmul_with_options_enters_its_key_and_the_kernel_only(names, rng):
    options = {
        "bias": draw(rng, (5,), F32), "alpha": 2.5, "c": draw(rng, (3, 5), F32), "beta": 0.5,
        "scale_a": np.ones(3, F32), "scale_b": np.ones(5, F32), "activation": "relu",
    }  # fmt: skip
    options = {name: options[name] for name in names.split()}
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    entered = warmed(gemmhub.matmul, a, b, **options, backend="numpy")
    assert entered[:3] == OF_OPTIONS
    assert entered[3:] == [("gemmhub.numpy_backend.activations", "apply")] * ("activation" in options)


def test_the_size_of_a_product_chooses_the_kernel_of_its_epilogue(rng):
    bias = draw(rng, (300,), F32)
    modules = []
    for n in (5, 300, 6):  # the family is met at the first
        a, b = draw(rng, (300, 4), F32), draw(rng, (4, n), F32)
        modules.append({module for module, _ in warmed(gemmhub.matmul, a, b, bias=bias[:n], backend="numpy")})
    assert ["gemmhub.numpy_backend.small" in x for x in modules] == [True, False, True]
    assert ["gemmhub.numpy_backend.blocked" in x for x in modules] == [False, True, False]


def test_a_warm_matmul_in_a_context_enters_one_python_function(rng):
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    with gemmhub.use(backend="numpy"):
        assert warmed(gemmhub.matmul, a, b) == [("gemmhub.api", "matmul")]
    with gemmhub.use(backend="numpy"):  # equal settings are the same settings
        assert python_calls(gemmhub.matmul, a, b) == [("gemmhub.api", "matmul")]


@pytest.mark.parametrize("dtype", [F16, I8, I64], ids=str)
def test_a_warm_call_through_a_kernel_enters_planning_and_the_kernel_only(dtype, rng):
    a, b = draw(rng, (3, 4), dtype), draw(rng, (4, 5), dtype)
    entered = {module for module, _ in warmed(gemmhub.matmul, a, b)}
    entered |= {module for module, _ in python_calls(gemmhub.plan(a, b), a, b)}
    own = {module for module in entered if module.startswith("gemmhub")}
    assert own <= {
        "gemmhub.api", "gemmhub._call.bind", "gemmhub._call.plan", "gemmhub._call.describe", "gemmhub._base.evicting",
        "gemmhub._call.cache", "gemmhub._call.keys", "gemmhub._base.geometry", "gemmhub._arrays.host.operands",
        "gemmhub.array_library", "gemmhub.dtypes",
        "gemmhub.problem",
        "gemmhub.numpy_backend.backend",
        "gemmhub.numpy_backend.blocked", "gemmhub.numpy_backend.ending",
        "gemmhub.numpy_backend.scratch", "gemmhub.kit.floats",
    }  # fmt: skip
    assert {module.partition(".")[0] for module in entered} <= {"gemmhub", "numpy", "contextlib", THIS}


class Counting(Backend):
    """A backend that counts every call of its methods."""

    name = "counting"
    layout_sensitive = True

    def __init__(self):
        self.questions = 0

    def probe(self):
        self.questions += 1
        return Ready((Device(),))

    def offer(self, problem):
        self.questions += 1
        return gemmhub.Offer((gemmhub.Candidate(seconds=1e-9),))

    def prepare(self, problem, candidate, workspace_limit):
        self.questions += 1
        return Kernel(lambda a, b, out, *_: np.matmul(a, b, out=out), "counting")


CALLS = {
    "matmul": lambda a, b, out: gemmhub.matmul(a, b),
    "matmul out=": lambda a, b, out: gemmhub.matmul(a, b, out=out),
    "matmul backend=": lambda a, b, out: gemmhub.matmul(a, b, backend="numpy"),
    "matmul bias=": lambda a, b, out: gemmhub.matmul(a, b, out=out, bias=out[0], activation="relu", backend="numpy"),
    "matmul c=": lambda a, b, out: gemmhub.matmul(a, b, c=out, beta=2, alpha=3, backend="numpy"),
}


@pytest.mark.parametrize("dtype", [F32, F16, I8], ids=str)
@pytest.mark.parametrize("name", [*CALLS, "plan", "plan bias="])
@pytest.mark.parametrize("with_plugin", [False, True])
def test_nothing_happens_twice(name, dtype, with_plugin, monkeypatch, rng):
    """No discovery, no hook, no call of a backend, no decision and no reading of the environment."""
    counting = Counting()
    if with_plugin:
        description = BackendDescription("counting", lambda: counting, "for tests", contract=2)
        registry.registry().add(description, "counting", "gemmhub-counting")
    a, b = draw(rng, (3, 4), dtype), draw(rng, (4, 5), dtype)
    out = np.zeros((3, 5), np.int32 if dtype == I8 else dtype)
    if name == "plan":
        planned = gemmhub.plan(a, b)
        call = lambda a, b, out: planned(a, b, out)  # noqa: E731
    elif name == "plan bias=":
        biased = gemmhub.plan(a, b, bias=out[0], backend="numpy")
        call = lambda a, b, out: biased(a, b, out, bias=out[0].copy())  # noqa: E731
    else:
        call = CALLS[name]
    for _ in range(2):
        call(a, b, out)
    questions = counting.questions
    named = name not in ("matmul", "matmul out=", "plan")  # numpy: then nobody else is asked
    assert bool(questions) == (with_plugin and not named)
    looked = []

    def forbid(owner, attribute):
        original = getattr(owner, attribute)

        def watched(*arguments, **options):
            looked.append(f"{getattr(owner, '__name__', owner)}.{attribute}")
            return original(*arguments, **options)

        monkeypatch.setattr(owner, attribute, watched)

    forbid(type(os.environ), "__getitem__")
    forbid(type(os.environ), "get")
    forbid(os, "getenv")
    forbid(importlib.metadata, "entry_points")
    forbid(registry, "registry")
    forbid(registry, "guarded")
    forbid(decide, "resolve")
    forbid(decide, "decide")
    forbid(answers, "answer")
    forbid(builtins, "open")
    import pluggy

    forbid(pluggy.HookCaller, "__call__")
    entered = python_calls(call, a, b, out)
    monkeypatch.undo()
    assert looked == []
    assert counting.questions == questions
    if name in ("matmul", "matmul out=", "plan"):
        made = {module for module, function in entered if function == "__init__" and module.startswith("gemmhub")}
        assert made <= {"gemmhub.numpy_backend.scratch"}  # the lease of scratch memory


@pytest.mark.parametrize("dtype", [F32, F16, I8], ids=str)
def test_a_warm_call_builds_no_dataclass(dtype, monkeypatch, rng):
    from gemmhub import backend, capability, config, layout, problem
    from gemmhub._call import describe, options

    a, b = draw(rng, (3, 4), dtype), draw(rng, (4, 5), dtype)
    out = np.empty((3, 5), np.int32 if dtype == I8 else dtype)
    planned = gemmhub.plan(a, b)
    for _ in range(2):
        gemmhub.matmul(a, b)
        gemmhub.matmul(a, b, out=out)
    built = []
    for module in (answers, describe, backend, capability, config, decide, layout, options, pins, problem):
        for kind in vars(module).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                original = kind.__init__

                def counted(self, *arguments, original=original, **named):
                    built.append(type(self).__name__)
                    original(self, *arguments, **named)

                monkeypatch.setattr(kind, "__init__", counted)
    gemmhub.matmul(a, b)
    gemmhub.matmul(a, b, out=out)
    planned(a, b)
    planned(a, b, out)
    assert built == []
    gemmhub.matmul(a[:2], b)
    assert "GemmProblem" in built  # so the count would have told


def test_the_settings_are_looked_up_once_a_call(monkeypatch, rng):
    """A call's key holds the settings in force: a context changes it, the environment does not."""
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    gemmhub.matmul(a, b)
    monkeypatch.setenv("GEMMHUB_BACKEND", "nobody")
    assert python_calls(gemmhub.matmul, a, b) == [("gemmhub.api", "matmul")]


# Import

HEAVY = (
    "pluggy", "importlib.metadata", "importlib_metadata", "click", "rich", "hypothesis", "pytest", "ml_dtypes",
    "platformdirs", "filelock", "tomllib", "tomli", "matplotlib", "sqlite3", "asyncio", "multiprocessing",
    "concurrent.futures", "numpy.testing", "numpy.f2py",
)  # fmt: skip


def loaded_by(code):
    """Modules that a fresh interpreter has loaded after ``code``, beyond those of NumPy."""
    script = f"import sys, numpy; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_loads_nothing_heavy():
    loaded = loaded_by("import gemmhub")
    assert "gemmhub" in loaded
    assert not loaded & set(HEAVY)
    assert not {
        x
        for x in loaded
        if x.startswith(("gemmhub.numpy_backend", "gemmhub.testing", "gemmhub.cli", "gemmhub.kit.native"))
    }
    heavy = {
        "gemmhub._choice.registry",
        "gemmhub._choice.decide",
        "gemmhub._choice.records",
        "gemmhub._measure.tune",
        "gemmhub._check.spot_check",
        "gemmhub._call.family",
        "gemmhub.capability",
        "gemmhub.problem",
        "pathlib",
    }
    assert not loaded & heavy


def test_a_first_product_without_plugins_and_bfloat16_loads_what_it_needs():
    loaded = loaded_by(
        "import os, importlib.metadata\n"
        "importlib.metadata.entry_points = lambda **_: ()\n"
        "os.environ['GEMMHUB_CONFIG'] = os.devnull\n"
        "os.environ['GEMMHUB_RECORDS'] = 'off'\n"
        "import gemmhub\n"
        "gemmhub.matmul(numpy.ones((2, 2)), numpy.ones((2, 2)))"
    )
    assert "gemmhub.numpy_backend.backend" in loaded
    assert not loaded & {"pluggy", "click", "rich", "hypothesis", "pytest", "matplotlib", "ml_dtypes", "filelock"}


def test_importing_changes_nothing_of_the_process():
    script = (
        "import os, sys, warnings, logging, numpy\n"
        "state = lambda: (dict(os.environ), list(sys.path), list(warnings.filters), numpy.geterr(),\n"
        "                 len(logging.root.handlers), sys.getprofile(), list(sys.meta_path))\n"
        "before = state()\n"
        "import gemmhub\n"
        "assert state() == before\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == run.stderr == ""
