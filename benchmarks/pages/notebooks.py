"""The notebooks of docs/notebooks: runs their cells, and keeps what the cells print.

python -m benchmarks.pages.notebooks         # runs all of them, and writes their outputs
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
_RUN = """
import contextlib, io, json, sys
namespace, printed = {"__name__": "__main__"}, []
for source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, "<cell>", "exec"), namespace)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of a run in a new process: no settings, no tuning cache, no plugins."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEMMHUB_")}
    with TemporaryDirectory() as folder:
        (Path(folder) / "empty.toml").touch()
        environment |= {
            "GEMMHUB_CONFIG": f"{folder}/empty.toml", "GEMMHUB_RECORDS": f"{folder}/tuning.jsonl",
            "GEMMHUB_PLUGINS": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", _RUN], input=json.dumps(["".join(cell["source"]) for cell in code]),
            cwd=folder, env=environment, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    outputs = iter(json.loads(done.stdout))
    cells = [_with_output(cell, next(outputs)) if cell in code else cell for cell in notebook["cells"]]
    return {**notebook, "cells": cells}


def _with_output(cell: dict[str, Any], printed: str) -> dict[str, Any]:
    stream = {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}
    return {**cell, "outputs": [stream] if printed else []}


def read(path: Path) -> dict[str, Any]:
    """A notebook of format 4."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook as Jupyter does."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        write(path, executed(read(path)))
