"""``gemmhub doctor musa --report`` on the simulated home, with this plugin's backends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path


def test_the_report(home, tmp_path):
    file = tmp_path / "report.json"
    environment = {**os.environ, "GEMMHUB_PLUGINS": "mublas", "MUSA_SIM_QUIET": "1"}
    command = [
        sys.executable,
        "-c",
        "from gemmhub.cli.main import main; main()",
        "doctor",
        "musa",
        "--report",
        str(file),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    text = file.read_text()
    report = json.loads(text)
    assert report["complete"]
    found = {(each["section"], each["item"]): each for each in report["findings"]}
    for name in ("mublas", "mublaslt"):
        assert found["conformance", name]["ok"]
        assert "TFLOPS" in found["speed", f"{name} float16 256x256x256"]["text"]
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert platform.node() not in text
