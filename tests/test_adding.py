"""docs/adding-operands.md: its two changes are made in a copy of the package, and its examples run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gemmhub

PAGE = Path(__file__).parents[1] / "docs" / "adding-operands.md"
BLOCKS = dict(
    re.findall(
        r'```python title="([^"]+)"\n(.*?)```', PAGE.read_text(encoding="utf-8") if PAGE.exists() else "", re.DOTALL
    )
)
CHANGES = [
    ("operands.py", "a row of OPERANDS", '}  # fmt: skip\n"""The rows by name', "a product with a residual"),
    ("epilogues.py", "an object of EPILOGUES", ')  # fmt: skip\n"""Epilogues by the name', "a product with lecun_tanh"),
]


def changed_package(folder: Path, module: str, change: str, end: str) -> dict[str, str]:
    """Copy the package to ``folder``, make a change of the page there, and return the environment to run it in."""
    package = folder / "gemmhub"
    shutil.copytree(Path(gemmhub.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / module).read_text(encoding="utf-8")
    before, found, after = text.partition("\n    )\n" + end)
    assert found, f"{module} has no such table"
    added = textwrap.indent(BLOCKS[change].rstrip(), " " * 8)
    (package / module).write_text(f"{before}\n{added},{found}{after}", encoding="utf-8")
    (folder / "settings.toml").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEMMHUB_")}
    return environment | {
        "PYTHONPATH": str(folder), "GEMMHUB_CONFIG": str(folder / "settings.toml"),
        "GEMMHUB_RECORDS": str(folder / "tuning.jsonl"),
    }  # fmt: skip


@pytest.mark.parametrize(("module", "change", "end", "example"), CHANGES, ids=["operand", "epilogue"])
def test_one_place(tmp_path, module, change, end, example):
    environment = changed_package(tmp_path, module, change, end)
    checked = f"import gemmhub\nassert gemmhub.__file__.startswith({str(tmp_path)!r})\n{BLOCKS[example]}"
    done = subprocess.run(
        [sys.executable, "-c", checked], env=environment | {"GEMMHUB_BACKEND": "numpy"}, capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
