"""Run a suite of tests: ``python tests/run_suite.py NAME COMMAND ...``.

The output goes to ``build/tests/NAME.log``. The terminal gets a line when the suite starts, one a minute with its
progress, and pytest's last line with the duration; where the suite fails, its output too. Suites may run side by side.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "build" / "tests"
MINUTE = 60.0


def read(path: Path) -> str:
    """The output so far."""
    return path.read_text(encoding="utf-8", errors="replace")


def progress(text: str) -> str:
    """The last percentage that pytest printed; empty before the first."""
    printed = re.findall(r"\[ *(\d+%)\]", text)
    return printed[-1] if printed else ""


def closing(text: str) -> str:
    """The last line of the output."""
    lines = text.rstrip().splitlines()
    return lines[-1].strip() if lines else "no output"


def say(line: str) -> None:
    """Print a line in one piece: other suites print too."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the command of the command line; return its exit code."""
    name, command = sys.argv[1], sys.argv[2:]
    FOLDER.mkdir(parents=True, exist_ok=True)
    path, start = FOLDER / f"{name}.log", time.monotonic()
    say(f"{name}: started")
    with path.open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while True:
                try:
                    code = process.wait(MINUTE)
                    break
                except subprocess.TimeoutExpired:
                    minutes = (time.monotonic() - start) / MINUTE
                    say(f"{name}: {progress(read(path))} after {minutes:.0f} min")
        finally:
            process.kill()
    text = read(path)
    if code:
        say(text)
    say(f"{name}: {'failed' if code else 'passed'} after {time.monotonic() - start:.0f} s (build/tests/{path.name})")
    say(closing(text))
    return code


if __name__ == "__main__":
    sys.exit(main())
