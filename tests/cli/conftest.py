"""Commands run in an empty directory; the isolation from this machine's settings is that of tests/conftest.py."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import sys
import types

import numpy as np
import pytest
from click.testing import CliRunner

from gemmhub import Backend, Candidate, Kernel, Offer, Ready, Refusal
from gemmhub._base import processors
from gemmhub.backend import BASIC
from gemmhub.capability import CPU
from gemmhub.cli import build, doctor_advice, doctor_report
from gemmhub.cli.main import main
from plugins import add

SEPARATE = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
"""Before click 8.2 stderr has to be asked for."""


class Run:
    """``run("matmul", "a.npy", ...)``; ``code`` is the exit code that is expected."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *arguments, code=0):
        result = CliRunner(**SEPARATE).invoke(main, [str(x) for x in arguments], prog_name="gemmhub")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert result.exit_code == code, (arguments, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        assert all(line == line.rstrip() for line in result.stdout.splitlines())
        return result

    def json(self, *arguments, code=0):
        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self(*arguments, code=code).stdout, parse_constant=refuse)

    def error(self, *arguments, code=2):
        """The one message of a command that must fail, by default for want of usable input, with nothing on stdout."""
        result = self(*arguments, code=code)
        assert result.stdout == ""
        return result.stderr

    def save(self, name, array):
        np.save(self.folder / name, array)
        return name


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "COLUMNS", *processors.VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)  # nothing to warn of
    monkeypatch.setattr(processors, "quota_here", lambda: sys.maxsize)
    return Run(tmp_path)


@pytest.fixture
def pair(run, rng):
    """a.npy (23, 31) and b.npy (31, 17), float32."""
    a, b = rng.standard_normal((23, 31), np.float32), rng.standard_normal((31, 17), np.float32)
    run.save("a.npy", a)
    run.save("b.npy", b)
    return a, b


class Scripted(Backend):
    """It claims the least estimate; its products are off by ``error`` in one element, or it refuses."""

    layout_sensitive = False
    takes = BASIC

    def __init__(self, name, error=0.0, refusal=None):
        self.name, self.error, self.refusal = name, error, refusal
        self.runs = 0

    def probe(self):
        return Ready((CPU,), {"scripted": "1"})

    def offer(self, problem):
        return self.refusal or Offer((Candidate(seconds=1e-9),))

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            self.runs += 1
            wide = a.astype(np.float64) @ b.astype(np.float64)
            wide[..., -1, 0] += self.error
            out[...] = wide.astype(out.dtype)

        return Kernel(run, "scripted")


@pytest.fixture
def wrong():
    """A backend whose every product has one wrong element."""
    add(Scripted("wrong", error=1e3))


@pytest.fixture
def reference():
    """A backend that is right."""
    made = Scripted("reference")
    add(made)
    return made


@pytest.fixture
def choosy():
    """A backend that refuses everything."""
    add(Scripted("choosy", refusal=Refusal("it is Monday", "wait a day")))


@pytest.fixture
def entry_points(monkeypatch):
    """``entry_points(group, name, module, attribute=function)`` adds a fake module and its entry point.

    Installed plugins have none in the groups of ``gemmhub build`` and ``gemmhub doctor``.
    """
    real, added = importlib.metadata.entry_points, []

    def fake(**wanted):
        if wanted.get("group") not in (build.GROUP, doctor_advice.GROUP, doctor_report.GROUP):
            return real(**wanted)
        return [point for point in added if wanted == {"group": point.group}]

    def add(group, name, module, **attributes):
        made = types.ModuleType(module)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, module, made)
        (attribute,) = attributes
        added.append(importlib.metadata.EntryPoint(name, f"{module}:{attribute}", group))

    monkeypatch.setattr(importlib.metadata, "entry_points", fake)
    return add
