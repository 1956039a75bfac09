"""Finding MUTLASS and its version."""

from __future__ import annotations

import pytest
from gemmhub_musa.sdk import NotConfigured
from gemmhub_mutlass import installation
from gemmhub_mutlass.installation import Mutlass

from gemmhub.capability import Absent


def test_found(checkouts):
    found = installation.find()
    assert isinstance(found, Mutlass)
    assert found.version == (0, 1, 1)
    assert found.name == "MUTLASS 0.1.1"
    names = [path.name for path in found.headers()]
    assert "version.h" in names
    assert "collective_builder.hpp" in names


@pytest.mark.parametrize("given", [None, ""])
def test_not_named(monkeypatch, given):
    monkeypatch.delenv("MUTLASS_HOME")
    if given is not None:
        monkeypatch.setenv("MUTLASS_HOME", given)
    found = installation.find()
    assert isinstance(found, NotConfigured)
    assert "MUTLASS_HOME is not set" in found.reason
    assert "clone MUTLASS" in found.remedy


def test_named_wrongly(monkeypatch, tmp_path):
    monkeypatch.setenv("MUTLASS_HOME", str(tmp_path / "nowhere"))
    found = installation.find()
    assert isinstance(found, Absent)
    assert "which is no folder" in found.reason
    (tmp_path / "include").mkdir()
    monkeypatch.setenv("MUTLASS_HOME", str(tmp_path))
    found = installation.find()
    assert isinstance(found, Absent)
    assert "has no include/mutlass/mutlass.h" in found.reason
    # The headers' own folder is a likely mistake.
    monkeypatch.setenv("MUTLASS_HOME", str(tmp_path / "include"))
    assert isinstance(installation.find(), Absent)


TWO = "#define MUTLASS_MAJOR 0\n#define MUTLASS_MINOR 2\n#define MUTLASS_PATCH 0\n"


@pytest.mark.parametrize(("text", "readme", "version"), [
    ("#define MUTLASS_MAJOR 0\n#define MUTLASS_MINOR 3\n#define MUTLASS_PATCH 2\n", None, (0, 3, 2)),
    ("  #  define MUTLASS_MAJOR   1\n#define MUTLASS_MINOR 0", None, (1, 0, 0)),
    (TWO, None, (0, 2, 0)),
    (TWO, "[中文版](./README_CN.md)\n\n# MUTLASS 0.3.0\n\n## What is new in MUTLASS 9.9.9", (0, 3, 0)),
    (TWO, "# MUTLASS 0.1.1\n", (0, 2, 0)),
    (TWO, "# My fork of MUTLASS 0.3.0\n", (0, 2, 0)),
    (None, "# MUTLASS 0.3.0\n", (0, 3, 0)),
    ("#define MUTLASS_MAJOR 0\n", None, None),
    ("// #define MUTLASS_MAJOR 0\n", None, None),
    ("", "", None),
    (None, None, None),
])  # fmt: skip
def test_versions(tmp_path, text, readme, version):
    folder = tmp_path / "include" / "mutlass"
    folder.mkdir(parents=True)
    for path, content in ((folder / "version.h", text), (tmp_path / "README.md", readme)):
        if content is not None:
            path.write_text(content, encoding="utf-8")
    found = Mutlass(tmp_path)
    assert found.version == version
    assert found.name == ("MUTLASS of unknown version" if version is None else f"MUTLASS {'.'.join(map(str, version))}")
