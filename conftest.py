"""For all tests of the repository: the documentation is run, each test has the markers of its tier, and none writes
tuning records to a file of the user's, whatever its own fixtures do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent / "tests"))
from documentation import pytest_collect_file as pytest_collect_file
from tiers import pytest_collection_modifyitems as pytest_collection_modifyitems
from tiers import pytest_terminal_summary as pytest_terminal_summary


def pytest_configure(config):
    folder = TemporaryDirectory(ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["GEMMHUB_RECORDS"] = str(Path(folder.name) / "tuning.jsonl")
