"""benchmarks/results and the repository stay small, and every result file is used and says how it was made."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FILES = sorted(path for path in RESULTS.rglob("*") if path.is_file())
LARGEST_FILE, ALL_RESULTS, DATA_OF_A_CARD = 200_000, 1_000_000, 350_000
"""Bytes: of a tracked file, of benchmarks/results, and of all plugins' data for one card."""
OLD_COMMANDS = {"hopper_read.json.xz", "hopper_widths.txt", "new_products.txt", "map.json.xz"}
"""Files whose command names a script that was since removed or moved; a new run replaces it."""


@pytest.fixture(scope="module")
def tracked() -> dict[str, int]:
    """Bytes of each file that git tracks."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("not in a clone of gemmhub")
    paths = [path for path in found.stdout.split("\0") if (ROOT / path).is_file()]
    return {path: (ROOT / path).stat().st_size for path in paths}


def test_no_file_is_large(tracked):
    assert {path: size for path, size in tracked.items() if size > LARGEST_FILE} == {}


def test_results_are_few(tracked):
    assert 0 < sum(size for path, size in tracked.items() if path.startswith("benchmarks/results/")) <= ALL_RESULTS


def test_data_of_a_card_are_few(tracked):
    cards: Counter[str] = Counter()
    for path, size in tracked.items():
        found = re.fullmatch(r"plugins/[^/]+/[^/]+/data/([^/]+)/.+", path)
        if found:
            cards[found[1]] += size
    assert len(cards) >= 2
    assert {card: size for card, size in cards.items() if size > DATA_OF_A_CARD} == {}


@pytest.fixture(scope="module")
def named() -> set[str]:
    """Names and patterns of files in the documentation, the sources and the other tests."""
    folders = [ROOT / "docs", ROOT / "plugins", ROOT / "tests", *(ROOT / "benchmarks" / x for x in ("pages", "run"))]
    paths = [ROOT / "README.md", *(path for x in folders for kind in ("*.md", "*.py") for path in x.rglob(kind))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths if path != Path(__file__))
    return set(re.findall(r"[\w-][\w*-]*\.(?:json|txt)(?:\.xz)?", text))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_result_is_used(path, named):
    """A page, a test or a fit names it."""
    assert any(fnmatch(path.name, name) for name in named)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_commands_can_be_run(path):
    """A command that a file names is one of this tree, and knows the options."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    assert path.name in OLD_COMMANDS or not re.search(r"python\s+benchmarks/", text)
    for module, rest in re.findall(r"python -m (benchmarks[\w.]+)([^\"`\n]*)", text):
        script = ROOT / f"{module.replace('.', '/')}.py"
        script = script if script.exists() else script.with_suffix("") / "__main__.py"
        source = script.read_text(encoding="utf-8")
        assert all(f'"{option}"' in source for option in re.findall(r"(?<!\S)--[\w-]+", rest))
