"""For all tests of the repository: the documentation is run, and each test has the markers of its tier."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))
from documentation import pytest_collect_file as pytest_collect_file
from tiers import pytest_collection_modifyitems as pytest_collection_modifyitems
from tiers import pytest_terminal_summary as pytest_terminal_summary
