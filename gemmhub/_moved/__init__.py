"""Old paths of modules that have moved: the package searches this folder after its own, until gemmhub 0.3.

Each file here is named as its module was, and does nothing but :func:`alias`.
"""

from __future__ import annotations

import importlib
import sys
import warnings


def alias(old: str, new: str) -> None:
    """Make the module ``new`` known as ``old``, too, with a DeprecationWarning to whoever imports it so."""
    warn(old, new, 4)
    sys.modules[old] = importlib.import_module(new)


def warn(old: str, new: str, level: int = 3) -> None:
    """A DeprecationWarning at the import that led here. (Frames of the import system do not count.)"""
    warnings.warn(f"{old} is now {new}; the old name will go in gemmhub 0.3", DeprecationWarning, stacklevel=level)
