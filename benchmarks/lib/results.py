"""Result files: the command, the card and the versions, then the measurements."""

from __future__ import annotations

import json
import lzma
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import gemmhub
from gemmhub.numpy_backend.probe import numpy_versions

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "results"
_DIGITS = 5
"""Significant digits of written numbers: timings repeat to fewer."""


def command() -> str:
    """Return the command line of this process as a reader types it, without its result file."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    words, rest = (["-m", spec.name.removesuffix(".__main__")] if spec is not None else sys.argv[:1]), sys.argv[1:]
    if "--json" in rest:
        at = rest.index("--json")
        del rest[at : at + 2]
    return shlex.join(["python", *words, *rest])


def header() -> dict[str, Any]:
    """Return the command, the versions, and the card where torch is in use and finds one."""
    facts: dict[str, Any] = {
        "command": command(), "python": platform.python_version(), "gemmhub": gemmhub.__version__,
        "host": numpy_versions(),
    }  # fmt: skip
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    return facts


def save(path: Path, **facts: Any) -> None:
    """Write a result file: the header, then ``facts``; compressed where the name ends in ".xz"."""
    text = json.dumps({**header(), **_rounded(facts)}, indent=None if path.suffix == ".xz" else 1) + "\n"
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())


def load(path: Path) -> Any:
    """Read a result file, compressed or not."""
    data = path.read_bytes()
    return json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(x) for key, x in value.items()}
    return [_rounded(x) for x in value] if isinstance(value, (list, tuple)) else value
