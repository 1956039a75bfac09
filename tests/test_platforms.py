"""The core on systems without fcntl, fork, /proc and what else only Linux has: as on macOS and Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HIDDEN = """
import builtins, os, pathlib, sys
import numpy, platformdirs, subprocess  # they look at sys.platform
for name in ("fcntl", "resource", "grp", "pwd", "termios"):
    sys.modules[name] = None
for name in (
    "sched_getaffinity", "sched_setaffinity", "fork", "register_at_fork", "getloadavg", "killpg", "geteuid", "getuid",
    "sysconf", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "fchmod", "uname",
):
    if hasattr(os, name):
        delattr(os, name)
opened = builtins.open
def without_proc(path, *arguments, **options):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(path)
    return opened(path, *arguments, **options)
builtins.open = without_proc
pathlib.Path.open = lambda self, *arguments, **options: without_proc(self, *arguments, **options)
def read_text(self, *arguments, **options):
    with without_proc(self, "r", -1, *arguments, **options) as stream:
        return stream.read()
pathlib.Path.read_text = read_text
"""
PROGRAM = """
import io, contextlib
import numpy as np, gemmhub
from gemmhub.cli.main import main
records = sys.argv[1]
a, b = np.ones((24, 24), np.float16), np.ones((24, 24), np.float16)
result = gemmhub.matmul(a, b, bias=np.ones(24, np.float16), activation="relu")
assert (result == 25).all()
assert gemmhub.explain(a, b).chosen == "numpy"
os.environ["GEMMHUB_RECORDS"] = records
gemmhub.reload()
gemmhub.tune(a, b)
assert "measured" in str(gemmhub.explain(a, b))
assert "float16" in open(records).read()
assert gemmhub.backends()["numpy"].state == "ready"
assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b))
for word in ("backends", "doctor"):
    text = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(text):
        try:
            code = main([word]) or 0
        except SystemExit as end:
            code = end.code or 0
    assert code == 0 and "numpy" in text.getvalue(), (word, code, text.getvalue())
print("all of it")
"""


def test_the_core_works_without_what_only_linux_has(tmp_path: Path) -> None:
    records = tmp_path / "tuning.jsonl"
    command = [sys.executable, "-W", "error", "-W", "ignore:only soft file lock", "-c", HIDDEN + PROGRAM, str(records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("all of it\n")
