"""Tiers of tests by their requirements: markers for ``pytest -m``, and one message where g++ is missing.

``make test-fast`` leaves out what compiles, what runs on an emulator, and the documentation; ``make test`` runs all
that a machine without a GPU can; ``make test-all`` tries more of it. A test file states its tier by ``pytestmark``, and
a conftest.py that of all files of its folder; what runs on the emulator compiles, too.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

for _name, _examples in (("fast", 10), ("gemmhub", 25), ("thorough", 1500)):
    # pytest --hypothesis-profile=NAME
    hypothesis.settings.register_profile(_name, deadline=None, print_blob=True, max_examples=_examples)

T = TypeVar("T")

_WITHOUT_COMPILER = "g++ was not found: it compiles kernels for the emulator, simulated SDKs and small libraries"


def half(cases: Sequence[T], files: Mapping[str, str]) -> Sequence[T]:
    """Half of the cases, drawn anew whenever ``files`` change; all with TEST_VARIANTS (``make test-all``)."""
    if os.environ.get("TEST_VARIANTS"):
        return cases
    return random.Random(repr(sorted(files.items()))).sample(cases, (len(cases) + 1) // 2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folders = {
        Path(module.__file__).parent: module.pytestmark
        for module in config.pluginmanager.get_plugins()
        if getattr(module, "__name__", "").endswith("conftest") and hasattr(module, "pytestmark")
    }
    missing = shutil.which("g++") is None
    for item in items:
        markers = [pytest.mark.docs] if item.path.suffix == ".md" else []
        if item.get_closest_marker("device") is None:  # what needs a GPU is no tier of the others
            markers += [marker for folder, marker in folders.items() if item.path.is_relative_to(folder)]
        for marker in markers:
            item.add_marker(marker)
        if item.get_closest_marker("emulator"):
            item.add_marker(pytest.mark.compiler)
        if missing and item.get_closest_marker("compiler"):
            item.add_marker(pytest.mark.skip(reason=_WITHOUT_COMPILER))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if shutil.which("g++") is None:
        terminalreporter.write_line(f"{_WITHOUT_COMPILER}. Install it to run these tests.", yellow=True)
