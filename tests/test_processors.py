"""The processors and threads of a call: what tuning records name, and what the system allows."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gemmhub._base import processors

THREADS = "from gemmhub._base import processors as p; print(p.threads(), p.blas_threads())"
BOTH = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1", "BLIS_NUM_THREADS": "1"}


def child(code, **variables):
    """The output of a process with these environment variables and none else that limits threads."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(processors.cores() < 2, reason="there is one processor")
@pytest.mark.parametrize("variables", [BOTH, {"OMP_NUM_THREADS": "1"}, {}], ids=str)
def test_the_threads_of_the_blas_are_counted(variables):
    free = str(processors.cores() if processors.quota() > processors.cores() else processors.quota())
    assert child(THREADS, **variables)[0] == ("1" if variables else free)


@pytest.mark.skipif(processors.cores() < 2 or not hasattr(os, "sched_setaffinity"), reason="there is one processor")
def test_a_pinned_thread_has_the_processors_it_is_pinned_to():
    code = "import os, numpy; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); " + THREADS
    assert child(code)[0] == "1"


@pytest.mark.parametrize(
    ("value", "threads"),
    [("3", 3), (" 3,2", 3), ("", None), ("0", None), ("-1", None), ("²", None), ("many", None), ("9" * 5000, None)],
)
def test_variables_count_where_the_library_does_not(monkeypatch, value, threads):
    monkeypatch.setattr(processors, "_counter", lambda: None)
    for name in processors.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert processors.blas_threads() == (threads or processors.cores())
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")  # the stronger one
    assert processors.blas_threads() == 5


def test_a_blas_without_a_limit_uses_all_processors(monkeypatch):
    monkeypatch.setattr(processors, "_counter", lambda: lambda: -1)  # BLIS
    assert processors.blas_threads() == processors.cores()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries are found by a handle on Linux")
def test_the_library_of_numpy_is_asked():
    if "openblas" in np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]:
        assert processors._counter() is not None


def test_the_quota_of_a_container(tmp_path):
    assert processors.quota(tmp_path) == sys.maxsize
    (tmp_path / "cpu.max").write_text("150000 100000\n", encoding="ascii")
    assert processors.quota(tmp_path) == 2
    (tmp_path / "cpu.max").write_text("max 100000\n", encoding="ascii")
    assert processors.quota(tmp_path) == sys.maxsize


def test_what_disturbs_measurements(monkeypatch):
    for name in processors.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processors, "cores", lambda: 4)
    monkeypatch.setattr(processors, "quota_here", lambda: sys.maxsize)
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0, 0.0, 0.0))
    assert processors.disturbances() == []
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert processors.disturbances() == []
    monkeypatch.setattr(os, "getloadavg", lambda: (4.5, 0.0, 0.0))
    monkeypatch.setattr(processors, "quota_here", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    load, share, threads = processors.disturbances()
    assert load.startswith("the load average is 4.5 for the 4 processors")
    assert share == "the control group permits 3 of the 4 processors of this process"
    assert threads.startswith("OMP_NUM_THREADS=2 ")
    assert processors.disturbances("cuda") == [load]  # threads of the host do not multiply there
    monkeypatch.delattr(os, "getloadavg")
    assert processors.disturbances() == [share, threads]


def test_a_quota_limits_the_threads(monkeypatch):
    monkeypatch.setattr(processors, "quota_here", lambda: 1)
    assert processors.threads() == "1"
