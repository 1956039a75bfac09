"""Finds the user's MUTLASS, a library of headers: a checkout, or the prefix that it was installed to."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gemmhub_musa.sdk import NotConfigured

from gemmhub.capability import Absent

VARIABLE = "MUTLASS_HOME"
_HEADER = Path("include", "mutlass", "mutlass.h")
_MACROS = ("MUTLASS_MAJOR", "MUTLASS_MINOR", "MUTLASS_PATCH")
_REMEDY = f"clone MUTLASS and set {VARIABLE} to the checkout (the folder whose include/mutlass has mutlass.h)"


@dataclass(frozen=True)
class Mutlass:
    """A MUTLASS whose headers are in ``include`` of ``home``."""

    home: Path

    @property
    def include(self) -> Path:
        return self.home / "include"

    @cached_property
    def version(self) -> tuple[int, ...] | None:
        """The version; None where neither version.h nor the title of README.md states one.

        The newer of both, as version.h of MUTLASS 0.3.0 states 0.2.0.
        """
        header, readme = (_text(self.home / file) for file in ("include/mutlass/version.h", "README.md"))
        macros = [re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", header, re.MULTILINE) for name in _MACROS]
        title = re.search(r"^#\s*MUTLASS\s+(\d+)\.(\d+)\.(\d+)", readme, re.MULTILINE)
        stated = [tuple(int(each[1]) if each else 0 for each in macros)] if all(macros[:2]) else []
        return max(stated + ([tuple(map(int, title.groups()))] if title else []), default=None)

    @property
    def name(self) -> str:
        """The name with the version, such as "MUTLASS 0.1.1"."""
        return "MUTLASS " + (".".join(map(str, self.version)) if self.version else "of unknown version")

    def headers(self) -> tuple[Path, ...]:
        """Return every file that a kernel may be compiled from."""
        # Each folder by itself: it may be a link, and those below are not followed.
        found = [path for top in self.include.iterdir() for path in (top, *top.rglob("*"))]
        return tuple(sorted(path for path in found if path.is_file()))


def _text(file: Path) -> str:
    """Return the text of a file; empty where there is none."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def find() -> Mutlass | Absent:
    """Return the MUTLASS that MUTLASS_HOME names."""
    given = os.environ.get(VARIABLE)
    if not given:
        return NotConfigured(f"{VARIABLE} is not set: there is no MUTLASS to compile kernels from", _REMEDY)
    home = Path(given).absolute()
    if not (home / _HEADER).is_file():
        what = f"has no {_HEADER}" if home.is_dir() else "is no folder"
        return Absent(f"{VARIABLE} is {given!r}, which {what}", _REMEDY)
    return Mutlass(home)
