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


@pytest.mark.parametrize(("text", "version"), [
    ("#define MUTLASS_MAJOR 0\n#define MUTLASS_MINOR 3\n#define MUTLASS_PATCH 2\n", (0, 3, 2)),
    ("  #  define MUTLASS_MAJOR   1\n#define MUTLASS_MINOR 0", (1, 0, 0)),
    ("#define MUTLASS_MAJOR 0\n", None),
    ("// #define MUTLASS_MAJOR 0\n", None),
    ("", None),
    (None, None),
])  # fmt: skip
def test_versions(tmp_path, text, version):
    folder = tmp_path / "include" / "mutlass"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "version.h").write_text(text)
    found = Mutlass(tmp_path)
    assert found.version == version
    assert found.name == ("MUTLASS of unknown version" if version is None else f"MUTLASS {'.'.join(map(str, version))}")
