"""The files that ``gemmhub new-plugin`` writes, as :class:`string.Template` texts."""

from __future__ import annotations

FILES = {
    "pyproject.toml": '''\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$distribution"
version = "0.1.0"
description = "GEMM for gemmhub"  # one line: your hardware, your dtypes
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["gemmhub", "numpy"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points.gemmhub]
$name = "$package.plugin"

[tool.hatch.build.targets.wheel]
packages = ["$package"]
''',
    "README.md": '''\
# $distribution

A backend for gemmhub.

```console
$$ pip install -e ".[test]"
$$ python -m pytest -q tests
$$ gemmhub explain 512 512 512 --backend $name
```

Your kernel goes into `$package/backend.py`. This project has no license yet: add a file LICENSE, and name it in
pyproject.toml, before you publish it.
''',
    "$package/__init__.py": '''\
"""GEMM for gemmhub."""
''',
    "$package/plugin.py": '''\
"""The description of the backend, which the entry point in pyproject.toml names."""

from gemmhub import Backend, BackendDescription, hookimpl


def load() -> Backend:
    # gemmhub calls this function for the first problem on one of the device types below: import heavy modules here.
    from $package.backend import $class_name

    return $class_name()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    return [
        BackendDescription(
            name="$name",
            load=load,
            summary="one line for `gemmhub backends`",
            device_types=("cpu",),  # "cuda" or "musa" for a device: kernels then get addresses and a stream
            contract=$contract,
        )
    ]
''',
    "$package/probe.py": '''\
"""The look at the machine: can the backend run here?"""

import numpy as np

from gemmhub import Absent, Device, Ready


def probe() -> Ready | Absent:
    # Load your library here. Where it is missing:
    # return Absent("libmine.so was not found", "install it, or name its folder in LD_LIBRARY_PATH")
    # The versions are all that the speed of your kernel depends on: tuning records are kept for them.
    return Ready((Device("cpu"),), {"numpy": np.__version__})
''',
    "$package/backend.py": '''\
"""float32 GEMM on the CPU."""

from typing import Any

import numpy as np

from gemmhub import Absent, Backend, Candidate, GemmProblem, Kernel, Offer, Ready, Refusal
from $package.probe import probe


class $class_name(Backend):
    name = "$name"  # the name in plugin.py
    # What it computes beside a @ b (c, bias, scales, activations, precisions). gemmhub refuses the rest for it.
    takes = {}

    def probe(self) -> Ready | Absent:
        return probe()

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        # Accept what your kernel computes within the error bound. Refuse all else with a reason and a remedy.
        if {x.dtype.name for x in (problem.a, problem.b, problem.out)} != {"float32"}:
            return Refusal("it has float32 alone", "convert the operands")
        if not problem.plain:
            return Refusal("it has no alpha", "scale the product")
        if any(x.layout.order != "row" for x in (problem.a, problem.b, problem.out)):
            return Refusal("it has row-major operands alone", "pass copies by numpy.ascontiguousarray")
        # Expected seconds of a call: a fixed time and a rate. Measure yours by gemmhub.tune(a, b, backend="$name").
        seconds = 10e-6 + problem.flops / 1e9
        return Offer((Candidate(seconds=seconds),), lambda candidate: "row-major float32")

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        # Compile and choose here, not in run. Scratch memory of a call is at most workspace_limit bytes, and is
        # declared: Kernel(run, description, workspace_bytes).
        batch = problem.batch

        def run(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any) -> None:
            a = np.broadcast_to(a, batch + a.shape[-2:])
            b = np.broadcast_to(b, batch + b.shape[-2:])
            for index in np.ndindex(*batch):
                multiply(a[index], b[index], out[index])

        return Kernel(run, "numpy.matmul, one matrix at a time")


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Write ``a @ b`` into ``out``."""
    # Put your kernel here. For a C library: function(a.ctypes.data, b.ctypes.data, out.ctypes.data, m, n, k, lda, ldb,
    # ldc) by ctypes, where lda is a.strides[0] // a.itemsize, the leading dimension.
    np.matmul(a, b, out=out)
''',
    "tests/test_conformance.py": '''\
"""The backend against gemmhub's contract."""

from $package.backend import $class_name

from gemmhub.testing import ConformanceSuite


class Test$class_name(ConformanceSuite):
    backend = $class_name
''',
    "tests/test_product.py": '''\
"""The backend as gemmhub finds and calls it."""

import gemmhub
import numpy as np


def test_gemmhub_lists_it():
    status = gemmhub.backends()["$name"]
    assert status.state == "ready", status.reason


def test_a_product_runs_on_it():
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64), np.float32)
    c = gemmhub.matmul(a, b, backend="$name")
    assert gemmhub.spot_check(a, b, c)
''',
}  # fmt: skip
"""Path in the distribution: text. Both have the fields ``name``, ``distribution``, ``package``, ``class_name`` and
``contract``."""
