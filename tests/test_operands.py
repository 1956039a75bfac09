"""The table of operands: an operand that is added by one row reaches every part of the library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_adding import CHANGES, changed_package

from gemmhub.operands import Operands

PROGRAM = Path(__file__).with_name("added_operand.py")
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    environment = changed_package(folder, *CHANGES[0][:3])
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    place, outcomes = json.loads(done.stdout.splitlines()[-1])
    assert place.startswith(str(folder))
    return outcomes


@pytest.mark.parametrize("name", CHECKS)
def test_an_added_operand(outcomes, name):
    assert not outcomes[name], outcomes[name]


def test_what_the_table_does_not_name_is_no_operand():
    with pytest.raises(TypeError, match="no operands of a product: residual"):
        Operands({"residual": None})
