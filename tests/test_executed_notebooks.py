"""The notebooks of docs/notebooks print what they show, and are listed."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.pages import notebooks

pytestmark = pytest.mark.docs
PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path):
    notebook = notebooks.read(path)
    source = "".join(line for cell in notebook["cells"] for line in cell["source"])
    if "import torch\n" in source and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    assert notebooks.executed(notebook) == notebook


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_one_of_format_4(path):
    """With the fields that Jupyter requires, small, and numbered in order."""
    notebook = notebooks.read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert path.stat().st_size < 10_000


def test_the_index_lists_every_notebook():
    index = (notebooks.FOLDER / "index.md").read_text(encoding="utf-8")
    assert len(PATHS) == 5
    assert [path.name for path in PATHS if f"]({path.name})" not in index] == []
