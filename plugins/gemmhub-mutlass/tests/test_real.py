"""The real MUTLASS, where MUTLASS_HOME names a checkout of 0.1.1 or 0.3.0 before the tests begin.

On the simulated home it needs clang++, as mcc is a clang: g++ does not take its templates. Its matrix instructions are
put together by sdk_extras/sdk_extras.h. Nothing of MUTLASS is changed. Each kernel is compiled for about 15 seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gemmhub_mutlass.installation import Mutlass

HERE = Path(__file__).parent
REAL = os.environ.get("MUTLASS_HOME", "")
"""The user's MUTLASS_HOME: the other tests set the variable to a fake."""
_NAMES = "clang++", *(f"clang++-{number}" for number in range(22, 13, -1))
CLANG = next(filter(None, map(shutil.which, _NAMES)), "")

pytestmark = [
    pytest.mark.skipif(not REAL, reason="MUTLASS_HOME names no MUTLASS"),
    pytest.mark.skipif(
        bool(REAL) and Mutlass(Path(REAL)).version not in ((0, 1, 1), (0, 3, 0)),
        reason="MUTLASS_HOME names another version than 0.1.1 and 0.3.0",
    ),
]

RUN = """
import ast
import json
import sys
import numpy as np
from gemmhub_musa.testing import Operands, problem
from gemmhub_mutlass.backend import MutlassBackend
backend, asked = MutlassBackend(), problem(**ast.literal_eval(sys.argv[1]))
offer = backend.offer(asked)
kernel, operands = backend.prepare(asked, offer.first.name, offer.workspace), Operands(asked)
got = operands.run(kernel.run)
print(json.dumps([kernel.description, bool(np.array_equal(got.astype(operands.wide.dtype), operands.wide))]))
"""


@pytest.fixture
def environment(home, folder):
    """Run a process with the real MUTLASS, on the machine's own SDK or on the simulated home with clang."""
    if home is None:
        return {**os.environ, "MUTLASS_HOME": REAL}
    if not CLANG:
        pytest.skip("needs clang++")
    # The simulator's mcc calls g++ with an option that clang lacks.
    cxx, mcc = folder / "clang", folder / "mcc-with-extras"
    cxx.write_text(
        f'#!/bin/sh\nfor x do\n  shift\n  [ "$x" = -fno-gnu-unique ] || set -- "$@" "$x"\ndone\nexec {CLANG} "$@"\n'
    )
    extras = HERE / "sdk_extras"
    mcc.write_text(
        f"#!/bin/sh\nexport CXX={cxx}\n"
        f'[ "$1" = --version ] && exec {home}/bin/mcc --version\n'
        f'exec {home}/bin/mcc -I{extras} -include {extras}/sdk_extras.h "$@"\n'
    )
    for script in (cxx, mcc):
        script.chmod(0o755)
    # A file's time is part of what the cache goes by.
    newest = max(path.stat().st_mtime for path in extras.iterdir())
    os.utime(mcc, (newest, newest))
    return {**os.environ, "MUTLASS_HOME": REAL, "GEMMHUB_MCC": str(mcc)}


@pytest.mark.parametrize("asked", [
    {"m": 130, "n": 64, "k": 48},
    {"m": 264, "n": 136, "k": 40, "dtype": "float16", "out": "float32", "b": "col", "batch": (2,)},
    {"m": 37, "n": 19, "k": 11, "dtype": "bfloat16", "a": "col"},
    {"m": 64, "n": 32, "k": 48, "precision": "tf32", "d": "col"},
    {"m": 64, "n": 32, "k": 80, "dtype": "int8", "out": "int32", "b": "col"},
], ids=lambda asked: f"{asked.get('dtype', 'float32')}-{asked.get('precision', 'ieee')}")  # fmt: skip
def test_products(environment, asked):
    """Right after the kernel has proven itself: scalars, an addend, padding, a batch, partial tiles, alpha 0."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, repr(asked)], env=environment, cwd=HERE, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    description, right = json.loads(done.stdout)
    assert description.startswith(f"{Mutlass(Path(REAL)).name} ")
    assert right
