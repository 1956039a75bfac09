"""Probing of plugins in a child process, so that one that hangs or ends the process does not stop the report.

The child probes every plugin in turn and writes, before each step, the name of the plugin whose code runs next. Where
it ends early, or writes nothing for too long, the plugin named last is the culprit; another child continues without it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from gemmhub.kit.native.process import signal_name

PATIENCE = 60.0
"""Seconds that one step of one plugin may take."""
_END = ""


@dataclass(frozen=True)
class Culprit:
    """A plugin whose code hung or ended the process."""

    plugin: str
    reason: str
    remedy: str
    """Instruction to keep gemmhub from loading it."""


def culprits(denied: tuple[str, ...]) -> list[Culprit]:
    """Import and probe every plugin but those ``denied`` in child processes; return those that must not be loaded."""
    named: list[Culprit] = []
    while True:
        off = (*denied, *(culprit.plugin for culprit in named))
        culprit = _culprit({**os.environ, "GEMMHUB_DISABLE": ",".join(off), "PYTHONPATH": os.pathsep.join(sys.path)})
        if culprit is None:
            return named
        named.append(culprit)
        if not culprit.plugin or culprit.plugin in off:  # no switch helps
            return named


def _culprit(environment: Mapping[str, str]) -> Culprit | None:
    command = [sys.executable, "-c", "from gemmhub.cli.doctor_probe import report; report()"]
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
    plugin, step, hung, code = "", "", False, 0
    try:
        while True:
            line = lines.get(timeout=PATIENCE)
            if line == _END:
                break
            plugin, step = json.loads(line)
            if not plugin:
                return None
        code = child.wait(PATIENCE)
    except (queue.Empty, subprocess.TimeoutExpired):
        hung = True
    finally:
        _kill(child)
    if hung:
        end = f"did not end within {PATIENCE:g} s"
    elif code < 0:
        end = f"ended the process by {signal_name(-code)}"
    else:
        end = f"ended the process with exit code {code}"
    if not plugin:
        return Culprit("", f"starting a child process {end}", "check that `python -c 'import gemmhub'` works")
    return Culprit(plugin, f"{step} {end}", f"upgrade or uninstall it, or switch it off: GEMMHUB_DISABLE={plugin}")


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(_END)


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill the child and its child processes."""
    if hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


class _Steps(logging.Handler):
    """A handler that writes each step; plugins' own messages go elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        from gemmhub._choice import registry

        if record.msg == registry.ASKING and isinstance(record.args, tuple):
            self.write(*map(str, record.args))

    def write(self, plugin: str, step: str) -> None:
        self._stream.write(json.dumps([plugin, step]) + "\n")
        self._stream.flush()


def report() -> None:
    """The child's main function: write the plugin of each step to standard output, and an empty name at the end."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of plugins must not mix with the steps
    steps = _Steps(stream)
    log = logging.getLogger("gemmhub")
    log.setLevel(logging.DEBUG)
    log.addHandler(steps)
    import gemmhub

    gemmhub.backends()
    steps.write("", "")
    os._exit(0)  # failures at exit do not concern the probe
