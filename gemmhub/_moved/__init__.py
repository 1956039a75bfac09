"""Old paths of modules that have moved: the package searches this folder after its own, until gemmhub 0.3.

Each file here has the old name of its module and only calls :func:`alias`.
"""

from __future__ import annotations

import importlib
import sys
import warnings


def alias(old: str, new: str) -> None:
    """Make the module ``new`` importable as ``old``, with a DeprecationWarning at the import."""
    warn(old, new, 4)
    sys.modules[old] = importlib.import_module(new)


def warn(old: str, new: str, level: int = 3) -> None:
    """Issue a DeprecationWarning at the import that led here, not counting frames of the import system."""
    warnings.warn(f"{old} is now {new}; the old name is removed in gemmhub 0.3", DeprecationWarning, stacklevel=level)
