"""The pool of the kernels: what several callers at once get of its threads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from gemmhub_cpu import sources

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]
PROGRAM = Path(__file__).parent / "pool_callers.cpp"


@pytest.fixture(scope="module", params=["", "thread"], ids=["plain", "thread sanitizer"])
def program(request, tmp_path_factory):
    """The command line that runs the program."""
    path = tmp_path_factory.mktemp("pool") / "callers"
    options = [f"-fsanitize={request.param}"] if request.param else []
    command = ["g++", "-O1", "-g", "-std=c++17", "-pthread", *options, str(PROGRAM), str(sources.FOLDER / "pool.cpp")]
    done = subprocess.run([*command, "-o", str(path)], capture_output=True, text=True)
    if options and done.returncode and "cannot find" in done.stderr:
        pytest.skip("the compiler has no library for -fsanitize=thread")
    assert done.returncode == 0, done.stderr
    # Without randomised addresses, which the thread sanitizer of older compilers cannot place its shadow beside.
    return [*(["setarch", "-R"] if options and shutil.which("setarch") else []), str(path)]


@pytest.mark.parametrize("case", ["second caller", "late helper", "many callers"])
def test_no_caller_waits_for_the_tasks_of_another(case, program) -> None:
    """A task of one caller ends after those of another: a queue of callers would never end."""
    for _ in range(5):
        done = subprocess.run([*program, case], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (case, done.stdout, done.stderr[-2000:])
